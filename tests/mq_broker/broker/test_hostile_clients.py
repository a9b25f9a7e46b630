"""A stranger who reaches the port of the brokers, and knows all that clients can know: it cannot speak as a broker.

Each test is an attack that once worked, spoken by hand, as a client and as a broker without the cluster's secret. What
is asserted is that the cluster is as it was.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from mq_broker.broker import BrokerConfig
from mq_broker.coordination.service import CoordinationService
from mq_broker.coordination.zookeeper import ZooKeeperStore
from mq_broker.core.entries import Append, Entry, MoveCursor
from mq_broker.rpc.calls import Calls
from mq_broker.rpc.peer_proof import PeerProof
from mq_broker.rpc.wire.framed import connect
from mq_broker.storage.codec.frame import Place, encode
from mq_protocol import mq_pb2 as pb
from mq_protocol.arrow import encode_batch
from mq_protocol.errors import (
    InvalidRequest,
    NotEnoughReplicas,
    OutcomeUnknown,
    PeerRefused,
    TritonMQError,
    Unreachable,
)
from mq_protocol.methods import PEER
from mq_protocol.wire.envelope import Envelope
from tests.coroutines import real_time, virtual_time
from tests.mq_broker.broker.channel import Channel
from tests.mq_broker.broker.cluster import DEADLINE_S, Broker, rows, standalone, until
from tests.mq_broker.broker.transactions.test_coordinator import KEY, decide, stage
from tests.mq_broker.coordination.wire import LASTING_MS


class Lingering(CoordinationService):
    """Its session outlives its broker, as that of a killed process does, until it is told to end."""

    lingers = False

    async def stop(self) -> None:
        if not self.lingers:
            await super().stop()


class Victims:
    """Three brokers."""

    def __init__(self, zookeeper: str, data: Path) -> None:
        root = f"/hostile-{uuid.uuid4().hex}"
        self.coordination = {n: Lingering(ZooKeeperStore(zookeeper, LASTING_MS, root=root)) for n in (1, 2, 3)}
        self.brokers = {
            n: Broker(BrokerConfig(n, "127.0.0.1:0", data / str(n), coordination=lambda n=n: self.coordination[n]))  # type: ignore[misc]
            for n in (1, 2, 3)
        }
        self.topic = pb.TopicInfo()

    def __getitem__(self, broker: int) -> Broker:
        return self.brokers[broker]

    @property
    def leader(self) -> int:
        return self.topic.partitions[0].leader

    @property
    def epoch(self) -> int:
        return self.topic.partitions[0].leader_epoch

    @property
    def followers(self) -> list[int]:
        return [n for n in self.brokers if n != self.leader]

    async def prepare(self, leader: int = 0, **settings: str) -> None:
        """The topic `t` of one partition, on all three, led by that one."""
        await self[1].create_topic("t", replicas=3, **settings)
        await self.refresh()
        if leader:
            await until(lambda: self._led_by(leader))
            await self.refresh()

    async def refresh(self) -> None:
        """Who leads, as broker 1 has it, once somebody does."""

        async def led() -> int:
            self.topic = (await self[1].metadata("t")).topics[0]
            return self.leader

        await until(led)

    async def _led_by(self, leader: int) -> bool:
        """Whoever leads by now is asked to hand over: who is to lead may lag, and then another claims meanwhile."""
        await self.refresh()
        if self.leader == leader:
            return await self[leader].end("t") >= 0
        await self[self.leader].ask("Lead", pb.LeadRequest(topic="t", broker=leader, timeout_ms=10_000))
        return False

    async def incarnations(self) -> dict[int, int]:
        return {broker.id: broker.incarnation for broker in (await self[1].metadata()).brokers}

    async def are_well(self) -> None:
        """Every one serves, all are in sync, and a record reaches all of them."""
        end = (await until(self._ends))[0]
        await until(lambda: self[self.leader].produce("t", 1_000 + end))

        async def everywhere() -> bool:
            await self.refresh()
            isr = sorted(self.topic.partitions[0].isr)
            held = [len(await broker.fetch("t", 0, end + 1)) for broker in self.brokers.values()]
            return isr == [1, 2, 3] and held == [end + 1] * 3

        await until(everywhere)

    async def _ends(self) -> list[int]:
        return [await self[self.leader].end("t")]


@contextlib.asynccontextmanager
async def victims(zookeeper: str, data: Path, leader: int = 0, **settings: str) -> AsyncIterator[Victims]:
    made = Victims(zookeeper, data)
    try:
        await asyncio.gather(*(broker.start() for broker in made.brokers.values()))
        await until(lambda: _all_known(made))
        await made.prepare(leader, **settings)
        yield made
    finally:
        await asyncio.gather(*(broker.abandon() for broker in made.brokers.values()))
        for coordination in made.coordination.values():
            coordination.lingers = False
            await coordination.stop()


async def _all_known(made: Victims) -> bool:
    answers = [await broker.metadata() for broker in made.brokers.values()]
    return all(len(answer.brokers) == 3 for answer in answers)


# ---------------------------------------------------------------- the stranger's voice


class Stranger:
    """Speaks to that broker, as any broker it likes: it knows all but the secret."""

    def __init__(self, cluster: Victims, to: int) -> None:
        self._cluster = cluster
        self._to = to
        self.address = cluster[to].address

    async def _as(self, broker: int, incarnation: int) -> PeerProof:
        cluster_id = await self._cluster.coordination[self._to].cluster_id()
        return PeerProof(broker, incarnation, cluster_id, secrets.token_bytes(32))

    async def ask(self, method: str, request: Any) -> list[TritonMQError]:
        """The errors of asking it as a client, and as a broker."""
        proof = (await self._as(1 + self._to % 3, 1)).call(PEER.path(method))
        shown: tuple[dict[str, Any], ...] = ({}, {"proof": pb.PeerCall()}, {"proof": proof})
        errors = []
        for each in shown:
            with pytest.raises(TritonMQError) as refused:
                await Channel(self.address).ask(method, request.SerializeToString(), DEADLINE_S, **each)
            errors.append(refused.value)
        return errors

    async def link(self, broker: int, incarnation: int, header: pb.LinkHeader, payload: bytes = b"") -> None:
        """Says that on a link in that broker's name, which is refused."""
        proof = await self._as(broker, incarnation)
        wire = await connect(self.address)
        try:
            async with asyncio.timeout(DEADLINE_S):
                mine = proof.hello(self._to)
                wire.write(Envelope(pb.LinkHeader(hello=mine)))
                theirs = await wire.hello()
                wire.write(Envelope(pb.LinkHeader(hello=pb.LinkHello(proof=proof.of_dialler(mine, theirs)))))
                wire.write(Envelope(header, (payload,) if payload else ()))
                await wire.listen(lambda _: None)
        except (PeerRefused, Unreachable):
            return
        finally:
            wire.close()
        raise AssertionError("it was let in")


async def say(cluster: Victims, to: int, header: pb.LinkHeader, payload: bytes = b"") -> None:
    """On links in the names of all brokers."""
    lives = await cluster.incarnations()
    for name in (0, 1, 2, 3):
        await Stranger(cluster, to).link(name, lives.get(name, 1), header, payload)


def entries(
    cluster: Victims, *, epoch: int, index: int, prev_epoch: int, speaker: int, incarnation: int
) -> tuple[pb.LinkHeader, bytes]:
    """One record that no leader wrote, as entry `index`."""
    payload = bytes(encode_batch(rows(666)))
    entry = Entry(index, min(epoch, (1 << 32) - 1), 1, Append(), uuid.uuid4().bytes, 1, len(payload), 1_000)
    frame = b"".join(map(bytes, encode(Place(cluster.topic.topic_id, 0), entry, (payload,)).parts))
    append = pb.AppendEntries(
        topic_id=cluster.topic.topic_id,
        partition=0,
        leader=speaker,
        incarnation=incarnation,
        leader_epoch=epoch,
        prev_index=index - 1,
        prev_epoch=prev_epoch,
        high_watermark=index,
        frame_bytes=[len(frame)],
        sequence=1,
    )
    return pb.LinkHeader(append=[append]), frame


# ---------------------------------------------------------------- the attacks


@real_time
async def test_a_far_publish_without_batches_does_not_make_rows_vanish(zookeeper: str, tmp_path: Path) -> None:
    async with victims(zookeeper, tmp_path) as cluster:
        line = await stage(cluster[cluster.leader], 0, 1, 2)
        await publish(cluster, pb.PublishRequest(topic="t", key=KEY, batch_id=(1 << 62)))
        await until(lambda: decided(cluster, line))
        assert await until(lambda: cluster[cluster.leader].numbers("t")) == [1, 2]


async def publish(cluster: Victims, request: pb.PublishRequest) -> None:
    """Asked of the leader, which refuses it."""
    as_client, *as_broker = await Stranger(cluster, cluster.leader).ask("Publish", request)
    assert isinstance(as_client, InvalidRequest)
    assert all(isinstance(error, PeerRefused) for error in as_broker)


async def decided(cluster: Victims, line: pb.StagedBatches) -> bool:
    for broker in cluster.brokers.values():
        with contextlib.suppress(TritonMQError):
            return bool((await decide(broker, 0, [line])).published)
    return False


@real_time
async def test_staged_rows_are_not_published_by_a_stranger_before_their_decision(
    zookeeper: str, tmp_path: Path
) -> None:
    async with victims(zookeeper, tmp_path) as cluster:
        line = await stage(cluster[cluster.leader], 0, 1, 2)
        await publish(cluster, pb.PublishRequest(topic="t", key=KEY, batch_id=0, uuids=line.uuids))
        assert await cluster[cluster.leader].end("t") == 0
        assert await until(lambda: decided(cluster, line))
        assert await until(lambda: cluster[cluster.leader].numbers("t")) == [1, 2]


@real_time
async def test_no_broker_ends_by_an_entry_that_does_not_follow(zookeeper: str, tmp_path: Path) -> None:
    async with victims(zookeeper, tmp_path) as cluster:
        for target in cluster.brokers:
            speaker = 1 + target % 3
            life = (await cluster.incarnations())[speaker]
            await say(
                cluster,
                target,
                *entries(
                    cluster, epoch=cluster.epoch + 1, index=1_001, prev_epoch=-1, speaker=speaker, incarnation=life
                ),
            )
        await cluster.are_well()


@real_time
async def test_no_partition_ends_by_an_absurd_epoch(zookeeper: str, tmp_path: Path) -> None:
    async with victims(zookeeper, tmp_path) as cluster:
        await cluster[cluster.leader].produce("t", 1)
        for target in cluster.brokers:
            speaker = 1 + target % 3
            life = (await cluster.incarnations())[speaker]
            await say(
                cluster,
                target,
                *entries(
                    cluster,
                    epoch=(1 << 32) - 1,
                    index=3,
                    prev_epoch=cluster.epoch,
                    speaker=speaker,
                    incarnation=life,
                ),
            )
        await cluster.are_well()


@real_time
async def test_nothing_is_acknowledged_in_the_names_of_dead_followers(zookeeper: str, tmp_path: Path) -> None:
    async with victims(zookeeper, tmp_path, leader=3, min_insync_replicas="2") as cluster:
        await cluster[3].produce("t", 1)
        lives = await cluster.incarnations()
        for follower in cluster.followers:
            cluster.coordination[follower].lingers = True
            await cluster[follower].abandon()
        producing = asyncio.create_task(cluster[3].produce("t", 2))
        acks = [
            pb.AppendAck(
                topic_id=cluster.topic.topic_id,
                partition=0,
                follower=follower,
                incarnation=lives[follower],
                leader_epoch=cluster.epoch,
                acknowledged_index=index,
                matched_index=index,
                sequence=1 << 40,
            )
            for follower in cluster.followers
            for index in range(2, 6)
        ]
        for name in (0, *cluster.followers):
            await Stranger(cluster, 3).link(name, lives.get(name, 1), pb.LinkHeader(ack=acks))
        for follower in cluster.followers:
            cluster.coordination[follower].lingers = False
            await cluster.coordination[follower].stop()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(2.0):
                await asyncio.shield(asyncio.wait([producing]))
        if producing.done():
            with pytest.raises((NotEnoughReplicas, OutcomeUnknown)):
                producing.result()
        producing.cancel()


@real_time
async def test_readers_are_served_no_record_that_no_leader_wrote(zookeeper: str, tmp_path: Path) -> None:
    async with victims(zookeeper, tmp_path, leader=1) as cluster:
        await cluster[1].produce("t", 1)
        lives = await cluster.incarnations()
        for target in cluster.followers:
            header, frame = entries(
                cluster, epoch=cluster.epoch, index=3, prev_epoch=cluster.epoch, speaker=1, incarnation=lives[1]
            )
            header.append[0].prev_index = 2
            await say(cluster, target, header, frame)
        for follower in cluster.followers:
            with pytest.raises(TritonMQError):
                await cluster[follower].fetch("t", 1, 2)
        await cluster.are_well()
        assert 666 not in await cluster[cluster.leader].numbers("t")


@real_time
async def test_a_hello_of_a_far_life_does_not_part_two_brokers(zookeeper: str, tmp_path: Path) -> None:
    async with victims(zookeeper, tmp_path, leader=1) as cluster:
        for target in (2, 3):
            await Stranger(cluster, target).link(1, 1 << 60, pb.LinkHeader(beat=pb.LinkBeat()))
        await cluster.are_well()


# ---------------------------------------------------------------- what holds of brokers too


@real_time
async def test_a_publish_that_names_no_batch_is_refused_of_a_broker_too(zookeeper: str, tmp_path: Path) -> None:
    async with victims(zookeeper, tmp_path, leader=3) as cluster:
        service = cluster.coordination[1]
        secret = await service.peer_secret()
        assert secret is not None
        calls = Calls(PeerProof(1, (await cluster.incarnations())[1], await service.cluster_id(), secret))
        line = await stage(cluster[3], 0, 1)
        address = cluster[3].address
        for uuids, refused in (([], True), (line.uuids, False)):
            request = pb.PublishRequest(topic="t", key=KEY, batch_id=0, uuids=uuids)
            expected = pytest.raises(InvalidRequest, match="names none") if refused else contextlib.nullcontext()
            with expected:
                deadline = asyncio.get_running_loop().time() + DEADLINE_S
                await calls.ask(address, "Publish", request, pb.PublishResponse, deadline)
        await calls.close()
        assert await cluster[3].numbers("t") == [1]


@virtual_time
async def test_a_partition_whose_log_holds_an_absurd_epoch_is_healed_by_force(tmp_path: Path) -> None:
    async with standalone(tmp_path) as broker:
        topic = await broker.create_topic("t")
        await broker.produce("t", 1)
    write_behind(tmp_path, topic.topic_id, Entry(3, (1 << 31) - 2, 1_000, MoveCursor("g", 1, "consumer")))
    async with standalone(tmp_path) as broker:
        request = pb.RecoverRequest(topic="t", partition=0, force=True)
        await until(lambda: broker.ask("Recover", request))
        await until(lambda: broker.produce("t", 2))
        assert await broker.numbers("t") == [1, 2]


def write_behind(data: Path, topic_id: str, entry: Entry) -> None:
    """Add the entry to the journal of partition 0, whose broker does not run."""
    [segment] = [path for path in data.rglob("*.log") if topic_id in str(path)]
    with segment.open("ab") as file:
        file.write(b"".join(map(bytes, encode(Place(topic_id, 0), entry).parts)))
