"""A queue group that stands still although it has work is an alarm, once, until it moves."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mq_broker.broker.metadata.topics import Topic
from mq_broker.broker.queues.policy.declared import Declared
from mq_broker.broker.queues.stuck import STUCK_MS, Stuck
from mq_broker.coordination.interface import QueueSpec
from mq_broker.core.work.steps import Accept, Lease
from mq_broker.measured import ALARMS
from tests.coroutines import virtual_time
from tests.mq_broker.broker.queues.test_describing import TOPIC, World, led


class Watched:
    """A group of a hundred records, and whether a member asks for them. Time is the test's."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.asks = True
        self.now_ms = 0
        working: Any = self
        self.stuck = Stuck(world.broker, Declared(world.broker), working)

    def asked(self, _partition: object, _group: str) -> bool:
        return self.asks

    def later(self, milliseconds: int) -> str:
        """So much later, the alarm."""
        self.now_ms += milliseconds
        self.stuck.look_at(self.world.partition, self.now_ms)
        return self.stuck.alarm("t-0", "g")


@asynccontextmanager
async def watched(tmp_path: Path) -> AsyncIterator[Watched]:
    async with led(tmp_path) as world:
        yield Watched(world)


@virtual_time
async def test_ready_records_that_members_ask_for_and_nobody_is_lent_are_an_alarm_after_a_minute(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    async with watched(tmp_path) as seen:
        before = ALARMS.rows()["queue_stuck",]
        assert seen.later(0) == ""
        assert seen.later(STUCK_MS - 1) == ""
        assert "records from offset 0 on are ready" in seen.later(1)
        assert seen.stuck.alarms() == {("t", "g"): 1}
        seen.later(STUCK_MS)
        assert ALARMS.rows()["queue_stuck",] == before + 1
        assert len([each for each in caplog.records if "queue group g stands still" in each.getMessage()]) == 1
        await seen.world.write(Lease(((0, 10),), "m"))
        assert seen.later(1) == ""
        assert seen.stuck.alarms() == {}
        assert seen.later(STUCK_MS) != ""
        assert ALARMS.rows()["queue_stuck",] == before + 2
        await seen.world.write(Accept(((0, 10),)))
        assert seen.later(1) == ""


@virtual_time
async def test_what_has_no_reason_to_move_is_no_alarm(tmp_path: Path) -> None:
    async with watched(tmp_path / "a") as seen:
        seen.asks = False
        assert [seen.later(STUCK_MS) for _ in range(3)] == [""] * 3
    async with watched(tmp_path / "b") as seen:
        await seen.world.write(Lease(((0, 100),), "m"))
        assert [seen.later(STUCK_MS) for _ in range(3)] == [""] * 3


@pytest.mark.parametrize("settings", [{"paused": "true"}, {"order": "key"}])
@virtual_time
async def test_a_pause_and_an_order_that_waits_for_a_lease_are_no_alarm(
    tmp_path: Path, settings: dict[str, str]
) -> None:
    async with watched(tmp_path) as seen:
        await seen.world.write(Lease(((0, 1),), "m"))
        queues = {"g": QueueSpec(3, settings=settings)}
        seen.world.broker.follow_topics({"id": Topic.of(replace(TOPIC.spec, queues=queues))})
        await asyncio.sleep(0)
        assert [seen.later(STUCK_MS) for _ in range(3)] == [""] * 3
