"""Leases that run out, records that fail, and what a new leader finds: one queue group, with clocks set by hand."""

from __future__ import annotations

from mq_broker.broker.queues.group.requests import Extend, LentRun
from mq_broker.core.work.settling import Answer, Failed
from mq_broker.core.work.steps import Lease, Park, Return
from tests.coroutines import virtual_time
from tests.mq_broker.broker.queues.partitions import Group, lease_of, offsets, rounds

# ---------------------------------------------------------------- clocks


@virtual_time
async def test_a_lease_that_runs_out_is_charged_and_one_that_is_extended_does_not() -> None:
    group = Group(10, retry_ms=0)
    lease = (await group.ask("a", 10, working=6).answered).lease
    assert lease is not None
    group.pass_ms(20_000)
    extended = group.settle(Extend(lease, "a", ((0, 3), (5, 6))))
    await rounds()
    assert extended.answered.result() == [Answer()]
    assert len(group.led.proposed) == 1, "an extension is not written"
    group.pass_ms(11_000)
    await rounds()
    assert group.leased() == {"a": ((0, 3), (5, 6))}
    assert [(a, b, mark.failures, mark.error) for a, b, mark in group.state.marks] == [
        (3, 5, 1, "the lease ran out"),
        (6, 10, 1, "the lease ran out"),
    ]
    group.pass_ms(20_000)
    await rounds()
    assert group.leased() == {}


@virtual_time
async def test_a_lease_does_not_run_out_early() -> None:
    group = Group(10)
    await group.ask("a", 10, lease_ms=2_000).answered
    group.pass_ms(1_999)
    await rounds()
    assert group.leased() == {"a": ((0, 10),)}
    group.pass_ms(100)
    await rounds()
    assert group.leased() == {}


@virtual_time
async def test_a_leader_that_stood_still_starts_every_clock_anew() -> None:
    group = Group(10)
    await group.ask("a", 10).answered
    group.ms += 60_000
    group.led_group.slept(group.ms)
    group.led_group.beat(group.ms)
    await rounds()
    assert group.leased() == {"a": ((0, 10),)}
    group.pass_ms(31_000)
    await rounds()
    assert group.leased() == {}


@virtual_time
async def test_a_delay_ends_by_a_clock_that_was_behind_and_is_set_right_and_not_by_one_that_is_set_back() -> None:
    hour_us = 3_600_000_000
    group = Group(1, retry_ms=5_000)
    lease = await lease_of(group, "a", 1)
    await group.outcome(Failed(), "a", lease, (0, 1)).answered
    group.us -= hour_us
    group.lead_anew()
    asking = group.ask("a", 1)
    group.pass_ms(6_000)
    await rounds()
    assert not asking.answered.done()
    group.us += hour_us
    group.pass_ms(1)
    group.led_group.wake()
    await rounds()
    assert offsets(asking) == [(0, 1)]
    await group.outcome(Failed(), "a", asking.answered.result().lease, (0, 1)).answered
    asking = group.ask("a", 1)
    group.us -= hour_us
    group.pass_ms(11_000)
    group.led_group.wake()
    await rounds()
    assert offsets(asking) == [(0, 1)]


@virtual_time
async def test_leases_of_a_former_leader_have_ten_seconds_at_least_and_run_out_unclaimed() -> None:
    group = Group(10, lease_ms=1_000)
    group.led.apply("g", 1, Lease(((0, 4), (6, 8)), "a"), epoch=1)
    group.led_group.wake()
    await rounds()
    group.pass_ms(9_900)
    await rounds()
    assert group.leased() == {"a": ((0, 4), (6, 8))}
    group.pass_ms(1_000)
    await rounds()
    assert group.leased() == {}
    assert group.state.totals.charged == 1, "how many its member worked on is not known here"


@virtual_time
async def test_of_a_member_that_is_not_heard_of_any_more_so_many_are_charged_as_it_worked_on() -> None:
    group = Group(20, retry_ms=0)
    for records in (3, 4):
        await lease_of(group, "a", records, held=frozenset(group.state.leases), working=4)
        group.pass_ms(1_000)
    await lease_of(group, "b", 2)
    for _ in range(40):
        group.pass_ms(1_000)
        await rounds()
    assert group.leased() == {}
    assert [group.state.counts(offset)[1] for offset in range(9)] == [1] * 4 + [0] * 3 + [1, 0]


# ---------------------------------------------------------------- failing


@virtual_time
async def test_a_record_is_doomed_after_exactly_so_many_charged_returns() -> None:
    group = Group(1, delivery_limit=3, retry_ms=0)
    for failures in range(3):
        lent = await group.ask("a", 1).answered
        assert lent.runs == (LentRun(0, 1, failures + 1, failures),)
        group.outcome(Failed("broken"), "a", lent.lease, (0, 1))
        await rounds()
    asking = group.ask("a", 1)
    await rounds()
    assert not asking.answered.done()
    assert [(a, b, mark.failures) for a, b, mark in group.state.parked()] == [(0, 1, 3)]


@virtual_time
async def test_without_a_limit_a_record_is_lent_for_ever() -> None:
    group = Group(1, delivery_limit=0, retry_ms=0)
    for failures in range(20):
        lent = await group.ask("a", 1).answered
        assert lent.runs[0].failures == failures
        group.outcome(Failed("broken"), "a", lent.lease, (0, 1))
    await rounds()
    assert not list(group.state.parked())


@virtual_time
async def test_a_new_leader_parks_what_its_predecessor_left_doomed() -> None:
    group = Group(5)
    group.led.apply("g", 1, Lease(((0, 2),), "a"), Return(((0, 2),), charged=True), epoch=1)
    group.declare(delivery_limit=1)
    await rounds()
    assert group.led.proposed[-1].steps == (Park(((0, 2),)),)


@virtual_time
async def test_a_limit_that_is_lowered_holds_for_records_that_failed_before() -> None:
    group = Group(1, retry_ms=0)
    for _ in range(2):
        lent = await group.ask("a", 1).answered
        group.outcome(Failed("broken"), "a", lent.lease, (0, 1))
        await rounds()
    group.declare(delivery_limit=2)
    await rounds()
    assert [(a, b) for a, b, _ in group.state.parked()] == [(0, 1)]


@virtual_time
async def test_on_its_last_delivery_a_record_is_lent_alone() -> None:
    group = Group(5, delivery_limit=2, retry_ms=0)
    lease = (await group.ask("a", 2).answered).lease
    group.outcome(Failed("broken"), "a", lease, (0, 2))
    await rounds()
    alone = group.ask("a", 5)
    await rounds()
    assert offsets(alone) == [(0, 1)]
    lease = alone.answered.result().lease
    assert lease is not None
    more = group.ask("a", 5, held=frozenset({lease}))
    await rounds()
    assert not more.answered.done(), "its member is lent nothing beside it"
    group.ack("a", lease, (0, 1))
    await rounds()
    assert offsets(more) == [(1, 2)]
