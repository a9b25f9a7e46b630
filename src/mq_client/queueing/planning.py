"""What a member asks of its leaders and says to them, turn by turn. Under the keeper's lock.

Leaders that know sessions are spoken to by those (sessions.py), others by requests of their own. Whom to ask is decided
in places.py and shares.py, what outcomes say in settling.py, what is held in holdings.py, and what an answer means in
answers.py. Here are the clock and the calls.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Any, Final, TypeVar

from google.protobuf.message import Message

from mq_client.cluster.connection import Connection, TopicView
from mq_client.cluster.deadline import Deadline
from mq_client.errors import TritonMQError, UnknownTopic
from mq_client.producing.refresher import Refresher
from mq_client.queueing.answered_rows import slices_of
from mq_client.queueing.answers import Answers
from mq_client.queueing.asking import lease_request, settle_request
from mq_client.queueing.holdings import Holdings
from mq_client.queueing.places import WATCH_MS, Call, Credit, Place, Question, Terms, Turns, told_of
from mq_client.queueing.sessions import PlaceSession, Sessions
from mq_client.queueing.settling import EXTEND, Line, Outbox, Tally
from mq_protocol import mq_pb2 as pb

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

R = TypeVar("R", bound=Message)
Start = Callable[[], None]


class Planning:
    """Owns what is on its way to leaders, and what was heard of them and is not taken in yet. `changed` is notified
    when there are records to take, when an error ends the queue, and when the turns end; `unread` when rows are to be
    read; `_work` when there may be something to ask."""

    def __init__(self, connection: Connection, terms: Terms) -> None:
        self.connection = connection
        self.terms = terms
        self.lock = threading.Lock()
        self.changed = threading.Condition(self.lock)
        self.unread = threading.Condition(self.lock)
        self.holdings = Holdings()
        self.error: TritonMQError | None = None
        self.closing = False
        self.topic_id = ""
        self.working = terms.working
        self._work = threading.Condition(self.lock)
        self._answers = Answers(connection, terms, self.holdings, self._doubt)
        self._heard: deque[Callable[[float], list[Tally]]] = deque()
        self._turns = Turns()
        self._refresher = Refresher(connection, self._wake)
        self._look_at = 0.0
        self._wake_at = 0.0
        self._sessions: Sessions | None = None

    def fail(self, error: TritonMQError) -> None:
        """Nothing more is asked for. Under `lock`."""
        if self.error is None:
            self.error = error
        self.changed.notify_all()
        self.unread.notify_all()

    def _wake(self) -> None:
        with self.lock:
            self._work.notify()

    def _doubt(self, address: str) -> None:
        """That broker does not lead, or does not answer."""
        self._refresher.ask(self.terms.topic, address)

    def _plan(self, now: float) -> list[Start]:
        self._wake_at = now + _IDLE_S
        view = self._look(now)
        if view is None:
            return []
        starts: list[Start] = []
        led: dict[int, Place] = {}
        spoken_to: dict[int, Place] = {}
        addresses: dict[int, str] = {}  # looked up once: they change while other threads learn of them
        for number, place in self.holdings.places.items():
            address = self.connection.leader_address(view, number) if number < view.partitions else None
            self._recall(place, address, now)
            if address is None:
                self._look_at = min(self._look_at, now + _NO_LEADER_S)
                continue
            addresses[number] = address
            self._note_epoch(place, view.epochs[number])
            self._gather_extensions(place, now)
            if self._speaks(place, address, now):
                spoken_to[number] = place
                continue
            led[number] = place
            starts += self._extend(place, address, now)
        for number, place in led.items():
            starts += self._settle(place, addresses[number], now)
        for question in self._questions(led, now):
            starts.append(self._lease(question, addresses[question.place.partition], now))
        if spoken_to:
            starts += self._converse(spoken_to, addresses, now)
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
        pushed = self._sessions.credit_out if self._sessions is not None else Credit(0, 0)
        free = credit.free(holdings.held + pushed.records, holdings.held_bytes + pushed.bytes, asked)
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

    def _speaks(self, place: Place, address: str, now: float) -> bool:
        """Whether its leader is spoken to by a session."""
        sessions = self._sessions
        if sessions is None or not sessions.carries(address, now):
            return False
        if sessions.has(place):
            return True
        return self.error is None and (not self.closing or bool(place.settles))

    def _converse(self, places: dict[int, Place], addresses: dict[int, str], now: float) -> list[Start]:
        """Say to the leaders of these what they are to hear by sessions."""
        sessions, holdings, starts = self._sessions, self.holdings, list[Start]()
        assert sessions is not None
        found: dict[int, PlaceSession] = {}
        for number, place in places.items():
            if place.ask_after > now and not sessions.has(place):
                self._wake_at = min(self._wake_at, place.ask_after)
                continue
            if place.leasing is not None:
                self._recall_lease(place)
            found[number] = sessions.open(place, addresses[number], self.terms, self.working, self.topic_id, now)
            self._look_for_answers(found[number], now)
            if self.closing:
                sessions.give_back(place, now)
                sessions.take_back(found[number])
        lines = {number: self._lines(session, now, starts) for number, session in found.items()}
        if not self.closing and self.error is None:
            asked = [place.leasing for place in holdings.places.values() if place.leasing is not None]
            records = holdings.held + sum(call.records for call in asked)
            size = int(holdings.held_bytes) + sum(call.bytes for call in asked)
            sessions.hand_out(found, self.terms.credit, Credit(records, size), hungry=holdings.hungry)
        for number, session in found.items():
            sessions.say(session, lines[number], self.terms, self.working, now)
        return starts

    def _look_for_answers(self, session: PlaceSession, now: float) -> None:
        since = max(session.oldest, session.call.doubted_at) + _STALL_S
        if now >= since:
            session.call.doubted_at = now
            self._doubt(session.call.address)
        self._wake_at = min(self._wake_at, since if now < since else now + _STALL_S)

    def _lines(self, session: PlaceSession, now: float, starts: list[Start]) -> list[Line]:
        """Outcomes and extensions that are due. While others of the partition are on their way outcomes gather, unless
        there is nothing else to do: each message may be an entry. An ack with outputs goes by a request of its own, and
        nothing of its partition is said until that is answered."""
        place, lines = session.place, list[Line]()
        box, hurries = place.settles, self._hurries(place.settles)
        if place.extensions and now >= place.extend_after:
            lines += place.extensions.take_lines()
        elif place.extensions:
            self._wake_at = min(self._wake_at, place.extend_after)
        due = max(place.settle_after, 0.0 if hurries else box.since + GATHER_S)
        if not box or place.settling is not None or (session.account.sent and not hurries):
            return lines
        if now < due:
            self._wake_at = min(self._wake_at, due)
        elif box.begins_with_outputs:
            starts += self._settle(place, session.call.address, now)
        else:
            lines += box.take_lines(outputs=False)
        return lines

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
        return [
            self._start(
                call,
                "Settle",
                settle_request(place, self.terms, self.topic_id, call.lines, int(_SETTLE_MS)),
                pb.SettleResponse,
                _SETTLE_MS,
                place,
            )
        ]

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
        return [
            self._start(
                call,
                "Settle",
                settle_request(place, self.terms, self.topic_id, call.lines, int(_SETTLE_MS)),
                pb.SettleResponse,
                _SETTLE_MS,
                place,
            )
        ]

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
        lines = settling.lines if settling is not None else ()
        request = lease_request(question, terms, self.topic_id, self.working, lines, closing=self.closing)
        if settling is not None:
            return self._start(call, "Lease", request, pb.LeaseResponse, _SETTLE_MS, place, settling)
        limit_ms = WATCH_MS + _BEYOND_WAIT_MS if question.waits else _LEASE_MS
        return self._start(call, "Lease", request, pb.LeaseResponse, limit_ms, place)

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
