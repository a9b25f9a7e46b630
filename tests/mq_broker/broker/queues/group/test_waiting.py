"""Whose turn it is: members of a higher priority go before, as long as they are there."""

from __future__ import annotations

import asyncio

import pytest

from mq_broker.broker.queues.group import waiting
from mq_broker.broker.queues.group.requests import Asking
from mq_broker.broker.queues.group.waiting import BETWEEN_MS, BROKEN_OFF_MS
from mq_broker.core.work.settling import Ack, Failed
from mq_protocol.queues.settings import Order
from tests.coroutines import real_time
from tests.mq_broker.broker.queues.partitions import Group, lease_of, offsets, rounds


def watch(group: Group, member: str, priority: int) -> Asking:
    return group.ask(member, 0, priority=priority, watches=True)


@real_time
async def test_who_has_a_higher_priority_is_lent_records_first() -> None:
    group = Group(5)
    low, high = group.ask("low", 10), group.ask("high", 10, priority=1)
    await rounds()
    assert offsets(high) == [(0, 5)]
    assert not low.answered.done()


@real_time
async def test_the_same_priority_shares_in_the_order_of_asking() -> None:
    group = Group(10)
    asking = [group.ask(member, 5, priority=3) for member in ("b", "a")]
    await rounds()
    assert list(map(offsets, asking)) == [[(0, 5)], [(5, 10)]]


@real_time
async def test_a_lower_one_stands_by_while_a_higher_one_works() -> None:
    group = Group(10)
    high = group.ask("high", 2, priority=1)
    await rounds()
    low = group.ask("low", 5)
    await rounds()
    assert (offsets(high), low.answered.done()) == ([(0, 2)], False)
    group.gathering.hurry(low)
    await rounds()
    assert low.answered.result().runs == ()


@real_time
async def test_with_spill_a_lower_one_is_lent_what_a_full_one_has_no_room_for() -> None:
    group = Group(10, spill=True)
    high, low = group.ask("high", 2, priority=1), group.ask("low", 5)
    await rounds()
    assert (offsets(high), offsets(low)) == ([(0, 2)], [(2, 7)])


@real_time
async def test_with_spill_a_lower_one_waits_while_a_higher_one_has_room() -> None:
    group = Group(3, spill=True)
    high, low = group.ask("high", 5, priority=1), group.ask("low", 5)
    await rounds()
    assert offsets(high) == [(0, 3)]
    group.led.append(2)
    group.gathering.wake()
    await rounds()
    assert not low.answered.done(), "the higher one has room for two more, and is about to ask"
    group.pass_ms(BETWEEN_MS)
    group.gathering.wake()
    await rounds()
    assert offsets(low) == [(3, 5)]


@real_time
async def test_with_spill_one_that_was_told_of_records_is_waited_for() -> None:
    group = Group(0, spill=True)
    watching, low = watch(group, "high", 1), group.ask("low", 5)
    group.led.append(4)
    group.gathering.wake()
    await rounds()
    assert watching.answered.result().ready
    assert not low.answered.done()
    high = group.ask("high", 4, priority=1)
    await rounds()
    assert offsets(high) == [(0, 4)]


@real_time
async def test_with_spill_nobody_waits_for_one_that_has_its_last_try_of_a_record() -> None:
    group = Group(3, spill=True, delivery_limit=2, retry_ms=0)
    lease = await lease_of(group, "high", 1, priority=1)
    await group.outcome(Failed(), "high", lease, (0, 1)).answered
    lease = await lease_of(group, "high", 5, priority=1)
    assert group.leased() == {"high": ((0, 1),)}
    high = group.ask("high", 5, priority=1, held=frozenset([lease]))
    low = group.ask("low", 5)
    await rounds()
    assert (high.answered.done(), offsets(low)) == (False, [(1, 3)])


@real_time
async def test_nobody_waits_for_a_higher_one_with_a_filter() -> None:
    group = Group(4)
    group.ask("high", 5, priority=1, filter_text="n > 5")  # nothing is read, so it is lent nothing
    low = group.ask("low", 5)
    await rounds()
    assert offsets(low) == [(0, 4)]


@real_time
async def test_with_spill_who_only_says_that_it_is_there_keeps_nobody_waiting() -> None:
    group = Group(4, spill=True)
    group.ask("high", 0, priority=1)
    low = group.ask("low", 5)
    await rounds()
    assert offsets(low) == [(0, 4)]


@real_time
async def test_nobody_waits_for_a_dead_one_for_longer_than_a_lease() -> None:
    group = Group(10, lease_ms=20_000)
    group.ask("high", 2, priority=1)
    await rounds()
    low = group.ask("low", 10)
    group.pass_ms(19_999)
    group.gathering.wake()
    await rounds()
    assert not low.answered.done()
    group.pass_ms(1)
    group.gathering.wake()
    await rounds()
    assert offsets(low) == [(2, 10)]


@real_time
async def test_the_leader_looks_again_by_itself_when_a_dead_one_is_over() -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(waiting, "PRESENT_MS_MIN", 30)
        group = Group(10, lease_ms=30)
        group.ask("high", 2, priority=1)
        await rounds()
        low = group.ask("low", 10)
        await rounds()
    group.ms += 30  # nobody wakes it
    async with asyncio.timeout(5):
        await low.answered
    assert offsets(low) == [(2, 10)]


@real_time
async def test_who_settles_is_there() -> None:
    group = Group(10, lease_ms=20_000)
    lease = (await group.ask("high", 2, priority=1).answered).lease
    low = group.ask("low", 10)
    group.pass_ms(15_000)
    group.outcome(Ack(), "high", lease, (0, 1))
    await rounds()
    group.pass_ms(6_000)
    group.gathering.wake()
    await rounds()
    assert not low.answered.done()


@real_time
async def test_one_whose_request_is_broken_off_is_waited_for_a_moment() -> None:
    group = Group(0)
    high, low = watch(group, "high", 1), group.ask("low", 10)
    await rounds()
    group.led.append(5)
    group.gathering.leave(high)
    await rounds()
    assert not low.answered.done()
    group.pass_ms(BROKEN_OFF_MS)
    group.gathering.wake()
    await rounds()
    assert offsets(low) == [(0, 5)]


@real_time
async def test_who_leaves_is_not_waited_for() -> None:
    group = Group(10)
    await group.ask("high", 2, priority=1).answered
    low = group.ask("low", 10)
    await rounds()
    assert not low.answered.done()
    group.gathering.hurry(group.ask("high", 0, priority=1, leaving=True))
    await rounds()
    assert offsets(low) == [(0, 2), (2, 10)], "what it had, and did not name, too"


@real_time
async def test_a_single_active_consumer_of_a_lower_priority_is_relieved() -> None:
    group = Group(10, order=Order.ALL)
    lease = (await group.ask("low", 2).answered).lease
    high = group.ask("high", 5, priority=1)
    again = group.ask("low", 5, held=frozenset([lease] if lease else []))
    await rounds()
    assert not high.answered.done(), "what the lower one has is in order before"
    group.ack("low", lease, (0, 2))
    await rounds()
    group.pass_ms(2_000)
    group.gathering.wake()
    await rounds()
    assert (offsets(high), again.answered.done()) == ([(2, 7)], False)
