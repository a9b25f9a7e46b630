"""A member's sessions: one with the leader of each partition, by which it is pushed records and says what becomes of
them. On the event loop, under the keeper's lock.

When to open one, what to say on it, and what is to be done with what it tells. What breaks a session loses nothing: the
next one says what is held, and what had no answer is said again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np

from mq_client.cluster.connection import Connection
from mq_client.consuming.slices import StoredSlice
from mq_client.errors import (
    DiskFull,
    InternalError,
    NotEnoughReplicas,
    NotLeader,
    OutcomeUnknown,
    OutOfOrder,
    Overloaded,
    TritonMQError,
    UnknownPartition,
    UnknownQueue,
)
from mq_client.queueing.holdings import Call, Credit, Holdings, Place, Terms, extends
from mq_client.queueing.leases import DONE, LOST, HeldLease, LeaseId, from_gaps, runs_count, spelled_out, to_gaps
from mq_client.queueing.settling import EXTEND, RANGES_MAX, RECORDS_MAX, RELEASE, Line, Tally, to_wire
from mq_client.queueing.shares import Account, Shares
from mq_client.queueing.shelf import rows_in, slices_in
from mq_client.queueing.work_streams import Told, WorkStream, WorkStreams
from mq_protocol import mq_pb2 as pb
from mq_protocol.wire.error_messages import from_wire

DECLARED_S: Final = 10.0
"""For so long after its declaration a leader may not have heard of a queue."""

_SAME_LEADER = (OutOfOrder, Overloaded, DiskFull, NotEnoughReplicas)
"""Retriable, but no sign that somebody else leads."""


class Answers:
    """Judges answers. `doubt` is called with the address of a broker that may not lead any more."""

    def __init__(self, connection: Connection, terms: Terms, holdings: Holdings, doubt: Callable[[str], None]) -> None:
        self._connection = connection
        self._terms = terms
        self._holdings = holdings
        self._doubt = doubt
        self.bytes_each = 0.0
        self._began: float | None = None

    # ------------------------------------------------------------------ leases

    def pushed(self, place: Place, call: Call, told: pb.LeaseResponse, now: float) -> HeldLease | None:
        """It was lent this. `call`: the most that it may be, and its rows. Raises `InternalError` for what cannot
        be."""
        lease = self._lease(place, call, told, now)
        place.number = max(place.number, told.number)
        if lease is not None:
            self._grant(lease, call)
            place.ask_backoff.reset()
        return lease

    def _grant(self, lease: HeldLease, call: Call) -> None:
        view = self._connection.known_topic(self._terms.topic) if call.rows else None
        rows = rows_in(call.rows, lease, self._terms.topic, typed=view.typed) if view is not None else []
        self._holdings.grant(lease, settled=self._terms.accept, rows=rows)
        if rows:
            bytes_each = sum(piece.sent_bytes for piece in call.rows) / lease.open
            self._holdings.weigh(lease, bytes_each)
            self.note_size(bytes_each)

    def _lease(self, place: Place, call: Call, answer: pb.LeaseResponse, now: float) -> HeldLease | None:
        """Raises `InternalError` for an answer that cannot be."""
        if not answer.HasField("lease"):
            return None
        ranges = from_gaps(answer.ranges, call.records)
        if not ranges or not len(ranges) == len(answer.deliveries) == len(answer.failures):
            raise InternalError(
                f"the leader of {self._terms.topic!r} partition {place.partition} lent {len(ranges)} ranges and told "
                f"{len(answer.deliveries)} deliveries: see its log"
            )
        lease_s = max(answer.lease_ms, 1) / 1000
        name = LeaseId.from_wire(answer.lease)
        lease = HeldLease(place.partition, name, ranges, answer.deliveries, answer.failures, lease_s, now)
        lease.order, lease.order_by, lease.losses = answer.order, answer.order_by, call.losses
        # Until it is read: as much as was allowed, or what records have taken so far
        lease.bytes_each = min(call.bytes / lease.open, self.bytes_each or call.bytes / lease.open)
        return lease

    def note_size(self, bytes_each: float) -> None:
        """What a record took that was read."""
        self.bytes_each = bytes_each if not self.bytes_each else 0.8 * self.bytes_each + 0.2 * bytes_each

    def lease_failed(self, place: Place, call: Call, error: TritonMQError, now: float) -> TritonMQError | None:
        """The error, if asking again does not help."""
        place.ask_after = now + place.ask_backoff.next_ms() / 1000
        if self._began is None:
            self._began = now
        heard_late = isinstance(error, UnknownQueue) and now < self._began + DECLARED_S
        if error.retriable or heard_late or isinstance(error, UnknownPartition):
            self._learn(place, call, error)
            return None
        return error

    def _learn(self, place: Place, call: Call, error: TritonMQError) -> None:
        if isinstance(error, NotLeader):
            self._connection.note_leader(self._terms.topic, place.partition, error)
        if not isinstance(error, _SAME_LEADER):
            self._doubt(call.address)

    # ------------------------------------------------------------------ outcomes

    def judge(self, place: Place, call: Call, line: Line, told: pb.SettleAnswer, now: float) -> list[Tally]:
        """What became of one line."""
        if not told.HasField("error"):
            place.settle_backoff.reset()
        return (self._extended if extends(line) else self._settled)(place, call, line, told, now)

    def _settled(self, place: Place, call: Call, line: Line, told: pb.SettleAnswer, now: float) -> list[Tally]:
        if told.HasField("error"):
            return self._settle_failed(place, call, [line], from_wire(told.error), now)
        self._let_go(place, told.pulled)
        return self._done(place, line, told.lost, now)

    def _let_go(self, place: Place, pulled: Any) -> None:
        """Records that went back with others. Those that have an outcome wait for the answer to that."""
        for each in pulled:
            lease = place.leases.get(LeaseId.from_wire(each.lease))
            if lease is not None:
                gaps = from_gaps(each.ranges, 2 * RECORDS_MAX)
                self._holdings.lose_what_is_open(lease, lease.index_of(spelled_out(gaps)))

    def _done(self, place: Place, line: Line, gaps: Any, now: float) -> list[Tally]:
        lost = _lost(line, gaps)
        # It was said before, and that answer was lost: it may have told of others that went back with these
        again = line.again and line.word.outcome != pb.OUTCOME_ACK
        if line.word.outputs is not None and len(lost):
            return self._nothing_of_it(place, line, now)
        if len(lost):
            self._holdings.end(line.lease, lost, LOST)
        self._holdings.end(line.lease, line.indexes, DONE, doubt=again)
        gone = set(lost.tolist())
        return [tally for piece in line.pieces for tally in piece.answered(gone)]

    @staticmethod
    def _nothing_of_it(place: Place, line: Line, now: float) -> list[Tally]:
        """Some of the records are not the member's any more, so no output is published and none is settled. What is
        the member's still goes back, uncharged."""
        place.settles.add(line.lease, line.indexes, RELEASE, None, now)
        gone = set(line.indexes.tolist())
        return [tally for piece in line.pieces for tally in piece.answered(gone)]

    def _settle_failed(
        self, place: Place, call: Call, lines: list[Line], error: TritonMQError, now: float
    ) -> list[Tally]:
        if not error.retriable:
            return self._refuse(lines, error)
        place.settles.put_back(lines, again=not error.definite)
        place.settle_after = now + place.settle_backoff.next_ms() / 1000
        self._learn(place, call, error)
        return []

    def refuse_all(self, place: Place, call: Call, error: TritonMQError) -> list[Tally]:
        """Its leader opens no session for this member. What a former one may have heard is not refused: nobody knows
        what came of it."""
        unknown = OutcomeUnknown(f"its leader takes no outcomes any more, and did not answer to this one: {error}")
        tallies: list[Tally] = []
        while lines := place.settles.take_lines():
            for line in lines:
                tallies += self._refuse([line], unknown if line.again else error)
        while lines := place.extensions.take_lines():
            tallies += self._not_extended(call, lines, error)
        return tallies

    def ask_about_doubts(self, now: float) -> None:
        """What waits behind something that was lost may be lost, too."""
        ordered = self._holdings.ordered
        for lease, indexes in ordered.take_doubts(now) if ordered is not None else ():
            self._holdings.places[lease.partition].extensions.add(lease, indexes, EXTEND, None, now)

    def _refuse(self, lines: list[Line], error: TritonMQError) -> list[Tally]:
        """Nothing more can be done with these."""
        for line in lines:
            self._holdings.end(line.lease, line.indexes, LOST)
        return [tally for line in lines for piece in line.pieces for tally in piece.answered(set(), error)]

    # ------------------------------------------------------------------ extensions

    def _extended(self, place: Place, call: Call, line: Line, told: pb.SettleAnswer, now: float) -> list[Tally]:
        if told.HasField("error"):
            return self._extension_failed(place, call, [line], from_wire(told.error), now)
        lost = _lost(line, told.lost)
        self._holdings.lose_what_is_open(line.lease, lost)
        self._checked(line, call)
        gone = set(lost[line.lease.states[lost] == LOST].tolist())
        return [tally for piece in line.pieces for tally in piece.answered(gone)]

    def _checked(self, line: Line, call: Call) -> None:
        if self._holdings.ordered is not None:
            self._holdings.ordered.checked(line.lease, line.indexes, call.sent_at)

    def _not_extended(self, call: Call, lines: list[Line], error: TritonMQError) -> list[Tally]:
        for line in lines:
            self._checked(line, call)
        return [tally for line in lines for piece in line.pieces for tally in piece.answered(set(), error)]

    def _extension_failed(
        self, place: Place, call: Call, lines: list[Line], error: TritonMQError, now: float
    ) -> list[Tally]:
        if not error.retriable:
            return self._not_extended(call, lines, error)
        place.extensions.put_back(lines, again=True)
        place.extend_after = now + place.settle_backoff.next_ms() / 1000
        self._learn(place, call, error)
        return []


def _lost(line: Line, gaps: Any) -> Any:
    if not gaps:
        return np.empty(0, dtype=np.int64)
    try:
        offsets = spelled_out(from_gaps(gaps, 2 * RECORDS_MAX))
    except InternalError:
        return np.empty(0, dtype=np.int64)
    places = line.lease.index_of(offsets)
    return places[np.isin(places, line.indexes)]


class PlaceSession:
    """With the leader of one partition. `waiting`: outcomes and extensions without an answer, by number."""

    def __init__(self, place: Place, stream: WorkStream, now: float) -> None:
        self.place = place
        self.stream = stream
        self.call = Call(stream.address, now)
        self.account = Account(place.partition)
        self.waiting: dict[int, tuple[Call, Line]] = {}
        self.number = 0
        self.terms: Terms | None = None
        self.active = True
        self._spoken = 0

    def speak(self, request: pb.SessionRequest, lines: Sequence[Line], now: float) -> None:
        """These go with the request."""
        call = Call(self.call.address, now, lines=list(lines))
        for line in lines:
            self._spoken += 1
            self.waiting[self._spoken] = call, line
        request.settles.extend(to_wire(lines))

    def hear(self, number: int) -> tuple[Call, Line] | None:
        """What this answers."""
        found = self.waiting.pop(number, None)
        if found is not None and not extends(found[1]):
            self.account.sent -= len(found[1].indexes)
        return found

    @property
    def publishes(self) -> bool:
        """Whether an ack with outputs waits for its answer."""
        return any(line.word.outputs is not None for _, line in self.waiting.values())

    @property
    def oldest(self) -> float:
        """When the first of what waits was said."""
        return min((call.sent_at for call, _ in self.waiting.values()), default=math.inf)


class Sessions:
    """Owns them, by partition. `lent`: records came, `ended`: a session did, since somebody looked."""

    def __init__(
        self,
        connection: Connection,
        holdings: Holdings,
        answers: Answers,
        streams: Callable[[], WorkStreams],
        heard: Callable[[Callable[[float], list[Tally]]], None],
        first: int,
    ) -> None:
        """`heard`: has something done in the keeper's next turn. `first`: the partition that comes first."""
        self._connection = connection
        self._holdings = holdings
        self._answers = answers
        self._streams = streams
        self._heard = heard
        self._sessions: dict[int, PlaceSession] = {}
        self._shares = Shares(first)
        self._joined = False
        self.lent = False
        self.ended = False
        self.error: TritonMQError | None = None

    def has(self, place: Place) -> bool:
        return place.partition in self._sessions

    @property
    def quiet(self) -> bool:
        """Nothing waits for an answer, and nothing more can be pushed."""
        return all(
            not session.waiting and not session.account.out and session.account.recalled is None
            for session in self._sessions.values()
        )

    @property
    def active(self) -> bool:
        """Whether some leader lends this member records, where only one member is lent any."""
        return not self._sessions or any(session.active for session in self._sessions.values())

    # ------------------------------------------------------------------ what is said

    def open(self, place: Place, address: str, terms: Terms, topic_id: str, now: float) -> PlaceSession:
        """The session with that leader; a new one if there is none."""
        session = self._sessions.get(place.partition)
        if session is not None and session.call.address != address:
            self._give_up(session)
            session = None
        if session is None:
            self._join(topic_id, terms.group)
            stream = self._streams().to(address, self._connection.client)
            session = self._sessions[place.partition] = PlaceSession(place, stream, now)
            session.number = stream.open(self._listener(session, terms))
            session.terms = terms
            place.unsure = False
            request = pb.SessionRequest(session=session.number, terms=_terms(terms))
            request.open.CopyFrom(
                pb.WorkOpen(
                    topic=terms.topic,
                    partition=place.partition,
                    group=terms.group,
                    topic_id=topic_id,
                    member=terms.member,
                    member_key=terms.key,
                    held=_claims(place),
                )
            )
            stream.say(request)
        return session

    def _join(self, topic_id: str, group: str) -> None:
        """The other members in this process."""
        if not self._joined:
            self._joined, self._shares.round = True, self._streams().round(topic_id, group)
            self._shares.round.members += 1

    def _listener(self, session: PlaceSession, terms: Terms) -> Callable[[Told | TritonMQError], None]:
        def listen(told: Told | TritonMQError) -> None:
            rows: Sequence[StoredSlice] = ()
            if isinstance(told, Told):
                view = self._connection.known_topic(terms.topic)
                rows = slices_in(told.said.lease, told.payloads, view)
            self._heard(lambda now: self._hear(session, told, rows, now))

        return listen

    def say(self, session: PlaceSession, lines: Sequence[Line], terms: Terms, now: float) -> None:
        """These outcomes and extensions, and all else that its leader is to hear."""
        if not (lines or session.account.changed or session.place.unsure or session.terms is not terms):
            return
        request = pb.SessionRequest(session=session.number)
        if lines:
            session.speak(request, lines, now)
        if session.terms is not terms:
            session.terms = terms
            request.terms.CopyFrom(_terms(terms))
        if session.place.unsure:
            session.place.unsure = False
            request.check.extend(name.to_wire() for name in session.place.leases)
        account = session.account
        if account.changed:
            account.changed = False
            records, size = account.recalled or (account.records, account.bytes)
            recall = account.recalled is not None
            request.credit.CopyFrom(pb.WorkCredit(records=records, bytes=size, watch=True, recall=recall))
        if len(request.ListFields()) > 1:
            session.stream.say(request)

    def hand_out(
        self, sessions: Mapping[int, PlaceSession], whole: Credit, held: Credit, *, now: float, hungry: bool
    ) -> None:
        for session in sessions.values():
            session.account.watch()
        accounts = [each.account for each in sessions.values()]
        self._shares.hand_out(accounts, whole, held, now=now, hungry=hungry, bytes_each=self._answers.bytes_each)

    def take_back(self, session: PlaceSession) -> None:
        """Nothing more is to be lent."""
        if session.account.out and session.account.recalled is None:
            session.account.recall(0, 0)

    def close(self) -> None:
        """What is pushed from now on goes back."""
        for session in self._sessions.values():
            session.stream.say(pb.SessionRequest(session=session.number, close=True))
            session.stream.forget(session.number)
        self._sessions.clear()
        if self._joined:
            self._joined = False
            self._shares.round.members -= 1

    def drain(self) -> list[Line]:
        """All that has no answer, taken out."""
        lines = [line for session in self._sessions.values() for _, line in session.waiting.values()]
        for session in self._sessions.values():
            session.waiting.clear()
        return lines

    def _give_up(self, session: PlaceSession) -> None:
        """It is over. What had no answer is said again."""
        self.ended = True
        del self._sessions[session.place.partition]
        session.stream.forget(session.number)
        session.place.put_back([line for _, line in session.waiting.values()], again=True)

    # ------------------------------------------------------------------ what is heard

    def _hear(
        self, session: PlaceSession, told: Told | TritonMQError, rows: Sequence[StoredSlice], now: float
    ) -> list[Tally]:
        if self._sessions.get(session.place.partition) is not session:
            return []
        if isinstance(told, TritonMQError):
            return self._broke(session, told, now)
        said, place, account = told.said, session.place, session.account
        tallies: list[Tally] = []
        for each in said.answers:
            found = session.hear(each.number)
            if found is not None:
                tallies += self._answers.judge(place, *found, each.answer, now)
        self._holdings.lose(place, map(LeaseId.from_wire, said.gone))
        if said.HasField("lease"):
            self._lent(session, said, rows, now)
            account.ready = said.lease.ready
        if said.HasField("ready"):
            account.ready = said.ready
        if said.HasField("active"):
            session.active = said.active
        if said.HasField("credit"):
            account.confirm(said.credit)
        if said.HasField("error"):
            tallies += self._broke(session, from_wire(said.error), now)
        return tallies

    def _lent(self, session: PlaceSession, said: pb.SessionResponse, rows: Sequence[StoredSlice], now: float) -> None:
        place, account = session.place, session.account
        records, size = account.records - account.lent, max(said.lent_bytes, 1)
        call = Call(session.call.address, now, records, size, rows=rows, losses=place.losses)
        try:
            lease = self._answers.pushed(place, call, said.lease, now)
        except InternalError as error:
            self.error = error
            return
        if lease is not None:
            self.lent = True
            self._shares.round.note_lent()
            account.note_lent(lease.open, said.lent_bytes)

    def _broke(self, session: PlaceSession, error: TritonMQError, now: float) -> list[Tally]:
        self._give_up(session)
        if self._answers.lease_failed(session.place, session.call, error, now) is None:
            return []
        self.error = error
        return self._answers.refuse_all(session.place, session.call, error)

    def give_back(self, place: Place, now: float) -> None:
        """What was lent while the queue closes."""
        for lease in list(place.leases.values()):
            left = lease.without_outcome()
            if len(left):
                self._holdings.say(lease, left, RELEASE, None, now)


def _terms(terms: Terms) -> pb.WorkTerms:
    return pb.WorkTerms(
        lease_ms=terms.lease_ms,
        accept=terms.accept,
        working=terms.working,
        priority=terms.priority,
        filter=terms.filter,
    )


def _claims(place: Place) -> list[pb.HeldLease]:
    """What is held of the partition. Of a lease in very many pieces, all of it: what is not held runs out."""
    claims = []
    room = RANGES_MAX
    for lease in place.leases.values():
        claim = pb.HeldLease(lease=lease.id.to_wire())
        if lease.open < len(lease.offsets):
            offsets = lease.offsets[np.flatnonzero(lease.states < DONE)]
            if runs_count(offsets) <= room:
                room -= runs_count(offsets)
                claim.ranges.extend(to_gaps(offsets))
        claims.append(claim)
    return claims
