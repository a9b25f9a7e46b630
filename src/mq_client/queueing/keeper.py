"""Holds a member's leases: takes its turns, on the event loop of this process, and is what the application's threads
speak to.

A turn waits for nobody: questions go out, and answers come back in their own time. What is asked in one is in
planning.py.
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Final

from mq_client.cluster.connection import Connection
from mq_client.cluster.deadline import Deadline
from mq_client.cluster.loop import EventLoop, on_loop
from mq_client.errors import InternalError, InvalidRequest, LeaseLost, OutcomeUnknown, TritonMQError
from mq_client.queueing.leases import LOST, SETTLING, HeldLease, Indexes
from mq_client.queueing.offsets import runs_count
from mq_client.queueing.on_loop import LoopTurns
from mq_client.queueing.places import Terms
from mq_client.queueing.planning import Planning
from mq_client.queueing.settling import (
    EXTEND,
    RANGES_MAX,
    RECORDS_MAX,
    RELEASE,
    StagedOutputs,
    Tally,
    Word,
    why_lost,
)
from mq_client.queueing.work_streams import WorkStreams, work_streams
from mq_protocol import mq_pb2 as pb
from mq_protocol.manifest import StagedPart

_JOIN_S: Final = 1.0


class Keeper(Planning):
    """Owns the turns, and all that the member holds. Everything under `lock`."""

    def __init__(self, connection: Connection, terms: Terms) -> None:
        super().__init__(connection, terms)
        self.over = False
        self._close_by = math.inf
        self._process = os.getpid()
        self._ended = threading.Event()

    # ------------------------------------------------------------------ from the application's threads

    def check_process(self) -> None:
        """Raises `InvalidRequest` in a process that was forked since."""
        if os.getpid() != self._process:
            raise InvalidRequest(
                "this queue was opened in the process that this one was forked from, and its thread is there: open "
                "another one here"
            )

    @property
    def started(self) -> bool:
        return self._turns is not None

    @property
    def active(self) -> bool:
        """Whether this member is lent records, as far as its leaders have said."""
        with self.lock:
            return self.started and not self.closing and self.error is None and self._sessions.active

    def ensure_started(
        self, topic_id: str, loop: EventLoop, streams: Callable[[EventLoop], WorkStreams] = work_streams
    ) -> None:
        """Of that topic. `loop`: where turns are taken; `streams`: those by which sessions are held. Under `lock`."""
        if self.started or self.closing:
            return
        self.topic_id = topic_id
        self._streams = partial(streams, loop)
        self._turns = LoopTurns(loop, self._run_due)
        self._turns.notify()

    def settle_one(self, lease: HeldLease, index: int, word: Word) -> Future[None]:
        """Say what becomes of one record. Raises `LeaseLost` if it is known to be lost."""
        self.check_process()
        tally = Tally(self._where(lease), 1)
        with self.lock:
            self._check_open(lease, index)
            box = self.holdings.places[lease.partition].settles
            first = not box
            self.holdings.say_one(lease, index, word, tally, time.monotonic())
            if first or self._hurries(box):
                self.wake()
            self._note_free()
        return tally.future

    def settle(self, lease: HeldLease, indexes: Indexes, word: Word) -> Future[None]:
        """Say what becomes of these records. Those that are lost already are named by the future. Raises `LeaseLost` if
        all are."""
        self.check_process()
        with self.lock:
            lost, indexes = self._without_lost(lease, indexes)
            if bool((lease.states[indexes] >= SETTLING).any()):
                raise InvalidRequest(f"{self._named(lease)}: some of these records have an outcome already")
            tally = Tally(self._where(lease), len(indexes), lost=lost)
            self.holdings.say(lease, indexes, word, tally, time.monotonic())
            self.wake()
            self._note_free()
        return tally.future

    def _note_free(self) -> None:
        """The next record of a key may be handed out. Under `lock`."""
        if self.holdings.ordered is not None:
            self.changed.notify_all()

    def check_unsettled(self, lease: HeldLease, indexes: Indexes) -> None:
        """Raises `LeaseLost` if one of these is known to be lost, `InvalidRequest` if one has an outcome, or if they
        are more than one request may say."""
        self.check_process()
        with self.lock:
            self._check_unsettled(lease, indexes)

    def _check_unsettled(self, lease: HeldLease, indexes: Indexes) -> None:
        lost = lease.offsets[indexes[lease.states[indexes] == LOST]].tolist()
        if lost:
            raise why_lost(self._where(lease), lost)
        for index in indexes[lease.states[indexes] >= SETTLING][:1]:
            self._check_open(lease, int(index))
        ordered = self.holdings.ordered
        overtaken = ordered.overtaken(lease, indexes) if ordered is not None else None
        if overtaken is not None:
            raise InvalidRequest(
                f"{self._named(lease)}: offset {int(lease.offsets[overtaken])} has the key of a later row that is to "
                "be acknowledged with outputs, and no outcome yet: rows of a key are settled in order"
            )
        if len(indexes) > RECORDS_MAX or runs_count(lease.offsets[indexes]) > RANGES_MAX:
            raise InvalidRequest(
                f"{self._named(lease)}: an ack with outputs may name {RECORDS_MAX} records in {RANGES_MAX} ranges of "
                "offsets, and these are more: acknowledge fewer records at a time"
            )

    def ack_with_outputs(self, lease: HeldLease, indexes: Indexes, parts: tuple[StagedPart, ...]) -> Future[None]:
        """They are done, and what was staged is published: both or neither. Raises as `check_unsettled`."""
        self.check_process()
        with self.lock:
            self._check_unsettled(lease, indexes)
            place = self.holdings.places[lease.partition]
            place.number += 1
            tally = Tally(self._where(lease), len(indexes))
            word = Word(pb.OUTCOME_ACK, outputs=StagedOutputs(parts, place.number))
            self.holdings.say(lease, indexes, word, tally, time.monotonic())
            self.wake()
            self._note_free()
        return tally.future

    def extend(self, lease: HeldLease, indexes: Indexes) -> Future[None]:
        """Set the clocks of these records anew. Raises `LeaseLost` if all are lost."""
        self.check_process()
        with self.lock:
            lost, indexes = self._without_lost(lease, indexes)
            tally = Tally(self._where(lease), len(indexes), lost=lost)
            self.holdings.places[lease.partition].extensions.add(lease, indexes, EXTEND, tally, time.monotonic())
            self.wake()
        return tally.future

    def has_outcome(self, lease: HeldLease, index: int) -> bool:
        """Raises `LeaseLost` if it is known to be lost."""
        with self.lock:
            if lease.state(index) == LOST:
                self._check_open(lease, index)
            return lease.state(index) >= SETTLING

    def note_taken(self) -> None:
        """Something was handed out: if it was the last, or needs no outcome, more may be asked for. Under `lock`."""
        enough = self.terms.accept and self.holdings.held * 2 <= self.terms.credit.records
        if enough or self.holdings.hungry:
            self.wake()

    def close_soon(self, deadline: Deadline) -> int:
        """Give back what has no outcome, send all outcomes, and end by then. How much of that was handed out."""
        with self.lock:
            if self.closing:
                return 0
            now, self.closing = time.monotonic(), True
            self._close_by = now + deadline.remaining_s
            self.holdings.shelf.clear()
            self.holdings.unread.clear()
            begun = sum(lease.begun() for place in self.holdings.places.values() for lease in place.leases.values())
            for place in self.holdings.places.values():
                for lease in list(place.leases.values()):
                    left = lease.without_outcome()
                    if len(left):
                        self.holdings.say(lease, left, RELEASE, None, now)
            self.over = self.over or not self.started
            self.wake()
            self.unread.notify_all()
            self.changed.notify_all()
        return begun

    def join(self) -> None:
        """Until the last turn, which is taken by the deadline of `close_soon`."""
        if self._turns is not None and not on_loop():
            left_s = self._close_by - time.monotonic()  # endless if a turn failed
            self._ended.wait(max(0.0, min(left_s, threading.TIMEOUT_MAX - _JOIN_S)) + _JOIN_S)

    def drop(self, lease: HeldLease, indexes: Indexes, state: int) -> None:
        """These need no outcome. Under `lock`."""
        self.holdings.end(lease, indexes, state)
        self.wake()

    def say(self, lease: HeldLease, indexes: Indexes, word: Word) -> None:
        """The outcome of records that the application is not given. Under `lock`."""
        self.holdings.say(lease, indexes, word, None, time.monotonic())
        self.wake()

    def note_size(self, lease: HeldLease, bytes_each: float) -> None:
        """So much a record of it takes, now that it was read. Under `lock`."""
        self.holdings.weigh(lease, bytes_each)
        self._answers.note_size(bytes_each)

    def _where(self, lease: HeldLease) -> tuple[str, int]:
        return self.terms.topic, lease.partition

    def _named(self, lease: HeldLease) -> str:
        return f"topic {self.terms.topic!r} partition {lease.partition}"

    def _check_open(self, lease: HeldLease, index: int) -> None:
        state = lease.state(index)
        if state == LOST:
            raise why_lost(self._where(lease), [int(lease.offsets[index])])
        if state >= SETTLING:
            if self.closing:
                raise LeaseLost(f"{self._named(lease)}: the queue was closed, and what had no outcome was given back")
            raise InvalidRequest(
                f"{self._named(lease)}: offset {int(lease.offsets[index])} has an outcome already: a record has one"
            )

    def _without_lost(self, lease: HeldLease, indexes: Indexes) -> tuple[list[int], Indexes]:
        gone = lease.states[indexes] == LOST
        lost: list[int] = lease.offsets[indexes[gone]].tolist()
        if lost and len(lost) == len(indexes):
            raise why_lost(self._where(lease), lost)
        return lost, indexes[~gone]

    # ------------------------------------------------------------------ on the loop

    def _run_due(self) -> None:
        """All turns that are due."""
        turns = self._turns
        assert turns is not None
        try:
            while not (self.over or turns.waits):
                if not self._turn():
                    self._end(OutcomeUnknown("the queue was closed before the leader had answered"))
        except BaseException as error:
            # A defect of ours. Nobody would answer any more: say so to everyone who waits, rather than let them.
            self._end(InternalError(f"the queue's turn failed ({type(error).__name__}: {error}): open it anew"))
            raise

    def _turn(self) -> bool:
        """Hear what was answered, and ask what is to be asked. False at the end."""
        turns = self._turns
        assert turns is not None
        with self.lock:
            now = time.monotonic()
            tallies: list[Tally] = []
            news = bool(self._heard)
            while self._heard:
                tallies += self._heard.popleft()(now)
            if news:
                self._note_heard(tallies)
            self._answers.ask_about_doubts(now)
            starts = self._plan(now)
            if not starts and not (tallies and self.closing):  # else what is told changes nothing
                if self.closing and (now >= self._close_by or self._is_quiet()):
                    return False
                turns.wait(max(0.0, min(self._wake_at, self._close_by) - now))
        for tally in tallies:
            tally.tell()
        for start in starts:
            start()
        return True

    def _note_heard(self, tallies: list[Tally]) -> None:
        """Who waits for what sessions have told is woken."""
        sessions = self._sessions
        if sessions.error is not None:
            self.fail(sessions.error)
            sessions.error = None
        if sessions.lent and self.holdings.unread:
            self.unread.notify()
        if sessions.lent or tallies or self.holdings.ordered is not None:
            self.changed.notify_all()
        sessions.lent = False

    def _is_quiet(self) -> bool:
        return self._sessions.quiet and all(place.quiet for place in self.holdings.places.values())

    def _end(self, error: TritonMQError) -> None:
        tallies: list[Tally] = []
        with self.lock:
            self.over = self.closing = True
            lines = self._sessions.drain()
            self.error = self.error or (error if isinstance(error, InternalError) else None)
            for place in self.holdings.places.values():
                if place.settling is not None:
                    place.settling.cancel()
                    lines += place.settling.lines
                for box in (place.settles, place.extensions):
                    tallies += [tally for piece in box.drain() for tally in piece.answered(set(), error)]
            tallies += [tally for line in lines for piece in line.pieces for tally in piece.answered(set(), error)]
            self._sessions.close()
            self.changed.notify_all()
            self.unread.notify_all()
        for tally in tallies:
            tally.tell()
        self._refresher.stop()
        self._ended.set()
