"""What the leaders' answers mean for what is held. No thread and no clock; used under the keeper's lock."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np

from mq_client.cluster.connection import Connection
from mq_client.errors import (
    DiskFull,
    InternalError,
    NotEnoughReplicas,
    NotLeader,
    OutOfOrder,
    Overloaded,
    TritonMQError,
    UnknownPartition,
    UnknownQueue,
)
from mq_client.queueing.answered_rows import rows_in
from mq_client.queueing.holdings import Holdings
from mq_client.queueing.leases import DONE, LOST, HeldLease, LeaseId
from mq_client.queueing.offsets import from_gaps, spelled_out
from mq_client.queueing.places import Call, Place, Terms, extends
from mq_client.queueing.settling import EXTEND, RECORDS_MAX, RELEASE, Line, Tally
from mq_protocol import mq_pb2 as pb
from mq_protocol.error_messages import from_wire

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

    def hear(self, place: Place, call: Call, answer: pb.SettleResponse | TritonMQError, now: float) -> list[Tally]:
        """What the leader said to a request, or the error. That of a call that was given up is passed over."""
        if call is not place.settling:
            return []
        place.settling = None
        said = len(call.lines)
        if not isinstance(answer, TritonMQError) and len(answer.answers) != said:
            answer = InternalError(
                f"the broker at {call.address} answered {len(answer.answers)} of {said} outcomes: see its log"
            )
        if isinstance(answer, TritonMQError):
            outcomes = [line for line in call.lines if not extends(line)]
            extensions = [line for line in call.lines if extends(line)]
            return [
                *(self._settle_failed(place, call, outcomes, answer, now) if outcomes else ()),
                *(self._extension_failed(place, call, extensions, answer, now) if extensions else ()),
            ]
        answered = zip(call.lines, answer.answers, strict=True)
        return [tally for line, told in answered for tally in self.judge(place, call, line, told, now)]

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
    try:
        offsets = spelled_out(from_gaps(gaps, 2 * RECORDS_MAX))
    except InternalError:
        return np.empty(0, dtype=np.int64)
    places = line.lease.index_of(offsets)
    return places[np.isin(places, line.indexes)]
