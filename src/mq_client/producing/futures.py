"""What `publish` gives back: real `concurrent.futures.Future`s that cost next to nothing until somebody looks at them.

A record shares the fate of its batch. Its future holds only the batch's outcome and its place in it; the lock,
condition and state that make a Future are made when one of its methods is first called, which for most records is
never.
"""

from __future__ import annotations

import asyncio
import threading
from bisect import bisect_left
from collections.abc import Callable, Generator, Mapping
from concurrent.futures import Future
from typing import Any, NamedTuple, Protocol, TypeVar

from mq_client.errors import TritonMQError

R = TypeVar("R")


class RecordMetadata(NamedTuple):
    """Where a record is. `timestamp`: the broker's clock at append, microseconds since 1970.

    `offset` is -1 and `timestamp` 0 with acks="none", which waits for no answer that could tell. With acks="leader"
    they are what the leader chose: another record may have that place if the leader dies before others have this one. A
    leader that has just taken up its role does not know its offsets yet: -1. `duplicate`: its UUID was in the log
    already.
    """

    topic: str
    partition: int
    offset: int
    timestamp: int
    duplicate: bool


class BatchPlace(NamedTuple):
    """One stored batch: offsets `base_offset .. base_offset + record_count - 1` of that partition."""

    partition: int
    base_offset: int
    record_count: int
    timestamp: int
    duplicate: bool


class BatchMetadata(NamedTuple):
    """Where a published table is: one place for each stored batch that it was split into, in the order of its rows
    where no key spread them.
    """

    topic: str
    record_count: int
    places: tuple[BatchPlace, ...]

    @property
    def partition(self) -> int:
        """The partition of the first (often the only) stored batch."""
        return self.places[0].partition

    @property
    def base_offset(self) -> int:
        """The base offset of the first (often the only) stored batch."""
        return self.places[0].base_offset


class Outcome(Protocol):
    """Somebody who waits for one batch's answer."""

    @property
    def observed(self) -> bool:
        """Whether an error will be seen by whoever holds a future, so that `flush` need not raise it."""

    def settle(self, place: BatchPlace | None, error: TritonMQError | None) -> None:
        """The answer, exactly once: where the batch is, or the error."""


class RecordPlace(NamedTuple):
    """Where a record is whose own UUID was in the log before its batch came."""

    offset: int
    timestamp: int


class BatchOutcome:
    """Owns the one answer that all records of a batch share: where it is, or why it is not there. Settled exactly once.

    Records with UUIDs of their own may have been there before: they have their places by themselves, and the batch
    lacks them.
    """

    __slots__ = (
        "_error",
        "_lock",
        "_looked_at",
        "_place",
        "_settled",
        "_there",
        "_there_at",
        "observed",
        "partition",
        "topic",
    )

    def __init__(self, topic: str) -> None:
        self.topic = topic
        self._lock = threading.Lock()
        self._looked_at: list[RecordFuture] = []
        self._place: BatchPlace | None = None
        self._error: TritonMQError | None = None
        self._settled = False
        self._there: dict[int, RecordPlace] = {}
        self._there_at: list[int] = []
        self.partition = 0
        self.observed = False  # whether a future of it was asked for its result or error: it will be seen there

    def settle(self, place: BatchPlace | None, error: TritonMQError | None) -> None:
        """The answer. Callbacks of futures run in this thread."""
        with self._lock:
            assert not self._settled
            self._place, self._error, self._settled = place, error, True
            looked_at = list(self._looked_at)
        for future in looked_at:
            self._finish(future)

    def were_there(self, partition: int, places: Mapping[int, RecordPlace]) -> None:
        """These records, by their place in the batch as it was published, are not in it any more. Before `settle`."""
        with self._lock:
            assert not self._settled
            self.partition = partition
            self._there.update(places)
            self._there_at = sorted(self._there)

    def look_at(self, future: RecordFuture) -> None:
        """Make the future real. Idempotent, from any thread."""
        with self._lock:
            if "_condition" in future.__dict__:
                return
            Future.__init__(future)
            self._looked_at.append(future)
            settled = self._settled
        if settled:
            self._finish(future)

    def _finish(self, future: RecordFuture) -> None:
        if not future.set_running_or_notify_cancel():
            return
        there = self._there.get(future.index)
        if there is not None:
            future.set_result(RecordMetadata(self.topic, self.partition, there.offset, there.timestamp, duplicate=True))
            return
        if self._error is not None:
            future.set_exception(self._error)
            return
        assert self._place is not None
        place = self._place
        before = bisect_left(self._there_at, future.index) if self._there_at else 0
        offset = place.base_offset + future.index - before if place.base_offset >= 0 else -1
        future.set_result(RecordMetadata(self.topic, place.partition, offset, place.timestamp, place.duplicate))


class LazyFuture(Future[R]):
    """Made real by the first use of anything that a future has. Cannot be cancelled."""

    def _make_real(self) -> None:
        """Calls `Future.__init__`, once."""
        raise NotImplementedError

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        self._make_real()
        return object.__getattribute__(self, name)

    def cancel(self) -> bool:
        """Always False."""
        return False


class _Observed(Future[R]):
    """Notes that somebody will see its error, and can be awaited."""

    def _observe(self) -> None:
        raise NotImplementedError

    def result(self, timeout: float | None = None) -> R:
        self._observe()
        return super().result(timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        self._observe()
        return super().exception(timeout)

    def add_done_callback(self, fn: Callable[[Future[R]], object]) -> None:
        self._observe()
        super().add_done_callback(fn)

    def __await__(self) -> Generator[Any, None, R]:
        """In any loop, and as often as one likes. Who is cancelled waits no longer; the record is sent all the same."""
        return asyncio.wrap_future(self).__await__()


class RecordFuture(_Observed[RecordMetadata], LazyFuture[RecordMetadata]):
    """A record's future, made real on first use. Cannot be cancelled: its batch may be on the way.

    The accumulator makes most of them without `__init__`, which would be a third of their cost: it sets the two
    attributes.
    """

    __slots__ = ("index", "outcome")

    def __init__(self, outcome: BatchOutcome, index: int) -> None:
        # Future.__init__ is called by BatchOutcome.look_at.
        self.outcome = outcome
        self.index = index

    def _make_real(self) -> None:
        self.outcome.look_at(self)

    def _observe(self) -> None:
        self.outcome.observed = True


class TableFuture(_Observed[BatchMetadata]):
    """A published table's future: done when every batch that it was split into is. Cannot be cancelled."""

    def __init__(self) -> None:
        super().__init__()
        self.observed = False

    def cancel(self) -> bool:
        """Always False."""
        return False

    def _observe(self) -> None:
        self.observed = True


class TableOutcome:
    """Owns the answers of the batches that a table was split into, and settles the table's future once all are in."""

    def __init__(self, topic: str, record_count: int) -> None:
        self.future = TableFuture()
        self._topic = topic
        self._record_count = record_count
        self._lock = threading.Lock()
        self._places: dict[int, BatchPlace] = {}
        self._pieces = 0
        self._settled = 0
        self._error: TritonMQError | None = None
        self._complete = False

    def piece(self) -> PieceOutcome:
        """One more batch, behind those before."""
        with self._lock:
            assert not self._complete
            self._pieces += 1
            return PieceOutcome(self, self._pieces - 1)

    def complete(self) -> TableFuture:
        """There are no more pieces."""
        with self._lock:
            self._complete = True
        self._finish_if_all()
        return self.future

    def settle_piece(self, index: int, place: BatchPlace | None, error: TritonMQError | None) -> None:
        with self._lock:
            self._settled += 1
            if place is not None:
                self._places[index] = place
            self._error = self._error or error
        self._finish_if_all()

    def _finish_if_all(self) -> None:
        with self._lock:
            if not self._complete or self._settled < self._pieces or self.future.done():
                return
            error, places = self._error, tuple(self._places[index] for index in sorted(self._places))
            self.future.set_running_or_notify_cancel()
        if error is None:
            self.future.set_result(BatchMetadata(self._topic, self._record_count, places))
            return
        if places:
            error.add_note(f"{len(places)} of the table's {self._pieces} batches are in the log: {places}")
        self.future.set_exception(error)


class PieceOutcome:
    """One batch of a table."""

    __slots__ = ("_index", "_table")

    def __init__(self, table: TableOutcome, index: int) -> None:
        self._table = table
        self._index = index

    @property
    def observed(self) -> bool:
        return self._table.future.observed

    def settle(self, place: BatchPlace | None, error: TritonMQError | None) -> None:
        self._table.settle_piece(self._index, place, error)
