"""Members with filters of their own are lent what matches; the rest waits for others."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from mq_broker.broker.queues.policy import member_filters
from mq_broker.broker.queues.policy.by_level import ByLevel
from mq_broker.broker.queues.policy.member_filters import FILTERS_MAX, IDLE_MS, FilteredRecords, Mask, MemberFilters
from mq_broker.broker.queues.policy.policy import Policy
from mq_broker.broker.queues.policy.ready_records import ReadyRecords, Wish
from mq_broker.core.messages import Published
from mq_broker.core.work.ranges import joined
from mq_broker.core.work.state import WorkState
from mq_broker.core.work.steps import Accept, Drop, Lease, LeaseId, Reason, Reject, Reset, Return
from mq_broker.storage.offset_index import OffsetIndex
from mq_protocol.queues.settings import Priority
from tests.coroutines import virtual_time
from tests.mq_broker.broker.queues.partitions import Group as Unfiltered
from tests.mq_broker.broker.queues.partitions import offsets, rounds

KEEPS: dict[str, Callable[[int], bool]] = {
    "even": lambda o: o % 2 == 0,
    "none": lambda _: False,
    "third": lambda o: o % 3 == 0,
    "high": lambda o: o >= 40,
    "all": lambda _: True,
}


def read(policy: Policy | MemberFilters, end: int, most: int = 1 << 30) -> None:
    """Rows for every filter that wants some."""
    for each in policy.wanting():
        while (wanted := each.to_read(end)) is not None and most:
            most -= 1
            each.add(wanted[1], joined((o, o + 1) for o in range(*wanted) if not KEEPS[each.text](o)))


class Group(Unfiltered):
    """Whose rows are read at once."""

    def _read(self, led_group: Any, policy: Policy) -> None:
        super()._read(led_group, policy)
        read(policy, self.led.next_offset)


@virtual_time
async def test_a_member_is_lent_what_matches_and_others_the_rest() -> None:
    group = Group(10)
    one = group.ask("a", 100, filter="even")
    await rounds()
    assert offsets(one) == [(o, o + 1) for o in range(0, 10, 2)]
    other = group.ask("b", 100)
    await rounds()
    assert offsets(other) == [(o, o + 1) for o in range(1, 10, 2)]


@virtual_time
async def test_members_whose_filters_overlap_all_get_on() -> None:
    group = Group(2_000)
    lent = dict.fromkeys(("even", "third", "all", ""), 0)
    held: dict[str, list[Any]] = {name: [] for name in lent}
    for _ in range(40):
        asked = {name: group.ask(name or "any", 10, filter=name, held=frozenset(held[name])) for name in lent}
        await rounds()
        for name, asking in asked.items():
            if asking.answered.done():
                held[name].append(asking.answered.result().lease)
                lent[name] += sum(b - a for a, b in offsets(asking))
                assert all(KEEPS[name](o) for a, b in offsets(asking) for o in range(a, b)) if name else True
    assert all(count >= 300 for count in lent.values()), lent


def wish(member: str = "a", most: int = 1_000) -> Wish:
    return Wish(most, 0, False, member)


def choose(ready: ReadyRecords, end: int, most: int = 1_000) -> list[int]:
    choice = ready.choose(wish(most=most), 0, end, lambda _, until, __: (until, 0))
    return [o for a, b in choice.ranges for o in range(a, b)]


def test_only_so_many_different_filters_are_in_use_and_idle_ones_make_room() -> None:
    state = WorkState(1, 0)
    filters = MemberFilters(ready := ReadyRecords(state, 10))
    texts = {str(n) for n in range(FILTERS_MAX)}
    assert not filters.use(texts, state, 1_000)
    assert list(filters.use({"one more"}, state, 1_000 + IDLE_MS - 1)) == ["one more"]
    assert not filters.use({"one more"}, state, 1_000 + IDLE_MS)
    assert filters.of("one more") is not ready


def test_a_filter_that_is_in_use_makes_no_room() -> None:
    state = WorkState(1, 0)
    filters = MemberFilters(ReadyRecords(state, 10))
    texts = list(map(str, range(FILTERS_MAX)))
    assert not filters.use(texts, state, 0)
    views = [filters.of(text) for text in texts]
    assert list(filters.use(["one more", *texts], state, IDLE_MS)) == ["one more"], "all of them are asked with now"
    assert list(filters.use(["one more"], state, 2 * IDLE_MS - 1)) == ["one more"], "they were, not long ago"
    assert [filters.of(text) for text in texts] == views


@virtual_time
async def test_who_does_not_wait_is_told_nothing_before_all_was_looked_at() -> None:
    for records, at_once in ((70_000, member_filters.RECORDS_AT_ONCE), (10_000, 50)):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(member_filters, "RECORDS_AT_ONCE", at_once)
            group = Group(records)
            last = records - 1_000
            group.led.apply("g", 1, Drop(tuple((o, o + 1) for o in range(0, last, 2)), Reason.PURGED))
            asking = group.ask("a", 1, filter="even")
            group.hurry(asking)
            await rounds()
            assert offsets(asking) == [(last, last + 1)]


def test_a_filter_is_compared_with_so_many_unsettled_records_at_most() -> None:
    state, end = WorkState(1, 0), 1 << 30
    mask = Mask(state, "none")
    while (wanted := mask.to_read(end)) is not None:
        mask.add(wanted[1], [wanted])
    assert member_filters.LOOK_AHEAD_MAX <= mask.read_to < member_filters.LOOK_AHEAD_MAX + member_filters.READ_AT_ONCE
    state.apply(Drop(((0, 1_000),), Reason.PURGED), LeaseId(1, 1, 0), end)
    assert mask.to_read(end) is not None or mask.read_to - 1_000 >= member_filters.LOOK_AHEAD_MAX
    mask = Mask(WorkState(1, 0), "all")
    while (wanted := mask.to_read(end)) is not None:
        mask.add(wanted[1], [])
    assert mask.read_to == member_filters.READ_AHEAD


def test_members_with_filters_are_lent_records_of_any_priority_and_others_miss_none() -> None:
    for priority in (Priority.STRICT, Priority.WEIGHTED):
        state, end, index = WorkState(1, 0), 40, OffsetIndex()
        for at in range(0, end, 5):
            index.append(Published(at, 5, 1 + at, 0, 50, 50, at % 3))
        filters = MemberFilters(ready := ByLevel(state, 0, index, priority))
        filters.use({"third"}, state, 0)
        read(filters, end)
        lent = choose(filters.of("third"), end)
        assert lent == list(range(0, end, 3))
        state.apply(Lease(joined((o, o + 1) for o in lent), "a"), LeaseId(1, 1, 0), end)
        back = Return(joined((o, o + 1) for o in lent))
        state.apply(back, LeaseId(1, 2, 0), end)
        while not ready.scan(100):
            pass
        ready.written([back], 0)
        found: list[int] = []
        while chosen := choose(ready, end):
            found += chosen
        assert sorted(found) == list(range(end))


@pytest.mark.parametrize("seed", range(20))
def test_any_steps_are_lent_as_a_look_at_every_record_says(seed: int) -> None:
    rng, end, limit, now_us = random.Random(seed), 64, 3, 0
    state = WorkState(1, 0)
    filters, entries = MemberFilters(ready := ReadyRecords(state, limit)), 0
    for _ in range(150):
        first = rng.randrange(end)
        ranges = ((first, min(first + rng.randint(1, 8), end)),)
        text = rng.choice(["", "even", "third", "high", "all", "none"])
        filters.use({text}, state, 0)
        read(filters, end, rng.randint(0, 3))
        kind = rng.randrange(8)
        steps: list[Any] = []
        if kind < 4:
            of = filters.of(text)
            while not ready.scan(2):
                pass
            ready.wake(now_us)
            most = rng.choice([3, 1_000])
            choice = of.choose(wish(most=most), now_us, end, lambda _, until, __: (until, 0))
            while choice.unfinished:
                choice = of.choose(wish(most=most), now_us, end, lambda _, until, __: (until, 0))
            known = of.mask.read_to if isinstance(of, FilteredRecords) else end
            may = [
                o
                for a, b, mark in state.ready(now_us, limit, 0, known)
                for o in range(a, b)
                if (not text or KEEPS[text](o)) and not (mark and mark.failures == limit - 1)
            ]
            chosen = [o for a, b in choice.ranges for o in range(a, b)]
            assert set(chosen) <= set(may), (chosen, may)
            assert len(chosen) == min(len(may), most), (chosen, may, text)
            if chosen:
                steps = [Lease(joined(choice.ranges), rng.choice("ab"))]
        elif kind == 4:
            steps = [Return(ranges, charged=rng.random() < 0.3, due_us=rng.choice([0, 0, now_us + 5]))]
        elif kind == 5:
            steps = [Accept(ranges)]
        elif kind == 6:
            steps = [rng.choice([Reject(ranges), Reset(ranges)])]
        else:
            now_us += 3
        for step in steps:
            entries += 1
            state.apply(step, LeaseId(1, entries, 0), end)
        ready.written(steps, 0)
        filters.written(steps)
        if ready.overgrown():
            ready.begin()
            filters.begin()


def test_a_filter_that_has_not_heard_of_too_much_that_came_back_begins_anew() -> None:
    state, end = WorkState(1, 0), 10
    filters = MemberFilters(ReadyRecords(state, 0))
    filters.use({"even"}, state, 0)
    read(filters, end)
    of = filters.of("even")
    assert choose(of, end) == [0, 2, 4, 6, 8]
    state.apply(Lease(((0, 10),), "a"), LeaseId(1, 1, 0), end)
    state.apply(Return(((0, 10),)), LeaseId(1, 2, 0), end)
    for _ in range(5):
        filters.written([Return(((0, 1),) * 8_000)])
    filters.written([Return(((0, 10),))])
    assert choose(of, end) == [0, 2, 4, 6, 8]
