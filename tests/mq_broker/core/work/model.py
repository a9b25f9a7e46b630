"""A queue group, told offset by offset: what `WorkState` must agree with."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from mq_broker.core.work.endings import How
from mq_broker.core.work.ranges import Range, Ranges
from mq_broker.core.work.state import NO_MARK, Mark, WorkState
from mq_broker.core.work.steps import (
    Accept,
    Begin,
    Drop,
    End,
    Lease,
    LeaseId,
    Park,
    Reason,
    Reject,
    Reset,
    Return,
    Send,
    Sent,
    Step,
)


def offsets_of(ranges: Ranges | tuple[Range, ...]) -> list[int]:
    return [offset for first, end in ranges for offset in range(first, end)]


def held_by(state: WorkState) -> dict[LeaseId, list[Range]]:
    """The unsettled records of each lease."""
    held: dict[LeaseId, list[Range]] = {lease: [] for lease in state.leases}
    for first, end, lease in state.lent:
        held[lease] += state.settled.missing(first, end)
    return held


@dataclass
class Record:
    """`lease` None: nobody has it. `mark` None: it never came back and was never parked. `ended`: how each of its
    leases did, the last one last."""

    settled: bool = False
    lease: LeaseId | None = None
    mark: Mark | None = None
    ended: dict[LeaseId, How] = field(default_factory=dict)

    def ends(self, how: How, late: LeaseId | None = None) -> None:
        lease = late or self.lease
        if lease is not None:
            self.ended[lease] = how

    def welcomes(self, lease: LeaseId, how: How, limit: int, *, ordered: bool = False) -> bool:
        """Whether an outcome under that lease, which does not hold it, is answered as done: said again, or an
        acknowledgement that only its time has overtaken."""
        if self.ended.get(lease) is how:
            return True
        last = bool(self.ended) and next(reversed(self.ended)) == lease and self.ended[lease] is How.TAKEN
        free = not self.settled and self.lease is None and self.mark is not None and not self.mark.doomed(limit)
        return how is How.ACCEPTED and last and free and not ordered


@dataclass
class Model:
    """All records of the log, as one group sees them."""

    records: dict[int, Record]
    members: dict[LeaseId, str] = field(default_factory=dict)
    outbox: set[int] = field(default_factory=set)
    last_n: int = 0
    taken: dict[str, int] = field(default_factory=dict)
    accepted: int = 0
    dead: int = 0
    returned: int = 0
    charged: int = 0
    dropped: dict[Reason, int] = field(default_factory=dict)

    def _settle(self, record: Record) -> None:
        record.settled, record.lease, record.mark = True, None, None

    def drop(self, record: Record, reason: Reason) -> None:
        if not record.settled:
            record.ends(How.TAKEN)
            self._settle(record)
            self.dropped[reason] = self.dropped.get(reason, 0) + 1

    def give_back(
        self, record: Record, charged: bool = False, due_us: int = 0, error: str = "", how: How = How.TAKEN
    ) -> None:
        mark = record.mark or NO_MARK
        record.ends(how)
        record.lease = None
        record.mark = replace(
            mark,
            deliveries=mark.deliveries + 1,
            failures=mark.failures + charged,
            due_us=due_us,
            error=error or mark.error,
        )
        self.returned += 1
        self.charged += charged

    def apply(self, step: Step, at: LeaseId) -> None:
        if isinstance(step, Send):
            self._send(step)
        elif isinstance(step, Sent):
            self.outbox.discard(step.n)
        elif not isinstance(step, Begin | End):
            for record in map(self.records.get, offsets_of(step.ranges)):
                if record is not None and not record.settled:
                    self._apply(step, record, at)

    def _apply(self, step: Step, record: Record, at: LeaseId) -> None:
        mark = record.mark or NO_MARK
        match step:
            case Lease(member=member) if record.lease is None and not mark.rejected and not mark.parked:
                record.lease = at
                self.members[at] = member
            case Accept(late=late) if late is None or record.lease is None:
                record.ends(How.ACCEPTED, late)
                self._settle(record)
                self.accepted += 1
            case Drop(reason=reason) if record.lease is None:
                self.drop(record, reason)
            case Return(_, charged, due_us, error, said) if record.lease is not None:
                how = How.FAILED if charged else How.RELEASED
                self.give_back(record, charged, due_us, error, how if said else How.TAKEN)
            case Reject(_, error) if record.lease is not None:
                self.give_back(record, error=error, how=How.REJECTED)
                assert record.mark is not None
                record.mark = replace(record.mark, rejected=True)
            case Park() if record.lease is None:
                record.mark = replace(mark, parked=True)
            case Reset() if record.lease is None:
                record.mark = Mark(mark.deliveries) if mark.deliveries else None
            case _:
                pass

    def _send(self, send: Send) -> None:
        records = [self.records.get(offset) for offset in offsets_of(send.ranges)]
        fits = all(
            record is not None
            and not record.settled
            and (self.members[record.lease] if record.lease is not None else "") == send.member
            for record in records
        )
        if not fits or send.n <= self.last_n or (send.member and send.number <= self.taken.get(send.member, -1)):
            return
        for record in records:
            assert record is not None
            record.ends(How.ACCEPTED)
            self._settle(record)
        self.last_n = send.n
        self.outbox.add(send.n)
        if send.member:
            self.taken[send.member] = send.number
            self.accepted += len(records)
        else:
            self.dead += len(records)

    def agrees_with(self, state: WorkState, limit: int = 3, now_us: int = 50) -> None:
        """Every record is in the same state, and only in that one; the counts are exact."""
        end = max(self.records, default=-1) + 1
        unsettled = [offset for offset, record in self.records.items() if not record.settled]
        assert state.base == min(unsettled, default=end)
        assert list(state.settled.missing(0, end)) == _runs(unsettled)
        held = {offset: record.lease for offset, record in self.records.items() if record.lease is not None}
        told = held_by(state)
        assert {offset: lease for lease, ranges in told.items() for offset in offsets_of(tuple(ranges))} == held
        assert sum(len(offsets_of(tuple(ranges))) for ranges in told.values()) == len(held), "leases are disjoint"
        assert {lease: (each.member, each.records) for lease, each in state.leases.items()} == {
            lease: (self.members[lease], list(held.values()).count(lease)) for lease in set(held.values())
        }
        assert state.leased == len(held)
        free = [offset for offset in unsettled if offset not in held]
        marks = {offset: self.records[offset].mark for offset in free}
        spread = {offset: mark for low, high, mark in state.unleased(0, end) for offset in range(low, high)}
        assert spread == marks
        doomed = {o for o, mark in marks.items() if mark is not None and mark.doomed(limit)}
        parked = {o for o in doomed if (mark := marks[o]) is not None and mark.parked}
        waiting = {o for o, mark in marks.items() if mark is not None and mark.due_us > now_us} - doomed
        assert _offsets(state.parked()) == parked
        assert _offsets(state.doomed(limit)) == doomed - parked
        assert _offsets(state.delayed(now_us, limit)) == waiting
        assert _offsets(state.ready(now_us, limit, 0, end)) == set(free) - doomed - waiting
        for offset in unsettled[:: max(len(unsettled) // 7, 1)]:
            mark = self.records[offset].mark or NO_MARK
            assert state.counts(offset) == (mark.deliveries + (offset in held), mark.failures)
            holder = state.holder(offset)
            assert (holder[0] if holder else None) == held.get(offset)
        totals = state.totals
        assert (totals.accepted, totals.dead, totals.returned, totals.charged) == (
            self.accepted,
            self.dead,
            self.returned,
            self.charged,
        )
        assert dict(totals.dropped) == self.dropped
        assert (set(state.outbox), state.last_n, dict(state.taken)) == (self.outbox, self.last_n, self.taken)


def _offsets(runs: object) -> set[int]:
    return {offset for low, high, _ in runs for offset in range(low, high)}  # type: ignore[attr-defined]


def _runs(offsets: list[int]) -> list[Range]:
    runs: list[Range] = []
    for offset in sorted(offsets):
        if runs and runs[-1][1] == offset:
            runs[-1] = (runs[-1][0], offset + 1)
        else:
            runs.append((offset, offset + 1))
    return runs
