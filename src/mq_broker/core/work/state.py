"""A queue group in one partition: which records are settled, who has which, and what became of them before.

Every offset at or above `base` is in exactly one state. It is *settled*; or *leased*; or a mark says what it is:
*returned*, *delayed*, *doomed* or *parked*; or it is *fresh*. A mark has how often the record was lent and how often it
failed, and stays under a later lease. Runs of leases and of marks may cover settled records as well: the set of settled
ones tells. So settling splits no run.

Pure and total: a step that does not fit the state changes nothing, for those records that it does not fit.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any, Final, NamedTuple, TypeAlias

from mq_broker.core.work.endings import ENDINGS_MAX, Ending, Endings, FrozenEndings, How
from mq_broker.core.work.offset_set import Frozen, OffsetSet
from mq_broker.core.work.ranges import Range, Ranges
from mq_broker.core.work.run_map import RunMap
from mq_broker.core.work.steps import (
    Accept,
    Begin,
    Drop,
    End,
    Lease,
    LeaseId,
    OutputLine,
    Park,
    Reason,
    Reject,
    Reset,
    Return,
    Send,
    Sent,
    Step,
)

SPAN_MAX: Final = 16_777_216
"""From base to the frontier: 2.8 MB of settled offsets in the worst pattern."""

RUNS_MAX: Final = 100_000
"""Of leases and of marks together, some 20 MB."""

OUTBOX_MAX: Final = 1_000
TAKEN_MAX: Final = 10_000


@dataclass(frozen=True, slots=True)
class Mark:
    """What became of unsettled records before: how often they were lent (the present lease does not count yet), how
    often that failed, when they may be lent again, and why they failed last."""

    deliveries: int = 0
    failures: int = 0
    due_us: int = 0
    rejected: bool = False
    parked: bool = False
    error: str = ""

    def doomed(self, limit: int) -> bool:
        """Whether it is lent no more. `limit`: of failures; 0 for none."""
        return self.rejected or self.parked or bool(limit and self.failures >= limit)


NO_MARK: Final = Mark()


@dataclass(frozen=True, slots=True)
class Outgoing:
    """What was decided and is not published everywhere yet."""

    lines: tuple[OutputLine, ...]
    ranges: Ranges
    reason: Reason


@dataclass(frozen=True, slots=True)
class Totals:
    """How many records, since the life began. They only grow. `dropped`: by reason; `dead`: sent as dead letters."""

    accepted: int = 0
    dropped: tuple[tuple[Reason, int], ...] = ()
    dead: int = 0
    returned: int = 0
    charged: int = 0


@dataclass(frozen=True, slots=True)
class FrozenWork:
    """A `WorkState` as one value. `last_n`: the highest number that was sent."""

    life: int
    settled: Frozen
    frontier: int
    members: tuple[tuple[LeaseId, str], ...] = ()
    leases: tuple[tuple[int, int, LeaseId], ...] = ()
    marks: tuple[tuple[int, int, Mark], ...] = ()
    outbox: tuple[tuple[int, Outgoing], ...] = ()
    last_n: int = 0
    taken: tuple[tuple[str, int], ...] = ()
    totals: Totals = field(default_factory=Totals)
    recovery: int = 0
    begun: tuple[int, int] = (0, 0)
    endings: FrozenEndings = (LeaseId(0, 0, 0), ())


FrozenGroups: TypeAlias = tuple[tuple[str, FrozenWork], ...]


class Held(NamedTuple):
    """A lease that has not ended: whose it is, and how many of its records are not settled."""

    member: str
    records: int


class WorkState:
    """Owns the facts about one group in one partition. `begun`: the epoch and the index of the entry that began its
    life. A lease of a former life is lower."""

    def __init__(self, life: int, base: int, recovery: int = 0, begun: tuple[int, int] = (0, 0)) -> None:
        self.life = life
        self.recovery = recovery
        self.begun = begun
        self.settled = OffsetSet(base)
        self.frontier = base
        self.leases: dict[LeaseId, Held] = {}
        self.lent: RunMap[LeaseId] = RunMap()
        self.marks: RunMap[Mark] = RunMap()
        self.outbox: dict[int, Outgoing] = {}
        self.last_n = 0
        self.taken: OrderedDict[str, int] = OrderedDict()
        self.totals = Totals()
        self.leased = 0
        self.endings = Endings(begun)

    @classmethod
    def thawed(cls, frozen: FrozenWork) -> WorkState:
        """The state of which `frozen` is the value. Raises `ValueError` if it contradicts itself."""
        made = cls(frozen.life, 0, frozen.recovery, frozen.begun)
        made.settled = OffsetSet.thawed(frozen.settled)
        made.frontier = frozen.frontier
        members, records = dict(frozen.members), Counter[LeaseId]()
        made.lent, made.marks = RunMap(frozen.leases), RunMap(frozen.marks)
        for runs in (made.lent, made.marks):
            if any(first != made.settled.next_missing(first) for first, _, _ in runs):
                raise ValueError("a lease or a mark begins with a settled record")
        for first, end, lease in made.lent:
            if lease not in members:
                raise ValueError("a lease has records and no member")
            records[lease] += made.settled.missing_count(first, end)
        made.leases = {lease: Held(member, records[lease]) for lease, member in members.items()}
        made.leased = records.total()
        if not all(held.records for held in made.leases.values()) or made.lent.end() > frozen.frontier:
            raise ValueError("a lease has no records, or is beyond what was ever lent")
        made.outbox, made.last_n = dict(frozen.outbox), frozen.last_n
        made.taken, made.totals = OrderedDict(frozen.taken), frozen.totals
        made.endings = Endings.thawed(frozen.endings)
        return made

    def copy(self) -> WorkState:
        """Another one with the same facts: a leader's own view, which is ahead of what is committed."""
        made = WorkState(self.life, self.base, self.recovery, self.begun)
        made.settled, made.frontier = self.settled.copy(), self.frontier
        made.leases = self.leases.copy()
        made.lent, made.marks, made.leased = self.lent.copy(), self.marks.copy(), self.leased
        made.outbox, made.last_n, made.taken = self.outbox.copy(), self.last_n, self.taken.copy()
        made.totals, made.endings = self.totals, self.endings.copy()
        return made

    def frozen(self) -> FrozenWork:
        """All of it as one value."""
        return FrozenWork(
            self.life,
            self.settled.frozen(),
            self.frontier,
            tuple((lease, held.member) for lease, held in self.leases.items()),
            tuple(self.lent),
            tuple(self.marks),
            tuple(self.outbox.items()),
            self.last_n,
            tuple(self.taken.items()),
            self.totals,
            self.recovery,
            self.begun,
            self.endings.frozen(),
        )

    # ------------------------------------------------------------------ what policy asks

    @property
    def base(self) -> int:
        """Everything below it is settled."""
        return self.settled.base

    @property
    def span(self) -> int:
        """From base to one past the highest offset that was ever lent."""
        return max(self.frontier - self.base, 0)

    @property
    def runs(self) -> int:
        """Of leases and marks, together."""
        return len(self.lent) + len(self.marks)

    def unlent(self, end: int) -> int:
        """How many records below `end`, the log's, are neither settled nor leased."""
        return self.settled.missing_count(self.base, end) - self.leased

    def fresh_room(self) -> int:
        """How far above base a record that was never lent may be lent now: 0 if the bound of runs is reached. What came
        back may always be lent."""
        return SPAN_MAX if self.runs < RUNS_MAX else 0

    def outbox_full(self) -> bool:
        """Whether nothing more may be sent before something is published."""
        return len(self.outbox) >= OUTBOX_MAX

    def holder(self, offset: int) -> tuple[LeaseId, str] | None:
        """The lease that this record is in, and whose it is; None if nobody has it."""
        lease = None if offset in self.settled else self.lent.at(offset)
        return None if lease is None else (lease, self.leases[lease].member)

    def counts(self, offset: int) -> tuple[int, int]:
        """Deliveries and failures of an unsettled record."""
        mark = self.marks.at(offset) or NO_MARK
        return mark.deliveries + (self.holder(offset) is not None), mark.failures

    def unleased(self, first: int, end: int) -> Iterator[tuple[int, int, Mark | None]]:
        """The records of `[first, end)` that are neither settled nor leased, by ranges of equal marks; None for fresh
        ones. Runs in the order of offsets, as far as it is followed."""
        for low, high in self.settled.missing(first, end):
            for free, until, lease in self.lent.pieces(((low, high),)):
                if lease is None:
                    yield from self.marks.pieces(((free, until),))

    def ready(self, now_us: int, limit: int, first: int, end: int) -> Iterator[tuple[int, int, Mark | None]]:
        """Of `unleased`, what may be lent now, as far as the journal tells."""
        for low, high, mark in self.unleased(first, end):
            if mark is None or (mark.due_us <= now_us and not mark.doomed(limit)):
                yield low, high, mark

    def delayed(self, now_us: int, limit: int) -> Iterator[tuple[int, int, Mark]]:
        """What is not lent before its time."""
        return (run for run in self._marked() if run[2].due_us > now_us and not run[2].doomed(limit))

    def doomed(self, limit: int) -> Iterator[tuple[int, int, Mark]]:
        """What is to become a dead letter: rejected, or failed so often, and not parked."""
        return (run for run in self._marked() if run[2].doomed(limit) and not run[2].parked)

    def parked(self) -> Iterator[tuple[int, int, Mark]]:
        """What is kept and lent to nobody."""
        return (run for run in self._marked() if run[2].parked)

    def _marked(self) -> Iterator[tuple[int, int, Mark]]:
        """Records with a mark that are neither settled nor leased."""
        for first, end, mark in self.marks:
            for low, high in self.settled.missing(first, end):
                for free, until, lease in self.lent.pieces(((low, high),)):
                    if lease is None:
                        yield free, until, mark

    def needed_from(self) -> int:
        """The first record that is not settled, or of which a dead letter is not published: should that be lost, it is
        made again."""
        dead = (each for each in self.outbox.values() if each.reason is not Reason.OUTPUT and each.ranges)
        return min(self.settled.base, min((each.ranges[0][0] for each in dead), default=self.settled.base))

    # ------------------------------------------------------------------ what entries do

    def apply(self, step: Step, at: LeaseId, end: int) -> None:
        """Take in one step: of a committed entry, or in a leader's view of one that it has proposed. `at`: its place in
        the journal. `end`: the log's, at which ranges are cut off.
        Whoever keeps the groups sees to `Begin` and `End`."""
        match step:
            case Lease(ranges, member):
                self._lease(_below(ranges, end), at, member)
            case Accept(ranges, late):
                self._accept(_below(ranges, end), late)
            case Drop(ranges, reason):
                self._drop(self._unheld(_below(ranges, end)), reason)
            case Return() | Reject():
                self._return(_below(step.ranges, end), step)
            case Send() as send:
                self._send(send, end)
            case Sent(n):
                self.outbox.pop(n, None)
            case Park(ranges):
                self._mark(self._unheld(_below(ranges, end)), None)
            case Reset() as reset:
                self._mark(self._unheld(_below(reset.ranges, end)), reset)
            case Begin() | End():
                pass

    def recover(self, recovery: int, at: tuple[int, int]) -> None:
        """The log was cut by this recovery: what became of the leases since is unknown, so they end and are not
        charged. Once for each recovery. `at`: epoch and index of the entry that says so."""
        if recovery <= self.recovery:
            return
        self.recovery = recovery
        self.endings.forget_before(at)
        self._return(tuple((low, high) for low, high, _ in self.lent), Return(()))

    def skip(self, first: int, end: int) -> None:
        """No record has these offsets, and none will."""
        if first < end:
            self.settled.add(((first, end),))

    def pass_to(self, start: int) -> None:
        """The log begins there from now on: what was dropped before it is settled, leases too."""
        if start > self.base:
            dropped = ((self.base, start),)
            self._note_ended(list(self.lent.covered(dropped)), How.TAKEN)
            self._drop(dropped, Reason.RETENTION)

    def _missing_count(self, ranges: Iterable[Range]) -> int:
        count = self.settled.missing_count
        return sum(count(first, end) for first, end in ranges)

    def _unheld(self, ranges: Ranges) -> Ranges:
        """What of these is leased to nobody."""
        return tuple((low, high) for low, high, lease in self.lent.pieces(ranges) if lease is None)

    def _settle(self, ranges: Ranges) -> None:
        settled = self.settled
        self._let_go(self.lent.covered(ranges))
        settled.add(ranges)
        self.lent.begin_at(ranges, settled.next_missing)
        self.marks.begin_at(ranges, settled.next_missing)

    def _accept(self, ranges: Ranges, late: LeaseId | None = None) -> None:
        ranges = ranges if late is None else self._unheld(ranges)
        self.totals = replace(self.totals, accepted=self.totals.accepted + self._missing_count(ranges))
        if late is not None:
            self._note_ended([(low, high, late) for low, high in ranges], How.ACCEPTED)
        elif not all(map(self.endings.is_whole, islice(self.leases, 1))):  # they ascend as they were made
            forgotten = [piece for piece in self.lent.covered(ranges) if not self.endings.is_whole(piece[2])]
            self._note_ended(forgotten, How.ACCEPTED)
        self._settle(ranges)

    def _note_ended(self, pieces: Sequence[tuple[int, int, LeaseId]], how: How) -> None:
        """Their unsettled records leave these leases so. Before they are settled, and after they are marked."""
        ended: dict[LeaseId, list[tuple[int, int, Ending]]] = {}
        count = 0
        for low, high, lease in pieces:
            some = ended.setdefault(lease, [])
            for missing in self.settled.missing(low, high):
                count += 1
                if count > ENDINGS_MAX:
                    break
                for first, end, mark in self.marks.pieces((missing,)):
                    some.append((first, end, Ending(how, mark.deliveries if mark is not None else 0)))
        for lease, some in ended.items():
            if count > ENDINGS_MAX:
                self.endings.forget(lease)
            elif some:
                self.endings.note(lease, some)

    def _drop(self, ranges: Ranges, reason: Reason) -> None:
        dropped = dict(self.totals.dropped)
        dropped[reason] = dropped.get(reason, 0) + self._missing_count(ranges)
        self.totals = replace(self.totals, dropped=tuple(sorted((r, n) for r, n in dropped.items() if n)))
        self._settle(ranges)

    def _trimmed(self, first: int, end: int) -> int:
        """The first record of these that is not settled; `end` if none is."""
        return min(self.settled.next_missing(first), end)

    def _lease(self, ranges: Ranges, at: LeaseId, member: str) -> None:
        free = [
            (begin, high, at)
            for low, high, mark in self.marks.pieces(self._unheld(ranges))
            if not (mark and (mark.rejected or mark.parked)) and (begin := self._trimmed(low, high)) < high
        ]
        count = self._missing_count((low, high) for low, high, _ in free)
        if not count:
            return
        self.leases[at] = Held(member, count)
        self.leased += count
        self.lent.assign(free)
        self.frontier = max(self.frontier, free[-1][1])

    def _return(self, ranges: Ranges, step: Return | Reject) -> None:
        held = list(self.lent.covered(ranges))
        returned = self._let_go(held)
        self.lent.assign([(low, high, None) for low, high, _ in held])
        self._begin_unsettled(self.lent, held)
        charged = isinstance(step, Return) and step.charged
        self.totals = replace(
            self.totals,
            returned=self.totals.returned + returned,
            charged=self.totals.charged + (returned if charged else 0),
        )
        self._mark([(low, high) for low, high, _ in held], step)
        self._note_ended(held, _how(step))

    def _let_go(self, pieces: Iterable[tuple[int, int, LeaseId]]) -> int:
        """The unsettled records of these pieces leave their leases; how many there were."""
        count = self.settled.missing_count
        gone: dict[LeaseId, int] = {}
        for low, high, lease in pieces:
            gone[lease] = gone.get(lease, 0) + count(low, high)
        for lease, records in gone.items():
            held = self.leases[lease]
            if records < held.records:
                self.leases[lease] = Held(held.member, held.records - records)
            else:
                del self.leases[lease]
        total = sum(gone.values())
        self.leased -= total
        return total

    def _begin_unsettled(self, runs: RunMap[Any], pieces: Iterable[tuple[int, int, object]]) -> None:
        """What is left of runs that were cut after these pieces begins with an unsettled record."""
        runs.begin_at([(high, high + 1) for _, high, _ in pieces], self.settled.next_missing)

    def _mark(self, ranges: Iterable[Range], step: Return | Reject | Reset | None) -> None:
        """New marks for these. None: they are parked. What is fresh can be parked, but not reset."""
        kept: dict[Mark | None, Mark | None] = {}
        made: list[tuple[int, int, Mark | None]] = []
        for low, high, mark in self.marks.pieces(ranges):
            begin = self._trimmed(low, high)
            if mark not in kept:
                kept[mark] = _after(mark, step)
            if begin < high:
                made.append((begin, high, kept[mark]))
        self.marks.assign(made)
        self._begin_unsettled(self.marks, made)

    def _send(self, send: Send, end: int) -> None:
        """All of it or nothing: what is published must not name a record that is settled otherwise."""
        ranges = send.ranges
        if send.n <= self.last_n or _below(ranges, end) != ranges:
            return
        if any(self.settled.missing_count(low, high) != high - low for low, high in ranges):
            return
        for _, _, lease in self.lent.pieces(ranges):
            if (self.leases[lease].member if lease is not None else "") != send.member:
                return
        if send.member:
            if send.number <= self.taken.get(send.member, -1):
                return
            self.taken[send.member] = send.number
            self.taken.move_to_end(send.member)
            if len(self.taken) > TAKEN_MAX:
                self.taken.popitem(last=False)
        self.outbox[send.n] = Outgoing(send.lines, ranges, send.reason)
        self.last_n = send.n
        if send.member:
            self._accept(ranges)
        else:
            self.totals = replace(self.totals, dead=self.totals.dead + sum(high - low for low, high in ranges))
            self._settle(ranges)


def _below(ranges: Ranges, end: int) -> Ranges:
    """What of these is below `end`."""
    if not ranges or ranges[-1][1] <= end:
        return ranges
    return tuple((first, min(until, end)) for first, until in ranges if first < end)


def _how(step: Return | Reject) -> How:
    """How leases end by it."""
    if isinstance(step, Reject):
        return How.REJECTED
    if not step.said:
        return How.TAKEN
    return How.FAILED if step.charged else How.RELEASED


def _after(mark: Mark | None, step: Return | Reject | Reset | None) -> Mark | None:
    """The mark of a record that had `mark`."""
    before = mark or NO_MARK
    match step:
        case Return(charged=charged, due_us=due_us, error=error):
            return replace(
                before,
                deliveries=before.deliveries + 1,
                failures=before.failures + charged,
                due_us=due_us,
                error=error or before.error,
            )
        case Reject(error=error):
            return replace(
                before, deliveries=before.deliveries + 1, rejected=True, due_us=0, error=error or before.error
            )
        case Reset():
            return Mark(before.deliveries) if before.deliveries else None
        case None:
            return replace(before, parked=True)


class WorkGroups(dict[str, WorkState]):
    """Owns the state of each queue group of the partition, by its name."""

    @classmethod
    def thawed(cls, frozen: Iterable[tuple[str, FrozenWork]]) -> WorkGroups:
        """Raises `ValueError` if a state contradicts itself."""
        return cls((group, WorkState.thawed(each)) for group, each in frozen)

    def frozen(self) -> FrozenGroups:
        """All of them as one value."""
        return tuple((group, state.frozen()) for group, state in self.items())

    def apply(
        self, group: str, life: int, steps: Sequence[Step], leader_epoch: int, index: int, log: tuple[int, int]
    ) -> None:
        """Take in a committed entry. `log`: its first offset, and one past its last. Lives ascend: a step of another
        life does nothing, but `Begin` of a later one."""
        start, end = log
        for number, step in enumerate(steps):
            state = self.get(group)
            if isinstance(step, Begin):
                if state is None or state.life < life:
                    base = min(max(step.offset, start), end)
                    begun = self[group] = WorkState(life, base, step.recovery, (leader_epoch, index))
                    for low, high in step.lost:
                        begun.skip(max(low, base), min(high, end))
            elif state is not None and state.life == life:
                if isinstance(step, End):
                    del self[group]
                else:
                    state.apply(step, LeaseId(leader_epoch, index, number), end)

    def recover(self, recovery: int, at: tuple[int, int]) -> None:
        """The log was cut by a recovery: leases that were made before it end uncharged. `at`: epoch and index of the
        entry that says so."""
        for state in self.values():
            state.recover(recovery, at)

    def skip(self, first: int, end: int) -> None:
        """No record has these offsets, and none will."""
        for state in self.values():
            state.skip(first, end)

    def pass_to(self, start: int) -> None:
        """The log begins there from now on."""
        for state in self.values():
            state.pass_to(start)
