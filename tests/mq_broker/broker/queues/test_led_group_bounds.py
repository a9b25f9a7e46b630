"""What one turn of a queue group takes, what waits for the next one, and that nothing is forgotten between them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mq_broker.broker.queues.group import led_group as gathering_module
from mq_broker.broker.queues.group.requests import Lent, OwnSteps, Sending
from mq_broker.core.work.settling import Failed, Rejected, SendDead
from mq_broker.core.work.steps import Accept, Begin, Drop, End, LeaseId, OutputLine, Reason, Return
from mq_protocol.errors import NotLeader, OutcomeUnknown, Overloaded
from tests.coroutines import virtual_time
from tests.mq_broker.broker.queues.partitions import EPOCH, Group, lease_of, offsets, rounds

# ---------------------------------------------------------------- one entry


@virtual_time
async def test_what_runs_out_goes_before_what_members_settle_if_it_had_no_room_the_last_time() -> None:
    group = Group(20_000)
    gone = await lease_of(group, "gone", 2)
    lease = await lease_of(group, "a", 19_000)
    first = tuple((offset, offset + 1) for offset in range(3, 16_003, 2))
    second = tuple((offset, offset + 1) for offset in range(4, 16_004, 2))
    group.pass_ms(29_000)
    for ranges in (first, second):
        group.ack("a", lease, *ranges)
    group.pass_ms(2_000)
    await rounds()
    kinds = [[type(step).__name__ for step in work.steps] for work in group.led.proposed[2:]]
    assert gone not in group.state.leases
    assert kinds[0] == ["Accept"]
    assert "Return" in kinds[1], "and not after all that members have to say"


# ---------------------------------------------------------------- leases that go back


@virtual_time
async def test_leases_that_a_member_does_not_name_go_back_in_turns_and_it_is_lent_something_after_all_of_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    group = Group(100)
    held: list[LeaseId] = []
    for _ in range(6):
        held.append(await lease_of(group, "a", 2, held=frozenset(held)))
    monkeypatch.setattr(gathering_module, "RETURNED_AT_ONCE", 2)
    before = len(group.led.proposed)
    asking = group.ask("a", 3, held=frozenset({held[5]}))
    await rounds()
    returned = [
        [step.ranges for step in work.steps if isinstance(step, Return)] for work in group.led.proposed[before:]
    ]
    assert returned[:3] == [[((0, 4),)], [((4, 8),)], [((8, 10),)]]
    assert offsets(asking) == [(0, 3)]
    assert (group.state.totals.returned, group.state.totals.charged) == (10, 0)
    assert set(group.state.leases) == {held[5], asking.answered.result().lease}


@virtual_time
async def test_a_member_whose_leases_do_not_fit_into_the_entry_is_lent_something_after_they_went_back() -> None:
    group = Group(20_000)
    await lease_of(group, "b", 2)
    lease = await lease_of(group, "a", 19_000)
    group.ack("a", lease, *((offset, offset + 1) for offset in range(3, 16_003, 2)))
    asking = group.ask("b", 1)
    await rounds()
    assert (group.state.totals.returned, offsets(asking)) == (2, [(0, 1)])


# ---------------------------------------------------------------- who waits


@virtual_time
async def test_who_waits_for_nothing_is_answered_once_it_was_judged_and_not_before() -> None:
    group = Group(0)
    asking = group.ask("a", 2, once=True)
    assert not asking.answered.done(), "nobody has looked for records yet"
    await rounds()
    assert asking.answered.result() == Lent()
    group.declare(2)
    late = group.ask("a", 2, once=True)
    await rounds()
    assert late.answered.result() == Lent(), "the queue has not begun"
    assert not group.led_group.waits


@pytest.mark.parametrize("paused", [False, True])
@virtual_time
async def test_who_is_lent_nothing_is_told_so_once_what_it_did_not_name_has_gone_back(paused: bool) -> None:
    group = Group(2)
    await lease_of(group, "a", 2)
    group.declare(paused=paused)
    group.led.keeps_up = False
    asking = group.ask("a", 0, watches=True)
    group.hurry(asking)
    await rounds()
    assert not asking.answered.done()
    group.led.commit()
    await rounds()
    assert asking.answered.result() == Lent(ready=not paused)
    assert group.state.leased == 0


@virtual_time
async def test_when_the_leadership_ends_everybody_is_told_but_who_waits_for_an_entry_on_its_way() -> None:
    group = Group(50)
    lease = await lease_of(group, "z", 5)
    group.led.keeps_up = False
    on_its_way = group.ask("a", 2)
    await rounds()
    waiting, settling, own = (
        group.ask("b", 2),
        group.ack("z", lease, (0, 1)),
        OwnSteps(1, (Drop(((9, 10),), Reason.PURGED),)),
    )
    sending = Sending(1, SendDead(((0, 1),), Reason.REJECTED, (OutputLine("1" * 32, 0, (bytes(16),)),)))
    group.led_group.add(own)
    group.led_group.send(sending)
    group.led_group.close(NotLeader("t-0 is led by broker 2", 2, 4))
    for future in (waiting.answered, settling.answered, own.written, sending.answered):
        assert isinstance(future.exception(), NotLeader)
    assert not on_its_way.answered.done()
    group.led.lose(OutcomeUnknown("deposed"))
    assert isinstance(on_its_way.answered.exception(), OutcomeUnknown)
    assert group.led_group.closed
    before = len(group.led.proposed)
    group.led_group.wake()
    await rounds()
    assert len(group.led.proposed) == before


@virtual_time
async def test_a_lease_is_as_long_as_its_member_asks_for_and_as_the_group_says_otherwise() -> None:
    group = Group(10, lease_ms=20_000)
    longer = await group.ask("a", 1, lease_ms=50_000).answered
    usual = await group.ask("b", 1).answered
    assert (longer.lease_ms, usual.lease_ms) == (50_000, 20_000)
    group.pass_ms(21_000)
    await rounds()
    assert set(group.state.leases) == {longer.lease}
    group.pass_ms(30_000)
    await rounds()
    assert not group.state.leases


@virtual_time
async def test_a_member_has_no_more_records_than_a_member_may_have_and_others_get_the_rest() -> None:
    group = Group(10, member_in_flight_max=3, spill=True)
    lease = await lease_of(group, "a", 10, priority=1)
    assert group.leased() == {"a": ((0, 3),)}
    again = group.ask("a", 10, priority=1, held=[lease])
    its = await lease_of(group, "b", 10)
    assert group.leased() == {"a": ((0, 3),), "b": ((3, 6),)}, "nobody waits for one that is lent no more"
    await group.ack("a", lease, (0, 2)).answered
    assert offsets(again) == [(6, 8)]
    group.declare(member_in_flight_max=4)
    group.pass_ms(1_000)  # so long nobody waits for a higher one to ask again
    more = group.ask("b", 10, held=[its])
    await rounds()
    assert offsets(more) == [(8, 9)]


@virtual_time
async def test_records_in_flight_are_counted_over_all_members_that_ask_at_once() -> None:
    group = Group(50, in_flight_max=5)
    askings = [group.ask(member, 3) for member in "abc"]
    await rounds()
    assert [asking.answered.done() for asking in askings] == [True, True, False]
    assert [offsets(asking) for asking in askings[:2]] == [[(0, 3)], [(3, 5)]]


@virtual_time
async def test_doomed_records_that_have_no_room_in_an_entry_are_parked_by_the_next() -> None:
    group = Group(20_000, delivery_limit=1)
    lease = await lease_of(group, "a", 20_000)
    group.led.keeps_up = False
    group.outcome(Failed("broken"), "a", lease, (19_000, 19_001))
    await rounds()
    group.ack("a", lease, *((offset, offset + 1) for offset in range(1, 16_001, 2)))
    group.led.commit()
    await rounds()
    assert [type(step) for step in group.led.proposed[-1].steps] == [Accept]
    group.led.keeps_up = True
    group.led.commit()
    await rounds()
    assert [(a, b) for a, b, _ in group.state.parked()] == [(19_000, 19_001)]


# ---------------------------------------------------------------- dead letters


LINE = OutputLine("0" * 32, 0, (bytes(16),))


async def doomed(group: Group, life: int = 1) -> Sending:
    """Letters of the record that comes next, which a member has rejected."""
    asking = group.ask("a", 1)
    await rounds()
    [run] = asking.answered.result().runs
    group.outcome(Rejected("bad"), "a", asking.answered.result().lease, (run.first, run.end))
    await rounds()
    return Sending(life, SendDead(((run.first, run.end),), Reason.REJECTED, (LINE,)))


@virtual_time
async def test_numbers_of_a_later_life_go_on_where_the_former_one_ended() -> None:
    group = Group(10, dead_letter="dead")
    sending = await doomed(group)
    group.led_group.send(sending)
    await rounds()
    assert not sending.answered.result().lost
    assert list(group.state.outbox) == [EPOCH << 32]
    for steps, life in (((End(),), 1), ((Begin(0),), 2)):
        group.led_group.add(OwnSteps(life, steps))
        await rounds()
    assert group.queue is not None
    group.queue = replace(group.queue, life=2)
    group.led_group.wake()
    await rounds()
    sending = await doomed(group, 2)
    group.led_group.send(sending)
    await rounds()
    assert list(group.state.outbox) == [(EPOCH << 32) + 1], "its partitions take a lower one for done"


@virtual_time
async def test_nothing_is_judged_while_a_life_ends_and_none_ends_before_what_is_on_its_way() -> None:
    group = Group(10)
    lease = await lease_of(group, "a", 5)
    group.led.keeps_up = False
    first = group.ack("a", lease, (0, 1))
    await rounds()
    group.led_group.add(OwnSteps(1, (End(),)))
    await rounds()
    assert group.led.in_flight == 1
    group.led.commit()
    await rounds()
    assert first.answered.done()
    late = group.ack("a", lease, (1, 2))
    await rounds()
    assert (group.led.in_flight, group.led.proposed[-1].steps) == (1, (End(),))
    group.led.commit()
    await rounds()
    assert isinstance(late.answered.exception(), Overloaded), "it would have done nothing"


# ---------------------------------------------------------------- what is refused
