"""Queue groups of the partitions that are led here: the end of a leadership, and how the next one begins."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from mq_broker.broker.queues.group.requests import Lent
from mq_broker.broker.queues.working import Working
from mq_broker.core.work.settling import Ack, Answer, Settle
from mq_broker.core.work.steps import Begin, Lease, OutputLine, Reason, Send
from mq_protocol.errors import DiskFull, NotLeader, OutcomeUnknown
from tests.coroutines import virtual_time
from tests.mq_broker.broker.queues.partitions import Around, Asked, Declares, Led, Settled, rounds


class World:
    """A broker that leads a partition with a queue group, and its clock."""

    def __init__(self, records: int = 0, **callbacks: Any) -> None:
        self.led: Any = Led(records)
        self.led.apply("g", 1, Begin(0))
        self.around: Any = Around(self.led.topic)
        self.around.leds, self.roles = [self.led], self.around.on_role
        self.declares: Any = Declares()
        self.now_us = 1
        self.working = Working(self.around, self.declares, lambda: self.now_us, **callbacks)

    def asks(self, member: str) -> asyncio.Future[Lent]:
        asked = Asked(member, b"", 1)
        self.working.led_group(self.led, "g").ask(asked)
        return asked.answered


@virtual_time
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
        world.asks("a")


@virtual_time
async def test_leases_of_a_former_leader_run_out_though_nobody_asks_anything() -> None:
    world = World(10)
    world.led.apply("g", 1, Lease(((0, 4),), "gone"), epoch=1)
    [became_leader] = world.roles
    became_leader(world.led)
    await rounds()
    world.around.ms += 31_000
    await asyncio.sleep(5)  # the broker's own timer has come
    assert not world.led.state.leases
    assert world.led.state.totals.returned == 4


@virtual_time
async def test_what_a_former_leader_has_decided_is_published_by_the_next_though_nobody_asks() -> None:
    looked: list[str] = []
    world = World(10, on_outbox=lambda led_group, _: looked.append(led_group.group))
    line = OutputLine("1" * 32, 0, (bytes(16),))
    world.led.apply("g", 1, Send((), Reason.OUTPUT, 1, (line,)), epoch=1)
    [became_leader] = world.roles
    became_leader(world.led)
    await rounds()
    assert looked


@virtual_time
async def test_a_group_whose_entry_the_disk_refused_begins_anew_and_knows_what_is_committed() -> None:
    world = World(10)
    lent = await world.asks("a")
    world.led.keeps_up = False
    cut = world.asks("b")
    await rounds()
    before = world.working.led_group(world.led, "g")
    world.led.cut(DiskFull("full"))
    with pytest.raises(DiskFull):
        await cut
    await rounds()
    assert before.closed
    world.led.keeps_up = True
    again = await world.asks("c")
    assert [(run.first, run.end) for run in again.runs] == [(1, 2)], "nobody has it"
    assert lent.lease is not None
    settled = Settled([Settle(lent.lease, "a", ((0, 1),), Ack())])
    world.working.led_group(world.led, "g").settle(settled)
    assert await settled.answered == [Answer()]


@virtual_time
async def test_leases_of_a_group_whose_entry_the_disk_refused_run_out_though_nobody_asks() -> None:
    world = World(10)
    await world.asks("a")
    world.led.keeps_up = False
    cut = world.asks("b")
    await rounds()
    world.led.cut(DiskFull("full"))
    with pytest.raises(DiskFull):
        await cut
    world.led.keeps_up = True
    await asyncio.sleep(5)
    world.around.ms += 31_000
    await asyncio.sleep(5)
    assert not world.led.state.leases
