"""What a queue group has to do is told exactly, whatever state its records are in, and swept by an administrator's
word."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mq_broker.broker.host.partition import Partition
from mq_broker.broker.host.shell import Shell
from mq_broker.broker.metadata.topics import Topic
from mq_broker.broker.queues.describing import Describing
from mq_broker.broker.queues.policy.declared import Declared
from mq_broker.broker.queues.sweeping import Sweeping
from mq_broker.broker.queues.working import Working
from mq_broker.coordination.interface import QueueSpec
from mq_broker.core.entries import Append, Entry, Work
from mq_broker.core.messages import Published
from mq_broker.core.work.state import WorkState
from mq_broker.core.work.steps import Accept, Begin, Drop, Lease, Park, Reason, Reject, Return, Step
from mq_protocol import mq_pb2 as pb
from mq_protocol.errors import InvalidRequest, UnknownQueue, WrongGroupKind
from tests.coroutines import virtual_time
from tests.mq_broker.broker.host.test_shell import HERE, ID, leading, shell

TOPIC = Topic.of(replace(HERE.spec, queues={"g": QueueSpec(3, settings={"delivery_limit": "2"})}, queue_lives=3))
LATER_US = 1 << 61


class World:
    """A broker that leads a partition of a hundred records with a queue group."""

    def __init__(self, broker: Shell, partition: Partition) -> None:
        topics: Any = self
        self.broker = broker
        self.partition = partition
        declared = Declared(broker)
        self.describing = Describing(broker, topics, declared)
        self.working = Working(broker, declared, lambda: time.time_ns() // 1000)
        self.sweeping = Sweeping(broker, topics, declared, self.working)

    async def get(self, _name: str) -> Topic:
        return TOPIC

    async def renewed(self, _topic: Topic) -> Topic:
        return TOPIC

    async def write(self, *steps: Step) -> None:
        await self.partition.ask(Work("g", 3, steps), self.deadline)

    @property
    def deadline(self) -> float:
        return asyncio.get_running_loop().time() + 10

    async def told(self, group: str = "g", number: int = 0, **fields: Any) -> pb.QueuePartition:
        request = pb.DescribeQueueRequest(topic="t", group=group, partitions=[number], **fields)
        (partition,) = (await self.describing.describe_queue(request, self.deadline)).partitions
        return partition

    async def swept(self, *, redrive: bool) -> int:
        request = pb.SweepQueueRequest(topic="t", group="g", partitions=[0], redrive=redrive)
        (swept,) = (await self.sweeping.sweep_queue(request, self.deadline)).partitions
        assert not swept.HasField("error")
        return swept.records

    async def runs(self, **fields: Any) -> list[tuple[int, int, int]]:
        return [(run.first, run.end, run.state) for run in (await self.told(**fields)).runs]


@asynccontextmanager
async def led(tmp_path: Path) -> AsyncIterator[World]:
    async with shell(tmp_path, isr=((1, ""),)) as broker:
        world = World(broker, await leading(broker))
        broker.follow_topics({ID: TOPIC})
        _append(world.partition, 100)
        await world.write(Begin(0))
        yield world


def _append(partition: Partition, records: int) -> None:
    """Records without bytes: nobody reads them here."""
    machine, index = partition.replica.machine, partition.index
    replica = partition.replica
    entry = Entry(replica.last_index, replica.leader_epoch, 7_000, Append(), bytes(16), records, 1, 1)
    (published,) = machine.apply(entry)
    assert isinstance(published, Published)
    index.append(published)


async def one_of_each(world: World) -> None:
    """0 to 10 settled, 10 to 20 with a, 20 to 25 with b, 25 to 30 delayed, 30 failed twice, 31 rejected, 32 to 35
    parked, 35 to 40 returned, the others fresh."""
    await world.write(Lease(((0, 20),), "a"), Lease(((20, 40),), "b"), Accept(((0, 10),)))
    await world.write(Return(((25, 30),), False, LATER_US), Return(((30, 31),), True), Reject(((31, 32),), "no"))
    await world.write(Return(((32, 40),), True, 0, "boom"), Lease(((30, 31),), "b"), Park(((32, 35),)))
    await world.write(Return(((30, 31),), True))


@virtual_time
async def test_runs_are_listed_by_state_and_a_page_goes_on_after_the_one_before(tmp_path: Path) -> None:
    async with led(tmp_path) as world:
        await one_of_each(world)
        assert await world.runs(state=pb.RECORD_PARKED, runs_max=5) == [(32, 35, pb.RECORD_PARKED)]
        assert await world.runs(state=pb.RECORD_READY, runs_max=5) == [
            (35, 40, pb.RECORD_READY),
            (40, 100, pb.RECORD_READY),
        ]
        everything = await world.runs(runs_max=100)
        assert [run[:2] for run in everything][:4] == [(10, 20), (20, 25), (25, 30), (30, 31)]
        pages: list[tuple[int, int, int]] = []
        more, after = True, 0
        while more:
            told = await world.told(runs_max=2, after=after)
            pages += [(run.first, run.end, run.state) for run in told.runs]
            more, after = told.more, told.runs[-1].end
        assert pages == everything
        (failed,) = (await world.told(state=pb.RECORD_DOOMED, runs_max=1)).runs
        assert (failed.first, failed.deliveries, failed.failures) == (30, 2, 2)
        (leased, _) = (await world.told(state=pb.RECORD_LEASED, runs_max=9)).runs
        assert (leased.member, leased.deliveries) == ("a", 1)
        (parked,) = (await world.told(state=pb.RECORD_PARKED, runs_max=9)).runs
        assert (parked.error, parked.failures) == ("boom", 1)


@virtual_time
async def test_who_cannot_be_told_is_told_why(tmp_path: Path) -> None:
    async with led(tmp_path) as world:
        with pytest.raises(UnknownQueue):
            await world.told("other")
        world.partition.replica.machine.cursors["reader"] = object()  # type: ignore[assignment]
        with pytest.raises(WrongGroupKind, match="as a stream, and is no queue: `tritonmq group describe reader`"):
            await world.told("reader")
        with pytest.raises(InvalidRequest, match="runs_max"):
            await world.told(runs_max=1_001)
        with pytest.raises(InvalidRequest, match="state=6 is not known: give one of 0 to 5"):
            await world.told(state=6, runs_max=1)
        assert (await world.told(number=9)).HasField("error")
        world.partition.replica.machine.work["g"] = WorkState(2, 0)
        assert (await world.told()).life == 0, "the declared life has not begun"


@virtual_time
async def test_what_nobody_has_is_purged_and_what_is_leased_stays(tmp_path: Path) -> None:
    async with led(tmp_path) as world:
        await one_of_each(world)
        assert await world.swept(redrive=False) == 75
        told = await world.told()
        assert (told.ready, told.leased, told.parked, told.dropped["purged"]) == (0, 15, 0, 75)
        last = world.partition.replica.last_index
        assert await world.swept(redrive=False) == 0
        assert world.partition.replica.last_index == last, "nothing is written for nothing"


@virtual_time
async def test_what_is_parked_is_ready_again_as_if_it_had_never_failed(tmp_path: Path) -> None:
    async with led(tmp_path) as world:
        await world.write(Lease(((30, 40),), "a"), Return(((32, 35),), True, 0, "boom"))
        await world.write(Park(((32, 35), (50, 51), (60, 61))))
        assert await world.swept(redrive=True) == 5
        told = await world.told(state=pb.RECORD_READY, runs_max=100)
        assert (told.parked, told.ready, told.leased) == (0, 93, 7)
        assert [run.failures for run in told.runs if run.first == 32] == [0]
        assert await world.swept(redrive=True) == 0


@virtual_time
async def test_a_sweep_goes_into_an_entry_behind_the_one_that_is_on_its_way(tmp_path: Path) -> None:
    async with led(tmp_path) as world:
        await one_of_each(world)
        first, swept = await asyncio.gather(
            world.working.add_steps(world.partition, "g", 3, (Drop(((90, 91),), Reason.PURGED),)),
            world.swept(redrive=False),
        )
        assert (first, swept) == (None, 75)
        assert (await world.told()).dropped["purged"] == 75
