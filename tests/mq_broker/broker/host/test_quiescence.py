"""Replicas at rest: hardly ticked, and back at once for whatever happens."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from mq_broker.broker.host.partition import Partition
from mq_broker.broker.host.quiescence import Rest, RestTimes, Ticked, Ticking
from mq_broker.core.messages import AppendAck, AppendEntries
from tests.mq_broker.broker.cluster import until
from tests.mq_broker.broker.test_three_brokers import three

SOON = RestTimes(calm_ms=600, follower_calm_ms=400, patience_ms=60_000)
"""To rest sooner than in earnest; and silence is not what wakes anybody."""

ACK = AppendAck(2, 1, "log", leader_epoch=4, acknowledged_index=0, matched_index=0, sequence=0)
HEARTBEAT = AppendEntries(1, 1, 1, prev_index=0, prev_epoch=0, last_index=0, high_watermark=0, sequence=1)


@dataclass(eq=False)
class Idle:
    """A replica that has nothing to do."""

    leading: bool
    ticking: Ticking
    closed: bool = False
    at_rest: bool = True
    ticks: int = 0
    led_by: tuple[int, int] = (1, 1)
    contact_ms: int | None = None
    in_contact: bool = False
    rest: Rest = field(default_factory=lambda: Rest(replace(SOON, patience_ms=1_000)))

    def tick(self, now_ms: int, now: float) -> None:
        """It hears of its leader for as long as it is ticked."""
        self.ticks += 1
        asleep = self.rest.asleep
        self.rest.told(HEARTBEAT, now_ms)
        if not asleep and self.rest.settled(self, now_ms):
            self.ticking.slept(self)

    def wake(self, now_ms: int) -> None:
        self.rest.wake(now_ms)
        self.ticking.woke(self)


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
    zookeeper: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mq_broker.broker.host.partition.IN_EARNEST", SOON)
    replicas, woken = noted(monkeypatch, "add"), noted(monkeypatch, "woke")

    async def all_asleep() -> bool:
        return all(replica.rest.asleep for replica in replicas if not replica.closed)

    async def scenario() -> None:
        async with three(zookeeper, tmp_path) as cluster:
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

    asyncio.run(scenario())


def test_a_follower_rests_once_it_has_heard_its_leader_since_the_contact_began() -> None:
    follower = Idle(False, Ticking(), contact_ms=500)
    follower.rest.told(HEARTBEAT, 400)
    follower.rest.settled(follower, 400)
    assert not follower.rest.settled(follower, 9_000), "what was heard before the contact began proves nothing now"
    follower.rest.told(HEARTBEAT, 500)
    assert follower.rest.settled(follower, 60_000), "however long ago it was heard"

    for other in ((1, 2), (2, 1), (0, 1)):
        follower = Idle(False, Ticking(), contact_ms=500, led_by=other)
        follower.rest.told(HEARTBEAT, 600)
        follower.rest.settled(follower, 600)
        assert not follower.rest.settled(follower, 9_000), "it was another leadership that spoke"


def test_a_leader_that_says_that_it_leads_no_more_has_to_be_heard_again() -> None:
    for asleep in (False, True):
        follower = Idle(False, Ticking(), contact_ms=500, led_by=(1, 4))
        follower.rest.told(replace(HEARTBEAT, leader_epoch=4), 600)
        follower.rest.settled(follower, 600)
        assert follower.rest.settled(follower, 9_000 if asleep else 601) is asleep
        assert follower.rest.spoken_to(replace(ACK, follower=1), follower) is asleep, "who is at rest is to be woken"
        follower.rest.wake(9_000)
        follower.rest.settled(follower, 9_000)
        assert not follower.rest.settled(follower, 60_000)

    leader = Idle(True, Ticking(), led_by=(1, 4))
    assert not leader.rest.settled(leader, 0)
    assert leader.rest.settled(leader, 9_000)
    assert not leader.rest.spoken_to(replace(ACK, leader_epoch=4), leader), "the answer to a heartbeat wakes nobody"
    assert leader.rest.spoken_to(replace(ACK, leader_epoch=1), leader), "a replica with another log than before does"


def test_a_follower_without_contact_rests_only_while_its_leader_speaks() -> None:
    follower = Idle(False, Ticking())
    follower.rest.told(HEARTBEAT, 500)
    follower.rest.settled(follower, 500)
    assert not follower.rest.settled(follower, 9_000)
    follower.rest.told(HEARTBEAT, 9_000)
    assert follower.rest.settled(follower, 9_000)
