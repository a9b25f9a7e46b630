"""Queue groups of the partitions that are led here: bounds of who waits, the end of a leadership, a loop that stood
still."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from mq_broker.broker.queues import working as working_module
from mq_broker.broker.queues.declared import Queue
from mq_broker.broker.queues.requests import Asking
from mq_broker.broker.queues.working import Working
from mq_broker.core.work.steps import Begin, Lease
from mq_protocol.errors import NotLeader, OutcomeUnknown, Overloaded
from mq_protocol.queue_settings import QueueSettings
from tests.mq_broker.broker.queues.partitions import Led, rounds, scenario


class World:
    """A broker that leads a partition with a queue group, and its clock."""

    def __init__(self, records: int = 0) -> None:
        self.led: Any = Led(records)
        self.led.apply("g", 1, Begin(0))
        self.ms = 1_000_000
        shell: Any = SimpleNamespace(on_role=[], now_ms=lambda: self.ms)
        declared: Any = SimpleNamespace(find=lambda *_: Queue("g", 1, 0, QueueSettings()))
        self.roles = shell.on_role
        self.working = Working(shell, declared, lambda: 1)

    def asks(self, member: str) -> asyncio.Task[Any]:
        now = asyncio.get_running_loop().time()
        return asyncio.create_task(self.working.lent(self.led, "g", Asking(member, b"", 1), now + 9, now + 10))


@scenario
async def test_no_more_requests_wait_at_a_partition_than_it_takes() -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(working_module, "WAITING_PER_PARTITION_MAX", 2)
        world = World()
        waiting = [world.asks(member) for member in ("a", "b", "c")]
        await rounds()
        with pytest.raises(Overloaded, match="2 requests of queue groups wait at t-0"):
            waiting[2].result()
        waiting[0].cancel()
        await rounds()
        another = world.asks("d")
        await rounds()
        assert not another.done(), "there is room again"
        world.led.append(2)
        assert [each.runs[0].first for each in await asyncio.gather(waiting[1], another)] == [0, 1]


@scenario
async def test_who_waits_is_told_at_once_when_the_leadership_ends_and_nothing_of_it_stays() -> None:
    world = World()
    waiting = world.asks("a")
    await rounds()
    assert len(world.led.observers) == 1
    world.led.lose(OutcomeUnknown("deposed"))
    with pytest.raises(NotLeader):
        await waiting
    assert not world.led.observers
    with pytest.raises(NotLeader):
        await world.asks("a")


@scenario
async def test_leases_of_a_former_leader_run_out_though_nobody_asks_anything() -> None:
    world = World(10)
    world.led.apply("g", 1, Lease(((0, 4),), "gone"), epoch=1)
    [became_leader] = world.roles
    became_leader(world.led)
    await rounds()
    world.ms += 31_000
    async with asyncio.timeout(5):
        while world.led.state.leases:  # noqa: ASYNC110 - the broker's own timer has to come
            await asyncio.sleep(0.01)
    assert world.led.state.totals.charged == 4


@scenario
async def test_a_loop_that_stood_still_runs_out_no_lease() -> None:
    world = World(10)
    await world.asks("a")
    assert world.working._beat is not None
    world.working._beat.cancel()
    world.working._beat_at -= 60.0
    world.ms += 60_000
    world.working._on_beat()
    await rounds()
    assert len(world.led.state.leases) == 1


@scenario
async def test_a_loop_that_stood_still_runs_out_no_lease_though_members_come_first() -> None:
    world = World(10)
    await world.asks("a")
    world.working._beat_at -= 60.0
    world.ms += 60_000
    await world.asks("b")  # is heard before the clocks are looked at
    assert {held.member for held in world.led.state.leases.values()} == {"a", "b"}
    assert world.led.state.totals.charged == 0


@scenario
async def test_without_a_lease_no_timer_runs() -> None:
    world = World()
    waiting = world.asks("a")
    await rounds()
    assert world.working._beat is None
    waiting.cancel()
