"""Which records a simulated queue group may lend to whom, drop and take in, by filters, priorities and `length_max`.

A leader goes by the settings as it knows them when it writes an entry, and by the records that it knows then. So what
it knew is noted when the entry is written (`Facts`), and judged once the entry is committed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

from mq_broker.core.entries import PRIORITY_USUAL, Append, Work
from mq_broker.core.work import state as work_state
from mq_broker.core.work.state import NO_MARK
from mq_broker.core.work.steps import Drop, Lease, LeaseId, Reason, ranges_of
from tests.mq_broker.core.work.model import Model, Record, offsets_of
from tests.simulation.real.clients import KEYS, fourth_of
from tests.simulation.real.substitutes import EPOCH_S

if TYPE_CHECKING:
    from mq_broker.core.messages import Published
    from tests.simulation.real.loop import Process
    from tests.simulation.real.queue_truth import QueueTruth

FILTERS: Final[Mapping[str, Callable[[int], bool]]] = {
    "": lambda value: True,
    "f <> 1": lambda value: fourth_of(value) != 1,
    "f >= 1": lambda value: fourth_of(value) >= 1,
    "k = 0 OR f = 2": lambda value: value % KEYS == 0 or fourth_of(value) == 2,
}
"""What each filter keeps, by the number in a record."""

HIGH: Final = 5
HIGH_IN_A_ROW: Final = 6
"""Leases of the high levels, after which one of the low ones must have come, if it could. Some entries are refused."""

LENGTH_MAX: Final = 12
BYTES_MAX: Final = 8_000
FOR_EVER_MS: Final = 10**12
BROKEN_OFF_S: Final = 3.0
HEARD_S: Final = 1.0
"""A leader may have made an entry by settings that changed so shortly before."""


@dataclass(frozen=True, slots=True)
class Facts:
    """What the leader knew that wrote an entry: the settings of the group, or either of two if they have changed just
    now, and offsets below `end`. The time that it believed was between the last two."""

    settings: tuple[Mapping[str, str], ...]
    end: int
    at: float
    earliest_us: int
    latest_us: int

    def all(self, name: str) -> set[str]:
        return {each.get(name, "") for each in self.settings}


class _Known:
    """What one broker knows of the group, as time goes on."""

    def __init__(self) -> None:
        self._settings: deque[tuple[float, Mapping[str, str]]] = deque(maxlen=3)
        self._ends: deque[tuple[float, int]] = deque([(0.0, 0)])

    def see(self, now: float, settings: Mapping[str, str], end: int) -> None:
        if not self._settings or self._settings[-1][1] != settings:
            self._settings.append((now, dict(settings)))
        if self._ends[-1][1] != end:
            self._ends.append((now, end))
        while len(self._ends) > 2 and self._ends[1][0] < now - 0.001:
            self._ends.popleft()

    def facts(self, now: float, process: Process) -> Facts:
        known = list(self._settings)
        old = [settings for (_, settings), (until, _) in pairwise(known) if until > now - HEARD_S]
        earliest_us = round((EPOCH_S + now + process.least_ahead_s) * 1e6)
        latest_us = round((EPOCH_S + now + process.believable_s) * 1e6)
        return Facts((*old, known[-1][1]), self._ends[0][1], now, earliest_us, latest_us)


@dataclass(slots=True)
class _Presence:
    """A member is there at the leader of that epoch, between these times."""

    priority: int
    epoch: int
    since: float
    until: float


class LendingTruth:
    """Owns what is known of the records of one partition, and what leaders and members have said of their lending.
    `group`: the queue group's name."""

    def __init__(self, truth: QueueTruth, group: str) -> None:
        self._truth = truth
        self._group = group
        self._plan = truth.cluster.plan
        self._values: dict[int, int] = {}
        self._levels: dict[int, int] = {}
        self._expire_us: dict[int, int] = {}
        self._sizes: dict[int, int] = {}
        self._peaks: dict[int, int] = {}  # how much was kept beyond the bound at most, by leader epoch
        self._known: dict[str, _Known] = {}
        self._facts: dict[tuple[int, int], Facts] = {}
        self._asked: dict[str, set[str]] = {}  # filters, by member
        self._priorities: dict[str, int] = {}  # the highest that the member ever had
        self._present: dict[str, _Presence] = {}
        self._ready: dict[int, int] = {}  # the level of each record that could have been lent by the entry
        self._unlent: set[int] = set()  # that the entry's leader knew, before it
        self._in_a_row = 0
        self._high_epoch = -1

    @property
    def wanted(self) -> bool:
        plan = self._plan
        bounds = plan.length or plan.lives or plan.ttl_s
        return bool(plan.filter or plan.sieves or plan.priority or bounds)

    def published(self, batch: Published, uuid: bytes, values: Sequence[int]) -> None:
        level = self._truth.cluster.priorities.get(uuid, PRIORITY_USUAL)
        life_ms = min(
            self._truth.cluster.lives_ms.get(uuid, FOR_EVER_MS), round(self._plan.ttl_s * 1000) or FOR_EVER_MS
        )
        size, count = batch.payload_bytes, batch.record_count
        for at in range(count):
            self._sizes[batch.base_offset + at] = size * (at + 1) // count - size * at // count
        for offset, value in enumerate(values, batch.base_offset):
            self._values[offset], self._levels[offset] = value, level
            self._expire_us[offset] = batch.timestamp_us + life_ms * 1_000

    # ------------------------------------------------------------------ what leaders know when they write

    def see(self, process: Process, replica: Any) -> None:
        """This broker has gone on."""
        settings = self._settings_of(process) if self.wanted and replica.leading else None
        if settings is not None:
            known = self._known.setdefault(process.name, _Known())
            known.see(self._truth.cluster.loop.time(), settings, replica.machine.next_offset)

    def wrote(self, process: Process, replica: Any, index: int, entry: Any) -> None:
        """It has put the entry into its journal."""
        if process.name not in self._known or entry.leader_epoch != replica.leader_epoch or not replica.leading:
            return
        facts = self._known[process.name].facts(self._truth.cluster.loop.time(), process)
        self._facts[index, entry.leader_epoch] = facts
        if isinstance(entry.operation, Append) and facts.all("overflow") == {"reject"}:
            self._check_room(replica, index)

    def _settings_of(self, process: Process) -> Mapping[str, str] | None:
        for partition in process.shell.partitions() if process.shell is not None else ():
            if partition.name == self._truth.place:
                queue = partition.topic.spec.queues.get(self._group)
                return queue.settings if queue is not None else None
        return None

    def _check_room(self, replica: Any, index: int) -> None:
        """A batch is taken while there is room for one record. Records that were never lent count by themselves: others
        may have come back since it was judged. Those that an entry before it lends or settles do not count."""
        machine, log = replica.machine, replica._shared.log
        state = machine.work.get(self._group)
        if state is None:
            return
        before = [log.entry(each) for each in range(replica.applied_index + 1, index) if each in log._tail]
        ahead = [each for each in before if isinstance(each.operation, Append)]
        taken = {o for each in before for o in self._touched(each.operation)}
        unleased = state.unleased(state.base, machine.next_offset)
        fresh = [o for a, b, mark in unleased if mark is None for o in range(a, b) if o not in taken]
        if not self._plan.heavy:
            count, most = len(fresh) + sum(each.record_count for each in ahead), LENGTH_MAX
        else:
            size = sum(self._sizes.get(offset, 0) for offset in fresh)
            count, most = size + sum(each.payload_bytes for each in ahead), BYTES_MAX
        if count >= most:
            self._truth._fail(f"entry {index} appends though {count} of what was never lent is kept, and {most} may be")

    def _touched(self, operation: Any) -> Iterable[int]:
        """The records that the group lends or settles by it."""
        if isinstance(operation, Work) and operation.group == self._group:
            for step in operation.steps:
                yield from offsets_of(ranges_of(step))

    # ------------------------------------------------------------------ entries

    def begin(self, index: int, epoch: int, work: Work, model: Model, runs: int) -> None:
        """The steps of this entry are about to be applied. `runs`: of the state before."""
        self._ready, self._unlent = {}, set()
        free = [offset for offset in model.records if self._is_free(model, offset)]
        self._peaks[epoch] = max(self._peaks.get(epoch, 0), self._beyond(free))
        facts = self._facts.get((index, epoch))
        if facts is None or not any(isinstance(step, Lease) for step in work.steps):
            return
        known = {offset: model.records[offset] for offset in free if offset < facts.end}
        self._unlent = set(known)
        if self._plan.length == "drop_head" and self._letters:
            return  # which of them are to become letters is the leader's affair
        base = min((o for o, each in model.records.items() if not each.settled), default=0)
        fresh_end = base + work_state.SPAN_MAX if runs < work_state.RUNS_MAX else 0
        self._ready = {
            o: self._levels[o]
            for o, each in known.items()
            if o in self._levels
            and self._expire_us[o] > facts.latest_us
            and (self._may_be_lent(each) if each.mark is not None else o < fresh_end)
        }

    def _may_be_lent(self, record: Record) -> bool:
        """One that came back, for certain: with others, and at any time."""
        mark, limit = record.mark or NO_MARK, self._truth.delivery_limit
        return not (mark.parked or mark.doomed(limit) or mark.due_us or self._is_last(record))

    def _is_last(self, record: Record) -> bool:
        return (record.mark or NO_MARK).failures == self._truth.delivery_limit - 1

    def check(self, step: Lease | Drop, at: LeaseId, model: Model, *, full: bool) -> None:
        """A step is about to be applied. `full`: nothing may be lent now that never was."""
        facts = self._facts.get((at.entry, at.leader_epoch))
        if facts is None:
            return
        found = ((o, model.records.get(o)) for o in offsets_of(step.ranges))
        free = {o: each for o, each in found if each is not None and not each.settled and each.lease is None}
        if isinstance(step, Drop):
            self._check_drop(step, free, facts, model, at)
            return
        texts = facts.all("filter")
        self._check_kept(free, texts, f"is lent to {step.member}, and the group's filter does not keep it")
        mine = self._asked.get(step.member, {""})
        self._check_kept(free, mine, f"is lent to {step.member}, whose filter does not keep it")
        for offset in free:
            early_us = facts.earliest_us - self._expire_us.get(offset, facts.latest_us + 1)
            if early_us >= 0:
                self._truth._fail(f"offset {offset} is lent to {step.member}, {early_us} microseconds after it expired")
        self._check_turn(step.member, at, facts)
        if texts == mine == {""} and self._plan.order == "none" and not any(map(self._is_last, free.values())):
            self._check_level(free, facts, at, model, full=full)

    def _check_kept(self, offsets: Iterable[int], texts: Iterable[str], what: str) -> None:
        for offset in offsets:
            value = self._values.get(offset)
            if value is not None and not any(FILTERS[text](value) for text in texts):
                self._truth._fail(f"offset {offset} {what}: {sorted(texts)}")

    @property
    def _letters(self) -> bool:
        """Whether what is too much becomes dead letters."""
        return self._plan.dropped == "dead" and not self._plan.tight

    def _beyond(self, offsets: Collection[int]) -> int:
        """How much these records are more than the group may keep."""
        if self._plan.heavy:
            return sum(self._sizes.get(offset, 0) for offset in offsets) - BYTES_MAX
        return len(offsets) - LENGTH_MAX

    def check_surplus(self, offset: int, at: LeaseId) -> None:
        """It is about to be sent as a dead letter, since too much is kept."""
        self._truth.cluster.done["records too many: dead"] += 1
        if self._plan.length != "drop_head" or not self._letters:
            self._truth._fail(f"offset {offset} is sent as too much, and the group makes no letters of that")
        if self._peaks.get(at.leader_epoch, 0) <= 0 and not self._plan.purges:
            self._truth._fail(f"offset {offset} is sent as too much, and never was in epoch {at.leader_epoch}")

    def check_expired(self, offsets: Collection[int], at: LeaseId, fate: str) -> None:
        """They are about to be dropped, or sent as dead letters, since they have expired."""
        facts = self._facts.get((at.entry, at.leader_epoch))
        if facts is None:
            return
        wanted = "drop" if self._plan.tight else self._plan.expired
        if offsets and fate != wanted:
            self._truth._fail(f"offsets {sorted(offsets)} have expired, and become {fate} instead of {wanted}")
        for offset in offsets:
            early_us = self._expire_us.get(offset, 0) - facts.latest_us
            if early_us > 0:
                self._truth._fail(f"offset {offset} is taken as expired {early_us} microseconds before it is")
        self._truth.cluster.done[f"records expired: {fate}"] += len(offsets)

    def _check_drop(self, step: Drop, free: Mapping[int, Record], facts: Facts, model: Model, at: LeaseId) -> None:
        if step.reason is Reason.FILTERED:
            for offset in free:
                value = self._values.get(offset)
                if value is not None and all(FILTERS[text](value) for text in facts.all("filter")):
                    self._truth._fail(f"offset {offset} is dropped, and the group's filter keeps it")
        elif step.reason is Reason.EXPIRED:
            self.check_expired(free, at, "drop")
        elif step.reason is Reason.LENGTH and free:
            left = [o for o, each in model.records.items() if not each.settled and each.lease is None and o not in free]
            last = max(free)
            if facts.all("overflow") != {"drop_head"} or self._beyond([*left, last]) <= 0 or self._letters:
                self._truth._fail(f"offsets {sorted(free)} are dropped, which leaves {len(left)} that nobody has")
            if left and min(left) < max(free):
                self._truth._fail(f"offset {max(free)} is dropped, and {min(left)} before it is not")

    def _check_level(self, free: Mapping[int, Record], facts: Facts, at: LeaseId, model: Model, *, full: bool) -> None:
        levels = {self._levels[offset] for offset in free if offset in self._levels}
        ways = facts.all("priority")
        if not levels or not self._plan.priority or "ignore" in ways:
            return
        if len(levels) > 1:
            self._truth._fail(f"the lease {at} has records of priorities {sorted(levels)}")
        waiting = {o: level for o, level in self._ready.items() if self._is_free(model, o) and o not in free}
        if full:
            waiting = {o: level for o, level in waiting.items() if model.records[o].mark is not None}
        highest = max(waiting.values(), default=-1)
        if ways == {"strict"} and highest > max(levels):
            first = min(o for o, level in waiting.items() if level == highest)
            self._truth._fail(f"the lease {at} has priority {max(levels)}, and {first} of {highest} is left")
        if behind := [o for o, level in waiting.items() if {level} == levels and o < max(free)]:
            self._truth._fail(f"the lease {at} has offset {max(free)}, and {min(behind)} of its priority is left")
        if at.leader_epoch != self._high_epoch or min(levels) < HIGH or min(waiting.values(), default=HIGH) >= HIGH:
            self._in_a_row, self._high_epoch = 0, at.leader_epoch
        elif ways == {"weighted"}:
            self._in_a_row += 1
            if self._in_a_row >= HIGH_IN_A_ROW:
                self._truth._fail(f"the lease {at} is one more of high priority, while records of a low one wait")

    @staticmethod
    def _is_free(model: Model, offset: int) -> bool:
        record = model.records.get(offset)
        return record is not None and not record.settled and record.lease is None

    def end(self, index: int, epoch: int, model: Model) -> None:
        """The steps of the entry were applied."""
        facts = self._facts.pop((index, epoch), None)
        if facts is None or not self._unlent or facts.all("overflow") != {"drop_head"}:
            return
        left = [offset for offset in self._unlent if self._is_free(model, offset)]
        if self._beyond(left) > 0 and not self._letters:
            self._truth._fail(f"{len(left)} records are kept after entry {index}, {self._beyond(left)} too much")

    # ------------------------------------------------------------------ members

    def asks(self, member: str, text: str, priority: int) -> None:
        """The member is about to ask with this filter of its own and this priority."""
        self._asked.setdefault(member, set()).add(text)
        self._priorities[member] = max(priority, self._priorities.get(member, 0))
        present = self._present.get(member)
        if present is not None and (present.priority != priority or text):
            present.until = min(present.until, self._truth.cluster.loop.time())

    def received(self, member: str, text: str, offset: int) -> None:
        """It was lent the record by an answer to a request with that filter."""
        self._check_kept([offset], [text], f"came to {member}, which had asked with a filter that does not keep it")

    def answered(self, member: str, priority: int, text: str, lease: LeaseId) -> None:
        """It was lent something, so that leader has heard of it. Its session ends with the answer."""
        if priority and not text:
            now = self._truth.cluster.loop.time()
            self._present[member] = _Presence(priority, lease.leader_epoch, now, now + BROKEN_OFF_S)

    def _check_turn(self, member: str, at: LeaseId, facts: Facts) -> None:
        """No lower member is lent anything while a higher one is there."""
        for other, there in self._present.items():
            higher = there.priority > self._priorities.get(member, 0)
            if other != member and higher and there.epoch == at.leader_epoch and there.since < facts.at < there.until:
                self._truth._fail(f"the lease {at} is of {member}, while {other} of a higher priority is there")
