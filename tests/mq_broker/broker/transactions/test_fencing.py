"""Which partitions a broker fences for an aborted key, what it says of the others, and that others have their turn
meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from mq_broker.broker.transactions.aborting import Aborting
from mq_broker.broker.transactions.requests import key_to_wire
from mq_broker.core.entries import Fence, TransactionKey
from mq_protocol import mq_pb2 as pb
from mq_protocol.errors import NotEnoughReplicas
from tests.coroutines import virtual_time
from tests.mq_broker.broker.transactions.worlds import KEY, World, played, staged, uuid


def undecided(part: Any) -> Callable[[Fence], list[bytes]]:
    """As a partition's state tells it: what is staged under the key and not kept."""
    return lambda fence: [
        name for name, batch in part.machine.staged.items() if batch.key == fence.key and name not in fence.kept
    ]


@asynccontextmanager
async def fencing() -> AsyncIterator[tuple[World, Aborting]]:
    async with played() as world:
        for part in world.parts.values():
            part.machine.undecided = undecided(part)
        stand_in: Any = world
        yield world, Aborting(stand_in, stand_in, world.transactions)


async def fenced(
    ours: Aborting, *kept: pb.StagedBatches, key: TransactionKey = KEY
) -> tuple[dict[tuple[str, int], int], set[int]]:
    answer = await ours.fence(pb.FenceRequest(key=key_to_wire(key), kept=kept), asyncio.get_running_loop().time() + 5)
    done = {(place.topic, place.partition): place.discarded for place in answer.fenced}
    return done, {place.partition for place in answer.left}


@virtual_time
async def test_partitions_of_the_topic_that_it_writes_to_and_those_with_something_staged_are_fenced_once() -> None:
    async with fencing() as (world, ours):
        elsewhere = TransactionKey("query", "u")
        world.parts["t", 1].stage(staged(1, 4), staged(2, 5))
        assert await fenced(ours) == ({("t", 0): 0, ("t", 1): 2, ("t", 2): 0, ("t", 3): 0}, set())
        for number in range(4):
            world.parts["t", number].machine.fenced[KEY] = None
            world.parts["t", number].machine.staged.clear()
            world.parts["t", number].asked.clear()
        assert (await fenced(ours))[0].keys() == {("t", number) for number in range(4)}, "told as done"
        assert not any(part.asked for part in world.parts.values()), "and not written again"
        world.parts["t", 2].stage(staged(3, 1, elsewhere))
        assert await fenced(ours, key=elsewhere) == ({("t", 2): 1}, set())


@virtual_time
async def test_what_a_decision_names_is_kept() -> None:
    async with fencing() as (world, ours):
        world.parts["t", 1].stage(staged(1, 4), staged(2, 4))
        world.parts["t", 2].stage(staged(1, 4))
        kept = pb.StagedBatches(topic="t", partition=1, uuids=[uuid(1)], row_count=1)
        done, _ = await fenced(ours, kept)
        assert (done["t", 1], done["t", 2]) == (1, 1)
        assert world.parts["t", 1].asked == [Fence(KEY, (uuid(1),))]
        assert world.parts["t", 2].asked == [Fence(KEY)], "it is another partition's"


@virtual_time
async def test_what_is_led_elsewhere_and_has_something_and_what_refuses_is_told_as_left_and_closed_ones_are_not() -> (
    None
):
    async with fencing() as (world, ours):
        parts = [world.parts["t", number] for number in range(4)]
        for part in parts[:3]:
            part.stage(staged(part.number, 4))
        parts[0].serving = parts[3].serving = False
        parts[1].refuse = [NotEnoughReplicas("later")]
        parts[2].closed = True
        assert await fenced(ours) == ({}, {0, 1})
        assert parts[2].asked == []
