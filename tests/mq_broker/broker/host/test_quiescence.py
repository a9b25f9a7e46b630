"""Replicas at rest: hardly ticked, and back at once for whatever happens."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from mq_broker.broker.host import quiescence as rest
from mq_broker.broker.host.partition import Partition
from mq_broker.broker.host.peer_messages import PeerMessages
from mq_broker.broker.host.quiescence import Rest, RestTimes, Ticked, Ticking
from mq_broker.core.messages import AppendAck, AppendEntries
from mq_broker.core.replication.leader import Leader
from mq_protocol import mq_pb2 as pb
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


def heartbeats_are_due(leader: Leader) -> bool:
    now_ms = time.monotonic_ns() // 1_000_000
    return all(now_ms - follower.last_sent_ms > 250 and not follower.sent for follower in leader.followers.values())


def heard_one_by_one(heard: list[int]) -> Callable[[PeerMessages, pb.AppendAck], None]:
    """Instead of `PeerMessages.hear_ack`: a turn of the loop ends between the followers' answers, which are noted."""
    hear_ack = PeerMessages.hear_ack

    def hear_later(peers: PeerMessages, message: pb.AppendAck) -> None:
        def hear() -> None:
            hear_ack(peers, message)
            heard.append(message.follower)

        asyncio.get_running_loop().call_later(0.05 * message.follower, hear)

    return hear_later


def test_a_leader_at_rest_stays_so_while_answers_take_long(
    zookeeper: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a broker with much else to do: if each late answer woke a leader, to ask again, all would keep each other
    awake."""
    monkeypatch.setattr("mq_broker.broker.host.partition.IN_EARNEST", SOON)
    replicas = noted(monkeypatch, "add")
    woken: list[str] = []
    heard: list[int] = []
    wake = Partition.wake

    def noted_wake(partition: Partition, now_ms: int) -> None:
        woken.append(partition.name)
        wake(partition, now_ms)

    async def all_asleep() -> bool:
        return bool(replicas) and all(replica.rest.asleep for replica in replicas)

    async def scenario() -> None:
        async with three(zookeeper, tmp_path, session_timeout_ms=30_000) as cluster:
            await cluster[1].create_topic("t", partitions=1, replicas=3)
            await until(all_asleep)
            [led] = [replica for replica in replicas if replica.replica.leading]
            leader = led.replica._role
            assert isinstance(leader, Leader)

            async def due() -> bool:
                return heartbeats_are_due(leader)

            await until(due)
            monkeypatch.setattr(Partition, "wake", noted_wake)
            monkeypatch.setattr(PeerMessages, "hear_ack", heard_one_by_one(heard))
            # An audit is due by the clock, perhaps now: it tells the leader the time, and so that answers are late.
            monkeypatch.setattr(Ticking, "_tick_at_rest", lambda *_, **__: None)
            led.tick(time.monotonic_ns() // 1_000_000, asyncio.get_running_loop().time())
            await asyncio.sleep(0)  # the heartbeats are on their way
            time.sleep(1.2)  # noqa: ASYNC251 - all brokers are held up for longer than a leader waits for an answer

            async def answered() -> bool:
                return len(heard) == 2

            await until(answered)
            await asyncio.sleep(0)
            assert woken == []
            assert led.rest.asleep

    asyncio.run(scenario())


def test_of_more_replicas_than_a_turn_ticks_each_has_its_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mq_broker.broker.host.quiescence.TICKS_AT_ONCE_MAX", 3)
    ticking = Ticking()
    replicas = [Idle(leading=True, ticking=ticking, at_rest=False) for _ in range(20)]

    async def all_ticked() -> bool:
        return min(replica.ticks for replica in replicas) >= 2

    async def scenario() -> None:
        for replica in replicas:
            ticking.add(replica)
        running = asyncio.create_task(ticking.run())
        await until(all_ticked)
        running.cancel()
        counts = [replica.ticks for replica in replicas]
        assert max(counts) - min(counts) <= 1

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


def test_replicas_at_rest_in_contact_are_ticked_for_an_audit_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rest, "_REST_SLICES", 2)
    monkeypatch.setattr(rest, "AUDIT_ROUNDS", 4)
    ticking = Ticking()
    leader = Idle(True, ticking, contact_ms=0, in_contact=True)
    follower = Idle(False, ticking, contact_ms=0, in_contact=True)
    alone = Idle(True, ticking)

    async def asleep() -> bool:
        return all(each.rest.asleep for each in (leader, follower, alone))

    async def scenario() -> None:
        for each in (leader, follower, alone):
            ticking.add(each)
        running = asyncio.create_task(ticking.run())
        await until(asleep)
        before = leader.ticks, follower.ticks, alone.ticks

        async def audited() -> bool:
            return leader.ticks > before[0] and follower.ticks > before[1] and alone.ticks >= before[2] + 6

        await until(audited)
        running.cancel()
        rounds = alone.ticks - before[2]
        assert max(leader.ticks - before[0], follower.ticks - before[1]) <= rounds // 4 + 2
        assert await asleep()

    asyncio.run(scenario())


def test_a_follower_at_rest_that_hears_nothing_of_its_leader_is_ticked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rest, "_REST_SLICES", 10)
    monkeypatch.setattr(rest, "AUDIT_ROUNDS", 1_000_000_007)
    ticking = Ticking()
    follower, leader = Idle(False, ticking), Idle(True, ticking)

    async def asleep() -> bool:
        return follower.rest.asleep and leader.rest.asleep

    async def awake() -> bool:
        return not follower.rest.asleep

    async def scenario() -> None:
        ticking.add(follower)
        ticking.add(leader)
        running = asyncio.create_task(ticking.run())
        await until(asleep)
        assert ticking.awake == 0
        before = follower.ticks
        await until(awake)
        assert leader.rest.asleep
        assert follower.ticks == before, "at rest it is told nothing of the time but by its leader"
        follower.closed = leader.closed = True

        async def gone() -> bool:
            return ticking.awake == 0 and not ticking._slices

        await until(gone)
        running.cancel()

    asyncio.run(scenario())
