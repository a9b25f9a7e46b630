"""How requests of one queue group become entries, on a real state and a real admission, with clocks set by hand."""

from __future__ import annotations

import asyncio

from mq_broker.broker.queues.group.led_group import IN_FLIGHT_MAX
from mq_broker.broker.queues.group.requests import Lent, LentRun, OwnSteps
from mq_broker.core.work.settling import Answer, Failed
from mq_broker.core.work.steps import Accept, Begin, Lease, LeaseId, Return
from mq_protocol.errors import DiskFull, NotEnoughReplicas, Overloaded, UnknownQueue
from mq_protocol.queues.settings import Order
from tests.coroutines import virtual_time
from tests.mq_broker.broker.queues.partitions import EPOCH, Group, offsets, rounds

KEY, OTHER_KEY = b"k" * 16, b"o" * 16


# ---------------------------------------------------------------- entries


@virtual_time
async def test_a_lease_is_answered_only_once_it_is_committed() -> None:
    group = Group()
    group.led.keeps_up = False
    asking = group.ask("a", 5)
    await rounds()
    assert group.led.in_flight
    assert not asking.answered.done()
    group.led.commit()
    lent = asking.answered.result()
    assert lent == Lent(LeaseId(EPOCH, 3, 0), (LentRun(0, 5, 1, 0),), 30_000, ready=True)
    assert group.leased() == {"a": ((0, 5),)}


@virtual_time
async def test_nothing_is_judged_while_records_are_about_to_be_dropped() -> None:
    """The state will be another one behind the trim: what a request did would not be what it is told."""
    group = Group()
    lease = (await group.ask("a", 5).answered).lease
    group.led.replica.trimming = True
    settling = group.ack("a", lease, (0, 5))
    await rounds()
    assert (len(group.led.proposed), group.led_group.waits) == (1, True)
    group.led.replica.trimming = False
    group.led.trim(3)
    group.led_group.wake()
    await rounds()
    assert settling.answered.done()
    assert not group.led_group.waits
    assert group.led.state.base == 5


@virtual_time
async def test_settles_stand_before_leases_in_an_entry() -> None:
    group = Group()
    lease = (await group.ask("a", 5).answered).lease
    group.ask("b", 5)
    group.ack("a", lease, (0, 5))
    await rounds()
    assert list(map(type, group.led.proposed[-1].steps)) == [Accept, Lease]


@virtual_time
async def test_lost_records_are_told_only_by_a_leader_that_knows_that_it_leads() -> None:
    group = Group()
    group.led.keeps_up = False
    settling = group.ack("a", LeaseId(1, 1, 0), (0, 5))
    await rounds()
    assert not settling.answered.done()
    assert not group.led.proposed, "nothing is written for that"
    group.led.commit()
    assert settling.answered.result() == [Answer(lost=((0, 5),))]


@virtual_time
async def test_what_is_refused_for_now_is_told_and_not_tried_again() -> None:
    group = Group()
    lease = (await group.ask("a", 5).answered).lease
    before = len(group.led.proposed)
    group.led.refuses = NotEnoughReplicas("1 of 2")
    settling, asking = group.ack("a", lease, (0, 1)), group.ask("b", 5)
    await rounds()
    assert isinstance(settling.answered.result()[0].error, NotEnoughReplicas)
    assert isinstance(asking.answered.exception(), NotEnoughReplicas)
    group.led.refuses = None
    await rounds()
    assert len(group.led.proposed) == before
    again = group.ask("b", 5)
    await rounds()
    assert offsets(again) == [(5, 10)], "what was chosen for a lease that was refused is lent again"


# ---------------------------------------------------------------- several on their way


@virtual_time
async def test_entries_follow_each_other_and_each_answer_waits_for_its_own() -> None:
    group = Group()
    group.led.keeps_up = False
    first, second = [group.ask(member, 5) for member in "ab"]
    await rounds()
    third = group.ask("c", 5)
    await rounds()
    assert [work.steps for work in group.led.proposed] == [
        (Lease(((0, 5),), "a"), Lease(((5, 10),), "b")),
        (Lease(((10, 15),), "c"),),
    ]
    group.led.commit(1)
    assert [each.answered.done() for each in (first, second, third)] == [True, True, False]
    group.led.commit()
    assert offsets(third) == [(10, 15)]


@virtual_time
async def test_what_comes_while_so_many_are_on_their_way_gathers_for_the_next_one() -> None:
    group = Group()
    group.led.keeps_up = False
    for number in range(IN_FLIGHT_MAX + 3):
        group.ask(f"m{number}", 1)
        await rounds()
    assert group.led.in_flight == IN_FLIGHT_MAX
    group.led.commit(1)
    await rounds()
    assert group.led.in_flight == IN_FLIGHT_MAX
    assert [len(work.steps) for work in group.led.proposed] == [1] * IN_FLIGHT_MAX + [3]


@virtual_time
async def test_an_answer_that_needs_no_entry_waits_for_what_it_rests_on() -> None:
    """Addition (b): what is done already by an entry on its way is done once that is committed."""
    group = Group()
    lease = (await group.ask("a", 5).answered).lease
    group.led.keeps_up = False
    group.ack("a", lease, (0, 1))
    await rounds()
    again, lost = group.ack("a", lease, (0, 1)), group.outcome(Failed("no"), "a", lease, (0, 1))
    await rounds()
    assert group.led.in_flight == 1, "nothing is written for them"
    group.led.confirm()
    assert not again.answered.done()
    assert not lost.answered.done()
    group.led.commit()
    assert again.answered.result() == [Answer()]
    assert lost.answered.result() == [Answer(lost=((0, 1),))]


@virtual_time
async def test_what_is_on_its_way_to_a_member_that_begins_anew_goes_back_before_it_is_lent_anything() -> None:
    """Addition (a): else a later record of its key might be lent into its new session, and the first one go back."""
    group = Group(3, order=Order.ALL)
    await group.ask("b", 0).answered
    group.led.keeps_up = False
    former = group.ask("a", 1, key=KEY)
    await rounds()
    anew = group.ask("a", 1, key=KEY)
    await rounds()
    assert [work.steps for work in group.led.proposed] == [
        (Lease(((0, 1),), "a"),),
        (Return(((0, 1),)), Lease(((0, 1),), "a")),
    ]
    group.led.commit()
    await rounds()
    assert former.answered.result() == Lent(), "it goes back, and is not told"
    assert anew.answered.result().runs == (LentRun(0, 1, 2, 0),)
    assert group.state.totals.charged == 0


@virtual_time
async def test_a_lease_on_its_way_does_not_run_out() -> None:
    group = Group(5, lease_ms=1_000)
    group.led.keeps_up = False
    asking = group.ask("a", 5)
    await rounds()
    group.pass_ms(5_000)
    await rounds()
    group.led.commit()
    await rounds()
    assert offsets(asking) == [(0, 5)]
    group.pass_ms(999)
    await rounds()
    assert group.leased() == {"a": ((0, 5),)}
    group.pass_ms(100)
    await rounds()
    assert group.led.in_flight == 1, "its whole time has passed since"


@virtual_time
async def test_once_the_disk_refused_an_entry_nothing_that_rests_on_it_is_written_or_told() -> None:
    group = Group(10)
    lease = (await group.ask("a", 2).answered).lease
    group.led.keeps_up = False
    kept = group.ack("a", lease, (0, 1))
    await rounds()
    cut, lent = group.ack("a", lease, (1, 2)), group.ask("b", 2)
    await rounds()
    group.led.cut(DiskFull("full"), kept=1)
    late = group.ask("c", 1)
    await rounds()
    assert (group.led.in_flight, group.refused, kept.answered.done()) == (1, [], False)
    group.led.commit()
    await rounds()
    assert kept.answered.result() == [Answer()]
    assert isinstance(cut.answered.result()[0].error, DiskFull)
    assert isinstance(lent.answered.exception(), DiskFull)
    assert (list(map(type, group.refused)), late.answered.done()) == ([DiskFull], False)
    assert group.led.in_flight == 0


@virtual_time
async def test_an_answer_that_needs_no_entry_is_refused_with_the_entry_that_it_rests_on() -> None:
    group = Group(10)
    lease = (await group.ask("a", 2).answered).lease
    group.led.keeps_up = False
    first = group.ack("a", lease, (0, 1))
    await rounds()
    again = group.ack("a", lease, (0, 1))
    await rounds()
    assert not again.answered.done()
    group.led.cut(DiskFull("full"), kept=0)
    await rounds()
    for refused in (first, again):
        assert isinstance(refused.answered.result()[0].error, DiskFull)


@virtual_time
async def test_an_idle_queue_writes_nothing() -> None:
    group = Group(0)
    for _ in range(3):
        asking = group.ask("a", 5)
        await rounds()
        group.hurry(asking)
        await rounds()
        assert asking.answered.result() == Lent()
    assert not group.led.proposed
    assert not group.led_group.has_clocks


# ---------------------------------------------------------------- who asks


@virtual_time
async def test_leases_that_a_member_does_not_name_go_back_at_once_and_are_not_charged() -> None:
    group = Group()
    known, unknown = [(await group.ask("a", 5, held=held).answered).lease for held in (frozenset(), frozenset())]
    assert known is not None
    assert unknown is not None
    # The second request named nothing, so the first lease went back. Lend it anew, and name only that one.
    assert known not in group.state.leases
    third = (await group.ask("a", 3, held=frozenset({unknown})).answered).lease
    assert third is not None
    asking = group.ask("a", 2, held=frozenset({third}))
    await rounds()
    assert unknown not in group.state.leases
    assert third in group.state.leases
    assert group.state.totals.charged == 0
    assert asking.answered.result().gone == ()


@virtual_time
async def test_of_a_process_whose_place_is_taken_the_first_records_are_charged() -> None:
    group = Group()
    first = (await group.ask("a", 4, key=KEY).answered).lease
    assert first is not None
    await group.ask("a", 4, key=KEY, held=frozenset({first})).answered
    group.ack("a", first, (0, 1))
    await rounds()
    group.declare(paused=True)
    group.ask("a", 4, key=OTHER_KEY, working=2)
    await rounds()
    marks = {(a, b): (mark.failures, mark.error) for a, b, mark in group.state.marks}
    assert marks == {(1, 3): (1, "the process that held it ended"), (3, 8): (0, "")}
    assert group.leased() == {}


# ---------------------------------------------------------------- what wakes who waits


@virtual_time
async def test_a_delayed_record_wakes_who_waits_when_it_is_due_and_not_before() -> None:
    group = Group(1)
    lease = (await group.ask("a", 1).answered).lease
    waiting = group.ask("b", 1)
    group.outcome(Failed("broken", 50_000), "a", lease, (0, 1))
    await rounds()
    assert not waiting.answered.done()
    group.ms += 49
    group.led_group.wake()
    await rounds()
    assert not waiting.answered.done()
    group.ms += 1
    async with asyncio.timeout(5):
        assert (await waiting.answered).runs == (LentRun(0, 1, 2, 1),)


@virtual_time
async def test_a_paused_group_lends_nothing_and_is_settled_all_the_same() -> None:
    group = Group(5)
    lease = (await group.ask("a", 2).answered).lease
    group.declare(paused=True)
    waiting = group.ask("b", 2)
    settling = group.ack("a", lease, (0, 1))
    await rounds()
    assert settling.answered.result() == [Answer()]
    assert not waiting.answered.done()
    group.declare(paused=False)
    await rounds()
    assert offsets(waiting) == [(2, 4)]


@virtual_time
async def test_no_more_than_in_flight_max_records_are_leased() -> None:
    group = Group(50, in_flight_max=7)
    lease = (await group.ask("a", 5).answered).lease
    second = group.ask("b", 5)
    third = group.ask("c", 5)
    await rounds()
    assert offsets(second) == [(5, 7)]
    assert not third.answered.done()
    group.ack("a", lease, (0, 5))
    await rounds()
    assert offsets(third) == [(7, 12)]


# ---------------------------------------------------------------- delivered at most once


@virtual_time
async def test_records_that_are_accepted_by_being_lent_are_settled_when_they_are_told() -> None:
    group = Group(5)
    lent = await group.ask("a", 3, accept=True).answered
    assert lent.runs == (LentRun(0, 3, 1, 0),)
    assert group.state.base == 3
    assert group.leased() == {}


# ---------------------------------------------------------------- what the leader writes by itself


@virtual_time
async def test_a_member_waits_for_a_queue_that_has_not_begun_and_cannot_settle_there() -> None:
    group = Group(10)
    group.declare(2)
    asking = group.ask("a", 5)
    settling = group.ack("a", LeaseId(1, 1, 0), (0, 1))
    await rounds()
    assert isinstance(settling.answered.exception(), Overloaded)
    assert not asking.answered.done()
    group.led_group.add(OwnSteps(2, (Begin(4),)))
    await rounds()
    assert offsets(asking) == [(4, 9)]


@virtual_time
async def test_whoever_waits_for_a_queue_that_is_deleted_is_told() -> None:
    group = Group(0)
    asking = group.ask("a", 5)
    await rounds()
    group.queue = None
    group.led_group.wake()
    await rounds()
    assert isinstance(asking.answered.exception(), UnknownQueue)
