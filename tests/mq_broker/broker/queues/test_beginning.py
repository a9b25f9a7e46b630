"""A leader begins the lives of the groups that are declared, and ends those that are declared no more; nothing else."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mq_broker.broker.host.partition import Partition
from mq_broker.broker.host.shell import Shell
from mq_broker.broker.metadata.topics import Topic
from mq_broker.broker.queues.beginning import Beginning
from mq_broker.broker.queues.policy.declared import Declared
from mq_broker.broker.queues.working import Working
from mq_broker.broker.runtime.periodic import Periodic
from mq_broker.coordination.interface import QueueSpec
from mq_broker.core.entries import Work
from mq_broker.core.messages import Published
from mq_broker.core.work.steps import Begin
from mq_protocol.errors import (
    CoordinationUnavailable,
    IncompatibleVersion,
    UnknownQueue,
    WrongGroupKind,
)
from tests.coroutines import virtual_time
from tests.mq_broker.broker.host.test_shell import HERE, ID, later, leading, shell


class World:
    """A broker that leads one partition. `stored`: the topic as the coordination service has it, which was
    `asked` for so often."""

    def __init__(self, broker: Shell, partition: Partition) -> None:
        topics: Any = self
        self.broker = broker
        self.partition = partition
        self.stored = HERE
        self.reachable = True
        self.asked = 0
        self.unanswered: Any = None
        self.declared = Declared(broker)
        self.beginning = Beginning(broker, topics, self.declared, Working(broker, self.declared, lambda: 0))

    async def renewed(self, topic: Topic) -> Topic:
        self.asked += 1
        if topic is self.unanswered:
            await asyncio.Event().wait()
        if not self.reachable:
            raise CoordinationUnavailable("not now")
        return self.stored

    def store(self, *, read: bool = True, **queues: QueueSpec) -> None:
        self.stored = Topic.of(replace(HERE.spec, queues=queues, queue_lives=9))
        if read:
            self.broker.follow_topics({ID: self.stored})
            self.beginning.topics_changed({"gone", ID})

    def lives(self) -> dict[str, int]:
        return {group: state.life for group, state in self.partition.replica.machine.work.items()}


@asynccontextmanager
async def led(tmp_path: Path) -> AsyncIterator[World]:
    async with shell(tmp_path, isr=((1, ""),)) as broker:
        world = World(broker, await leading(broker))
        beginning = Periodic("beginning", math.inf, world.beginning.look, hint=world.beginning.hint)
        broker.spawn(beginning.run(), beginning.name)
        yield world


@virtual_time
async def test_a_group_is_told_which_offsets_a_recovery_left_out(tmp_path: Path) -> None:
    async with led(tmp_path) as world:
        machine, index = world.partition.replica.machine, world.partition.index
        index.append(Published(0, 10, 1, 5, 100, 100))
        index.skip(10, 1 << 40)
        machine.next_offset = 1 << 40
        world.store(g=QueueSpec(3))
        await later()
        assert world.lives() == {"g": 3}
        assert list(machine.work["g"].settled.missing(0, 1 << 40)) == [(0, 10)], "the others are nobody's"


@virtual_time
async def test_groups_begin_and_end_and_one_that_is_declared_anew_knows_nothing_of_the_former(tmp_path: Path) -> None:
    async with led(tmp_path) as world:
        world.store(g=QueueSpec(3), h=QueueSpec(4))
        await later()
        assert world.lives() == {"g": 3, "h": 4}
        world.store(h=QueueSpec(4), g=QueueSpec(5))
        await later()
        assert world.lives() == {"g": 5, "h": 4}
        world.store(h=QueueSpec(4))
        await later()
        assert world.lives() == {"h": 4}


@virtual_time
async def test_a_group_that_has_begun_writes_nothing_more(tmp_path: Path) -> None:
    async with led(tmp_path) as world:
        world.store(g=QueueSpec(3))
        await later()
        assert world.lives() == {"g": 3}
        last = world.partition.replica.last_index
        for paused in ("true", "false"):
            world.store(g=QueueSpec(3, settings={"paused": paused}))
            await later()
        world.store(g=QueueSpec(3), h=QueueSpec(4))
        await later()
        assert world.lives() == {"g": 3, "h": 4}
        assert world.partition.replica.last_index == last + 1, "the beginning of the other one"


@virtual_time
async def test_a_life_that_this_broker_has_not_read_of_is_not_ended(tmp_path: Path) -> None:
    async with led(tmp_path) as world:
        world.store(read=False, g=QueueSpec(3))
        deadline = asyncio.get_running_loop().time() + 10
        begun = Work("g", 3, (Begin(0, world.partition.replica.identity.recovery),))
        await world.partition.ask(begun, deadline)  # by a former leader, which knew more
        world.reachable = False
        world.beginning.topics_changed()
        await later()
        assert world.asked > 1
        assert world.lives() == {"g": 3}, "nobody can say"
        world.reachable, asked = True, world.asked
        await later()
        assert world.asked > asked
        assert world.lives() == {"g": 3}, "it is declared"
        world.stored = Topic.of(replace(world.stored.spec, queues={}))
        world.beginning.topics_changed()
        await later()
        assert world.lives() == {}


@virtual_time
async def test_who_asks_for_a_group_is_told_its_settings_or_what_to_do(tmp_path: Path) -> None:
    async with led(tmp_path) as world:
        later = QueueSpec(4, settings={"newer": "1"})
        world.store(orders=QueueSpec(3, settings={"lease_ms": "5s"}), later=later)
        queue = world.declared.get(world.partition, "orders")
        assert (queue.life, queue.settings.lease_ms) == (3, 5_000)
        assert world.declared.get(world.partition, "orders") is queue, "they are read once"
        with pytest.raises(UnknownQueue, match="did you mean 'orders'"):
            world.declared.get(world.partition, "order")
        with pytest.raises(IncompatibleVersion, match="newer release"):
            world.declared.get(world.partition, "later")
        world.partition.replica.machine.cursors["orders"] = object()  # type: ignore[assignment]
        with pytest.raises(WrongGroupKind, match="as a stream"):
            world.declared.get(world.partition, "orders")
        world.store()
        assert world.declared.of(world.partition) == {}
