"""What one turn of a queue group takes of members and their leases, exactly; and that nothing is left when it ends."""

from __future__ import annotations

import asyncio
from itertools import chain

import pytest

from mq_broker.broker.queues import choosing
from mq_broker.broker.queues import gathering as gathering_module
from mq_broker.core.work.settling import Failed
from mq_broker.core.work.steps import Lease, LeaseId, Return
from tests.mq_broker.broker.queues.partitions import Group, offsets, rounds, scenario


@scenario
async def test_so_many_leases_are_compared_in_a_turn_that_one_more_would_pass_the_bound() -> None:
    for bound, lent in ((1, 1), (2, 2), (3, 2), (4, 3), (5, 3), (6, 4)):
        with pytest.MonkeyPatch.context() as patch:
            group = Group(100)
            leases = {member: (await group.ask(member, 2).answered).lease for member in "abcd"}
            patch.setattr(choosing, "HELD_AT_ONCE", bound)
            for asking in [group.ask(member, 2, held=frozenset({lease})) for member, lease in leases.items() if lease]:
                asking.reconciled = True
            group.led.keeps_up = False
            await rounds()
            assert sum(isinstance(step, Lease) for step in group.led.proposed[-1].steps) == lent


@scenario
async def test_of_leases_that_go_back_a_turn_takes_so_many_ranges_whatever_leases_they_are_in() -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gathering_module, "RETURNED_AT_ONCE", 4)
        group = Group(100)
        for entry, first in ((1, 0), (2, 10), (3, 20)):
            ranges = tuple((first + at, first + at + 1) for at in (0, 2, 4))
            group.led.apply("g", 1, Lease(ranges, "a"), epoch=entry)
        group.declare(paused=True)
        asking = group.ask("a", 5)
        await rounds()
        returned = [
            [first for step in work.steps if isinstance(step, Return) for first, _ in step.ranges]
            for work in group.led.proposed
        ]
        assert [len(each) for each in returned] == [4, 4, 1]
        assert sorted(chain.from_iterable(returned)) == [0, 2, 4, 10, 12, 14, 20, 22, 24]
        assert not group.state.leases
        assert not asking.answered.done()


@scenario
async def test_a_group_that_is_closed_leaves_no_timer() -> None:
    group = Group(1, retry_ms=1_000_000)
    asking = group.ask("a", 1)
    await rounds()
    lease = asking.answered.result().lease
    assert isinstance(lease, LeaseId)
    group.outcome(Failed("later"), "a", lease, *offsets(asking))
    group.ask("b", 1)
    await rounds()
    due = group.gathering._due
    assert due is not None
    group.led.replica.trimming = True
    group.gathering.wake()
    await rounds()
    trim = group.gathering._for_trim
    assert trim is not None
    assert not due.cancelled()
    assert not trim.cancelled()
    group.gathering.close(group.led.not_leader())
    assert due.cancelled()
    assert trim.cancelled()
    await asyncio.sleep(0)
