"""When batches close, what memory they hold, where keyless records go. Time is an argument."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pyarrow as pa
import pytest

from mq_client.errors import InvalidRequest, OutcomeUnknown, Unreachable
from mq_client.producing.batches import RECORD_OVERHEAD_BYTES
from mq_client.producing.futures import BatchPlace, RecordPlace
from mq_protocol.arrow import RECORD_SCHEMA, decode_batch
from mq_protocol.names import parse_settings
from tests.mq_client.producing.filling import accumulator, add, add_own, own_uuids, take_all, values, view


def test_what_a_broker_has_of_a_batch_is_left_out_and_the_rest_is_sent_as_another() -> None:
    made = accumulator()
    target = made.add_target(view())
    futures = [add_own(made, target, b"%d" % n, b"%d" % n) for n in range(6)]
    made.close_all()
    [(batch, correlation, _)] = take_all(made, 0.0)
    before = batch.uuid
    for there, rest in (({0: 70, 3: 73}, [b"1", b"2", b"4", b"5"]), ({2: 44}, [b"1", b"2", b"5"])):
        assert made.shorten(correlation, {at: RecordPlace(offset, 9) for at, offset in there.items()}) is None
        [(batch, correlation, after)] = take_all(made, 0.0)
        assert (values(batch), own_uuids(batch), batch.record_count, after) == (rest, rest, len(rest), b"")
        assert batch.uuid != before
        before = batch.uuid
    answer = made.answer(correlation, BatchPlace(0, 100, 3, 5, duplicate=False))
    assert answer is not None
    answer.tell()
    found = [future.result(0) for future in futures]
    assert [(place.offset, place.duplicate) for place in found] == [
        *((70, True), (100, False), (101, False), (73, True), (44, True), (102, False))
    ]
    assert made.idle
    assert made.pending_bytes == 0


def test_a_batch_of_which_a_broker_has_everything_is_answered_at_once() -> None:
    made = accumulator()
    target = made.add_target(view())
    futures = [add_own(made, target, b"%d" % n, b"%d" % n) for n in range(2)]
    made.close_all()
    [(_, correlation, _)] = take_all(made, 0.0)
    answer = made.shorten(correlation, {0: RecordPlace(5, 9), 1: RecordPlace(3, 8)})
    assert answer is not None
    answer.tell()
    assert [future.result(0)[2:] for future in futures] == [(5, 9, True), (3, 8, True)]
    assert made.idle


def test_a_batch_names_the_span_of_its_first_record_that_has_one() -> None:
    made, spans = accumulator(), iter([b"", b"first", b"second"])
    made.traceparent = lambda: next(spans)
    target = made.add_target(view())
    for _ in range(3):
        add(made, target, b"x", now=1.0)
    made.close_all()
    [(batch, _, _)] = take_all(made, 1.0)
    assert batch.traceparent == b"first"


def test_a_batch_closes_when_it_has_lingered() -> None:
    made = accumulator()
    target = made.add_target(view())
    add(made, target, b"a", now=1.0)
    add(made, target, b"b", now=1.004)
    assert made.close_ready(1.004) == pytest.approx(1.005), "when to look again"
    assert take_all(made, 1.004) == []
    made.close_ready(1.005)
    [(batch, _, after)] = take_all(made, 1.005)
    assert values(batch) == [b"a", b"b"]
    assert after == b""


def test_a_batch_closes_when_it_is_full_and_the_record_that_does_not_fit_opens_the_next() -> None:
    made = accumulator(batch_bytes_max=100)
    target = made.add_target(view())
    for value in (b"a" * 60, b"b" * 60, b"c" * 100):
        add(made, target, value, now=1.0)
    assert [values(batch)[0][:1] for batch, _, _ in take_all(made, 1.0)] == [b"a", b"b"]
    made.close_all()
    made.answer(next(iter(made.in_flight)), BatchPlace(0, 0, 1, 0, False))
    assert [values(batch)[0][:1] for batch, _, _ in take_all(made, 1.0)] == [b"c"]


def test_a_lingering_batch_goes_on_filling_while_its_lane_is_full() -> None:
    made = accumulator(max_in_flight=1)
    target = made.add_target(view())
    add(made, target, b"a", now=1.0)
    made.close_ready(2.0)
    [(_, correlation, _)] = take_all(made, 2.0)
    add(made, target, b"b", now=2.0)
    made.close_ready(3.0)
    add(made, target, b"c", now=3.0)
    assert take_all(made, 3.0) == []
    made.answer(correlation, BatchPlace(0, 0, 1, 0, False))
    made.close_ready(3.0)
    [(batch, _, _)] = take_all(made, 3.0)
    assert values(batch) == [b"b", b"c"]


def test_the_sender_is_told_only_when_there_is_something_new() -> None:
    made = accumulator(batch_bytes_max=100)
    target = made.add_target(view())
    news = [made.add(target, 0, None, b"x" * 40, None, None, 40, 0, 1.0)[1] for _ in range(4)]
    assert news == [True, False, True, False]


def test_a_plain_record_that_needs_more_than_its_place_in_a_batch_is_not_taken() -> None:
    made = accumulator(batch_bytes_max=100)
    target = made.add_target(view())
    assert made.add_plain(target, None, None, b"x", 10, 0, 1_000) is None, (
        "no batch is open: the sender must be told of a new one"
    )
    add(made, target, b"x" * 50, now=1.0, partition=None)
    assert made.add_plain(target, None, None, b"x", 50, 0, 1_000) is None, (
        "it would fill the batch, which has to be closed then"
    )
    assert made.add_plain(target, None, None, b"x", 40, 0, 80) is None, "there is no room in memory"
    assert made.add_plain(target, None, None, b"x", 40, 0, 90) is not None
    made.drop_target(target)
    assert made.add_plain(target, None, None, b"x", 1, 0, 1_000) is None, "the topic has changed"
    small = made.add_target(replace(view(), settings=parse_settings({"record_bytes_max": "4"}, 1)))
    add(made, small, b"x", now=1.0, partition=None)
    assert made.add_plain(small, None, None, b"x", 4 + RECORD_OVERHEAD_BYTES + 1, 0, 1_000) is None, (
        "it is larger than the topic allows"
    )
    typed = made.add_target(replace(view(), typed=True))
    made.add_row(typed, None, {}, 1, 1.0)
    assert made.add_plain(typed, None, None, b"x", 1, 0, 1_000) is None, "a row is not bytes"


def test_what_few_records_have_stays_with_those_that_have_it() -> None:
    made = accumulator()
    target = made.add_target(view(1))
    made.add(target, 0, None, b"0", None, None, 1, 5_999, 1.0)
    made.add(target, 0, b"k", b"1", None, -8, 1, 6_000, 1.0)
    made.add_plain(target, None, None, b"2", 1, 7_000, 1_000)
    made.add(target, 0, None, None, [("h", b"x")], None, 1, 8_000, 1.0)
    made.add_plain(target, 0, b"q", b"4", 1, 9_000, 1_000)
    made.close_all()
    [(batch, _, _)] = take_all(made, 1.0)
    found = decode_batch(batch.encoded(), RECORD_SCHEMA)
    found.validate(full=True)
    assert found.column("key").to_pylist() == [None, b"k", None, None, b"q"]
    assert found.column("value").to_pylist() == [b"0", b"1", b"2", None, b"4"]
    assert found.column("headers").to_pylist() == [None, None, None, [{"key": "h", "value": b"x"}], None]
    assert found.column("timestamp").cast(pa.int64()).to_pylist() == [5, -8, 7, 8, 9]


class Interrupted(list[bytes | None]):
    """A signal's exception comes when something is appended to it: it is there already, as after any call."""

    def append(self, item: bytes | None) -> None:
        super().append(item)
        raise KeyboardInterrupt


@pytest.mark.parametrize("plain", [True, False])
def test_a_record_whose_publishing_a_signal_broke_off_leaves_nothing_to_the_next(plain: bool) -> None:
    made = accumulator()
    target = made.add_target(view(1))
    add(made, target, b"0", now=1.0)
    batch = target.open[0]
    assert batch is not None
    batch.values = Interrupted(batch.values)
    by_short_way = partial(made.add_plain, target, 0, b"key", b"broken off", 1, 7_000, 1 << 20)
    by_long_way = partial(made.add, target, 0, b"key", b"broken off", [("its", b"header")], 5, 1, 7_000, 1.0)
    with pytest.raises(KeyboardInterrupt):
        (by_short_way if plain else by_long_way)()
    batch.values = list(batch.values)
    assert made.add_plain(target, 0, None, b"next", 1, 8_000, 1 << 20) is not None
    made.close_all()
    [(sent, _, _)] = take_all(made, 1.0)
    found = decode_batch(sent.encoded(), RECORD_SCHEMA)
    assert sent.record_count == found.num_rows == 2
    assert found.column("value").to_pylist() == [b"0", b"next"]
    assert found.column("key").null_count == found.column("headers").null_count == 2
    assert found.column("timestamp").cast(pa.int64()).to_pylist()[1] == 8


@pytest.mark.parametrize("following", [b"b", b"c"], ids=["the same again", "another"])
def test_a_record_with_a_uuid_that_a_signal_broke_off_leaves_no_uuid_to_the_next(following: bytes) -> None:
    made = accumulator()
    target = made.add_target(view(1))
    add_own(made, target, b"0", b"a")
    [batch] = made._open.values()
    batch.values = Interrupted(batch.values)
    with pytest.raises(KeyboardInterrupt):
        add_own(made, target, b"broken off", b"b")
    batch.values = list(batch.values)
    add_own(made, target, b"1", following)
    made.close_all()
    [(sent, _, _)] = take_all(made, 1.0)
    assert (values(sent), own_uuids(sent)) == ([b"0", b"1"], [b"a", following])


def test_partitions_that_are_stuck_are_passed_over() -> None:
    made = accumulator(batch_bytes_max=10)
    target = made.add_target(view(3))
    for _ in range(3):
        add(made, target, b"x" * 10, now=1.0, partition=1)  # nobody takes them: partition 1 has no leader
    for _ in range(6):
        add(made, target, b"y" * 10, now=1.0, partition=None)
        for lane in made.busy():
            if lane.partition != 1:
                made.take(lane, 1.0)
        for correlation in list(made.in_flight):
            made.answer(correlation, BatchPlace(0, 0, 1, 0, False))
    assert sum(len(lane.batches) for lane in made.busy()) <= 4


def test_an_answer_that_comes_after_giving_up_is_ignored() -> None:
    made = accumulator()
    target = made.add_target(view())
    future = add(made, target, b"a", now=1.0)
    made.close_all()
    [(batch, correlation, _)] = take_all(made, 1.0)
    [lane] = made.busy()
    made.give_up(lane, batch).tell()
    assert made.answer(correlation, BatchPlace(0, 0, 1, 0, False)) is None
    assert made.refuse(correlation, Unreachable("x"), 2.0) is None
    assert isinstance(future.exception(0), OutcomeUnknown)
    assert made.idle


def test_a_topic_that_is_gone_ends_its_batches_each_by_what_is_known_of_it() -> None:
    made = accumulator(max_in_flight=1, batch_bytes_max=10)
    target = made.add_target(view())
    sent, waiting = add(made, target, b"x" * 10, now=1.0), add(made, target, b"y" * 10, now=1.0)
    take_all(made, 1.0)
    [lane] = made.busy()
    for answer in made.refuse_all(lane, InvalidRequest("topic is gone")):
        answer.tell()
    assert isinstance(sent.exception(0), OutcomeUnknown)
    assert isinstance(waiting.exception(0), InvalidRequest)


def test_a_batch_that_may_be_in_the_log_is_not_refused_with_its_topic() -> None:
    """Its connection was lost after it went out: whether it was taken is not known, though it is not in flight any
    more."""
    made = accumulator()
    target = made.add_target(view())
    future = add(made, target, b"a", now=1.0)
    made.close_all()
    [(batch, correlation, _)] = take_all(made, 1.0)
    assert made.refuse(correlation, OutcomeUnknown("the stream broke off"), 1.0) is None
    [lane] = made.busy()
    assert (batch.correlation, batch.in_doubt) == (None, True)
    for answer in made.refuse_all(lane, InvalidRequest("topic is gone")):
        answer.tell()
    assert isinstance(future.exception(0), OutcomeUnknown)
