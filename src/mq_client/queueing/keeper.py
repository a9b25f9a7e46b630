"""Holds a member's leases: the one thread that asks for records, extends leases and sends outcomes.

It waits for nobody: questions go out, and answers come back in their own time. Whom to ask is decided in places.py,
what outcomes say in settling.py, what is held in holdings.py, and what an answer means in answers.py. Here are the
thread, the clock and the calls.
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Final, TypeVar

from google.protobuf.message import Message

from mq_client import forks
from mq_client.cluster.connection import Connection, TopicView
from mq_client.cluster.deadline import Deadline
from mq_client.errors import InternalError, InvalidRequest, LeaseLost, OutcomeUnknown, TritonMQError, UnknownTopic
from mq_client.producing.refresher import Refresher
from mq_client.queueing.answered_rows import ROWS_BYTES_MAX, slices_of
from mq_client.queueing.answers import Answers
from mq_client.queueing.holdings import Holdings
from mq_client.queueing.leases import LOST, SETTLING, HeldLease, Indexes
from mq_client.queueing.offsets import runs_count
from mq_client.queueing.places import WATCH_MS, Call, Place, Question, Terms, Turns, told_of
from mq_client.queueing.settling import (
    EXTEND,
    RANGES_MAX,
    RECORDS_MAX,
    RELEASE,
    Outbox,
    StagedOutputs,
    Tally,
    Word,
    to_wire,
    why_lost,
)
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
_LEASE_MS: Final = 3_000.0
_SETTLE_MS: Final = 10_000.0
_BEYOND_WAIT_MS: Final = 5_000.0
_JOIN_S: Final = 1.0

R = TypeVar("R", bound=Message)
Start = Callable[[], None]


class Keeper:
    """Owns the thread, and all that the member holds. `changed` is notified when there are records to take, when an
    error ends the queue, and when the thread ends; `unread` when rows are to be read. All under `lock`."""

    def __init__(self, connection: Connection, terms: Terms) -> None:
        self.connection = connection
        self.terms = terms
        self.lock = threading.Lock()
        self.changed = threading.Condition(self.lock)
        self.unread = threading.Condition(self.lock)
        self.holdings = Holdings()
        self.error: TritonMQError | None = None
        self.closing = False
        self.over = False
        self.topic_id = ""
        self.working = terms.working
        self._work = threading.Condition(self.lock)
        self._answers = Answers(connection, terms, self.holdings, self._doubt)
        self._heard: deque[Callable[[float], list[Tally]]] = deque()
        self._turns = Turns()
        self._refresher = Refresher(connection, self._wake)
        self._look_at = 0.0
        self._close_by = math.inf
        self._wake_at = 0.0
        self._process = os.getpid()
        self._thread: threading.Thread | None = None

    # ------------------------------------------------------------------ from the application's threads

    def check_process(self) -> None:
        """Raises `InvalidRequest` in a process that was forked since."""
        if os.getpid() != self._process:
            forks.check_usable()
            raise InvalidRequest(
                "this queue was opened in the process that this one was forked from, and its thread is there: open "
                "another one here"
            )

    @property
    def started(self) -> bool:
        return self._thread is not None

    def ensure_started(self, topic_id: str) -> None:
        """Of that topic. Under `lock`."""
        if self._thread is None and not self.closing:
            self.topic_id = topic_id
            self._thread = threading.Thread(target=self._run, name="tritonmq-queue", daemon=True)
            self._thread.start()

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
                self._work.notify()
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
            self._work.notify()
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
            self._work.notify()
            self._note_free()
        return tally.future

    def extend(self, lease: HeldLease, indexes: Indexes) -> Future[None]:
        """Set the clocks of these records anew. Raises `LeaseLost` if all are lost."""
        self.check_process()
        with self.lock:
            lost, indexes = self._without_lost(lease, indexes)
            tally = Tally(self._where(lease), len(indexes), lost=lost)
            self.holdings.places[lease.partition].extensions.add(lease, indexes, EXTEND, tally, time.monotonic())
            self._work.notify()
        return tally.future

    def has_outcome(self, lease: HeldLease, index: int) -> bool:
        """Raises `LeaseLost` if it is known to be lost."""
        with self.lock:
            if lease.state(index) == LOST:
                self._check_open(lease, index)
            return lease.state(index) >= SETTLING

    def wake(self) -> None:
        """There may be something to ask or to say. Under `lock`."""
        self._work.notify()

    def note_taken(self) -> None:
        """Something was handed out: if it was the last, or needs no outcome, more may be asked for. Under `lock`."""
        enough = self.terms.accept and self.holdings.held * 2 <= self.terms.credit.records
        if enough or self.holdings.hungry:
            self._work.notify()

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
                self._recall_lease(place)
                place.leave(self.terms.priority)
                for lease in list(place.leases.values()):
                    left = lease.without_outcome()
                    if len(left):
                        self.holdings.say(lease, left, RELEASE, None, now)
            self.over = self.over or self._thread is None
            self._work.notify()
            self.unread.notify_all()
            self.changed.notify_all()
        return begun

    def join(self) -> None:
        """Until the thread has ended, which it does by its deadline."""
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            left_s = self._close_by - time.monotonic()  # endless if the thread failed
            thread.join(max(0.0, min(left_s, threading.TIMEOUT_MAX - _JOIN_S)) + _JOIN_S)

    def drop(self, lease: HeldLease, indexes: Indexes, state: int) -> None:
        """These need no outcome. Under `lock`."""
        self.holdings.end(lease, indexes, state)
        self._work.notify()

    def say(self, lease: HeldLease, indexes: Indexes, word: Word) -> None:
        """The outcome of records that the application is not given. Under `lock`."""
        self.holdings.say(lease, indexes, word, None, time.monotonic())
        self._work.notify()

    def note_size(self, lease: HeldLease, bytes_each: float) -> None:
        """So much a record of it takes, now that it was read. Under `lock`."""
        self.holdings.weigh(lease, bytes_each)
        self._answers.note_size(bytes_each)

    def fail(self, error: TritonMQError) -> None:
        """Nothing more is asked for. Under `lock`."""
        if self.error is None:
            self.error = error
        self.changed.notify_all()
        self.unread.notify_all()

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

    # ------------------------------------------------------------------ the thread

    def _run(self) -> None:
        try:
            while self._turn():
                pass
            self._end(OutcomeUnknown("the queue was closed before the leader had answered"))
        except BaseException as error:
            # A defect of ours. Nobody would answer any more: say so to everyone who waits, rather than let them.
            self._end(InternalError(f"the queue's thread failed ({type(error).__name__}: {error}): open it anew"))
            raise

    def _turn(self) -> bool:
        """Hear what was answered, and ask what is to be asked. False at the end."""
        with self.lock:
            now = time.monotonic()
            tallies: list[Tally] = []
            while self._heard:
                tallies += self._heard.popleft()(now)
            self._answers.ask_about_doubts(now)
            starts = self._plan(now)
            if not starts and not tallies:
                if self.closing and (now >= self._close_by or self._is_quiet()):
                    return False
                self._work.wait(max(0.0, min(self._wake_at, self._close_by) - now))
        for tally in tallies:
            tally.tell()
        for start in starts:
            start()
        return True

    def _is_quiet(self) -> bool:
        return all(p.quiet and p.leasing is None and not p.unsure for p in self.holdings.places.values())

    def _end(self, error: TritonMQError) -> None:
        tallies: list[Tally] = []
        with self.lock:
            self.over = self.closing = True
            self.error = self.error or (error if isinstance(error, InternalError) else None)
            for place in self.holdings.places.values():
                for call in (place.leasing, place.settling, place.extending):
                    if call is not None:
                        call.cancel()
                        tallies += [t for line in call.lines for p in line.pieces for t in p.answered(set(), error)]
                for box in (place.settles, place.extensions):
                    tallies += [tally for piece in box.drain() for tally in piece.answered(set(), error)]
            self.changed.notify_all()
            self.unread.notify_all()
        for tally in tallies:
            tally.tell()
        self._refresher.stop()

    def _wake(self) -> None:
        with self.lock:
            self._work.notify()

    def _doubt(self, address: str) -> None:
        """That broker does not lead, or does not answer."""
        self._refresher.ask(self.terms.topic, address)

    # ------------------------------------------------------------------ what to ask (under `lock`)

    def _plan(self, now: float) -> list[Start]:
        self._wake_at = now + _IDLE_S
        view = self._look(now)
        if view is None:
            return []
        starts: list[Start] = []
        led: dict[int, Place] = {}
        addresses: dict[int, str] = {}  # looked up once: they change while other threads learn of them
        for number, place in self.holdings.places.items():
            address = self.connection.leader_address(view, number) if number < view.partitions else None
            self._recall(place, address, now)
            if address is None:
                self._look_at = min(self._look_at, now + _NO_LEADER_S)
                continue
            led[number], addresses[number] = place, address
            self._note_epoch(place, view.epochs[number])
            self._gather_extensions(place, now)
            starts += self._extend(place, address, now)
        for number, place in led.items():
            starts += self._settle(place, addresses[number], now)
        for question in self._questions(led, now):
            starts.append(self._lease(question, addresses[question.place.partition], now))
        if not starts:
            self._wake_at = min(self._wake_at, self._look_at)
        return starts

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

    def _view(self) -> TopicView | None:
        """The topic, if it is known to be this one still."""
        view = self.connection.known_topic(self.terms.topic)
        return view if view is not None and view.topic_id == self.topic_id else None

    def _recall(self, place: Place, address: str | None, now: float) -> None:
        """Break off what waits for an answer of a broker that does not lead any more."""
        for call in (place.leasing, place.settling, place.extending):
            if call is None or (call.waits and call.address == address):
                continue
            if address is not None and call.address != address:
                call.cancel()  # heard as an error, which is why it is asked again
            elif now >= max(call.sent_at, call.doubted_at) + _STALL_S:
                call.doubted_at = now
                self._doubt(call.address)
            else:
                self._wake_at = min(self._wake_at, max(call.sent_at, call.doubted_at) + _STALL_S)

    @staticmethod
    def _note_epoch(place: Place, epoch: int) -> None:
        """A new leader does not know how long leases are that this member asked for, until they are named to it."""
        if place.epoch not in (0, epoch) and place.leases:
            place.unsure = True
        place.epoch = epoch

    def _recall_lease(self, place: Place) -> None:
        call, place.leasing = place.leasing, None
        if call is not None:
            place.unsure = place.unsure or (call.records > 0 and not self.terms.accept)
            call.cancel()

    def _questions(self, led: dict[int, Place], now: float) -> list[Question]:
        holdings, credit = self.holdings, self.terms.credit
        if self.closing:
            return [
                Question(place, 0, 0, waits=False)
                for place in led.values()
                if place.unsure and place.leasing is None and place.ask_after <= now
            ]
        if self.error is not None:
            return []
        asked = [place.leasing for place in holdings.places.values() if place.leasing is not None]
        free = credit.free(holdings.held, holdings.held_bytes, asked)
        wants = free.worth_asking(credit, hungry=holdings.hungry)
        for place in led.values():
            if place.leasing is None and place.ask_after > now and (wants or place.unsure):
                self._wake_at = min(self._wake_at, place.ask_after)
        questions = self._turns.questions(led, free, wants, now, alone=len(holdings.places) == 1)
        if questions:
            return questions
        questions, again_at = told_of(led, now, self.terms.priority)
        self._wake_at = min(self._wake_at, again_at)
        return questions

    def _hurries(self, box: Outbox) -> bool:
        """Whether nothing more is waited for: much has gathered, or the application has nothing else to work on."""
        enough = box.records * 2 >= self.terms.credit.records
        return self.closing or enough or (self.holdings.all_have_outcomes and self.holdings.hungry)

    def _settle(self, place: Place, address: str, now: float) -> list[Start]:
        box = place.settles
        if not box or place.settling is not None or (self.closing and place.takes_leave(now)):
            return []
        due = max(place.settle_after, 0.0 if self._hurries(box) else box.since + GATHER_S)
        if now < due:
            self._wake_at = min(self._wake_at, due)
            return []
        call = place.settling = Call(address, now, lines=box.take_lines())
        question = self._more(place, call, now)
        if question is not None:
            place.stayed += 1
            return [self._lease(question, address, now, call)]
        return [self._start(call, "Settle", self._settle_request(place, call), pb.SettleResponse, _SETTLE_MS, place)]

    def _more(self, place: Place, settling: Call, now: float) -> Question | None:
        """What its leader is asked for together with these outcomes: as much as they set free. In order, outcomes may
        take other records with them, so they are answered first."""
        holdings, credit = self.holdings, self.terms.credit
        if self.closing or self.error is not None or self.terms.accept or holdings.ordered is not None:
            return None
        if any(line.word.outputs is not None for line in settling.lines):
            return None
        if not self._turns.stays(place, holdings.places.values(), now):
            return None
        records = sum(len(line.indexes) for line in settling.lines)
        size = sum(len(line.indexes) * line.lease.bytes_each for line in settling.lines)
        free = credit.free(holdings.held - records, holdings.held_bytes - size, ())
        if not free.worth_asking(credit, hungry=holdings.hungry):
            return None
        return Question(place, free.records, free.bytes, waits=False)

    def _extend(self, place: Place, address: str, now: float) -> list[Start]:
        if not place.extensions or place.extending is not None:
            return []
        if now < place.extend_after:
            self._wake_at = min(self._wake_at, place.extend_after)
            return []
        call = place.extending = Call(address, now, lines=place.extensions.take_lines())
        return [self._start(call, "Settle", self._settle_request(place, call), pb.SettleResponse, _SETTLE_MS, place)]

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
        self._wake_at = min(self._wake_at, place.extend_at, place.check_at)

    def _lease(self, question: Question, address: str, now: float, settling: Call | None = None) -> Start:
        """`settling`: outcomes that it tells at once."""
        place, terms = question.place, self.terms
        if place.leasing is not None:
            self._recall_lease(place)
        call = place.ask(Call(address, now, question.records, question.bytes, question.waits))
        request = pb.LeaseRequest(
            topic=terms.topic,
            partition=place.partition,
            group=terms.group,
            topic_id=self.topic_id,
            member=terms.member,
            member_key=terms.key,
            records_max=question.records,
            bytes_max=question.bytes,
            wait_ms=WATCH_MS if question.waits else 0,
            lease_ms=terms.lease_ms,
            accept=terms.accept,
            held=[] if self.closing and place.quiet else [name.to_wire() for name in place.leases],
            working=self.working,
            settles=to_wire(settling.lines) if settling is not None else (),
            rows_bytes_max=ROWS_BYTES_MAX if question.records else 0,
            priority=terms.priority,
            leaving=self.closing,
            filter="" if self.closing else terms.filter,
        )
        if settling is not None:
            return self._start(call, "Lease", request, pb.LeaseResponse, _SETTLE_MS, place, settling)
        limit_ms = WATCH_MS + _BEYOND_WAIT_MS if question.waits else _LEASE_MS
        return self._start(call, "Lease", request, pb.LeaseResponse, limit_ms, place)

    def _settle_request(self, place: Place, call: Call) -> pb.SettleRequest:
        return pb.SettleRequest(
            topic=self.terms.topic,
            partition=place.partition,
            group=self.terms.group,
            topic_id=self.topic_id,
            member=self.terms.member,
            settles=to_wire(call.lines),
            timeout_ms=int(_SETTLE_MS),
        )

    def _start(
        self,
        call: Call,
        method: str,
        request: Message,
        response: type[R],
        limit_ms: float,
        place: Place,
        settling: Call | None = None,
    ) -> Start:
        """What sends it, to be called without `lock`. `settling`: is answered by the same answer, and before, and
        broken off with it."""

        def heard(answer: R | TritonMQError) -> None:
            if isinstance(answer, pb.LeaseResponse):
                call.rows = slices_of(answer, self._view())
            with self.lock:
                if settling is not None:
                    self._heard.append(lambda now: self._answered(place, settling, answer, now))
                self._heard.append(lambda now: self._answered(place, call, answer, now))
                self._work.notify()

        def start() -> None:
            try:
                call.cancel = self.connection.ask_later(
                    call.address, method, request, response, Deadline(limit_ms), heard
                )
            except TritonMQError as error:  # of a process that cannot use gRPC
                heard(error)

        return start

    def _answered(self, place: Place, call: Call, answer: Any, now: float) -> list[Tally]:
        found = self._answers.hear(place, call, answer, now)
        if found.error is not None:
            self.fail(found.error)
        if found.lent and self.holdings.unread:
            self.unread.notify()
        if found.lent or found.tallies or self.holdings.ordered is not None:
            self.changed.notify_all()
        return found.tallies
