"""Holds a member's leases: takes its turns, on the event loop of this process, and is what the application's threads
speak to.

A turn waits for nobody: questions go out, and answers come back in their own time. Leaders are spoken to by sessions
(sessions.py). Whom to give credit is decided in shares.py, what outcomes say in settling.py, what is held in
holdings.py, and what an answer means in sessions.py. Here is the clock.
"""

from __future__ import annotations

import asyncio
import math
import os
import threading
import time
import zlib
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Final

from mq_client.cluster.connection import Connection, TopicView
from mq_client.cluster.deadline import Deadline
from mq_client.cluster.loop import EventLoop, on_loop
from mq_client.errors import InternalError, InvalidRequest, LeaseLost, OutcomeUnknown, TritonMQError, UnknownTopic
from mq_client.producing.refresher import Refresher
from mq_client.queueing.holdings import Credit, Holdings, Place, Terms
from mq_client.queueing.leases import LOST, SETTLING, HeldLease, Indexes, runs_count
from mq_client.queueing.sessions import Answers, PlaceSession, Sessions
from mq_client.queueing.settling import (
    EXTEND,
    RANGES_MAX,
    RECORDS_MAX,
    RELEASE,
    Line,
    Outbox,
    StagedOutputs,
    Tally,
    Word,
    why_lost,
)
from mq_client.queueing.work_streams import WorkStreams, work_streams
from mq_protocol import mq_pb2 as pb
from mq_protocol.manifest import StagedPart

GATHER_S: Final = 0.005
"""For so long outcomes are gathered."""

_LOOK_S: Final = 5.0
"""How often it is asked who leads and how many partitions there are, even if nothing seems wrong."""

_NO_LEADER_S: Final = 0.2
_STALL_S: Final = 2.0
"""Unanswered for so long, it is asked whether somebody else leads by now."""

_IDLE_S: Final = 1.0
_JOIN_S: Final = 1.0


class LoopTurns:
    """Takes the turns of a keeper on the event loop of this process: with a thread for each, a process with many
    members would spend itself on handing the interpreter's lock from one to the next. `run` takes all turns that are
    due, up to one that waits.

    `notify` from any thread, under the keeper's lock; the rest on the loop.
    """

    def __init__(self, loop: EventLoop, run: Callable[[], None]) -> None:
        self._loop = loop
        self._run = run
        self._due = False
        self._timer: asyncio.TimerHandle | None = None
        self.waits = False

    def notify(self) -> None:
        if not self._due:
            self._due = True
            self._loop.soon(self._turn)

    def wait(self, seconds: float) -> None:
        """The next turn is due after so long, unless somebody notifies before."""
        self.waits = True
        self._timer = self._loop.later(seconds, self._turn)

    def _turn(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._due = self.waits = False
        self._run()


class Keeper:
    """Owns the turns, all that the member holds, its sessions, and what was heard of leaders and is not taken in
    yet. Everything under `lock`. `changed` is notified when there are records to take, when an error ends the
    queue, and when the turns end; `unread` when rows are to be read. `_streams` and `_turns`: once it is started."""

    def __init__(self, connection: Connection, terms: Terms, clock: Callable[[], float] = time.monotonic) -> None:
        self.connection = connection
        self.terms = terms
        self.lock = threading.Lock()
        self.changed = threading.Condition(self.lock)
        self.unread = threading.Condition(self.lock)
        self.holdings = Holdings()
        self.error: TritonMQError | None = None
        self.closing = False
        self.topic_id = ""
        self._answers = Answers(connection, terms, self.holdings, self._doubt)
        self._heard: deque[Callable[[float], list[Tally]]] = deque()
        self._refresher = Refresher(connection, self._wake)
        self._look_at = 0.0
        self._look_around_at = 0.0
        self._wake_at = 0.0
        self._stale = True
        self._spoken_to: dict[int, PlaceSession] = {}
        self._streams: Callable[[], WorkStreams]
        self._turns: LoopTurns | None = None
        first = zlib.crc32(terms.member.encode()) & 0xFFFF  # members begin with different partitions
        self._sessions = Sessions(
            connection, self.holdings, self._answers, lambda: self._streams(), self._hear_later, first
        )
        self.over = False
        self._clock = clock
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
            self.holdings.say_one(lease, index, word, tally, self._clock())
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
            self.holdings.say(lease, indexes, word, tally, self._clock())
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
            self.holdings.say(lease, indexes, word, tally, self._clock())
            self.wake()
            self._note_free()
        return tally.future

    def extend(self, lease: HeldLease, indexes: Indexes) -> Future[None]:
        """Set the clocks of these records anew. Raises `LeaseLost` if all are lost."""
        self.check_process()
        with self.lock:
            lost, indexes = self._without_lost(lease, indexes)
            tally = Tally(self._where(lease), len(indexes), lost=lost)
            self.holdings.places[lease.partition].extensions.add(lease, indexes, EXTEND, tally, self._clock())
            self.wake()
        return tally.future

    def has_outcome(self, lease: HeldLease, index: int) -> bool:
        """Raises `LeaseLost` if it is known to be lost."""
        with self.lock:
            if lease.state(index) == LOST:
                self._check_open(lease, index)
            return lease.state(index) >= SETTLING

    def want_more(self) -> None:
        """Something was handed out, or nothing is left: have more asked for if it may be. Under `lock`."""
        holdings, most = self.holdings, self.terms.credit.records
        enough = self.terms.accept and holdings.held * 2 <= most
        if enough or (holdings.hungry and holdings.held < most):
            self.wake()

    def close_soon(self, deadline: Deadline) -> int:
        """Give back what has no outcome, send all outcomes, and end by then. How much of that was handed out."""
        with self.lock:
            if self.closing:
                return 0
            now, self.closing = self._clock(), True
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
            left_s = self._close_by - self._clock()  # endless if a turn failed
            self._ended.wait(max(0.0, min(left_s, threading.TIMEOUT_MAX - _JOIN_S)) + _JOIN_S)

    def drop(self, lease: HeldLease, indexes: Indexes, state: int) -> None:
        """These need no outcome. Under `lock`."""
        self.holdings.end(lease, indexes, state)
        self.wake()

    def say(self, lease: HeldLease, indexes: Indexes, word: Word) -> None:
        """The outcome of records that the application is not given. Under `lock`."""
        self.holdings.say(lease, indexes, word, None, self._clock())
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
            now = self._clock()
            tallies: list[Tally] = []
            news = bool(self._heard)
            while self._heard:
                tallies += self._heard.popleft()(now)
            if news:
                self._note_heard(tallies)
            self._answers.ask_about_doubts(now)
            self._plan(now)
            if not (tallies and self.closing):  # else what is told changes nothing
                if self.closing and (now >= self._close_by or self._is_quiet()):
                    return False
                turns.wait(max(0.0, min(self._wake_at, self._close_by) - now))
        for tally in tallies:
            tally.tell()
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

    # ------------------------------------------------------------------ what is asked and said

    def fail(self, error: TritonMQError) -> None:
        """Nothing more is asked for. Under `lock`."""
        if self.error is None:
            self.error = error
        self.changed.notify_all()
        self.unread.notify_all()

    def wake(self) -> None:
        """There may be something to ask or to say. Under `lock`."""
        if self._turns is not None:
            self._turns.notify()

    def _wake(self) -> None:
        """Something was heard of the topic."""
        with self.lock:
            self._stale = True
            self.wake()

    def _hear_later(self, hear: Callable[[float], list[Tally]]) -> None:
        """In the next turn."""
        self._heard.append(hear)
        self.wake()

    def _doubt(self, address: str) -> None:
        """That broker does not lead, or does not answer."""
        self._refresher.ask(self.terms.topic, address)

    def _plan(self, now: float) -> None:
        """What is to be asked and said. A turn is often one of a single record: all partitions are looked at only when
        something else than records may have changed."""
        if self._is_stale(now):
            self._look_around(now)
        self._wake_at = self._look_around_at
        self._converse(now)

    def _is_stale(self, now: float) -> bool:
        """Whether leaders, sessions, or what time does to leases is to be looked at anew."""
        holdings, found = self.holdings, self._spoken_to
        self._look_around_at = min(self._look_around_at, holdings.extend_at)
        return (
            self._stale
            or self.closing
            or self._sessions.ended
            or now >= self._look_around_at
            or any(number not in found and not place.quiet for number, place in holdings.places.items())
        )

    def _look_around(self, now: float) -> None:
        """Who leads, whose leases are to be extended, and whose answers are late. A session is opened with each leader
        that is to be spoken to."""
        view = self._look(now)
        self._stale = view is None
        self._look_around_at, self.holdings.extend_at = now + _IDLE_S, math.inf
        self._spoken_to = {}
        if view is None:
            return
        for number, place in self.holdings.places.items():
            address = self.connection.leader_address(view, number) if number < view.partitions else None
            if address is None:
                self._look_at = min(self._look_at, now + _NO_LEADER_S)
                continue
            self._note_epoch(place, view.epochs[number])
            self._gather_extensions(place, now)
            if self._speaks(place):
                self._speak_to(place, address, now)
        self._sessions.ended = False
        self._look_around_at = min(self._look_around_at, self._look_at)

    def _look(self, now: float) -> TopicView | None:
        """The topic as it is known."""
        refused = self._refresher.refusal(self.terms.topic)
        view = self.connection.known_topic(self.terms.topic)
        if view is not None and view.topic_id != self.topic_id:
            refused = UnknownTopic(
                f"topic {self.terms.topic!r} was deleted and made again while its queue {self.terms.group!r} was open: "
                "open the queue anew to work on that one"
            )
        if refused is not None:
            self.fail(refused)
        if now >= self._look_at:
            self._look_at = now + _LOOK_S
            self._refresher.ask(self.terms.topic)
        if view is not None:
            for number in range(view.partitions):
                if number not in self.holdings.places:
                    self.holdings.places[number] = Place(number)
        return view

    @staticmethod
    def _note_epoch(place: Place, epoch: int) -> None:
        """A new leader does not know how long leases are that this member asked for, until they are named to it."""
        if place.epoch not in (0, epoch) and place.leases:
            place.unsure = True
        place.epoch = epoch

    def _speaks(self, place: Place) -> bool:
        """Whether its leader is spoken to. A queue that has failed, or closes, opens a session to say something, and
        for nothing else."""
        return self._sessions.has(place) or not place.quiet or (self.error is None and not self.closing)

    def _speak_to(self, place: Place, address: str, now: float) -> None:
        """By a session, which is opened if there is none and it is time."""
        sessions = self._sessions
        if place.ask_after > now and not sessions.has(place):
            self._look_around_at = min(self._look_around_at, place.ask_after)
            return
        session = sessions.open(place, address, self.terms, self.topic_id, now)
        self._spoken_to[place.partition] = session
        self._look_for_answers(session, now)
        if self.closing:
            sessions.give_back(place, now)
            sessions.take_back(session)

    def _look_for_answers(self, session: PlaceSession, now: float) -> None:
        since = max(session.oldest, session.call.doubted_at) + _STALL_S
        if now >= since:
            session.call.doubted_at = now
            self._doubt(session.call.address)
        self._look_around_at = min(self._look_around_at, since if now < since else now + _STALL_S)

    def _converse(self, now: float) -> None:
        """Say to leaders what they are to hear."""
        sessions, holdings, found = self._sessions, self.holdings, self._spoken_to
        lines = {number: self._lines(each, now) for number, each in found.items() if not each.place.quiet}
        if not self.closing and self.error is None:
            held = Credit(holdings.held, int(holdings.held_bytes))
            sessions.hand_out(found, self.terms.credit, held, now=now, hungry=holdings.hungry)
        for number, session in found.items():
            sessions.say(session, lines.get(number, ()), self.terms, now)

    def _lines(self, session: PlaceSession, now: float) -> list[Line]:
        """Outcomes and extensions that are due. While others of the partition are on their way outcomes gather, unless
        there is nothing else to do: each message may be an entry. An ack with outputs waits for the one before."""
        place = session.place
        box, lines = place.settles, self._extensions(place, now)
        waits = session.account.sent and not self._hurries(box)
        if not waits and self._are_due(place, now):
            settles = box.take_lines(outputs=not session.publishes)
            session.account.sent += sum(len(line.indexes) for line in settles)  # may be lent others with them
            lines += settles
        return lines

    def _extensions(self, place: Place, now: float) -> list[Line]:
        """Those that are due."""
        if not place.extensions:
            return []
        if now < place.extend_after:
            self._wake_at = min(self._wake_at, place.extend_after)
            return []
        return place.extensions.take_lines()

    def _are_due(self, place: Place, now: float) -> bool:
        """Whether there are outcomes that wait for no others."""
        box = place.settles
        if not box:
            return False
        due = max(place.settle_after, 0.0 if self._hurries(box) else box.since + GATHER_S)
        self._wake_at = min(self._wake_at, due) if now < due else self._wake_at
        return now >= due

    def _hurries(self, box: Outbox) -> bool:
        """Whether nothing more is waited for: much has gathered, or the application has nothing else to work on."""
        enough = box.records * 2 >= self.terms.credit.records
        return self.closing or enough or (self.holdings.all_have_outcomes and self.holdings.hungry)

    def _gather_extensions(self, place: Place, now: float) -> None:
        """What the application has not begun is extended each third of its time. Leases that may have run out are asked
        about."""
        if not place.leases or self.closing:
            return
        if now >= place.check_at:
            place.unsure = place.unsure or any(lease.has_begun() for lease in place.leases.values())
            place.check_at = now + max(lease.lease_s for lease in place.leases.values())
        if now >= place.extend_at and not place.extensions:
            for lease in place.leases.values():
                if lease.extend_at <= now:
                    indexes = lease.to_extend()
                    if len(indexes):
                        place.extensions.add(lease, indexes, EXTEND, None, now)
                    lease.extended(now)
            place.extend_at = min(lease.extend_at for lease in place.leases.values())
        self._look_around_at = min(self._look_around_at, place.extend_at, place.check_at)
