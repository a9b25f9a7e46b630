"""Queue groups of the partitions that are led here: the end of a leadership, and how the next one begins."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from mq_broker.broker.queues import working as working_module
from mq_broker.broker.queues.group.requests import Lent
from mq_broker.broker.queues.policy.declared import Queue
from mq_broker.broker.queues.working import Working
from mq_broker.core.work.settling import Ack, Answer, Settle
from mq_broker.core.work.steps import Begin, Lease, OutputLine, Reason, Send
from mq_protocol.errors import DiskFull, NotLeader, OutcomeUnknown
from mq_protocol.queues.settings import QueueSettings
from tests.coroutines import real_time
from tests.mq_broker.broker.queues.partitions import Asked, Led, Settled, rounds


class World:
    """A broker that leads a partition with a queue group, and its clock."""

    def __init__(self, records: int = 0, **callbacks: Any) -> None:
        self.settings = QueueSettings()
        self.led: Any = Led(records)
        self.led.apply("g", 1, Begin(0))
        self.ms = 1_000_000
        shell: Any = SimpleNamespace(on_role=[], now_ms=lambda: self.ms, partitions_of=lambda _: [self.led])
        declared: Any = SimpleNamespace(find=lambda *_: Queue("g", 1, 0, self.settings))
        self.roles = shell.on_role
        self.now_us = 1
        self.working = Working(shell, declared, lambda: self.now_us, **callbacks)

    def asks(self, member: str) -> asyncio.Future[Lent]:
        asked = Asked(member, b"", 1)
        self.working.gathering(self.led, "g").ask(asked)
        return asked.answered


@real_time
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


@real_time
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
    assert world.led.state.totals.returned == 4


@real_time
async def test_what_a_former_leader_has_decided_is_published_by_the_next_though_nobody_asks() -> None:
    looked: list[str] = []
    world = World(10, on_outbox=lambda gathering, _: looked.append(gathering.group))
    line = OutputLine("1" * 32, 0, (bytes(16),))
    world.led.apply("g", 1, Send((), Reason.OUTPUT, 1, (line,)), epoch=1)
    [became_leader] = world.roles
    became_leader(world.led)
    await rounds()
    assert looked


@real_time
async def test_a_group_whose_entry_the_disk_refused_begins_anew_and_knows_what_is_committed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(working_module, "AGAIN_S", 0.0)
    world = World(10)
    lent = await world.asks("a")
    world.led.keeps_up = False
    cut = world.asks("b")
    await rounds()
    before = world.working.gathering(world.led, "g")
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
    world.working.gathering(world.led, "g").settle(settled)
    assert await settled.answered == [Answer()]
