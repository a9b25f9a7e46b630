"""Whose turn it is: members of a higher priority go before, as long as they are there."""

from __future__ import annotations

import asyncio

import pytest

from mq_broker.broker.queues.group import waiting
from mq_broker.broker.queues.group.waiting import BETWEEN_MS
from mq_broker.broker.queues.session import Load, Session
from mq_broker.core.work.settling import Failed
from mq_protocol import mq_pb2 as pb
from mq_protocol.queues.settings import Order
from tests.coroutines import virtual_time
from tests.mq_broker.broker.queues.partitions import Asked, Group, lease_of, offsets, rounds


def watch(group: Group, member: str, priority: int) -> Asked:
    return group.ask(member, 0, priority=priority, watches=True)


async def opened(group: Group, records: int) -> Session:
    """Of member `high`, which is lent so many records and has no further credit."""
    first = pb.WorkOpen(topic="t", group="g", member="high", member_key=b"k" * 16)
    session = Session(1, group.led, first, {}, pb.WorkTerms(priority=1), lambda *_: None, Load())
    session.begin(group.led_group)
    session.set_credit(pb.WorkCredit(records=records))
    await rounds()
    return session


@virtual_time
async def test_who_has_a_higher_priority_is_lent_records_first() -> None:
    group = Group(5)
    low, high = group.ask("low", 10), group.ask("high", 10, priority=1)
    await rounds()
    assert offsets(high) == [(0, 5)]
    assert not low.answered.done()


@virtual_time
async def test_the_same_priority_shares_in_the_order_of_asking() -> None:
    group = Group(10)
    asking = [group.ask(member, 5, priority=3) for member in ("b", "a")]
    await rounds()
    assert list(map(offsets, asking)) == [[(0, 5)], [(5, 10)]]


@virtual_time
async def test_a_lower_one_stands_by_while_a_higher_one_works() -> None:
    group = Group(10)
    high = group.ask("high", 2, priority=1)
    await rounds()
    low = group.ask("low", 5)
    await rounds()
    assert (offsets(high), low.answered.done()) == ([(0, 2)], False)
    group.hurry(low)
    await rounds()
    assert low.answered.result().runs == ()


@virtual_time
async def test_with_spill_a_lower_one_is_lent_what_a_full_one_has_no_room_for() -> None:
    group = Group(10, spill=True)
    high, low = group.ask("high", 2, priority=1), group.ask("low", 5)
    await rounds()
    assert (offsets(high), offsets(low)) == ([(0, 2)], [(2, 7)])


@virtual_time
async def test_with_spill_a_lower_one_waits_while_a_higher_one_has_room() -> None:
    group = Group(3, spill=True)
    high, low = group.ask("high", 5, priority=1), group.ask("low", 5)
    await rounds()
    assert offsets(high) == [(0, 3)]
    group.led.append(2)
    group.led_group.wake()
    await rounds()
    assert not low.answered.done(), "the higher one has room for two more, and is about to ask"
    group.pass_ms(BETWEEN_MS)
    group.led_group.wake()
    await rounds()
    assert offsets(low) == [(3, 5)]


@virtual_time
async def test_with_spill_one_that_was_told_of_records_is_waited_for() -> None:
    group = Group(0, spill=True)
    watching, low = watch(group, "high", 1), group.ask("low", 5)
    group.led.append(4)
    group.led_group.wake()
    await rounds()
    assert watching.answered.result().ready
    assert not low.answered.done()
    high = group.ask("high", 4, priority=1)
    await rounds()
    assert offsets(high) == [(0, 4)]


@virtual_time
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


@virtual_time
async def test_nobody_waits_for_a_higher_one_with_a_filter() -> None:
    group = Group(4)
    group.ask("high", 5, priority=1, filter="n > 5")  # nothing is read, so it is lent nothing
    low = group.ask("low", 5)
    await rounds()
    assert offsets(low) == [(0, 4)]


@virtual_time
async def test_with_spill_who_only_says_that_it_is_there_keeps_nobody_waiting() -> None:
    group = Group(4, spill=True)
    group.ask("high", 0, priority=1)
    low = group.ask("low", 5)
    await rounds()
    assert offsets(low) == [(0, 4)]


@virtual_time
async def test_one_that_has_a_session_is_there_though_it_asks_for_nothing() -> None:
    group = Group(10, lease_ms=20_000)
    high = await opened(group, 2)
    low = group.ask("low", 10)
    group.pass_ms(15_000)
    group.led_group.wake()
    await rounds()
    assert (group.leased(), low.answered.done()) == ({"high": ((0, 2),)}, False)
    high.close(clean=True)
    await rounds()
    assert offsets(low) == [(0, 2), (2, 10)], "what it had, too"


@virtual_time
async def test_one_whose_session_broke_is_waited_for_a_moment_and_the_leader_looks_again_by_itself() -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(waiting, "BROKEN_OFF_MS", 30)
        group = Group(10)
        high = await opened(group, 2)
        low = group.ask("low", 10)
        await rounds()
        high.close(clean=False)
        await rounds()
        assert not low.answered.done()
    group.ms += 30  # nobody wakes it
    async with asyncio.timeout(5):
        await low.answered
    assert offsets(low) == [(2, 10)]


@virtual_time
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
    group.led_group.wake()
    await rounds()
    assert (offsets(high), again.answered.done()) == ([(2, 7)], False)
