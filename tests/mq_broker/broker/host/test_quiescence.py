"""Replicas at rest: hardly ticked, and back at once for whatever happens."""

from __future__ import annotations

from pathlib import Path

import pytest

from mq_broker.broker.host.partition import Partition
from mq_broker.broker.host.quiescence import RestTimes, Ticked, Ticking
from tests.mq_broker.broker.cluster import until
from tests.mq_broker.broker.test_three_brokers import three
from tests.virtual.world import in_virtual_time

SOON = RestTimes(calm_ms=600, follower_calm_ms=400)
"""To rest sooner than in earnest."""


def noted(monkeypatch: pytest.MonkeyPatch, method: str) -> list[Partition]:
    """The replicas with which that method of `Ticking` is called from here on."""
    replicas: list[Partition] = []
    real = getattr(Ticking, method)

    def called(ticking: Ticking, partition: Ticked) -> None:
        assert isinstance(partition, Partition)
        replicas.append(partition)
        real(ticking, partition)

    monkeypatch.setattr(Ticking, method, called)
    return replicas


def test_idle_replicas_go_to_rest_and_wake_for_a_record_and_for_a_lost_leader(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mq_broker.broker.host.partition.IN_EARNEST", SOON)
    replicas, woken = noted(monkeypatch, "add"), noted(monkeypatch, "woke")

    async def all_asleep() -> bool:
        return all(replica.rest.asleep for replica in replicas if not replica.closed)

    async def scenario() -> None:
        async with three(tmp_path) as cluster:
            info = await cluster[1].create_topic("t", partitions=3, replicas=3)
            await until(all_asleep)
            leader = info.partitions[0].leader
            woken.clear()
            await cluster[leader].produce("t", 1)
            assert any(replica.number == 0 for replica in woken), "it may be asleep again by now"
            witness = 1 + leader % 3

            async def there() -> bool:
                return len(await cluster[witness].fetch("t", 0, 1)) == 1

            await until(there)
            await until(all_asleep)
            for shell in {replica._host for replica in replicas}:
                shell.brokers_seen(shell._live)
            assert await all_asleep(), "the list of brokers is read now and then: if nothing is new that wakes nobody"
            [led] = [replica for replica in replicas if replica.number == 0 and replica.replica.leading]
            led.journal._damaged(1, 0, "a bad sector")  # type: ignore[attr-defined]  # as a reading finds it
            successor = await cluster.leader("t", at=witness, not_=leader)
            await until(lambda: cluster[successor].produce("t", 2))
            await cluster.in_sync("t", [1, 2, 3], at=successor)
            await until(all_asleep)
            leader, witness = successor, 1 + successor % 3
            await cluster[leader].abandon()
            successor = await cluster.leader("t", at=witness, not_=leader)
            await until(lambda: cluster[successor].produce("t", 3))
            assert await cluster[successor].numbers("t") == [1, 2, 3]

    in_virtual_time(scenario())
