"""Queue groups whose records are worked on in order: those of one key, or all."""

from __future__ import annotations

from typing import Any

from mq_broker.broker.queues.group import unsettled
from mq_broker.broker.queues.group.requests import Extend, OwnSteps
from mq_broker.broker.queues.policy.ordering import HELD_MAX, LOOK_AHEAD_MAX, READ_AT_ONCE, STAYS_MS
from mq_broker.core.work.settling import Ack, AckWithOutputs, Answer, Failed, Outcome, Rejected, Release
from mq_broker.core.work.steps import Drop, LeaseId, OutputLine, Reason
from mq_protocol.errors import OutOfOrder
from mq_protocol.queues.settings import DeadLetter, Order
from tests.coroutines import virtual_time
from tests.mq_broker.broker.queues.partitions import Asked, Group, offsets, rounds


def by_key(keys: str, **settings: Any) -> Group:
    """A record for each of these letters, which is its key; a blank is no key."""
    group = Group(len(keys), order=Order.KEY, **settings)
    group.key_of = lambda offset: None if keys[offset] == " " else ord(keys[offset])
    return group


def all_in_order(records: int = 10, **settings: Any) -> Group:
    return Group(records, order=Order.ALL, **settings)


async def ask(group: Group, member: str, records_max: int = 10, **fields: Any) -> Asked:
    """It names all leases that it has."""
    held = frozenset(lease for lease, each in group.state.leases.items() if each.member == member)
    asking = group.ask(member, records_max, held=held, **fields)
    await rounds()
    return asking


async def lent(group: Group, member: str, records_max: int = 10) -> LeaseId:
    lease = (await ask(group, member, records_max)).answered.result().lease
    assert lease is not None
    return lease


async def told(group: Group, outcome: Outcome, member: str, lease: LeaseId, *ranges: tuple[int, int]) -> Answer:
    [answer] = await group.outcome(outcome, member, lease, *ranges).answered
    return answer


# ---------------------------------------------------------------- one active consumer


@virtual_time
async def test_all_in_order_is_lent_to_one_member_at_a_time() -> None:
    group = all_in_order()
    await lent(group, "a", 3)
    waiting = await ask(group, "b", 3)
    assert not waiting.answered.done()
    await lent(group, "a", 3)
    assert group.leased() == {"a": ((0, 3), (3, 6))}


@virtual_time
async def test_another_member_takes_over_once_the_active_one_holds_nothing_and_does_not_ask() -> None:
    group = all_in_order()
    lease = await lent(group, "a", 3)
    waiting = await ask(group, "b", 3)
    await group.ack("a", lease, (0, 3)).answered
    group.pass_ms(STAYS_MS - 1)
    group.led_group.wake()
    await rounds()
    assert not waiting.answered.done(), "it may be about to ask"
    group.pass_ms(1)
    group.led_group.wake()
    await rounds()
    assert offsets(waiting) == [(3, 6)]


# ---------------------------------------------------------------- who is lent what


@virtual_time
async def test_a_record_is_lent_only_to_who_has_the_earlier_ones_of_its_key() -> None:
    group = by_key("abcabcd")
    await lent(group, "x", 2)
    asking = await ask(group, "y", 10)
    assert offsets(asking) == [(2, 3), (5, 7)], "c, c and d"
    asking = await ask(group, "x", 10)
    assert offsets(asking) == [(3, 5)]


@virtual_time
async def test_once_all_of_a_key_that_a_member_had_are_settled_another_is_lent_the_next() -> None:
    group = by_key("aaab")
    lease = await lent(group, "x", 2)
    waiting = await ask(group, "y", 10)
    assert offsets(waiting) == [(3, 4)]
    further = await ask(group, "y", 10)
    await group.ack("x", lease, (0, 1)).answered
    await rounds()
    assert not further.answered.done(), "it has one of them still"
    await group.ack("x", lease, (1, 2)).answered
    await rounds()
    assert offsets(further) == [(2, 3)]


@virtual_time
async def test_a_member_has_so_many_records_that_one_entry_can_take_them_back() -> None:
    group = by_key("ab" * HELD_MAX)
    for _ in range(10):
        await ask(group, "x", 1_000)
    assert group.state.leased == HELD_MAX
    answer = await told(group, Failed("no"), "x", min(group.state.leases), (0, 2))
    assert group.state.leased == 0
    assert sum(end - first for _, ranges in answer.pulled for first, end in ranges) == HELD_MAX - 2


@virtual_time
async def test_as_many_keys_are_read_as_may_be_and_what_is_stuck_is_named() -> None:
    group = Group(0, order=Order.KEY)
    group.led.append(1)
    group.led.append(300_000)
    group.key_of = lambda _: 7
    await lent(group, "x", 1)
    asking = await ask(group, "y", 10)
    for _ in range(200):
        group.led_group.wake()
        await rounds()
    keys = group.keys
    assert keys is not None
    assert LOOK_AHEAD_MAX <= len(keys.index) < LOOK_AHEAD_MAX + READ_AT_ONCE
    assert keys.full
    assert not asking.answered.done()
    assert group.led_group.blocked_by() == 0


# ---------------------------------------------------------------- what comes back


@virtual_time
async def test_what_runs_out_takes_later_records_of_its_key_with_it_and_only_the_first_is_charged() -> None:
    group = by_key("abab", lease_ms=1_000)
    lease = await lent(group, "x", 4)
    group.pass_ms(700)
    await group.settle(Extend(lease, "x", ((1, 4),))).answered
    group.pass_ms(400)
    await rounds()
    assert group.leased() == {"x": ((1, 2), (3, 4))}
    assert [group.state.counts(offset) for offset in (0, 2)] == [(1, 1), (1, 0)]
    group.pass_ms(1_000)
    await rounds()
    assert group.leased() == {}
    assert [group.state.counts(offset) for offset in (1, 3)] == [(1, 1), (1, 0)]


@virtual_time
async def test_a_reject_that_is_asked_again_once_the_record_is_a_dead_letter_is_done_and_nothing_else_is() -> None:
    """What went with it the first time is not told any more. So the member asks which of its records are left."""
    group = by_key("aab")
    lease = await lent(group, "x", 3)
    assert (await told(group, Rejected("no"), "x", lease, (0, 1))).pulled == ((lease, ((1, 2),)),)
    group.led_group.add(OwnSteps(1, (Drop(((0, 1),), Reason.REJECTED),)))
    await rounds()
    assert await told(group, Rejected("no"), "x", lease, (0, 1)) == Answer()
    assert await told(group, Ack(), "x", lease, (0, 1)) == Answer(lost=((0, 1),)), "it is settled, and not so"
    assert await told(group, Release(), "x", lease, (0, 1), (2, 3)) == Answer(lost=((0, 1),))


@virtual_time
async def test_a_delayed_or_parked_record_holds_its_key_and_one_that_is_gone_does_not() -> None:
    group = by_key("aab", dead_letter=DeadLetter.PARK)
    await told(group, Rejected("never"), "x", await lent(group, "x", 1), (0, 1))
    await rounds()
    assert offsets(await ask(group, "y", 10)) == [(2, 3)]
    assert group.led_group.blocked_by() == 0
    waiting = await ask(group, "z", 10)
    group.led_group.add(OwnSteps(1, (Drop(((0, 1),), Reason.PURGED),)))
    await rounds()
    assert offsets(waiting) == [(1, 2)]
    assert group.led_group.blocked_by() is None


# ---------------------------------------------------------------- acknowledgements


@virtual_time
async def test_an_ack_waits_for_a_bounded_time_and_then_is_to_be_asked_again() -> None:
    group = by_key("aab")
    lease = await lent(group, "x", 3)
    before = unsettled.OVERTAKEN_S
    unsettled.OVERTAKEN_S = 0.01  # type: ignore[misc]
    try:
        [answer] = await group.ack("x", lease, (1, 3)).answered
    finally:
        unsettled.OVERTAKEN_S = before  # type: ignore[misc]
    assert isinstance(answer.error, OutOfOrder)
    assert answer.error.retriable
    assert group.leased() == {"x": ((0, 2),)}, "what did not overtake is settled"


@virtual_time
async def test_an_ack_with_outputs_waits_whole() -> None:
    group = by_key("aa")
    lease = await lent(group, "x", 2)
    lines = (OutputLine("t" * 32, 0, (b"u" * 16,)),)
    late = group.outcome(AckWithOutputs(lines, 1), "x", lease, (1, 2))
    await rounds()
    assert not late.answered.done()
    assert not group.state.outbox
    await group.ack("x", lease, (0, 1)).answered
    await rounds()
    assert late.answered.result() == [Answer()]
    assert len(group.state.outbox) == 1
