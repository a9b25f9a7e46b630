"""Records of a queue group that are too old are lent to nobody, wherever they are, and go."""

from __future__ import annotations

from typing import Any

import pytest

from mq_broker.broker.queues.group.requests import OwnSteps
from mq_broker.broker.queues.policy import dropping
from mq_broker.broker.queues.policy.expiring import Expiring, Fate
from mq_broker.core.messages import Published
from mq_broker.core.work.settling import Release
from mq_broker.core.work.state import NO_MARK, WorkState
from mq_broker.core.work.steps import Drop, Park, Reason
from mq_broker.storage.offset_index import OffsetIndex
from mq_protocol.queues.settings import DeadLetter, Expired, Order
from tests.coroutines import virtual_time
from tests.mq_broker.broker.queues.partitions import Group, lease_of, offsets, rounds

TTL_MS = 10_000


def group_of(*ages_ms: int, records: int = 5, **settings: Any) -> Group:
    """A group whose batches of so many records were appended so long ago."""
    group = Group(0, **{"ttl_ms": TTL_MS, **settings})
    for age_ms in ages_ms:
        group.led.append(records, at_us=group.us - age_ms * 1_000)
    return group


def dropped(group: Group) -> int:
    return dict(group.state.totals.dropped).get(Reason.EXPIRED, 0)


async def lent(group: Group, member: str, records: int, **fields: Any) -> Any:
    asking = group.ask(member, records, **fields)
    await rounds()
    return asking


def offsets_of(asking: Any) -> list[tuple[int, int]]:
    return offsets(asking) if asking.answered.done() else []


@pytest.mark.parametrize("order", Order)
@virtual_time
async def test_a_batch_that_is_committed_long_after_its_time_is_not_lent_if_it_is_too_old_by_then(order: Order) -> None:
    group = group_of(TTL_MS, order=order)
    group.key_of = lambda _: 0
    asking = await lent(group, "a", 100)
    assert (offsets_of(asking), group.state.base) == ([], 5), "everything that was there has expired"
    group.pass_ms(200)
    group.led.append(3, at_us=group.us - TTL_MS * 1_000)
    group.led.append(2, at_us=group.us - TTL_MS * 1_000 + 1_000)
    group.led_group.wake()
    await rounds()
    assert (offsets_of(asking), dropped(group)) == ([(8, 10)], 8)


@virtual_time
async def test_a_ttl_that_changes_holds_at_once_for_what_is_there() -> None:
    group = group_of(8_000, 2_000)
    group.declare(ttl_ms=9_000)
    await rounds()
    assert dropped(group) == 0
    group.declare(ttl_ms=5_000)
    await rounds()
    assert dropped(group) == 5
    group.declare(ttl_ms=0)
    group.pass_ms(60_000)
    assert offsets_of(await lent(group, "a", 100)) == [(5, 10)]
    assert not group.led_group.waits


@pytest.mark.parametrize(
    ("dead_letter", "expired", "step"),
    [
        (DeadLetter.PARK, Expired.DROP, Drop),
        ("t.dead", Expired.DROP, Drop),
        (DeadLetter.DROP, Expired.DEAD, Drop),
        (DeadLetter.PARK, Expired.DEAD, Park),
    ],
)
@virtual_time
async def test_what_becomes_of_them_the_group_says(dead_letter: Any, expired: Expired, step: type) -> None:
    group = group_of(20_000, 0, dead_letter=dead_letter, expired=expired)
    group.led_group.wake()
    await rounds()
    [work] = group.led.proposed
    assert [(type(each), each.ranges) for each in work.steps] == [(step, ((0, 5),))]
    assert dropped(group) == (5 if step is Drop else 0)
    assert offsets_of(await lent(group, "a", 100)) == [(5, 10)]


@virtual_time
async def test_those_that_become_letters_are_handed_out_once_and_again_when_they_are_given_back() -> None:
    group = group_of(20_000, 0, dead_letter="t.dead", expired=Expired.DEAD)
    group.led_group.wake()
    await rounds()
    assert group.told_of_doomed
    assert group.led.proposed == []
    assert group.led_group.take_doomed(9) == []
    taken = group.led_group.take_doomed(9, Reason.EXPIRED)
    assert [(first, end) for first, end, _ in taken] == [(0, 5)]
    assert group.led_group.take_doomed(9, Reason.EXPIRED) == []
    group.led_group.doomed_again([(1, 3, taken[0][2]), (6, 8, taken[0][2])])
    await rounds()
    assert [run[:2] for run in group.led_group.take_doomed(9, Reason.EXPIRED)] == [(1, 3)]


@virtual_time
async def test_in_an_order_nothing_is_lent_while_letters_of_what_is_too_old_are_made() -> None:
    group = group_of(20_000, 0, dead_letter="t.dead", expired=Expired.DEAD, order=Order.ALL)
    group.led_group.wake()
    await rounds()
    taken = group.led_group.take_doomed(9, Reason.EXPIRED)
    asking, hurried = group.ask("a", 100), group.ask("b", 1)
    group.hurry(hurried)
    await rounds()
    assert (asking.answered.done(), offsets(hurried)) == (False, [])
    group.led_group.add(OwnSteps(1, (Park(((0, 2),)), Drop(((2, 5),), Reason.PURGED))))
    await rounds()
    assert not asking.answered.done() or offsets(asking) == [], "a parked record holds up what follows"
    group.led_group.add(OwnSteps(1, (Drop(((0, 2),), Reason.PURGED),)))
    await rounds()
    assert (len(taken), offsets_of(asking)) == (1, [(5, 10)])


@virtual_time
async def test_one_entry_drops_so_many_ranges_and_the_next_one_the_others() -> None:
    most = dropping.DROPPED_AT_ONCE
    group = group_of(5_000, records=7 * most)
    lease = await lease_of(group, "m", 7 * most)
    group.outcome(Release(0), "m", lease, *((n, n + 1) for n in range(0, 7 * most, 2)))
    await rounds()
    group.pass_ms(6_000)
    await rounds()
    drops = [step.ranges for work in group.led.proposed for step in work.steps if isinstance(step, Drop)]
    assert [len(ranges) for ranges in drops] == [most, most, most, most // 2]
    assert dropped(group) == 7 * most // 2


def test_it_is_looked_again_when_the_next_record_expires_not_oftener_than_a_second_nor_rarer_than_a_minute() -> None:
    state, index = WorkState(1, 0), OffsetIndex()
    of = Expiring(state, index, TTL_MS, Fate.DROPPED, ordered=False)
    of.look(100_000_000, 7_000)
    assert [of.due(ms) for ms in (7_999, 8_000)] == [False, True], "nothing is there"
    index.append(Published(0, 5, 1, 95_000_000, 10, 10))
    of.look(101_000_000, 8_000)
    assert [of.due(ms) for ms in (11_999, 12_000)] == [False, True], "it expires in four seconds"
    of.look(104_999_001, 12_000)
    assert (of.floor, of.due(12_999), of.due(13_000)) == (0, False, True)
    of.look(104_999_999, 13_000)
    assert of.floor == 0
    of.look(105_000_000, 13_001)
    assert of.floor == 5
    of = Expiring(state, index, 3_600_000, Fate.DROPPED, ordered=False)
    of.look(105_000_000, 0)
    assert [of.due(ms) for ms in (59_999, 60_000)] == [False, True]
    of.look(95_000_000 + 3_600_000_000 - 1_500_001, 60_000)
    assert [of.due(ms) for ms in (61_500, 61_501)] == [False, True], "not a moment too early"


def test_what_was_handed_out_is_not_remembered_where_nothing_waits_for_it() -> None:
    index = OffsetIndex()
    index.append(Published(0, 5, 1, 0, 10, 10))
    of = Expiring(WorkState(1, 0), index, TTL_MS, Fate.SENT, ordered=False)
    of.look(20_000_000, 0)
    assert of.sends
    assert of.take(9, 10) == [(0, 5, NO_MARK)]
    assert (of.sends, of._taken) == (False, [])
    kept = Expiring(WorkState(1, 0), index, TTL_MS, Fate.DROPPED, ordered=False)
    kept.look(20_000_000, 0)
    assert (kept.sends, kept.take(9, 10)) == (False, [])
