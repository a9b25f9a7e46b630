"""Batches that were pushed, waiting to be taken as records. Bounded by the credit given for them, never by being
dropped.

Records are made of a batch's columns only when the first of them is taken. Everything here is under the consumer's
lock, passed in.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa

from mq_client.cluster.deadline import Deadline
from mq_client.consuming.shared_batch import SharedBatch
from mq_client.errors import OutcomeUnknown, TritonMQError
from mq_protocol.limits import OFFSETS_OF_A_LIFE

if TYPE_CHECKING:
    from mq_client.consuming.feeds import Feed

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Skipped(NamedTuple):
    """What a member of a broadcast group was not given, of what came since it was there: after its connection broke, or
    while it read too slowly. `records`: as far as they were numbered. `gaps`: how often it was so. After a gap in which
    a broker lost the log, nobody knows how many records there were: such a gap adds none."""

    records: int = 0
    gaps: int = 0

    def more(self, first: int, end: int) -> Skipped:
        """And offsets `first .. end - 1`."""
        known = end - first if first // OFFSETS_OF_A_LIFE == end // OFFSETS_OF_A_LIFE else 0
        return Skipped(self.records + known, self.gaps + 1)


class ConsumerRecord(NamedTuple):
    """One record. Of a topic with its own schema: `value` is a dict of its columns, `key` None, `headers` empty.

    Else `key` and `value` are bytes or None, unless the consumer has deserializers.

    `timestamp`: microseconds since 1970, the record's own, else the broker's clock when it was appended.
    """

    topic: str
    partition: int
    offset: int
    key: Any
    value: Any
    headers: tuple[tuple[str, bytes | None], ...]
    timestamp: int

    @property
    def time(self) -> datetime:
        """`timestamp` as a datetime in UTC. Raises `OverflowError` beyond the years that Python knows."""
        return _EPOCH + timedelta(microseconds=self.timestamp)


@dataclass(eq=False, slots=True)
class PartitionPlace:
    """Where a consumer is in one partition. Offsets: each the next one.

    `asked`: the offset at which it was to begin, if it was to begin at one.
    `added`: the topic was given it while it was consumed: without a position it begins at its first record.
    `began`: where it was first opened; `position`: to receive; `taken`: to hand out; `processed`: all below is done
    with. Of the stream it is opened on, whose broker is at `address`: `pushed`: what came, again perhaps; `settled`:
    what the broker knows to be done with. -1: not known yet. `active`: the broker pushes it to this member. `answered`:
    the broker has said where it begins, or that another member has it. `in_use`: it has said that another process has
    this member's id; until when that is waited for. `refused`: what it has said last in place of opening it. `feed`:
    where it waits to be fed, or is, `fed` (feeds.py); not before `apart_until`, by the monotonic clock.
    """

    topic: str
    partition: int
    began: int = -1
    position: int = -1
    taken: int = -1
    processed: int = -1
    pushed: int = -1
    settled: int = -1
    active: bool = False
    answered: bool = False
    address: str | None = None
    added: bool = False
    asked: int | None = None
    in_use: tuple[TritonMQError, Deadline] | None = None
    refused: TritonMQError | None = None
    feed: Feed | None = None
    fed: bool = False
    apart_until: float = 0.0

    @property
    def to_settle(self) -> int:
        """What the broker may be told. It does not believe that something is done with that it has not pushed on this
        stream."""
        return min(self.processed, self.pushed)

    def forget(self) -> None:
        """Another member has it, or stands before this one."""
        self.began = self.position = self.taken = self.processed = self.pushed = self.settled = -1
        self.active = False


def not_subscribed(places: Sequence[PartitionPlace], timeout_ms: float) -> OutcomeUnknown:
    """What is said of places that were not answered in time, and why as far as it is known."""
    names = ", ".join(f"{place.topic}-{place.partition}" for place in places[:10])
    refused = next((place.refused for place in places if place.refused is not None), None)
    if refused is not None:
        why = str(refused)
    elif any(place.address is None for place in places):
        why = "no leader is known"
    else:
        why = "their leaders have not answered"
    told = f"{names} could not be subscribed to within {timeout_ms:.0f} ms: {why}"
    return OutcomeUnknown(f"{told}; `tritonmq doctor` looks for what is wrong")


@dataclass(eq=False, slots=True)
class Chunk:
    """A pushed batch from row `row` on, which other consumers may hold too. `release(bytes)` gives its credit back.
    `fingerprint`: of the schema."""

    place: PartitionPlace
    batch: SharedBatch
    schema: pa.Schema
    fingerprint: int
    typed: bool
    row: int
    release: Callable[[int], None]
    records: Sequence[ConsumerRecord] | None = field(default=None)

    @property
    def nbytes(self) -> int:
        return len(self.batch.payload)

    def decoded(self) -> Sequence[ConsumerRecord]:
        if self.records is None:
            if self.typed:  # values are dicts, which their consumer may change
                self.records = self._records_of(self.batch.rows(self.schema, self.fingerprint))
            else:
                self.records = self.batch.records(self.schema, self.fingerprint, self._records_of)
        return self.records

    def _records_of(self, rows: pa.RecordBatch) -> list[ConsumerRecord]:
        batch = self.batch
        return batch_to_records(
            rows, self.place.topic, self.place.partition, batch.base_offset, batch.timestamp_us, typed=self.typed
        )


def batch_to_records(
    batch: pa.RecordBatch, topic: str, partition: int, base_offset: int, timestamp_us: int, *, typed: bool
) -> list[ConsumerRecord]:
    """The records of a stored batch whose first has `base_offset`."""
    offsets = range(base_offset, base_offset + batch.num_rows)
    if typed:
        return [
            ConsumerRecord(topic, partition, at, None, row, (), timestamp_us)
            for at, row in zip(offsets, batch.to_pylist(), strict=True)
        ]
    keys, values = batch.column("key").to_pylist(), batch.column("value").to_pylist()
    # As integers: a producer may write any time, and Python's datetime knows only some.
    stamps = batch.column("timestamp").view(pa.int64()).to_pylist()
    header_column = batch.column("headers")
    headers: Sequence[tuple[tuple[str, bytes | None], ...]]
    if header_column.null_count == len(header_column):
        headers = [()] * len(header_column)
    else:
        headers = [
            tuple((pair["key"], pair["value"]) for pair in pairs or () if pair) for pairs in header_column.to_pylist()
        ]
    return [
        ConsumerRecord(topic, partition, at, key, value, pairs, timestamp_us if stamp is None else stamp)
        for at, key, value, pairs, stamp in zip(offsets, keys, values, headers, stamps, strict=True)
    ]


class RecordQueue:
    """One topic's records, in the order of their partitions. Used like a `queue.Queue` that only the consumer fills.

    Asking for the next record says that the one before is done with: then a group's cursor may pass it.
    """

    def __init__(
        self,
        topic: str,
        changed: threading.Condition,
        deserialize: Callable[[ConsumerRecord], ConsumerRecord] | None = None,
    ) -> None:
        self.topic = topic
        self._deserialize = deserialize
        self.error: TritonMQError | None = None
        self.suspended = False  # nothing is handed out
        self._changed = changed
        self._chunks: deque[Chunk] = deque()
        self._handed: PartitionPlace | None = None
        self._closed = False

    # ------------------------------------------------------------------ for applications

    def get(self, block: bool = True, timeout: float | None = None) -> ConsumerRecord:
        """The next record, waiting up to `timeout` seconds (None: until the consumer stops).

        Raises `queue.Empty`, the error that ended the topic's subscription, or `NotDeserialized`.
        """
        record = self._get(block, timeout)
        return record if self._deserialize is None else self._deserialize(record)

    def _get(self, block: bool, timeout: float | None) -> ConsumerRecord:
        deadline = None if timeout is None else time.monotonic() + timeout
        with self._changed:
            while True:
                record = self.take()
                if record is not None:
                    return record
                if self.error is not None:
                    raise self.error
                wait = None if deadline is None else deadline - time.monotonic()
                if not block or self._closed or (wait is not None and not wait > 0):  # NaN has passed as well
                    raise queue.Empty
                self._changed.wait(None if wait is None else min(wait, threading.TIMEOUT_MAX))

    def get_nowait(self) -> ConsumerRecord:
        return self.get(block=False)

    def qsize(self) -> int:
        """Records that are here."""
        with self._changed:
            return sum(chunk.batch.record_count - chunk.row for chunk in self._chunks)

    def empty(self) -> bool:
        with self._changed:
            return not self._chunks

    # ------------------------------------------------------------------ for the consumer, under its lock

    @property
    def at_batch_end(self) -> bool:
        """Whether the next record begins a batch: a good moment to look at another topic."""
        return not self._chunks or self._chunks[0].row == 0

    def put(self, chunk: Chunk) -> None:
        if not self._closed:
            self._chunks.append(chunk)

    def take(self) -> ConsumerRecord | None:
        """The next record if one is here. What was handed out before is done with."""
        self.done_with_last()
        if self.suspended or not self._chunks:
            return None
        chunk = self._chunks[0]
        record = chunk.decoded()[chunk.row]
        chunk.row += 1
        if chunk.row == chunk.batch.record_count:
            self._chunks.popleft()
            chunk.release(chunk.nbytes)
        chunk.place.taken = record.offset + 1
        self._handed = chunk.place
        return record

    def done_with_last(self) -> None:
        if self._handed is not None:
            self._handed.processed = self._handed.taken
            self._handed = None

    def drop(self, place: PartitionPlace, below: int | None = None) -> None:
        """Forget what is here of a partition (`below`: only what is before that offset), and give its credit back."""
        kept: deque[Chunk] = deque()
        for chunk in self._chunks:
            if chunk.place is place:
                if below is None or chunk.batch.end_offset <= below:
                    chunk.release(chunk.nbytes)
                    continue
                chunk.row = max(chunk.row, below - chunk.batch.base_offset)
            kept.append(chunk)
        self._chunks = kept
        if self._handed is place and below is None:
            self._handed = None

    def give_back(self) -> None:
        """Forget all that is here, give its credit back, and hand out nothing any more."""
        while self._chunks:
            chunk = self._chunks.popleft()
            chunk.release(chunk.nbytes)
        self.close()

    def close(self) -> None:
        """Hand out nothing any more, neither of what is here nor of what is still pushed: in a group it is given to
        others."""
        self._closed = True
        self._chunks.clear()
