"""Three brokers over one ZooKeeper, in one process: replication, failover, handing over, and what crosses
brokers."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import os
import uuid
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from mq_broker.broker import BrokerConfig
from mq_broker.broker.host import partition
from mq_broker.core.messages import ReplicaSettings
from mq_broker.storage.files import OsFiles
from mq_protocol import mq_pb2 as pb
from mq_protocol.errors import NotLeader, TritonMQError
from mq_protocol.names import TRANSACTIONS_TOPIC
from tests.coroutines import virtual_time
from tests.mq_broker.broker.cluster import Broker, numbers_in, shared, until
from tests.virtual.world import in_virtual_time, the_world

SESSION_TIMEOUT_MS = 6_000


class Three:
    """Brokers 1, 2 and 3 of one cluster."""

    def __init__(
        self, data: Path, zookeeper: str = "", session_timeout_ms: int = SESSION_TIMEOUT_MS, **fields: Any
    ) -> None:
        self.root = f"/three-{uuid.uuid4().hex}"
        coordination = shared(zookeeper, session_timeout_ms, self.root)
        self.brokers = {
            n: Broker(
                BrokerConfig(
                    n,
                    "127.0.0.1:0",
                    data / str(n),
                    rack=f"rack-{n}",
                    stop_timeout_ms=5_000,
                    coordination=coordination,
                    **fields,
                )
            )
            for n in (1, 2, 3)
        }

    def __getitem__(self, broker: int) -> Broker:
        return self.brokers[broker]

    async def leader(self, topic: str, partition: int = 0, *, at: int, not_: int = 0) -> int:
        """Who leads, as broker `at` has it, once somebody does."""

        async def led() -> int:
            leader = (await self[at].metadata(topic)).topics[0].partitions[partition].leader
            return leader if leader != not_ else 0

        return int(await until(led))

    async def in_sync(self, topic: str, brokers: list[int], *, at: int) -> None:
        async def whole() -> bool:
            return all(sorted(p.isr) == brokers for p in (await self[at].metadata(topic)).topics[0].partitions)

        await until(whole)


@contextlib.asynccontextmanager
async def three(data: Path, zookeeper: str = "", **fields: Any) -> AsyncIterator[Three]:
    """`zookeeper`: the address of one, for brokers in real time. `fields`: of each broker's configuration."""
    cluster = Three(data, zookeeper, **fields)
    try:
        await asyncio.gather(*(broker.start() for broker in cluster.brokers.values()))
        await until(lambda: _all_known(cluster))
        yield cluster
    finally:
        await asyncio.gather(*(broker.abandon() for broker in cluster.brokers.values()))


async def _all_known(cluster: Three) -> bool:
    answers = [await broker.metadata() for broker in cluster.brokers.values()]
    return all([b.id for b in answer.brokers] == [1, 2, 3] for answer in answers)


def test_what_is_acknowledged_is_on_every_broker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Each partition's first replica is to lead, however busy the machine is: the next one waits longer for it.
    monkeypatch.setattr(partition, "ReplicaSettings", partial(ReplicaSettings, claim_delay_ms=5_000))

    async def scenario() -> None:
        async with three(tmp_path) as cluster:
            info = await cluster[1].create_topic("t", partitions=6, replicas=3)
            assert sorted(p.leader for p in info.partitions) == [1, 1, 2, 2, 3, 3]
            assert all(sorted(p.replicas) == [1, 2, 3] for p in info.partitions)
            for p in info.partitions:
                await cluster[p.leader].produce("t", 10 + p.partition, partition=p.partition)
                other = 1 + p.leader % 3
                with pytest.raises(NotLeader) as refused:
                    await cluster[other].produce("t", 99, partition=p.partition)
                assert refused.value.leader == p.leader
                with pytest.raises(NotLeader):
                    await cluster[other].end("t", p.partition)
                expected = await cluster[p.leader].fetch("t", 0, 1, p.partition)

                async def same(other: int = other, number: int = p.partition, expected: object = expected) -> bool:
                    return await cluster[other].fetch("t", 0, 1, number) == expected

                await until(same)

    in_virtual_time(scenario())


@virtual_time
async def test_a_leader_that_vanishes_is_replaced_and_nothing_acknowledged_is_lost(tmp_path: Path) -> None:
    async with three(tmp_path) as cluster:
        info = await cluster[2].create_topic("t", replicas=3)
        former = info.partitions[0].leader
        name = uuid.uuid4().bytes
        await cluster[former].produce("t", 1, uuid=name)
        await cluster[former].abandon()
        witness = 1 + former % 3
        leader = await cluster.leader("t", at=witness, not_=former)
        retried = await until(lambda: cluster[leader].produce("t", 1, uuid=name))
        assert (retried.duplicate, retried.base_offset) == (True, 0)
        await cluster[leader].produce("t", 2)
        await cluster[former].start()
        await cluster.in_sync("t", [1, 2, 3], at=leader)
        assert await cluster[leader].numbers("t") == [1, 2]

        async def caught_up() -> bool:
            return len(await cluster[former].fetch("t", 0, 2)) == 2

        await until(caught_up)


def test_a_leader_whose_sync_fails_reads_its_log_again_and_serves_on(
    zookeeper: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sync, failing = OsFiles.sync, ""

    def failing_sync(files: OsFiles, fd: int) -> None:
        nonlocal failing
        if failing and os.readlink(f"/proc/self/fd/{fd}").startswith(failing):
            failing = ""
            raise OSError(errno.EIO, "this disk has a fault")
        sync(files, fd)

    monkeypatch.setattr(OsFiles, "sync", failing_sync)

    async def scenario() -> None:
        nonlocal failing
        async with three(tmp_path, zookeeper) as cluster:
            info = await cluster[1].create_topic("t", replicas=3)
            first = await cluster.leader("t", at=1)
            numbers = list(range(20))
            for n in numbers:
                await cluster[first].produce("t", n)
            [log] = (tmp_path / str(first) / "partitions").glob(f"{info.topic_id}-0/*.log")
            identity = log.with_name("log.json")
            before = json.loads(identity.read_bytes())["log_id"]
            failing = str(log)
            with pytest.raises(TritonMQError):
                await cluster[first].produce("t", 100, uuid=b"retried, retried")
            assert json.loads(identity.read_bytes())["log_id"] != before
            second = await cluster.leader("t", at=first, not_=first)
            await until(lambda: _produced(cluster, second))
            await cluster.in_sync("t", [1, 2, 3], at=second)
            for broker in cluster.brokers.values():
                await until(lambda broker=broker: broker.fetch("t", 0, 21))  # type: ignore[misc]
                found = [n for _, payload in await broker.fetch("t", 0, 21) for n in numbers_in(payload)]
                assert found == [*numbers, 100]
            await cluster[second].stop()
            third = await cluster.leader("t", at=first, not_=second)
            assert await until(lambda: cluster[third].end("t")) == 21
            await until(lambda: cluster[third].produce("t", 101))

    asyncio.run(scenario())


async def _produced(cluster: Three, leader: int) -> bool:
    await cluster[leader].produce("t", 100, uuid=b"retried, retried")
    return True


@virtual_time
async def test_a_clean_stop_hands_leadership_over_before_the_session_ends(tmp_path: Path) -> None:
    async with three(tmp_path) as cluster:
        info = await cluster[1].create_topic("t", replicas=3)
        former = info.partitions[0].leader
        await cluster[former].produce("t", 1)
        stopping = asyncio.create_task(cluster[former].stop())
        witness = 1 + former % 3
        leader = await cluster.leader("t", at=witness, not_=former)
        await until(lambda: cluster[leader].produce("t", 2))
        await stopping
        assert await cluster[leader].numbers("t") == [1, 2]


@virtual_time
async def test_a_subscription_is_told_when_leadership_moves(tmp_path: Path) -> None:
    async with three(tmp_path) as cluster:
        info = await cluster[1].create_topic("t", replicas=3)
        former = info.partitions[0].leader
        await cluster[former].produce("t", 1)
        async with cluster[former].subscribing() as subscription:
            await subscription.open("t", group="g", member="a", earliest=True)
            await subscription.read_numbers(1)
            await subscription.settle("t", 1)
            await until(lambda: _settled(cluster[former], 1))
            broker = cluster[former]
            stopping = asyncio.create_task(broker.stop_keeping_channel())
            assert (await subscription.read_opened(2))[1].error.code == pb.NOT_LEADER
            await stopping
        leader = await cluster.leader("t", at=1 + former % 3, not_=former)
        await until(lambda: cluster[leader].produce("t", 2))
        async with cluster[leader].subscribing() as subscription:
            await subscription.open("t", group="g", member="a", earliest=True)
            assert await subscription.read_numbers(1) == [2]


@virtual_time
async def test_followers_know_how_far_behind_a_group_is_when_its_leader_is_gone(tmp_path: Path) -> None:
    async with three(tmp_path) as cluster:
        info = await cluster[1].create_topic("t", replicas=3)
        former = info.partitions[0].leader
        for number in (1, 2, 3):
            await cluster[former].produce("t", number)
        position = pb.CursorPosition(topic="t", partition=0, offset=2)
        await cluster[former].ask("MoveCursors", pb.MoveCursorsRequest(group="g", positions=[position], kind="spark"))
        follower = cluster[1 + former % 3]
        assert [c.leads for c in await _cursors(cluster[former])] == [True]
        await until(lambda: _settled(follower, 2))
        assert [c.leads for c in await _cursors(follower)] == [False]
        await cluster[former].abandon()  # a successor may lead before the next question
        assert [(c.offset, c.log_end_offset) for c in await _cursors(follower)] == [(2, 3)]


async def _cursors(broker: Broker) -> list[pb.GroupCursor]:
    return list((await broker.ask("Groups", pb.GroupsRequest(group="g"))).cursors)


async def _settled(broker: Broker, offset: int) -> bool:
    return [c.offset for c in await _cursors(broker)] == [offset]


@virtual_time
async def test_a_decision_is_published_on_every_leader(tmp_path: Path) -> None:
    async with three(tmp_path) as cluster:
        info = await cluster[1].create_topic("t", partitions=3, replicas=3)
        coordinators = (await cluster[3].metadata(TRANSACTIONS_TOPIC)).topics[0]
        assert all(len(p.replicas) == 3 for p in coordinators.partitions)
        key = pb.TransactionKey(query_id="q", sink="t")
        lines = []
        for p in info.partitions:
            name = uuid.uuid4().bytes
            staged = pb.StageOf(key=key, batch_id=0, run_id="r")
            await cluster[p.leader].produce("t", p.partition, partition=p.partition, uuid=name, stage=staged)
            lines.append(pb.StagedBatches(topic="t", partition=p.partition, uuids=[name], row_count=1))
        request = pb.DecideRequest(key=key, batch_id=0, run_id="r", row_count=3, manifest=lines)
        answer = await until(lambda: _ask_coordinator(cluster, request))
        assert (answer.published, answer.row_count) == (True, 3)
        for p in info.partitions:
            assert await cluster[p.leader].numbers("t", p.partition) == [p.partition]


async def _ask_coordinator(cluster: Three, request: pb.DecideRequest) -> pb.DecideResponse:
    """Through whom the first broker asked names."""
    try:
        answer: pb.DecideResponse = await cluster[1].ask("Decide", request)
    except NotLeader as error:
        answer = await cluster[error.leader or 1].ask("Decide", request)
    return answer


@virtual_time
async def test_all_brokers_down_and_up_again_keep_everything(tmp_path: Path) -> None:
    async with three(tmp_path) as cluster:
        info = await cluster[1].create_topic("t", replicas=3, durability="os")
        await cluster[info.partitions[0].leader].produce("t", 1, 2, 3)
        await asyncio.gather(*(broker.abandon() for broker in cluster.brokers.values()))
        await asyncio.gather(*(broker.start() for broker in cluster.brokers.values()))
        leader = await cluster.leader("t", at=1)
        assert await until(lambda: cluster[leader].numbers("t")) == [1, 2, 3]


@virtual_time
async def test_a_broker_that_has_stopped_cleanly_is_named_as_leader_by_no_node(tmp_path: Path) -> None:
    """It stands back while it still has its session: nobody needs to notice first that it is gone."""
    async with three(tmp_path) as cluster:
        info = await cluster[1].create_topic("t", partitions=2, replicas=3)
        leader = await cluster.leader("t", at=1)
        await until(lambda: cluster[leader].produce("t", 1))
        await cluster[leader].stop()
        _, state = the_world().zookeeper(cluster.root, 0).states[info.topic_id, 0]
        assert state.leader is None or state.leader.broker != leader


@virtual_time
async def test_a_new_leader_tells_no_end_before_it_knows_what_is_committed(tmp_path: Path) -> None:
    """What the former one acknowledged last it has, and has not heard that it is committed."""
    async with three(tmp_path) as cluster:
        await cluster[1].create_topic("t", replicas=3)
        first = await cluster.leader("t", at=1)
        left = [n for n in cluster.brokers if n != first]
        await cluster[first].produce("t", 1)
        await cluster[first].produce("t", 2)
        await cluster[first].abandon()
        for n in left:
            the_world().disk(tmp_path / str(n)).latency_s = (1.0, 1.0)

        async def end() -> int | None:
            for n in left:
                answer = await cluster[n].ask("ListOffsets", pb.ListOffsetsRequest(topic="t", partitions=[0]))
                if not answer.partitions[0].HasField("error"):
                    return int(answer.partitions[0].log_end_offset)
            return None

        assert await until(end) == 2
