"""Outcomes on their way to a partition's leader: gathered, sent together, asked again without an answer. Pure.

One piece is what one call of the application said of some records of one lease. Pieces that say the same of one lease
become one line of a request.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np

from mq_client.cluster.loop import on_loop
from mq_client.errors import LeaseLost, TritonMQError
from mq_client.producing.futures import LazyFuture
from mq_client.queueing.leases import HeldLease, Indexes, runs_count, to_gaps
from mq_protocol import mq_pb2 as pb
from mq_protocol.errors import shortened
from mq_protocol.manifest import StagedPart
from mq_protocol.manifest_lines import line_to_wire

log = logging.getLogger(__name__)

RANGES_MAX: Final = 4_000
"""In one request. Brokers take 8,000 in an entry, which others want too."""

RECORDS_MAX: Final = 100_000
ERROR_BYTES_MAX: Final = 256
"""What a leader keeps of an error's text."""

_NAMED_MAX: Final = 5

Place: TypeAlias = tuple[str, int]
"""Topic and partition."""


@dataclass(frozen=True, eq=False, slots=True)
class StagedOutputs:
    """What was staged for one ack. `number` grows with each such ack of the member in the partition. Equal to itself
    alone, so two acks never become one line."""

    parts: tuple[StagedPart, ...]
    number: int


class Word(NamedTuple):
    """What is said of records. `delay_ms` None: as the group's retries say. `outputs`: of an ack; then it is done whole
    or not at all."""

    outcome: pb.Outcome.ValueType
    error: str = ""
    delay_ms: int | None = None
    outputs: StagedOutputs | None = None


ACK: Final = Word(pb.OUTCOME_ACK)
EXTEND: Final = Word(pb.OUTCOME_EXTEND)
RELEASE: Final = Word(pb.OUTCOME_RELEASE)


def failed(error: object, delay_ms: int | None = None) -> Word:
    return Word(pb.OUTCOME_FAIL, shortened(str(error), ERROR_BYTES_MAX), delay_ms)


def rejected(error: object) -> Word:
    return Word(pb.OUTCOME_REJECT, shortened(str(error), ERROR_BYTES_MAX))


class Callbacks:
    """Owns the thread that calls the callbacks of futures which end on a loop. It begins with the first."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._calls: queue.SimpleQueue[tuple[Callable[[Any], object], Any]] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def call(self, function: Callable[[Any], object], future: Any) -> None:
        with self._lock:
            if self._thread is None or not self._thread.is_alive():  # as in a process that was forked
                self._calls = queue.SimpleQueue()
                self._thread = threading.Thread(target=self._serve, name="tritonmq-callbacks", daemon=True)
                self._thread.start()
        self._calls.put((function, future))

    def _serve(self) -> None:
        while True:
            function, future = self._calls.get()
            try:
                function(future)
            except Exception:
                log.exception("a callback of a record's outcome failed")


callbacks: Final = Callbacks()


class OutcomeFuture(LazyFuture[None]):
    """Ends when its records' outcome is committed. Made real when somebody first looks at it: most are never looked at,
    and what a future consists of takes longer to make than all the rest of an outcome. Cannot be cancelled."""

    def __init__(self, tally: Tally) -> None:
        self._tally = tally  # Future.__init__ is called by Tally.look_at

    def _make_real(self) -> None:
        self._tally.look_at(self)

    def add_done_callback(self, fn: Callable[[Future[None]], object]) -> None:
        """It is called in a thread of this client's, or here and now if the future has ended."""
        super().add_done_callback(partial(_call, fn))


def _call(function: Callable[[Future[None]], object], future: Future[None]) -> None:
    """Not on the event loop of this process: what an application does there would hold up all of its streams."""
    if on_loop():
        callbacks.call(function, future)
    else:
        function(future)


_looking = threading.Lock()


class Tally:
    """Of one call: how many of its records have no answer yet, and which are lost. Its future ends when all have
    one."""

    __slots__ = ("_told", "error", "future", "left", "lost", "where")

    def __init__(self, where: Place, left: int, lost: Sequence[int] = ()) -> None:
        self.where = where
        self.left = left
        self.lost = lost
        self.error: TritonMQError | None = None
        self.future = OutcomeFuture(self)
        self._told = False

    def answered(self, records: int, lost: Sequence[int] = (), error: TritonMQError | None = None) -> bool:
        """True once all are."""
        self.left -= records
        if lost:
            self.lost = [*self.lost, *lost]
        self.error = self.error or error
        return self.left <= 0

    def tell(self) -> None:
        """Whoever waits is told, here and now."""
        with _looking:
            self._told = True
            looked_at = "_condition" in self.future.__dict__
        if looked_at:
            self._finish()

    def look_at(self, future: OutcomeFuture) -> None:
        """Make the future real. From any thread, any number of times."""
        with _looking:
            if "_condition" in future.__dict__:
                return
            Future.__init__(future)
            told = self._told
        if told:
            self._finish()

    def _finish(self) -> None:
        error = self.error or (why_lost(self.where, sorted(self.lost)) if self.lost else None)
        self.future.set_running_or_notify_cancel()
        if error is None:
            self.future.set_result(None)
        else:
            self.future.set_exception(error)


def why_lost(where: Place, offsets: Sequence[int]) -> LeaseLost:
    named = ", ".join(map(str, offsets[:_NAMED_MAX])) + (", ..." if len(offsets) > _NAMED_MAX else "")
    return LeaseLost(
        f"topic {where[0]!r} partition {where[1]}: {len(offsets)} of these records are not this member's any more "
        f"(offset {named}): their lease ran out or was ended, and others may be given them. Work faster, call "
        "extend(), or give the group a longer lease_ms"
    )


@dataclass(eq=False, slots=True)
class Piece:
    """Said of some records of one lease. `again`: it was sent before, and nobody knows what came of it.

    Either of records one by one: `indexes` are in the order of the calls, and each has its tally. Or of many by one
    call: they ascend, and share one tally, or have none.
    """

    lease: HeldLease
    word: Word
    indexes: list[int] | Indexes
    tallies: list[Tally]
    again: bool = False

    @property
    def one_by_one(self) -> bool:
        return isinstance(self.indexes, list)

    def split(self, at: int) -> tuple[Piece, Piece]:
        first, rest = (self.tallies[:at], self.tallies[at:]) if self.one_by_one else (self.tallies, self.tallies)
        return (
            Piece(self.lease, self.word, self.indexes[:at], first, self.again),
            Piece(self.lease, self.word, self.indexes[at:], rest, self.again),
        )

    def answered(self, lost: set[int], error: TritonMQError | None = None) -> list[Tally]:
        """What was waited for and has its answer now. `lost`: places in the lease."""
        offsets = self.lease.offsets
        if not self.one_by_one:
            gone = [int(offsets[index]) for index in self.indexes if int(index) in lost] if lost else []
            return [tally for tally in self.tallies if tally.answered(len(self.indexes), gone, error)]
        return [
            tally
            for index, tally in zip(self.indexes, self.tallies, strict=True)
            if tally.answered(1, [int(offsets[index])] if index in lost else (), error)
        ]


@dataclass(eq=False, slots=True)
class Line:
    """One line of a request: pieces that say the same of one lease. `indexes`: of all of them, ascending."""

    lease: HeldLease
    word: Word
    pieces: list[Piece]
    indexes: Indexes

    @property
    def again(self) -> bool:
        return any(piece.again for piece in self.pieces)


class Outbox:
    """What is to be said to the leader of one partition, in order. `since`: when the first of it came."""

    def __init__(self) -> None:
        self._pieces: deque[Piece] = deque()
        self.records = 0
        self.since = 0.0

    def __bool__(self) -> bool:
        return bool(self._pieces)

    def add_one(self, lease: HeldLease, index: int, word: Word, tally: Tally, now: float) -> None:
        last = self._pieces[-1] if self._pieces else None
        if last is None:
            self.since = now
        if last is not None and isinstance(last.indexes, list) and last.lease is lease and last.word == word:
            last.indexes.append(index)
            last.tallies.append(tally)
        else:
            self._pieces.append(Piece(lease, word, [index], [tally]))
        self.records += 1

    def add(self, lease: HeldLease, indexes: Indexes, word: Word, tally: Tally | None, now: float) -> None:
        if not self._pieces:
            self.since = now
        self._pieces.append(Piece(lease, word, indexes, [] if tally is None else [tally]))
        self.records += len(indexes)

    def put_back(self, lines: Sequence[Line], *, again: bool) -> None:
        """They are said again, before all others."""
        for line in reversed(lines):
            for piece in reversed(line.pieces):
                piece.again = piece.again or again
                self._pieces.appendleft(piece)
                self.records += len(piece.indexes)

    def take_lines(self, *, outputs: bool = True) -> list[Line]:
        """As much as one request may say, taken out of the box. `outputs`: it may say an ack with outputs; else what is
        before the first such one."""
        gathered: dict[tuple[int, Word, bool], list[Piece]] = {}
        ranges = records = 0
        with_outputs = False
        while self._pieces and ranges < RANGES_MAX and records < RECORDS_MAX:
            if self._pieces[0].word.outputs is not None:
                # Whole, and one in a request: a leader takes a number below the last one for done, so none may be
                # refused for now while a later one is done
                if (
                    with_outputs
                    or not outputs
                    or not self._fits(self._pieces[0], RANGES_MAX - ranges, RECORDS_MAX - records)
                ):
                    break
                with_outputs = True
            piece = self._cut_first(RANGES_MAX - ranges, RECORDS_MAX - records)
            self.records -= len(piece.indexes)
            ranges += _ranges_at_most(piece)
            records += len(piece.indexes)
            gathered.setdefault((id(piece.lease), piece.word, piece.again), []).append(piece)
        return [_line(pieces) for pieces in gathered.values()]

    @staticmethod
    def _fits(piece: Piece, ranges_max: int, records_max: int) -> bool:
        return len(piece.indexes) <= records_max and _ranges_at_most(piece) <= ranges_max

    def _cut_first(self, ranges_max: int, records_max: int) -> Piece:
        """The first piece, or as much of it as fits; the rest stays."""
        piece = self._pieces[0]
        fits = min(len(piece.indexes), records_max)
        if isinstance(piece.indexes, list):
            fits = min(fits, ranges_max)
        else:
            breaks = np.flatnonzero(np.diff(piece.lease.offsets[piece.indexes]) != 1) + 1
            if len(breaks) >= ranges_max:
                fits = min(fits, int(breaks[ranges_max - 1]))
        if fits >= len(piece.indexes):
            return self._pieces.popleft()
        first, self._pieces[0] = piece.split(fits)
        return first

    def drain(self) -> list[Piece]:
        """All that is here, taken out."""
        pieces = list(self._pieces)
        self._pieces.clear()
        self.records = 0
        return pieces


def _ranges_at_most(piece: Piece) -> int:
    if isinstance(piece.indexes, list):
        return len(piece.indexes)
    return runs_count(piece.lease.offsets[piece.indexes])


def _line(pieces: list[Piece]) -> Line:
    parts = [np.asarray(piece.indexes, dtype=np.int64) for piece in pieces]
    indexes = parts[0] if len(parts) == len(parts[0]) == 1 else np.unique(np.concatenate(parts))
    return Line(pieces[0].lease, pieces[0].word, pieces, indexes)


def to_wire(lines: Iterable[Line]) -> list[pb.SettleOne]:
    settles = []
    for line in lines:
        one = pb.SettleOne(
            lease=line.lease.id.to_wire(),
            ranges=to_gaps(line.lease.offsets[line.indexes]),
            outcome=line.word.outcome,
            error=line.word.error,
        )
        if line.word.delay_ms is not None:
            one.delay_ms = line.word.delay_ms
        if line.word.outputs is not None:
            one.number = line.word.outputs.number
            one.outputs.extend(line_to_wire(part) for part in line.word.outputs.parts)
        settles.append(one)
    return settles
