"""What a broker says about offsets: how far it can serve, how large a span is, and which ends have changed for a
watcher."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from mq_broker.broker.data import fetch
from mq_broker.broker.data.fetch import Reading, _measured, _Watch
from mq_broker.broker.runtime.memory import Held
from mq_broker.core.messages import Published
from mq_broker.storage.offset_index import OffsetIndex
from mq_protocol import mq_pb2 as pb
from mq_protocol.errors import InvalidRequest, NotLeader, NotYetWritten, OffsetOutOfRange, UnknownTopic
from mq_protocol.wire.envelope import Envelope
from mq_protocol.wire.error_messages import from_wire


class Replica:
    """Partition 0 of `t` at broker 1: it leads in epoch 5, and knows offsets 0 to 9 to be committed."""

    def __init__(self, number: int = 0) -> None:
        self.number = number
        self.name = f"t-{number}"
        self.topic = SimpleNamespace(spec=SimpleNamespace(name="t"))
        self.replica = SimpleNamespace(leading=True, leader=1, leader_epoch=5)
        self.serving, self.closed, self.knows_committed, self.next_offset = True, False, True, 10
        self.observers: set[Callable[[], None]] = set()
        self.index, self.journal = OffsetIndex(), SimpleNamespace(sealed=False)
        self.chunks: list[int] = []

    def not_leader(self) -> NotLeader:
        return NotLeader("ask broker 2", 2, self.replica.leader_epoch)

    def offsets(self) -> pb.PartitionOffsets:
        return pb.PartitionOffsets(
            partition=self.number, log_end_offset=self.next_offset, leader_epoch=self.replica.leader_epoch
        )

    def read(self, start: int, end: int, bytes_max: int, _opened: object) -> list[tuple[Published, memoryview]]:
        """Two records a batch."""
        self.chunks.append(bytes_max)
        return [(Published(start, 2, 1, 1, 3, 3), memoryview(b"abc"))]

    def changes(self) -> None:
        for observer in list(self.observers):
            observer()


def reading(partition: Any, schema: pa.Schema | None = None) -> Reading:
    shell: Any = SimpleNamespace(broker=1, partition=lambda _topic, _number: partition, leader=lambda _t, _n: partition)

    class Topics:
        async def get(self, _name: str) -> Any:
            spec = SimpleNamespace(name="t", schema=b"typed" if schema is not None else b"")
            return SimpleNamespace(partitions=1, spec=spec, schema=schema)

        async def meant(self, name: str, _topic_id: str) -> Any:
            return await self.get(name)

    topics: Any = Topics()
    return Reading(shell, topics, Held(1 << 20))


def known_end(partition: Any, at: int, end: int = 20, epoch: int = 0) -> int:
    return reading(partition)._known_end(partition, pb.FetchRequest(topic="t", end_offset=end, leader_epoch=epoch), at)


def test_what_is_known_to_be_committed_is_served_and_no_more() -> None:
    partition = Replica()
    assert known_end(partition, 0) == 10
    assert known_end(partition, 9) == 10
    assert known_end(partition, 0, end=4) == 4
    with pytest.raises(NotYetWritten, match="ends at offset 10"):
        known_end(partition, 10)
    with pytest.raises(OffsetOutOfRange, match="the next record gets 10"):
        known_end(partition, 11)


def test_a_replica_that_does_not_lead_never_says_out_of_range_and_names_its_leader_unless_that_is_itself() -> None:
    partition = Replica()
    partition.serving = False
    assert known_end(partition, 9) == 10
    for at in (10, 11):
        for leader, named in ((2, 2), (1, 0), (0, 0)):
            partition.replica.leader = leader
            with pytest.raises(NotLeader) as told:
                known_end(partition, at)
            assert (told.value.leader, told.value.leader_epoch) == (named, 5)


def test_a_reader_that_has_seen_a_later_epoch_is_sent_to_its_leader_and_so_is_one_of_a_closed_partition() -> None:
    partition = Replica()
    assert known_end(partition, 0, epoch=5) == 10
    with pytest.raises(NotLeader):
        known_end(partition, 0, epoch=6)
    partition.closed = True
    with pytest.raises(NotLeader):
        known_end(partition, 0)


def fetched(partition: Replica, **fields: Any) -> list[pb.BatchesHeader]:
    sent: list[pb.BatchesHeader] = []

    async def send(message: Envelope[pb.BatchesHeader]) -> None:
        sent.append(message.header)

    asyncio.run(reading(partition).fetch(pb.FetchRequest(topic="t", **fields), send))
    return sent


def test_a_fetch_goes_on_where_the_batches_that_were_sent_end_and_each_answer_names_the_epoch() -> None:
    partition = Replica()
    sent = fetched(partition, start_offset=1, end_offset=6)
    assert [[batch.base_offset for batch in header.batches] for header in sent] == [[1], [3], [5]]
    assert {header.leader_epoch for header in sent} == {5}
    assert fetched(partition, start_offset=4, end_offset=4) == []


@pytest.mark.parametrize(("start", "end"), [(-1, 3), (4, 3)])
def test_a_fetch_of_offsets_that_are_no_range_is_refused(start: int, end: int) -> None:
    with pytest.raises(InvalidRequest, match="give 0 <= start <= end"):
        fetched(Replica(), start_offset=start, end_offset=end)


# ---------------------------------------------------------------- spans


def spans() -> Any:
    """Batches of 1 to 4 records and of 3 to 50 bytes, from offset 5 to 25; a reader may go to offset 22."""
    partition: Any = Replica()
    offset = 0
    for number, (count, size) in enumerate(
        [(1, 10), (4, 50), (2, 3), (3, 33), (4, 44), (1, 7), (4, 9), (2, 20), (4, 40)]
    ):
        partition.index.append(Published(offset, count, number + 1, number, size, size))
        offset += count
    partition.index.trim(5)
    partition.next_offset = 22
    return partition


def test_a_span_ends_at_the_furthest_offset_for_which_its_bytes_are_enough() -> None:
    partition = spans()
    measure = partition.index.bytes_between
    for start in range(5, 23):
        for end in range(start, 27):
            for bytes_max in (0, 1, 9, 10, 11, 40, 100, 1_000):
                told = _measured(partition, pb.OffsetSpan(start_offset=start, end_offset=end, bytes_max=bytes_max))
                ends = [at for at in range(start, min(end, 22) + 1) if at == start or measure(start, at) <= bytes_max]
                assert told.end_offset == ends[-1], (start, end, bytes_max)
                assert told.bytes == measure(start, end)
                assert told.first_bytes == measure(start, min(start + 1, end))


@pytest.mark.parametrize(("start", "end"), [(-1, 3), (4, 3)])
def test_a_span_that_is_no_range_is_refused(start: int, end: int) -> None:
    with pytest.raises(InvalidRequest, match="give 0 <= start <= end"):
        _measured(spans(), pb.OffsetSpan(start_offset=start, end_offset=end))


# ---------------------------------------------------------------- ends, asked for


def listed(partition: Any, **fields: Any) -> pb.PartitionOffsets:
    response = asyncio.run(reading(partition).list_offsets(pb.ListOffsetsRequest(topic="t", **fields), 0.0))
    [answer] = response.partitions
    return answer


def test_a_replica_says_whether_its_end_is_the_logs_or_only_what_it_knows() -> None:
    partition = Replica()
    assert not listed(partition).lower_bound
    partition.serving = False
    assert listed(partition).lower_bound
    partition.knows_committed = False
    assert isinstance(from_wire(listed(partition).error), NotLeader), "its end would pass for the log's"
    partition.serving = True
    assert listed(partition).log_end_offset == 10


def test_a_time_and_a_span_are_answered_only_where_they_were_asked_for() -> None:
    partition = spans()
    told = listed(
        partition, timestamp_us=3, spans=[pb.OffsetSpan(partition=0, start_offset=5, end_offset=7, bytes_max=100)]
    )
    assert (told.offset_at_timestamp, told.span.end_offset) == (7, 7)
    told = listed(partition, spans=[pb.OffsetSpan(partition=1, start_offset=5, end_offset=7)])
    assert not told.HasField("span")
    assert told.offset_at_timestamp == 0
    refused = listed(partition, spans=[pb.OffsetSpan(partition=0, start_offset=7, end_offset=5)])
    assert isinstance(from_wire(refused.error), InvalidRequest)
    assert refused.partition == 0


# ---------------------------------------------------------------- ends, watched


def ends(watch: _Watch) -> list[tuple[int, int]]:
    answer = watch.take()
    return (
        [(told.offsets.partition, told.offsets.log_end_offset) for told in answer.offsets] if answer is not None else []
    )


def watching(*partitions: Any) -> _Watch:
    watch = _Watch()
    for partition in partitions:
        watch.add(partition)
    return watch


def test_each_end_is_told_once_until_it_moves() -> None:
    first, second = Replica(0), Replica(1)
    watch = watching(first, second)
    assert watch.changed.is_set()
    assert ends(watch) == [(0, 10), (1, 10)]
    assert not watch.changed.is_set()
    first.changes()
    assert watch.changed.is_set()
    assert watch.take() is None, "it changed, but not its end"
    second.next_offset = 11
    second.changes()
    assert ends(watch) == [(1, 11)]
    assert watch.take() is None


def test_an_end_is_told_again_in_a_new_epoch() -> None:
    partition = Replica()
    watch = watching(partition)
    ends(watch)
    partition.replica.leader_epoch = 6
    partition.changes()
    assert ends(watch) == [(0, 10)]


def test_a_partition_that_is_named_twice_is_watched_once() -> None:
    partition = Replica()
    watch = watching(partition, partition)
    assert len(partition.observers) == 1
    assert ends(watch) == [(0, 10)]
    watch.close()
    assert not partition.observers


@pytest.mark.parametrize("how", ["closed", "led elsewhere"])
def test_a_partition_that_is_led_here_no_more_is_told_once_and_watched_no_more(how: str) -> None:
    partition, other = Replica(0), Replica(1)
    watch = watching(partition, other)
    ends(watch)
    partition.serving = False
    partition.changes()
    assert watch.take() is None, "a leader that is not ready yet: its end is told when it is"
    partition.closed, partition.replica.leading = how == "closed", how == "closed"
    partition.changes()
    other.changes()
    answer = watch.take()
    assert answer is not None
    [told] = answer.offsets
    assert (told.topic, told.offsets.partition, from_wire(told.offsets.error).leader) == ("t", 0, 2)
    assert not partition.observers
    assert other.observers
    watch.close()


def test_many_changes_are_told_in_parts_and_none_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch, "YIELD_EVERY", 2)
    watch = watching(*(Replica(number) for number in range(5)))
    told = []
    while watch.changed.is_set():
        part = ends(watch)
        assert len(part) <= 2
        told += part
    assert told == [(number, 10) for number in range(5)]


def test_what_cannot_be_watched_is_told_once() -> None:
    watch = _Watch()
    assert watch.refused == 0
    watch.refuse("t", 7, UnknownTopic("there is none"))
    assert watch.refused == 1
    answer = watch.take()
    assert answer is not None
    assert [(told.topic, told.offsets.partition, told.offsets.error.code) for told in answer.offsets] == [
        ("t", 7, pb.UNKNOWN_TOPIC)
    ]
    assert watch.refused == 0
    assert watch.take() is None


# ---------------------------------------------------------------- a watcher's stream
