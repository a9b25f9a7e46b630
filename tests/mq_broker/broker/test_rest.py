"""Replicas at rest: hardly ticked, and back at once for whatever happens."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path

import pytest

from mq_broker.broker import rest
from mq_broker.broker.partition import Partition
from mq_broker.broker.rest import Ticking
from tests.mq_broker.broker.cluster import until
from tests.mq_broker.broker.test_three_brokers import three


@dataclass(eq=False)
class Idle:
    """A replica that has nothing to do."""

    leading: bool
    asleep: bool = False
    stirred: bool = True
    calm_since_ms: int = 0
    heard_ms: int = 0
    closed: bool = False
    at_rest: bool = True
    ticks: int = 0

    def tick(self, now_ms: int, now: float) -> None:
        """It hears of its leader for as long as it is ticked."""
        self.ticks += 1
        self.heard_ms = now_ms


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """To rest sooner than in earnest."""
    monkeypatch.setattr(rest, "CALM_MS", 600)
    monkeypatch.setattr(rest, "FOLLOWER_CALM_MS", 400)


def test_idle_replicas_go_to_rest_and_wake_for_a_record_and_for_a_lost_leader(
    zookeeper: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, soon: None
) -> None:
    monkeypatch.setattr(rest, "PATIENCE_MS", 60_000)  # so that silence is not what wakes them
    replicas: list[Partition] = []
    add = Ticking.add

    def noted(ticking: Ticking, partition: Partition) -> None:
        replicas.append(partition)
        add(ticking, partition)

    monkeypatch.setattr(Ticking, "add", noted)

    async def all_asleep() -> bool:
        return all(replica.asleep for replica in replicas if not replica.closed)

    async def scenario() -> None:
        async with three(zookeeper, tmp_path) as cluster:
            info = await cluster[1].create_topic("t", partitions=3, replicas=3)
            await until(all_asleep)
            leader = info.partitions[0].leader
            await cluster[leader].produce("t", 1)
            assert any(not replica.asleep for replica in replicas if replica.number == 0)
            witness = 1 + leader % 3

            async def there() -> bool:
                return len(await cluster[witness].fetch("t", 0, 1)) == 1

            await until(there)
            await until(all_asleep)
            await cluster[leader].abandon()
            successor = await cluster.leader("t", at=witness, not_=leader)
            await until(lambda: cluster[successor].produce("t", 2))
            assert await cluster[successor].numbers("t") == [1, 2]

    asyncio.run(scenario())


def test_a_follower_at_rest_that_hears_nothing_of_its_leader_is_ticked_again(soon: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rest, "PATIENCE_MS", 1_000)
    follower, leader = Idle(leading=False), Idle(leading=True)

    async def asleep() -> bool:
        return follower.asleep and leader.asleep

    async def awake() -> bool:
        return not follower.asleep

    async def scenario() -> None:
        ticking = Ticking()
        ticking.add(follower)
        ticking.add(leader)
        running = asyncio.create_task(ticking.run())
        await until(asleep)
        assert ticking.awake == 0
        before = follower.ticks
        await until(awake)
        assert leader.asleep
        assert follower.ticks == before, "at rest it is told nothing of the time but by its leader"
        follower.closed = leader.closed = True

        async def gone() -> bool:
            return ticking.awake == 0 and not ticking._place

        await until(gone, deadline_s=2 * rest.REST_TICK_S)
        running.cancel()

    asyncio.run(scenario())
