"""Which partition records and tables go to, how far batches fill, rows of typed topics, and targets that change."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from mq_client.cluster.connection import TopicView
from mq_client.errors import OutcomeUnknown
from mq_client.producing.accumulator import Accumulator
from mq_client.producing.futures import BatchOutcome, RecordFuture
from mq_client.producing.lanes import OutgoingBatch
from mq_client.producing.targets import Target
from mq_protocol.arrow import RECORD_SCHEMA, decode_batch, schema_fingerprint
from mq_protocol.sql.ddl import parse_schema
from tests.mq_client.producing.filling import accumulator, add, take_all, values, view

# ---------------------------------------------------------------- turns of records without a key


def turns(made: Accumulator, target: Target, count: int) -> list[tuple[int, int]]:
    """Publish so many records without a key, none of which fills a batch: runs of (partition, records) in the order
    taken."""
    runs: list[tuple[int, int]] = []
    for _ in range(count):
        partition = target.sticky
        add(made, target, b"x", now=1.0, partition=None)
        if runs and runs[-1][0] == partition:
            runs[-1] = partition, runs[-1][1] + 1
        else:
            runs.append((partition, 1))
    return runs


def test_records_without_a_key_take_turns_among_the_partitions_some_dozens_at_a_time() -> None:
    made = accumulator(batch_bytes_max=1 << 20)
    target = made.add_target(view(3))
    first = target.sticky
    order = [(first + step) % 3 for step in range(3)]
    assert turns(made, target, 64 * 5) == [(partition, 64) for partition in (order * 2)[:5]]


def test_of_many_partitions_a_few_have_their_turns_at_a_time() -> None:
    made = accumulator(batch_bytes_max=1 << 20)
    target = made.add_target(view(20))
    first = target.first
    assert [partition for partition, _ in turns(made, target, 64 * 9)] == [(first + step % 8) % 20 for step in range(9)]


def test_a_partition_that_does_not_keep_up_has_no_turn() -> None:
    made = accumulator(batch_bytes_max=1 << 20)
    target = made.add_target(view(3))
    slow, after = (target.first + 1) % 3, (target.first + 2) % 3
    made.add_closed(target.view, slow, records(b"x"), BatchOutcome("t"), 1.0)
    assert turns(made, target, 128) == [(target.first, 64), (after, 64)]
    made.add_closed(target.view, after, records(b"x"), BatchOutcome("t"), 1.0)
    made.add_closed(target.view, target.first, records(b"x"), BatchOutcome("t"), 1.0)
    stays = target.sticky
    assert turns(made, target, 128) == [(stays, 128)]  # nobody keeps up: it stays where it is


def test_a_partition_whose_batches_are_all_on_their_way_keeps_up() -> None:
    made = accumulator(batch_bytes_max=1 << 20)
    target = made.add_target(view(3))
    after = (target.first + 1) % 3
    made.add_closed(target.view, after, records(b"x"), BatchOutcome("t"), 1.0)
    take_all(made, 1.0)
    assert turns(made, target, 65) == [(target.first, 64), (after, 1)]


def test_tables_take_turns_among_the_partitions_that_keep_up() -> None:
    made = accumulator()
    target = made.add_target(view(3))
    first = target.sticky
    assert [made.turn(target) for _ in range(4)] == [(first + step) % 3 for step in range(4)]
    slow = target.sticky
    made.add_closed(target.view, (slow + 1) % 3, records(b"x"), BatchOutcome("t"), 1.0)
    assert [made.turn(target) for _ in range(3)] == [slow, (slow + 2) % 3, slow]


# ---------------------------------------------------------------- bounds


def records(*given: bytes) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([{"value": value} for value in given], schema=RECORD_SCHEMA)


def test_a_plain_record_fits_up_to_the_bounds_of_batch_and_memory() -> None:
    made = accumulator(batch_bytes_max=100)
    target = made.add_target(view())
    add(made, target, b"x" * 10, now=1.0, partition=0)
    assert made.add_plain(target, 0, None, b"x", 90, 0, 1_000) is None  # it would be full, and has to be closed
    assert made.add_plain(target, 0, None, b"x", 30, 0, 39) is None
    assert made.add_plain(target, 0, None, b"x", 30, 0, 40) is not None
    assert made.add_plain(target, 0, None, b"x", 59, 0, 1_000) is not None
    assert made.pending_bytes == 99
    target.plain_size_max = 0
    assert made.add_plain(target, 0, None, b"", 0, 0, 1_000) is not None
    assert made.add_plain(target, 0, None, b"", 1, 0, 1_000) is None


def test_an_open_batch_closes_after_half_of_the_time_whoever_is_behind() -> None:
    made = accumulator(max_in_flight=1)
    target = made.add_target(view())
    made.add_closed(target.view, 0, records(b"before"), BatchOutcome("t"), 1.0)
    add(made, target, b"a", now=1.0)
    made.close_ready(16.0)
    assert [len(lane.batches) for lane in made.busy()] == [1]
    made.close_ready(16.001)
    assert [len(lane.batches) for lane in made.busy()] == [2]
    assert made.busy()[0].batches[1].deadline == 31.0  # counted from its first record


# ---------------------------------------------------------------- typed topics


def typed_view(partitions: int = 3) -> TopicView:
    schema = parse_schema("n long")
    return replace(view(partitions), schema=schema, fingerprint=schema_fingerprint(schema), typed=True)


def add_row(made: Accumulator, target: Target, number: int, size: int = 8, **more: Any) -> tuple[RecordFuture, bool]:
    return made.add_row(target, more.pop("partition", 0), [number], size, more.pop("now", 1.0), **more)


def numbers(batch: OutgoingBatch) -> list[int]:
    assert batch.schema is not None
    found: list[int] = decode_batch(batch.encoded(), batch.schema).column("n").to_pylist()
    return found


def test_rows_become_batches_of_the_topics_schema() -> None:
    made = accumulator(batch_bytes_max=24)
    target = made.add_target(typed_view())
    added = [add_row(made, target, number) for number in range(4)]
    assert [news for _, news in added] == [True, False, True, True]
    assert [future.index for future, _ in added] == [0, 1, 2, 0]
    made.close_all()
    first, second = take_all(made, 1.0)
    assert [(numbers(batch), batch.record_count, batch.size) for batch, _, _ in (first, second)] == [
        ([0, 1, 2], 3, 24),
        ([3], 1, 8),
    ]
    assert first[0].fingerprint == target.view.fingerprint


def test_rows_without_a_key_take_turns_too() -> None:
    made = accumulator(batch_bytes_max=1 << 20)
    target = made.add_target(typed_view(2))
    first = target.sticky
    for number in range(64):
        assert target.sticky == first
        add_row(made, target, number, partition=None)
    assert target.sticky != first


def test_rows_have_uuids_of_their_own_each_once_in_a_batch() -> None:
    made = accumulator()
    target = made.add_target(typed_view())
    for uuid in (b"a" * 16, b"b" * 16, b"a" * 16):
        add_row(made, target, 1, uuid=uuid)
    made.close_all()
    batches = [batch for batch, _, _ in take_all(made, 1.0)]
    assert [(batch.record_count, batch.record_uuids) for batch in batches] == [(2, b"a" * 16 + b"b" * 16), (1, b"")]
    assert batches[1].uuid == b"a" * 16


def test_a_row_that_a_signal_broke_off_leaves_nothing_to_the_next() -> None:
    made = accumulator()
    target = made.add_target(typed_view())
    add_row(made, target, 1, uuid=b"a" * 16)
    batch = made._open[target, 0]

    class Interrupted(list[Any]):
        def append(self, row: Any) -> None:
            super().append(row)
            raise KeyboardInterrupt

    batch.rows = Interrupted(batch.rows)
    with pytest.raises(KeyboardInterrupt):
        add_row(made, target, 2, uuid=b"b" * 16)
    assert (list(batch.rows), list(batch.uuids)) == ([[1]], [b"a" * 16])


# ---------------------------------------------------------------- targets


def test_a_topic_that_changed_has_its_open_batches_closed_and_is_written_to_no_more() -> None:
    made = accumulator()
    target = made.add_target(view())
    other = made.add_target(replace(view(), name="u"))
    assert made.targets() == [target, other]
    for partition in (0, 2):
        add(made, target, b"x", now=1.0, partition=partition)
    made.drop_target(target)
    assert target.dropped
    assert made.targets() == [other]
    assert sorted(batch.partition for batch, _, _ in take_all(made, 1.0)) == [0, 2]
    assert target.open == [None] * 3


def test_what_is_called_back_goes_again_and_what_waits_stays() -> None:
    made = accumulator(max_in_flight=1)
    for value in (b"a", b"b"):
        made.add_closed(view(), 0, records(value), BatchOutcome("t"), 1.0)
    take_all(made, 1.0)
    [lane] = made.busy()
    assert made.recall(lane, OutcomeUnknown("moved"), 1.0) == []
    assert made.in_flight == {}
    assert [batch.in_doubt for batch in lane.batches] == [True, False]
    lane.not_before = 0.0
    [(batch, _, _)] = take_all(made, 1.0)
    assert values(batch) == [b"a"]


def test_what_is_called_back_at_its_deadline_ends_there() -> None:
    made = accumulator()
    made.add_closed(view(), 0, records(b"a"), BatchOutcome("t"), 1.0)
    take_all(made, 1.0)
    [answer] = made.recall(made.busy()[0], OutcomeUnknown("moved"), 31.0)
    assert isinstance(answer.error, OutcomeUnknown)
    assert made.idle
