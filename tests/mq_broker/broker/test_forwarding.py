"""Two brokers in this process, and clients that speak with the first one alone: what they may do through it, and what
they may not."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from mq_broker.broker import BrokerConfig
from mq_broker.coordination.service import CoordinationService
from mq_broker.coordination.zookeeper import ZooKeeperStore
from mq_broker.measured import FORWARDED, STREAMS
from mq_broker.rpc.peer_proof import PeerProof
from mq_broker.rpc.wire import lines
from mq_client import Admin, Consumer, Producer, Reader, Security, UnknownTopic
from mq_protocol import mq_pb2 as pb
from mq_protocol.access.pem import CA_FILE
from mq_protocol.arrow import encode_batch
from mq_protocol.errors import (
    NotAuthenticated,
    NotLeader,
    PeerRefused,
    PermissionDenied,
    TritonMQError,
    Unreachable,
)
from mq_protocol.methods import BROKER
from mq_protocol.wire.envelope import decode
from mq_protocol.wire.error_messages import from_wire
from tests.coroutines import real_time
from tests.mq_broker.broker.by_token import Shown
from tests.mq_broker.broker.cluster import DEADLINE_S, Broker, rows, unpack, until
from tests.mq_broker.broker.test_taking_rights_away import rule
from tests.mq_broker.coordination.wire import LASTING_MS
from tests.securing import HOST, Certs

ETL, MALLORY = "User:etl", "User:mallory"


class Pair:
    """Brokers 1 and 2 of one cluster."""

    def __init__(self, zookeeper: str, data: Path, certs: Certs | None, **fields: Any) -> None:
        self.root = f"/forwarding-{uuid.uuid4().hex}"
        self.certs = certs
        made = (CoordinationService(ZooKeeperStore(zookeeper, LASTING_MS, root=self.root)) for _ in range(2))
        self.coordination = dict(enumerate(made, start=1))
        self.brokers = {
            n: Broker(
                BrokerConfig(
                    n,
                    f"{HOST}:0",
                    data / str(n),
                    certs=certs.path if certs else None,
                    stop_timeout_ms=2_000,
                    coordination=lambda n=n: self.coordination[n],  # type: ignore[misc]
                    **fields,
                )
            )
            for n in (1, 2)
        }

    def __getitem__(self, broker: int) -> Broker:
        return self.brokers[broker]

    def to(self, *, at: int = 1, user: str = "", **shown: Any) -> Shown:
        """Calls by hand to a broker. `user`: whose certificate is shown; none in plain text. `shown`: what each call
        carries."""
        if self.certs is None:
            return Shown(self[at].address, **shown)
        return Shown(self[at].address, self.certs.tls(self.certs.user(user) if user else None), **shown)

    def for_two(self, user: str = "", **shown: Any) -> Shown:
        """To broker 1, each meant for broker 2."""
        return self.to(user=user, forward=self[2].address, **shown)

    async def leads(self, topic: str, broker: int) -> bool:
        """Whether the topic, of one partition, is led by that broker, and each has heard of it. Else whoever leads is
        asked to hand over."""
        heard = []
        for number in self.brokers:
            async with self.to(at=number, user="admin") as admin:
                heard += [known.partitions[0].leader for known in (await admin.metadata(topic)).topics]
        if heard == [broker] * len(self.brokers):
            async with self.to(at=broker, user="admin") as there:
                return await there.end(topic) >= 0
        leader = next((number for number in heard if number in self.brokers and number != broker), 0)
        if leader:
            async with self.to(at=leader, user="admin") as here:
                await here.ask("Lead", pb.LeadRequest(topic=topic, broker=broker, timeout_ms=10_000))
        return False


@contextlib.asynccontextmanager
async def pair(zookeeper: str, data: Path, *, secure: bool = True, **fields: Any) -> AsyncIterator[Pair]:
    """There is a topic `t` on both, led by broker 2."""
    certs = Certs(data / "certs", 1, 2) if secure else None
    made = Pair(zookeeper, data, certs, **fields)
    started: list[Broker] = []
    patch = pytest.MonkeyPatch()
    patch.setattr(lines, "CONNECT_S", DEADLINE_S)  # who asks here asks once
    try:
        for broker in made.brokers.values():
            await broker.start()
            started.append(broker)
        async with made.to(user="admin") as admin:
            await until(lambda: _knows_both(admin))
            await admin.create_topic("t", replicas=2)
            await until(lambda: made.leads("t", 2))
        yield made
    finally:
        for broker in reversed(started):
            await broker.stop()
        patch.undo()


async def _knows_both(broker: Broker) -> bool:
    return len((await broker.metadata()).brokers) == 2


async def allow(made: Pair, *rules: pb.AclRule) -> None:
    """Returns once they are in force at each process, as the command does."""
    async with made.to(user="admin") as admin:
        await admin.ask("AlterAcls", pb.AlterAclsRequest(add=rules))
    for number in made.brokers:
        async with made.to(at=number, user="admin") as admin:
            await admin.ask("Acls", pb.AclsRequest(principal=ETL))  # whoever is asked reads them


async def take_away(made: Pair, *rules: pb.AclRule) -> None:
    """Returns once they are out of force at broker 1. The others hear of it."""
    async with made.to(user="admin") as admin:
        await admin.ask("AlterAcls", pb.AlterAclsRequest(remove=rules))


@real_time
async def test_a_call_is_answered_by_the_broker_that_is_meant(zookeeper: str, tmp_path: Path) -> None:
    async with pair(zookeeper, tmp_path, secure=False) as made:
        before = FORWARDED.rows().get(("Observe",), 0)
        async with made.to() as one, made.for_two() as two:
            for asked, number in ((one, 1), (two, 2)):
                answer = await asked.ask("Observe", pb.ObserveRequest())
                assert answer.broker == number
                assert (await asked.metadata("t")).answered_by == number
            with pytest.raises(NotLeader) as error:
                await one.produce("t", 1)
            assert error.value.leader == 2
            await two.produce("t", 1, 2)
            assert await two.numbers("t") == [1, 2]
            async with two.subscribing() as subscription:
                await subscription.open("t", earliest=True)
                assert await subscription.read_numbers(2) == [1, 2]
                await two.produce("t", 3)
                assert await subscription.read_numbers(3) == [1, 2, 3]
        async with made.to(forward=made[1].address) as itself:
            assert (await itself.ask("Observe", pb.ObserveRequest())).broker == 1
        assert FORWARDED.rows()[("Observe",)] == before + 1


@real_time
async def test_the_error_is_that_of_the_broker_that_is_meant(zookeeper: str, tmp_path: Path) -> None:
    async with (
        pair(zookeeper, tmp_path, secure=False) as made,
        made.to(at=2) as directly,
        made.for_two() as passed_on,
    ):
        await directly.produce("t", 1)
        said = []
        for asked in (directly, passed_on):
            with pytest.raises(TritonMQError) as error:
                await asked.fetch("t", 7, 9)
            said.append((type(error.value), str(error.value), vars(error.value)))
            with pytest.raises(TritonMQError) as error:
                await asked.ask("DeleteTopic", pb.DeleteTopicRequest(name="no such topic"))
            said.append((type(error.value), str(error.value), vars(error.value)))
        assert said[:2] == said[2:]


@real_time
async def test_a_broker_that_is_not_there_is_as_one_that_cannot_be_reached(zookeeper: str, tmp_path: Path) -> None:
    async with pair(zookeeper, tmp_path, secure=False) as made:
        for address in ("127.0.0.1:1", "elsewhere.example:7400", "x" * 5_000):
            async with made.to(forward=address) as lost:
                with pytest.raises(Unreachable, match="metadata"):
                    await lost.ask("Observe", pb.ObserveRequest())
        async with made.for_two() as two:
            await two.produce("t", 1)
            async with two.producing() as stream, two.subscribing() as subscription:
                await stream.send("t", encode_batch(rows(2)), 1)
                assert not (await stream.result()).HasField("error")
                await subscription.open("t")
                await subscription.read_opened()
                await made[2].abandon()
                for call in (stream.call, subscription.call):
                    assert isinstance(await call.error(), Unreachable)
            with pytest.raises(Unreachable):
                await two.ask("Observe", pb.ObserveRequest())


@real_time
async def test_a_stream_that_the_client_breaks_off_ends_at_both_brokers(zookeeper: str, tmp_path: Path) -> None:
    async with pair(zookeeper, tmp_path, secure=False) as made, made.for_two() as two:
        before = STREAMS.rows().get(("Subscribe",), 0)
        async with two.subscribing() as subscription:
            await subscription.open("t")
            await subscription.read_opened()
            assert STREAMS.rows()[("Subscribe",)] == before + 2
        await until(lambda: _is(lambda: STREAMS.rows()[("Subscribe",)] == before))
        async with two.subscribing() as subscription:  # and one that ends as it should, too
            await subscription.open("t")
            await subscription.read_opened()
            await subscription.call.end()
            async with asyncio.timeout(DEADLINE_S):
                assert await subscription.call.read() is None
        await until(lambda: _is(lambda: STREAMS.rows()[("Subscribe",)] == before))


async def _is(condition: Callable[[], bool]) -> bool:
    return condition()


# ------------------------------------------------------------------ who asks


@real_time
async def test_both_brokers_know_who_asks_and_judge_it(zookeeper: str, tmp_path: Path) -> None:
    async with pair(zookeeper, tmp_path) as made:
        await allow(made, rule("Write"), rule("Read", name="u"), rule("Read", name="u", who=MALLORY))
        async with made.for_two("etl") as etl, made.for_two("mallory") as mallory:
            await etl.produce("t", 1, 2, 3)
            with pytest.raises(PermissionDenied, match=ETL):
                await etl.fetch("t", 0, 3)
            with pytest.raises(UnknownTopic):
                await mallory.fetch("t", 0, 3)
            with pytest.raises(PermissionDenied, match=MALLORY):
                await mallory.ask("Upgrade", pb.UpgradeRequest())


@real_time
async def test_who_shows_a_token_is_known_by_it_at_the_other_broker(zookeeper: str, tmp_path: Path) -> None:
    async with pair(zookeeper, tmp_path) as made:
        assert made.certs is not None
        security, token = await asyncio.to_thread(_with_a_token, made)
        await allow(made, rule("Write"), rule("Read"), rule("Read", "Group", "g"))
        await asyncio.to_thread(_writes_and_reads, made, security)
        async with made.for_two(token=token) as client, client.subscribing() as subscription:
            await subscription.open("t", earliest=True)
            await subscription.read_opened()
            await asyncio.to_thread(_revoked, made)
            assert str(await subscription.call.error()) == "not authenticated"


def _with_a_token(made: Pair) -> tuple[Security, str]:
    assert made.certs is not None
    with Admin(made[1].address, security=made.certs.user("admin")) as admin:
        token = admin.create_user("etl", 3_600).secret.reveal()
    return Security(ca=made.certs.path / CA_FILE, token=token), token


def _revoked(made: Pair) -> None:
    assert made.certs is not None
    with Admin(made[1].address, security=made.certs.user("admin")) as admin:
        admin.delete_user("etl")


def _writes_and_reads(made: Pair, security: Security) -> None:
    """At broker 1 alone, and the topic led by broker 2."""
    how: dict[str, Any] = {"security": security, "forward": True}
    port = made[1].address
    with Producer(port, **how) as producer:
        assert producer.publish("t", {"n": 7, "s": "seven"}).result(DEADLINE_S).offset == 0
    with Reader(port, **how) as reader:
        assert [row for batch in reader.read("t", 0) for row in batch.column("n").to_pylist()] == [7]
    with Consumer(port, group="g", start="earliest", idle_ms=20_000, **how) as consumer:
        consumer.subscribe("t")
        assert next(iter(consumer)).offset == 0


@real_time
async def test_a_client_cannot_say_that_it_is_somebody_else(zookeeper: str, tmp_path: Path) -> None:
    """Even if it knew the secret of the cluster: what is passed on comes from a broker's certificate alone."""
    async with pair(zookeeper, tmp_path) as made:
        coordination = made.coordination[1]
        secret, registered = await coordination.peer_secret(), await coordination.brokers()
        assert secret is not None
        proof = PeerProof(2, registered[2].incarnation, await coordination.cluster_id(), secret)
        path, admin = BROKER.path("Upgrade"), pb.ForwardedFor(principal="User:admin")
        for user, told in (("mallory", MALLORY), ("", "neither a certificate nor a token was shown")):
            async with made.to(user=user, passed_on=proof.forwarded(path, 1, admin)) as there:
                with pytest.raises(TritonMQError, match=told) as refused:
                    await there.ask("Upgrade", pb.UpgradeRequest())
                assert isinstance(refused.value, PeerRefused | NotAuthenticated)
        false = pb.ForwardedCall()
        false.CopyFrom(proof.forwarded(path, 1, admin))
        false.proof = bytes(32)
        async with made.to(user="admin", passed_on=false) as there:
            with pytest.raises(PeerRefused, match="the proof is wrong"):
                await there.ask("Upgrade", pb.UpgradeRequest())


@real_time
async def test_a_right_that_is_taken_away_is_gone_on_streams_that_are_passed_on(zookeeper: str, tmp_path: Path) -> None:
    async with pair(zookeeper, tmp_path) as made:
        await allow(made, rule("Write"), rule("Read"), rule("Describe"))
        async with made.for_two("etl") as etl, etl.producing() as stream, etl.subscribing() as subscription:
            await stream.send("t", encode_batch(rows(1)), 1)
            assert not (await stream.result()).HasField("error")
            await subscription.open("t", earliest=True)
            assert await subscription.read_numbers(1) == [1]
            await take_away(made, rule("Write"), rule("Read"))
            assert isinstance(await subscription.call.error(), PermissionDenied)
            await stream.send("t", encode_batch(rows(2)), 1)
            assert isinstance(from_wire((await stream.result()).error), PermissionDenied)
            await allow(made, rule("Write"))

            async def writes_again() -> bool:
                await stream.send("t", encode_batch(rows(3)), 1)
                return not (await stream.result()).HasField("error")

            await until(writes_again)


# ------------------------------------------------------------------ bounds


@real_time
async def test_who_reads_nothing_holds_little_of_the_memory_and_holds_nobody_up(zookeeper: str, tmp_path: Path) -> None:
    batches, batch_rows = 40, 60_000
    some_messages = 16 << 20
    async with pair(zookeeper, tmp_path, secure=False) as made, made.for_two() as two:
        for number in range(batches):
            await two.produce("t", *range(number * batch_rows, (number + 1) * batch_rows))
        end = batches * batch_rows
        request = pb.FetchRequest(topic="t", start_offset=0, end_offset=end)
        slow = await two.channel.begin("Fetch", request)
        data = await slow.read()
        assert data is not None
        first = unpack(decode(data, pb.BatchesHeader))
        found = await two.fetch("t", 0, end)
        assert sum(stored.record_count for stored, _ in found) == end, "another one is not held up"
        async with made.to() as one:
            held = (await one.ask("Observe", pb.ObserveRequest())).values["client_memory_bytes"]
        assert 0 < held <= some_messages
        assert sum(stored.payload_bytes for stored, _ in found) > 2 * some_messages
        left = [*first]
        while (data := await slow.read()) is not None:
            left += unpack(decode(data, pb.BatchesHeader))
        assert left == found
