"""What requests cost the loop where a group has as many runs as it may have, and how much they may name."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Callable, Iterator
from functools import cache, partial

import pytest

from mq_broker.broker.queues.requests import Asking, Extend, Settling
from mq_broker.core.work.endings import Ending, How
from mq_broker.core.work.settling import Ack, Failed, Settle
from mq_broker.core.work.state import FrozenWork, Mark, WorkState
from mq_broker.core.work.steps import LeaseId
from mq_protocol.errors import InvalidRequest
from tests.mq_broker.broker.costs import measured
from tests.mq_broker.broker.queues.partitions import Group, offsets, rounds

pytestmark = pytest.mark.long

RUNS_MAX = 50_000
"""Half of what is allowed, for the sake of the time that it takes to make them."""

HOLD_S = 0.15
"""Above what is promised, 50 ms: tests share their machine. What is looked for takes longer by far."""

RECORDS = 2 * RUNS_MAX + 1_000


@pytest.fixture(autouse=True)
def _without_collections() -> Iterator[None]:
    """Python's own, which look at all that the tests of this process keep, are not what is measured."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@cache
def leased_one_by_one(members: int = 1) -> FrozenWork:
    """Every second record was lent by itself, by a former leader, to so many members in turn: `m0`, `m1`, … The others
    are settled."""
    leases = [LeaseId(1, 1, n) for n in range(RUNS_MAX - 1)]
    state = WorkState(1, 0)
    state.settled.add([(2 * n + 1, 2 * n + 2) for n in range(RUNS_MAX - 1)])
    return FrozenWork(
        1,
        state.settled.frozen(),
        2 * RUNS_MAX - 2,
        tuple((lease, f"m{n % members}") for n, lease in enumerate(leases)),
        tuple((2 * n, 2 * n + 1, lease) for n, lease in enumerate(leases)),
    )


@cache
def delayed_one_by_one() -> FrozenWork:
    """Every second record waits, each for a time of its own."""
    marks = tuple((2 * n, 2 * n + 1, Mark(1, 1, (n + 1) << 40)) for n in range(RUNS_MAX - 1))
    return FrozenWork(1, (0, (), ()), 2 * RUNS_MAX - 2, marks=marks)


async def of(frozen: FrozenWork) -> Group:
    """A group whose leader knows it."""
    group = Group(RECORDS)
    group.led.machine.work["g"] = WorkState.thawed(frozen)
    return group


async def answered(asking: Asking | Settling) -> None:
    async with asyncio.timeout(60):
        await asyncio.wait({asking.answered})


MANY_RUNS = pytest.mark.parametrize(
    "frozen", [partial(leased_one_by_one, 100), delayed_one_by_one], ids=["leased", "delayed"]
)


@MANY_RUNS
def test_a_new_leader_looks_through_a_state_in_turns(frozen: Callable[[], FrozenWork]) -> None:
    async def scenario() -> None:
        group = await of(frozen())
        async with measured() as cost:
            asking = group.ask("new", 1)
            await answered(asking)
        assert offsets(asking)
        assert cost.longest_hold_s < HOLD_S

    asyncio.run(scenario())


@MANY_RUNS
def test_a_request_does_not_look_at_what_is_leased_or_delayed_before_it(frozen: Callable[[], FrozenWork]) -> None:
    async def scenario() -> None:
        group = await of(frozen())
        first = group.ask("new", 1)
        await answered(first)
        began = time.thread_time()
        for n in range(20):
            asking = group.ask(f"other {n}", 1)
            await answered(asking)
            assert offsets(asking)
        assert time.thread_time() - began < HOLD_S, "twenty of them"

    asyncio.run(scenario())


def test_a_range_over_all_runs_is_refused_before_each_was_looked_at() -> None:
    async def scenario() -> None:
        group = await of(leased_one_by_one())
        await answered(group.ask("new", 1))
        async with measured() as cost:
            settlings = [
                group.ack("m0", LeaseId(1, 1, 0), (0, RECORDS)),
                group.outcome(Failed("x"), "b", LeaseId(1, 1, 0), (0, RECORDS)),
            ]
            for settling in settlings:
                await answered(settling)
        for settling in settlings:
            [answer] = settling.answered.result()
            assert isinstance(answer.error, InvalidRequest), answer
        assert cost.longest_hold_s < HOLD_S

    asyncio.run(scenario())


def test_an_extension_over_all_runs_is_cheap() -> None:
    async def scenario() -> None:
        group = await of(leased_one_by_one())
        await answered(group.ask("new", 1))
        async with measured() as cost:
            settling = group.settle(Extend(LeaseId(1, 1, 5), "m0", ((0, RECORDS),)))
            await answered(settling)
        assert settling.answered.result()[0].lost
        assert cost.longest_hold_s < HOLD_S

    asyncio.run(scenario())


def test_many_outcomes_of_one_request_that_are_all_lost_leave_others_their_turn() -> None:
    async def scenario() -> None:
        state = WorkState(1, 0)
        state.settled.add([(2 * n + 1, 2 * n + 2) for n in range(4_000)])
        group = await of(FrozenWork(1, state.settled.frozen(), 8_000))
        await answered(group.ask("new", 1))
        async with measured() as cost:
            settling = group.settle(*(Settle(LeaseId(1, 1, 0), "b", ((0, 8_000),), Failed("x")) for _ in range(200)))
            await answered(settling)
        assert all(answer.lost == ((0, 8_000),) for answer in settling.answered.result())
        assert cost.longest_hold_s < HOLD_S

    asyncio.run(scenario())


def test_many_requests_that_name_much_which_is_settled_leave_others_their_turn() -> None:
    async def scenario() -> None:
        group = Group(40_000)
        lease = (await group.ask("a", 40_000).answered).lease
        assert lease is not None
        everything = tuple((offset, offset + 1) for offset in range(0, 15_000, 2))
        await answered(group.ack("a", lease, (0, 20_000)))
        async with measured() as cost:
            settlings = [group.settle(Settle(lease, "a", everything, Ack())) for _ in range(40)]
            for settling in settlings:
                await answered(settling)
        assert all(settling.answered.result()[0].error is None for settling in settlings)
        assert cost.longest_hold_s < HOLD_S

    asyncio.run(scenario())


def test_leases_of_a_member_that_never_comes_back_run_out_in_turns() -> None:
    async def scenario() -> None:
        group = await of(leased_one_by_one())
        await answered(group.ask("new", 1))
        async with measured() as cost:
            group.ms += 31_000
            group.gathering.beat(group.ms)
            async with asyncio.timeout(60):
                while group.state.leased > RUNS_MAX - 10_000:
                    await rounds()
        assert cost.longest_hold_s < HOLD_S

    asyncio.run(scenario())


def test_a_late_acknowledgement_over_all_runs_is_refused_before_each_was_looked_at() -> None:
    marks = tuple((n, n + 1, Mark(1, 1, (n + 1) << 40)) for n in range(RUNS_MAX))
    lease = LeaseId(1, 1, 0)
    endings = LeaseId(0, 0, 0), ((lease, ((0, RUNS_MAX, Ending(How.TAKEN, 1)),)),)
    frozen = FrozenWork(1, (0, (), ()), RUNS_MAX, marks=marks, endings=endings)

    async def scenario() -> None:
        group = await of(frozen)
        await answered(group.ask("new", 1))
        async with measured() as cost:
            refused = group.ack("a", lease, (0, RUNS_MAX))
            taken = group.ack("a", lease, (0, 5_000))
            for settling in (refused, taken):
                await answered(settling)
        assert isinstance(refused.answered.result()[0].error, InvalidRequest)
        assert taken.answered.result()[0].error is None
        assert group.state.base == 5_000
        assert cost.longest_hold_s < HOLD_S

    asyncio.run(scenario())
