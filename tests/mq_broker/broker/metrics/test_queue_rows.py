"""What there is to do for a queue group, as its metrics have it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from mq_broker.broker.metrics.observation import QueueRow
from mq_broker.broker.metrics.observing import walk_queues
from mq_broker.core.work.steps import Accept, Drop, Lease, Park, Reason, Reject, Return
from tests.coroutines import virtual_time
from tests.mq_broker.broker.queues.test_describing import LATER_US, World, led

NOW_US = 1 << 51


def rows(
    world: World, room: Callable[[], bool] = lambda: True, limit: int | None = 2
) -> dict[tuple[str, str], QueueRow]:
    found: dict[tuple[str, str], QueueRow] = {}
    for _ in walk_queues(world.partition, found, lambda *_: limit, NOW_US, room):
        pass
    return found


async def busy(world: World) -> None:
    """Of a hundred records ten are accepted, ten dropped, five rejected, five parked, five wait and ten are leased."""
    await world.write(Lease(((0, 50),), "m"))
    await world.write(
        Accept(((0, 10),)),
        Drop(((50, 60),), Reason.EXPIRED),
        Reject(((20, 25), (30, 35)), "bad"),
        Return(((25, 30),), due_us=LATER_US),
        Return(((10, 20), (45, 50))),
    )
    await world.write(Park(((30, 35),)))


@virtual_time
async def test_every_record_that_is_not_settled_is_in_one_state_as_describing_has_it(tmp_path: Path) -> None:
    async with led(tmp_path) as world:
        await busy(world)
        row = rows(world)["t", "g"]
        described = await world.told()
        assert (row.ready, row.leased, row.delayed, row.doomed, row.parked) == (
            described.ready, described.leased, described.delayed, described.doomed, described.parked
        ) == (55, 10, 5, 5, 5)  # fmt: skip
        assert row.settled == {"accepted": 10, "dead": 0, "expired": 10}
        assert row.oldest_ready_us == described.oldest_ready_us > 0


@virtual_time
async def test_a_second_partition_is_added_and_one_that_is_not_declared_is_left_out(tmp_path: Path) -> None:
    async with led(tmp_path) as world:
        await busy(world)
        once = rows(world)["t", "g"]
        found = {("t", "g"): rows(world)["t", "g"]}
        for _ in walk_queues(world.partition, found, lambda *_: 2, NOW_US, lambda: True):
            pass
        twice = found["t", "g"]
        assert (twice.ready, twice.leased, twice.settled["accepted"]) == (2 * once.ready, 20, 20)
        assert rows(world, limit=None) == {}


@virtual_time
async def test_runs_beyond_the_bound_are_not_looked_at(tmp_path: Path) -> None:
    async with led(tmp_path) as world:
        await busy(world)
        looked: list[int] = []

        def room() -> bool:
            looked.append(1)
            return len(looked) <= 2

        rows(world, room)
        assert len(looked) == 3
