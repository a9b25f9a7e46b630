"""Records of a higher priority are lent before others, over the whole backlog; and a walk on which what is kept aside
says the same as the state, in which every record is looked up."""

from __future__ import annotations

import random

import pytest

from mq_broker.broker.queues.policy import by_level
from mq_broker.broker.queues.policy.by_level import HIGH, ByLevel
from mq_broker.broker.queues.policy.ready_records import Wish
from mq_broker.core.messages import Published
from mq_broker.core.work.settling import Ack, Failed, Release
from mq_broker.core.work.state import NO_MARK, RUNS_MAX, WorkState
from mq_broker.core.work.steps import Accept, Drop, Lease, LeaseId, Reason, Return, Step
from mq_broker.storage.offset_index import OffsetIndex
from mq_protocol.queues.settings import Priority
from tests.coroutines import virtual_time
from tests.mq_broker.broker.queues.partitions import Group, offsets, rounds


def no_bytes(_: int, end: int, __: int) -> tuple[int, int]:
    return end, 0


class Log:
    """Batches with priorities, and a group's state."""

    def __init__(self, *batches: tuple[int, int], priority: Priority = Priority.STRICT, limit: int = 0) -> None:
        self.index = OffsetIndex()
        self.state = WorkState(1, 0)
        self.entry = 0
        self.levels: list[int] = []
        for records, level in batches:
            self.append(records, level)
        self.limit, self.priority = limit, priority
        self.lead_anew()

    def lead_anew(self) -> None:
        self.ready = ByLevel(self.state, self.limit, self.index, self.priority)
        self.scan()

    def scan(self) -> None:
        for _ in range(10_000):
            if self.ready.scan(50):
                return
        raise AssertionError("it never knows all")

    def append(self, records: int, level: int) -> None:
        self.index.append(Published(len(self.levels), records, 1 + len(self.levels), 0, 10, 10, level))
        self.levels += [level] * records

    def apply(self, step: Step) -> None:
        self.entry += 1
        self.state.apply(step, LeaseId(1, self.entry, 0), len(self.levels))
        self.ready.written([step], 0)

    def choose(self, most: int, now_us: int = 0) -> list[tuple[int, int]]:
        self.scan()
        for _ in range(1_000):
            choice = self.ready.choose(Wish(most), now_us, len(self.levels), no_bytes)
            if not choice.unfinished:
                return list(choice.ranges)
        raise AssertionError("it never finds anything")

    def lend(self, most: int, now_us: int = 0) -> list[int]:
        """To one member; the offsets."""
        ranges = self.choose(most, now_us)
        if ranges:
            self.apply(Lease(tuple(ranges), "m"))
        return [offset for first, end in ranges for offset in range(first, end)]


def test_the_highest_level_goes_first_and_within_it_the_lowest_offset() -> None:
    log = Log((2, 4), (2, 31), (2, 0), (2, 31), (1, 9))
    assert [log.lend(3) for _ in range(6)] == [[2, 3, 6], [7], [8], [0, 1], [4, 5], []]


def test_at_the_bound_of_runs_what_was_never_lent_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    log = Log((10, 4), (10, 9))
    log.lend(2)
    log.apply(Return(((10, 12),)))
    monkeypatch.setattr("mq_broker.core.work.state.RUNS_MAX", 1)
    assert RUNS_MAX > 1
    assert [log.lend(5), log.lend(5)] == [[10, 11], []]


def test_weighted_lends_two_high_records_for_a_low_one() -> None:
    log = Log((100, HIGH - 1), (100, HIGH), priority=Priority.WEIGHTED)
    high = [offset >= 100 for _ in range(60) for offset in log.lend(1)]
    assert sum(high) == 40
    assert all(sum(high[at : at + 3]) == 2 for at in range(len(high) - 3))
    more = [len([offset for offset in log.lend(10) if offset < 100]) for _ in range(9)]
    assert sum(more) >= 20


def test_a_long_rush_of_high_records_is_not_paid_back_for_as_long() -> None:
    owed = by_level.OWED_MAX
    log = Log((2 * owed, HIGH), priority=Priority.WEIGHTED)
    assert len(log.lend(2 * owed)) == 2 * owed
    log.append(owed, HIGH - 1)
    log.append(owed, HIGH)
    paid = list(range(2 * owed, 2 * owed + owed // 2))
    assert [log.lend(owed // 2 + 5), log.lend(5)] == [paid, list(range(3 * owed, 3 * owed + 5))]


def test_offsets_that_a_recovery_lost_at_the_end_keep_nobody_waiting() -> None:
    log = Log((2, 4), (2, 9))
    log.index.skip(4, 8)
    log.levels += [0] * 4
    log.state.skip(4, 8)
    assert [log.lend(9), log.lend(9), log.lend(9)] == [[2, 3], [0, 1], []]
    log.append(1, 31)
    assert log.lend(9) == [8]


@pytest.mark.parametrize("seed", range(20))
def test_it_says_the_same_as_the_state_on_a_walk(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    random_ = random.Random(seed)
    monkeypatch.setattr(by_level, "READ_AT_ONCE", random_.choice([1, 3, 10_000]))
    monkeypatch.setattr(by_level, "_PRUNE_ABOVE", random_.choice([4, 1_000]))
    log = Log((1, 5))
    state = log.state
    for now_us in range(1, 150):
        match random_.randrange(6):
            case 0:
                log.append(random_.randrange(1, 6), random_.choice([0, 4, 4, 9, 31]))
            case 1 | 2:
                at = [
                    offset
                    for offset in range(len(log.levels))
                    if offset not in state.settled
                    and state.lent.at(offset) is None
                    and (state.marks.at(offset) or NO_MARK).due_us <= now_us
                ]
                level = max((log.levels[offset] for offset in at), default=0)
                most = random_.randrange(1, 8)
                log.ready.wake(now_us)
                assert log.lend(most, now_us) == [each for each in at if log.levels[each] == level][:most]
            case 3 | 4:
                for lease in random_.sample(list(state.leases), min(2, len(state.leases))):
                    held = [(first, end) for first, end, its in state.lent if its == lease]
                    some = tuple(random_.sample(held, random_.randrange(1, len(held) + 1)))
                    due_us = random_.choice([0, now_us + 5])
                    step = random_.choice([Accept(some), Return(some, True, due_us), Return(some)])
                    log.apply(Accept(tuple(sorted(some))) if isinstance(step, Accept) else step_of(step, some))
            case 5 if random_.random() < 0.3:
                log.lead_anew()
            case _:
                first = random_.randrange(len(log.levels))
                log.apply(Drop(((first, first + 1),), Reason.PURGED))


def step_of(step: Step, ranges: tuple[tuple[int, int], ...]) -> Return:
    assert isinstance(step, Return)
    return Return(tuple(sorted(ranges)), step.charged, step.due_us)


# ---------------------------------------------------------------- in a group


@virtual_time
async def test_the_first_batch_with_a_priority_counts_at_once() -> None:
    group = Group(5)
    lease = (await group.ask("a", 1).answered).lease
    group.led.append(1, 31)
    again = group.ask("a", 1, held=frozenset([lease] if lease else []))
    await rounds()
    assert offsets(again) == [(5, 6)]
    group.outcome(Failed("no"), "a", again.answered.result().lease, (5, 6))
    group.outcome(Release(), "a", lease, (0, 1))
    await rounds()
    group.pass_ms(60_000)
    found = []
    for _ in range(2):
        asking = group.ask("a", 9)
        await rounds()
        found += offsets(asking)
        for run in offsets(asking):
            group.outcome(Ack(), "a", asking.answered.result().lease, run)
        await rounds()
    assert found[0] == (5, 6)
    assert group.state.base == 6


@virtual_time
async def test_a_group_that_ignores_priorities_lends_by_offset() -> None:
    group = Group(3, priority=Priority.IGNORE)
    group.led.append(2, 9)
    asking = group.ask("a", 9)
    await rounds()
    assert offsets(asking) == [(0, 5)]
    group.declare(priority=Priority.STRICT)
    lower = group.ask("a", 4)
    await rounds()
    assert offsets(lower) == [(3, 5)], "what it did not name went back"
