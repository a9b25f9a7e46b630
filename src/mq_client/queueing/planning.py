"""What a member asks of its leaders and says to them, turn by turn. Under the keeper's lock.

They are spoken to by sessions (sessions.py), and by requests where those do not do: an ack with outputs is one of its
own, and a queue that has failed opens no session. Whom to give credit is decided in shares.py, what outcomes say in
settling.py, what is held in holdings.py, and what an answer means in answers.py. Here are the clock and the calls.
"""

from __future__ import annotations

import threading
import zlib
from collections import deque
from collections.abc import Callable
from typing import Final

from mq_client.cluster.connection import Connection, TopicView
from mq_client.cluster.deadline import Deadline
from mq_client.errors import TritonMQError, UnknownTopic
from mq_client.producing.refresher import Refresher
from mq_client.queueing.answers import Answers
from mq_client.queueing.holdings import Holdings
from mq_client.queueing.on_loop import LoopTurns
from mq_client.queueing.places import Call, Credit, Place, Terms
from mq_client.queueing.sessions import PlaceSession, Sessions
from mq_client.queueing.settling import EXTEND, Line, Outbox, Tally, to_wire
from mq_client.queueing.work_streams import WorkStreams
from mq_protocol import mq_pb2 as pb

GATHER_S: Final = 0.005
"""For so long outcomes are gathered."""

_LOOK_S: Final = 5.0
"""How often it is asked who leads and how many partitions there are, even if nothing seems wrong."""

_NO_LEADER_S: Final = 0.2
_STALL_S: Final = 2.0
"""Unanswered for so long, it is asked whether somebody else leads by now."""

_IDLE_S: Final = 1.0
_SETTLE_MS: Final = 10_000.0

Start = Callable[[], None]


class Planning:
    """Owns what is on its way to leaders, and what was heard of them and is not taken in yet. `changed` is notified
    when there are records to take, when an error ends the queue, and when the turns end; `unread` when rows are to be
    read. `_streams` and `_turns`: once it is started."""

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
        self._answers = Answers(connection, terms, self.holdings, self._doubt)
        self._heard: deque[Callable[[float], list[Tally]]] = deque()
        self._refresher = Refresher(connection, self._wake)
        self._look_at = 0.0
        self._wake_at = 0.0
        self._streams: Callable[[], WorkStreams]
        self._turns: LoopTurns | None = None
        first = zlib.crc32(terms.member.encode()) & 0xFFFF  # members begin with different partitions
        self._sessions = Sessions(
            connection, self.holdings, self._answers, lambda: self._streams(), self._hear_later, first
        )

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
        with self.lock:
            self.wake()

    def _hear_later(self, hear: Callable[[float], list[Tally]]) -> None:
        """In the next turn."""
        self._heard.append(hear)
        self.wake()

    def _doubt(self, address: str) -> None:
        """That broker does not lead, or does not answer."""
        self._refresher.ask(self.terms.topic, address)

    def _plan(self, now: float) -> list[Start]:
        self._wake_at = now + _IDLE_S
        view = self._look(now)
        if view is None:
            return []
        starts: list[Start] = []
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
            if self._speaks(place):
                spoken_to[number] = place
            else:
                starts += self._without_session(place, address, now)
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

    def _recall(self, place: Place, address: str | None, now: float) -> None:
        """Break off a request that waits for an answer of a broker that does not lead any more."""
        call = place.settling
        if call is None:
            return
        since = max(call.sent_at, call.doubted_at) + _STALL_S
        if address is not None and call.address != address:
            call.cancel()  # heard as an error, which is why it is said again
        elif now >= since:
            call.doubted_at = now
            self._doubt(call.address)
        else:
            self._wake_at = min(self._wake_at, since)

    @staticmethod
    def _note_epoch(place: Place, epoch: int) -> None:
        """A new leader does not know how long leases are that this member asked for, until they are named to it."""
        if place.epoch not in (0, epoch) and place.leases:
            place.unsure = True
        place.epoch = epoch

    def _speaks(self, place: Place) -> bool:
        """Whether its leader is spoken to by a session. None is opened any more once the queue has failed, or closes
        and has nothing to say."""
        return self._sessions.has(place) or (self.error is None and (not self.closing or bool(place.settles)))

    def _converse(self, places: dict[int, Place], addresses: dict[int, str], now: float) -> list[Start]:
        """Say to the leaders of these what they are to hear by sessions."""
        sessions, holdings, starts = self._sessions, self.holdings, list[Start]()
        found: dict[int, PlaceSession] = {}
        for number, place in places.items():
            if place.ask_after > now and not sessions.has(place):
                self._wake_at = min(self._wake_at, place.ask_after)
                continue
            found[number] = sessions.open(place, addresses[number], self.terms, self.topic_id, now)
            self._look_for_answers(found[number], now)
            if self.closing:
                sessions.give_back(place, now)
                sessions.take_back(found[number])
        lines = {number: self._lines(session, now, starts) for number, session in found.items()}
        if not self.closing and self.error is None:
            held = Credit(holdings.held, int(holdings.held_bytes))
            sessions.hand_out(found, self.terms.credit, held, hungry=holdings.hungry)
        for number, session in found.items():
            sessions.say(session, lines[number], self.terms, now)
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
        place = session.place
        box, lines = place.settles, self._extensions(place, now)
        waits = place.settling is not None or (session.account.sent and not self._hurries(box))
        if waits or not self._are_due(place, now):
            return lines
        if box.begins_with_outputs:
            starts.append(self._settle(place, session.call.address, box.take_lines(), now))
        else:
            lines += box.take_lines(outputs=False)
        return lines

    def _without_session(self, place: Place, address: str, now: float) -> list[Start]:
        """What is left to say of it once the queue has failed."""
        if place.settling is not None:
            return []
        lines = self._extensions(place, now)
        if self._are_due(place, now):
            lines += place.settles.take_lines()
        return [self._settle(place, address, lines, now)] if lines else []

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
        self._wake_at = min(self._wake_at, place.extend_at, place.check_at)

    def _settle(self, place: Place, address: str, lines: list[Line], now: float) -> Start:
        """What says these by a request of their own, to be called without `lock`."""
        call = place.settling = Call(address, now, lines=lines)
        request = pb.SettleRequest(
            topic=self.terms.topic,
            partition=place.partition,
            group=self.terms.group,
            topic_id=self.topic_id,
            member=self.terms.member,
            settles=to_wire(lines),
            timeout_ms=int(_SETTLE_MS),
        )

        def heard(answer: pb.SettleResponse | TritonMQError) -> None:
            with self.lock:
                self._hear_later(lambda now: self._answers.hear(place, call, answer, now))

        def start() -> None:
            call.cancel = self.connection.ask_later(
                address, "Settle", request, pb.SettleResponse, Deadline(_SETTLE_MS), heard
            )

        return start
