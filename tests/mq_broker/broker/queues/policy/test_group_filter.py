"""What a group's filter does not keep is dropped before anything behind it is lent."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from mq_broker.broker.queues.policy.dropping import DROPPED_AT_ONCE
from mq_broker.broker.queues.policy.group_filter import GroupFilter
from mq_broker.broker.queues.policy.policy import Policy
from mq_broker.core.work.ranges import RANGES_MAX, joined
from mq_broker.core.work.settling import Release
from mq_broker.core.work.state import WorkState
from mq_broker.core.work.steps import Accept, Drop, Lease, LeaseId, Park, Reason, Reset, Return
from mq_protocol.queues.settings import Order
from tests.coroutines import virtual_time
from tests.mq_broker.broker.queues.partitions import Group as Unfiltered
from tests.mq_broker.broker.queues.partitions import rounds


class Group(Unfiltered):
    """With a filter: `fit` says what it keeps. `looks`: whether rows are read."""

    def __init__(self, fit: Callable[[int], bool], records: int = 100, **settings: Any) -> None:
        self.fit, self.looks = fit, True
        super().__init__(records, **{"filter": "n > 0", **settings})

    def _read(self, led_group: Any, policy: Policy) -> None:
        super()._read(led_group, policy)
        group_filter = policy.group_filter
        while self.looks and group_filter and (wanted := group_filter.to_read(self.led.next_offset)) is not None:
            group_filter.add(wanted[1], joined((o, o + 1) for o in range(*wanted) if not self.fit(o)))

    @property
    def filtered(self) -> int:
        return dict(self.led.state.totals.dropped).get(Reason.FILTERED, 0)


def even(offset: int) -> bool:
    return offset % 2 == 0


@virtual_time
async def test_what_does_not_match_is_dropped_and_never_lent() -> None:
    group = Group(even, 10)
    asking = group.ask("a", 100)
    await rounds()
    assert [(run.first, run.end) for run in asking.answered.result().runs] == [(o, o + 1) for o in range(0, 10, 2)]
    assert group.filtered == 5
    later = group.ask("a", 100, held=frozenset([asking.answered.result().lease]))
    group.led.append(2)
    await rounds()
    assert [(run.first, run.end) for run in later.answered.result().runs] == [(10, 11)]


@virtual_time
async def test_a_new_filter_holds_for_what_came_back() -> None:
    group = Group(lambda _: True, 10)
    first = group.ask("a", 4)
    await rounds()
    lease = first.answered.result().lease
    group.fit = even
    group.declare(filter="n > 1")
    await rounds()
    other = group.ask("b", 100)
    await rounds()
    assert [run.first for run in other.answered.result().runs] == [4, 6, 8]
    assert group.filtered == 3  # those that are leased are not dropped
    group.outcome(Release(), "a", lease, (0, 4))
    again = group.ask("c", 100)
    await rounds()
    assert [run.first for run in again.answered.result().runs] == [0, 2]
    assert group.filtered == 5


@virtual_time
async def test_a_new_leader_lends_nothing_that_it_has_not_compared() -> None:
    group = Group(lambda _: True, 10)
    first = group.ask("a", 4)
    await rounds()
    group.outcome(Release(), "a", first.answered.result().lease, (0, 4))
    await rounds()
    group.fit, group.looks = even, False
    group.lead_anew()
    asking = group.ask("b", 100)
    await rounds()
    assert not asking.answered.done()
    group.looks = True
    group.led_group.wake()
    await rounds()
    assert [run.first for run in asking.answered.result().runs] == [0, 2, 4, 6, 8]


@virtual_time
async def test_what_is_filtered_holds_up_nothing_behind_it_in_order() -> None:
    for order in (Order.ALL, Order.KEY):
        group = Group(even, 10, order=order)
        group.key_of = lambda offset: offset // 4
        lent: list[int] = []
        held: list[LeaseId] = []
        while len(lent) < 5:
            asking = group.ask("a", 100, held=frozenset(held))
            await rounds()
            answer = asking.answered.result()
            held.append(answer.lease)
            lent += [run.first for run in answer.runs]
        assert lent == [0, 2, 4, 6, 8]
        assert group.filtered == 5


def test_what_one_entry_drops_is_bounded_and_what_was_not_written_is_dropped_again() -> None:
    state = WorkState(1, 0)
    group_filter = GroupFilter(state, "n > 0", ordered=True)
    group_filter.add(10_000, [(o, o + 1) for o in range(0, 10_000, 2)])
    [refused] = group_filter.with_drop((), 10)
    [drop] = group_filter.with_drop((), 10)
    assert isinstance(drop, Drop)
    assert drop == refused
    assert len(drop.ranges) == DROPPED_AT_ONCE
    assert group_filter.upto(1 << 60) == 0
    full = (Accept(tuple((2 * o, 2 * o + 1) for o in range(RANGES_MAX))),)
    assert group_filter.with_drop(full, 10) is full
    [drop] = group_filter.with_drop((), 10)
    state.apply(drop, LeaseId(1, 1, 0), 10_000)
    group_filter.written((drop,))
    assert group_filter.upto(1 << 60) == 2 * DROPPED_AT_ONCE


@pytest.mark.parametrize("seed", range(16))
def test_any_steps_leave_nothing_unfit_below_what_may_be_lent(seed: int) -> None:
    rng, end, limit = random.Random(seed), 64, 3
    state = WorkState(1, 0)
    unfit = {o for o in range(end) if rng.random() < 0.5}
    ordered = seed % 2 == 0
    group_filter, entries = GroupFilter(state, "n > 0", ordered=ordered), 0
    for _ in range(120):
        first = rng.randrange(end)
        ranges = ((first, min(first + rng.randint(1, 6), end)),)
        step = rng.choice(
            [Return(ranges, charged=True), Return(ranges), Accept(ranges), Reset(ranges), Park(ranges), None, None]
        )
        if step is None and rng.random() < 0.5 and (wanted := group_filter.to_read(end)) is not None:
            until = rng.randint(wanted[0] + 1, wanted[1])
            group_filter.add(until, joined((o, o + 1) for o in sorted(unfit) if wanted[0] <= o < until))
        elif step is None and not group_filter.held_back(limit):
            ready = [(a, b) for a, b, _ in state.ready(1 << 60, limit, 0, group_filter.upto(1 << 60))]
            free = list(group_filter.fit(ready))
            assert not {o for a, b in free for o in range(a, b)} & unfit
            assert free == ready or not ordered
            step = Lease(joined(free[:2]), "a") if free else None
        steps = (step,) if step is not None else ()
        if rng.random() < 0.7:
            steps = group_filter.with_drop(steps, limit)
            if rng.random() < 0.2:
                continue  # refused
        for at, each in enumerate(steps):
            entries += 1
            state.apply(each, LeaseId(1, entries, at), end)
        group_filter.written(steps)
