"""How the rows of what was lent are read: what is gone, late or broken. The log is played by the test."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from mq_client.consuming.slices import StoredSlice
from mq_client.errors import CorruptBatch, OffsetOutOfRange, TritonMQError, UnknownTopic, Unreachable
from mq_client.queueing.leases import DONE, SETTLING, HeldLease
from mq_client.queueing.queue import RowReader
from mq_protocol import mq_pb2 as pb
from tests.mq_client.cluster.scripted import topic_info
from tests.mq_client.queueing.played_keeper import SCHEMA, Played, lent


class Log:
    """In the place of `Reader`: batches of 10 records; at each offset in `fails` it raises that, once."""

    def __init__(self) -> None:
        self.fails: dict[int, TritonMQError] = {}
        self.asked: list[tuple[int, int]] = []

    def read_stored(self, topic: str, partition: int, start: int, end: int) -> Iterator[StoredSlice]:
        assert (topic, partition) == ("t", 0)
        self.asked.append((start, end))
        while start < end:
            until = min(end, start - start % 10 + 10)
            for at in range(start, until):
                if at in self.fails:
                    raise self.fails.pop(at)
            batch = pa.RecordBatch.from_pydict({"n": list(range(start, until))}, schema=SCHEMA)
            yield StoredSlice(start, until, 1, batch, None, 10 * (until - start))
            start = until


class Reading:
    """A member that was lent records, and the reader of their rows, whose steps the test takes."""

    def __init__(self, *ranges: int, accept: bool = False) -> None:
        self.played = Played(in_flight_max=1_000, accept=accept)
        self.log: Any = Log()
        self.reader = RowReader(self.played.keeper, self.log)
        self.waits: list[float] = []
        unread: Any = SimpleNamespace(
            wait=lambda seconds: self.waits.append(seconds), notify=lambda: None, notify_all=lambda: None
        )
        self.played.keeper.unread = unread
        answer = lent(5, 0, 1)
        del answer.ranges[:]
        answer.ranges.extend(ranges or (0, 20))
        del answer.deliveries[:], answer.failures[:]
        answer.deliveries.extend([1] * (len(answer.ranges) // 2))
        answer.failures.extend([0] * (len(answer.ranges) // 2))
        self.played.lend_unread(answer)

    def step(self) -> HeldLease:
        found = self.reader._next()
        assert found is not None
        self.reader._read(*found)
        return found[0]

    def taken(self) -> list[int]:
        """The offsets that wait to be worked on."""
        shelf, found = self.played.keeper.holdings.shelf, []
        while (each := shelf.take()) is not None:
            each[0].begin(each[1])
            found.append(each[2].offset)
        return found

    @property
    def unread(self) -> list[tuple[HeldLease, int]]:
        return list(self.played.keeper.holdings.unread)


def test_only_what_was_lent_is_read_and_near_ranges_together() -> None:
    of = Reading(3, 4, 5, 2, 257, 1, 255, 2)
    of.step()
    assert of.log.asked == [(3, 14), (271, 529)]
    assert of.taken() == [3, 4, 5, 6, 12, 13, 271, 527, 528]
    assert of.unread == []
    assert of.played.keeper.holdings.held_bytes == pytest.approx(10.0 * 9)


def test_what_could_not_be_read_now_is_read_later_from_where_it_stopped() -> None:
    of = Reading()
    of.log.fails[10] = Unreachable("gone")
    lease = of.step()
    assert of.taken() == list(range(10))
    assert of.unread == [(lease, 10)]
    assert [wait > 0 for wait in of.waits] == [True]
    of.step()
    assert of.log.asked == [(0, 20), (10, 20)]
    assert of.taken() == list(range(10, 20))


def test_what_retention_dropped_counts_as_done_and_the_rest_is_read_at_once() -> None:
    of = Reading()
    of.log.fails[0] = OffsetOutOfRange("dropped", next_offset=7)
    lease = of.step()
    assert [lease.state(index) for index in (0, 6, 7)] == [DONE, DONE, 0]
    assert (of.unread, of.waits) == ([(lease, 0)], [])
    of.step()
    assert of.taken() == list(range(7, 20))
    of = Reading()
    of.log.fails[0] = OffsetOutOfRange("dropped", next_offset=0)
    lease = of.step()
    assert lease.open == 0, "an answer that names nothing new would be asked for ever"


def test_records_that_cannot_be_read_fail_with_the_reason() -> None:
    of = Reading()
    of.log.fails[10] = CorruptBatch("bad checksum")
    lease = of.step()
    assert [lease.state(index) for index in (0, 9, 10, 19)] == [0, 0, SETTLING, SETTLING]
    [one] = of.played.one().settles
    assert (one.outcome, list(one.ranges)) == (pb.OUTCOME_FAIL, [10, 10])
    assert one.error == "cannot be read: bad checksum"
    assert of.played.keeper.error is None


def test_records_that_were_settled_by_being_lent_and_cannot_be_read_end_the_queue() -> None:
    of = Reading(accept=True)
    of.log.fails[10] = CorruptBatch("bad checksum")
    of.step()
    assert isinstance(of.played.keeper.error, CorruptBatch)
    assert of.played.keeper.holdings.held == 10


def test_rows_of_a_topic_that_was_made_again_are_not_handed_out() -> None:
    of = Reading()
    of.played.leaders.learn(topic_info(1, topic_id="another", epoch=9, schema=SCHEMA))
    of.step()
    assert isinstance(of.played.keeper.error, UnknownTopic)
    assert of.taken() == []
