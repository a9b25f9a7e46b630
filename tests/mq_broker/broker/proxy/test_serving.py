"""Two brokers and a proxy in this process, and clients that speak with the proxy alone."""

from __future__ import annotations

import asyncio
import contextlib
import gc
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, TypeVar

import pytest

from mq_broker.broker import BrokerConfig
from mq_broker.broker.config import Role
from mq_broker.broker.proxy.holding import REQUEST_BYTES, Holding
from mq_broker.coordination.service import CoordinationService
from mq_broker.coordination.zookeeper import ZooKeeperStore
from mq_client import Admin, Consumer, Producer, Queue, Reader
from mq_dev.certificates import write_broker
from mq_protocol import mq_pb2 as pb
from mq_protocol.errors import InvalidSetting, PermissionDenied, UnknownTopic, Unreachable
from tests.cluster.harness import wait_until
from tests.coroutines import real_time
from tests.mq_broker.broker.cluster import DEADLINE_S, Broker, until
from tests.mq_broker.broker.test_forwarding import (
    ETL,
    MALLORY,
    Pair,
    _is,
    _with_a_token,
    allow,
    pair,
    take_away,
)
from tests.mq_broker.broker.test_taking_rights_away import rule
from tests.mq_broker.coordination.wire import LASTING_MS
from tests.securing import HOST

ID = 9
T = TypeVar("T")


@contextlib.asynccontextmanager
async def proxied(
    zookeeper: str, data: Path, *, secure: bool = True, number: int = ID, **fields: Any
) -> AsyncIterator[Pair]:
    """As `pair`, with a proxy before it: `made.to(at=ID)` is a client of that."""
    async with pair(zookeeper, data, secure=secure) as made:
        if made.certs is not None:
            write_broker(made.certs.authority, made.certs.path, number, (HOST,))
        made.coordination[ID] = CoordinationService(ZooKeeperStore(zookeeper, LASTING_MS, root=made.root))
        config = BrokerConfig(
            number,
            f"{HOST}:0",
            data / "proxy",
            certs=made.certs.path if made.certs else None,
            coordination=lambda: made.coordination[ID],
            role=Role.PROXY,
            **fields,
        )
        proxy = made.brokers[ID] = Broker(config)
        await proxy.start()
        try:
            await until(lambda: made.leads("t", 2))
            yield made
        finally:
            del made.brokers[ID]
            await proxy.stop()


@real_time
async def test_a_client_that_names_no_broker_reaches_the_leader(zookeeper: str, tmp_path: Path) -> None:
    async with proxied(zookeeper, tmp_path, secure=False) as made, made.to(at=ID) as client:
        told = await client.metadata("t")
        assert sorted(broker.id for broker in told.brokers) == [1, 2], "the proxy is none of them"
        assert told.topics[0].partitions[0].leader == 2
        await client.produce("t", 1, 2)
        assert await client.numbers("t") == [1, 2]
        async with client.subscribing() as subscription:
            await subscription.open("t", earliest=True)
            assert await subscription.read_numbers(2) == [1, 2]
            await client.produce("t", 3)
            assert await subscription.read_numbers(3) == [1, 2, 3]
        await client.create_topic("u")
        assert (await client.ask("Observe", pb.ObserveRequest())).broker in (1, 2)
        for number in (1, 2):
            async with made.to(at=ID, forward=made[number].address) as meant:
                assert (await meant.ask("Observe", pb.ObserveRequest())).broker == number


@real_time
async def test_nobody_counts_a_proxy_and_it_leaves_nothing_behind(zookeeper: str, tmp_path: Path) -> None:
    async with proxied(zookeeper, tmp_path, secure=False) as made:
        assert sorted(await made.coordination[1].brokers()) == [1, 2]
        async with made.to(at=ID) as client:
            with pytest.raises(Exception, match="3"):
                await client.create_topic("three", replicas=3)
            await client.create_topic("two", partitions=6, replicas=2)

            async def told() -> Any:
                return (await client.metadata("two")).topics

            [topic] = await until(told)
            assert {n for partition in topic.partitions for n in partition.replicas} == {1, 2}
    assert not (tmp_path / "proxy").exists()


def test_every_python_client_works_through_it_alone(zookeeper: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with proxied(zookeeper, tmp_path, secure=False) as made:
            await asyncio.to_thread(works, made[ID].address)

    def works(address: str) -> None:
        with Admin(address, forward=True) as admin:
            admin.create_topic("n", partitions=3, schema="n long")
            admin.declare_queue("n", "workers")
            assert sorted(broker.id for broker in admin.observe("broker").brokers) == [1, 2]
        with Producer(address, forward=True) as producer:
            for number in range(30):
                producer.publish("n", {"n": number}, partition=number % 3).result(DEADLINE_S)
        with Reader(address, forward=True) as reader:
            found = [
                n
                for partition in range(3)
                for rows in reader.read("n", partition)
                for n in rows.column("n").to_pylist()
            ]
        assert sorted(found) == list(range(30))
        for group in (None, "g"):
            with Consumer(address, group=group, start="earliest", idle_ms=60_000, forward=True) as consumer:
                consumer.subscribe("n")
                taken = iter(consumer)
                assert sorted(next(taken).value["n"] for _ in range(30)) == list(range(30))
        with Queue(address, "n", "workers", idle_ms=60_000, forward=True) as queue:
            next(iter(queue)).ack()

    asyncio.run(main())


def every(kind: type[T]) -> list[T]:
    """Those in this process. While they are held here, none of a former test is let go and replaced by another."""
    gc.collect()
    return [each for each in gc.get_objects() if isinstance(each, kind)]


def new(kind: type[T], former: list[T]) -> T:
    """The one that was made since."""
    [found] = [each for each in every(kind) if not any(each is other for other in former)]
    return found


async def _leader(client: Broker, topic: str) -> int:
    return (await client.metadata(topic)).topics[0].partitions[0].leader


@real_time
async def test_a_request_is_held_while_the_leader_is_away(zookeeper: str, tmp_path: Path) -> None:
    """Its broker is started again; nobody else may lead."""
    former = every(Holding)
    async with proxied(zookeeper, tmp_path, secure=False) as made, made.to(at=ID) as client:
        await client.create_topic("alone", replicas=1, durability="os")
        await client.produce("alone", 1)
        leader = await until(lambda: _leader(client, "alone"))
        await made[leader].abandon()
        holding = new(Holding, former)
        held = [
            asyncio.create_task(client.produce("alone", 2, timeout_ms=30_000)),
            # Once it is passed on, the next leader may not be ready yet, and says to ask again
            asyncio.create_task(until(lambda: client.end("alone"))),
        ]
        await until(lambda: _is(lambda: len(holding._of) == 1 and holding.bytes > 2 * REQUEST_BYTES))
        assert not any(task.done() for task in held)
        made.coordination[leader] = CoordinationService(ZooKeeperStore(zookeeper, LASTING_MS, root=made.root))
        await made[leader].start()
        await asyncio.gather(*held)
        assert await client.numbers("alone") == [1, 2]


@real_time
async def test_rights_are_judged_here_and_there_by_the_users_own_name(zookeeper: str, tmp_path: Path) -> None:
    async with proxied(zookeeper, tmp_path) as made:
        await allow(made, rule("Write"), rule("Read"), rule("Read", name="u", who=MALLORY))
        async with made.to(at=ID, user="etl") as etl, made.to(at=ID, user="mallory") as mallory:
            await etl.produce("t", 1, 2, 3)
            with pytest.raises(UnknownTopic):
                await mallory.fetch("t", 0, 3)
            with pytest.raises(PermissionDenied, match=MALLORY):
                await mallory.ask("Upgrade", pb.UpgradeRequest())
            async with etl.subscribing() as subscription:
                await subscription.open("t", earliest=True)
                assert await subscription.read_numbers(3) == [1, 2, 3]
                await take_away(made, rule("Read"))
                assert isinstance(await subscription.call.error(), PermissionDenied)
        assert made.certs is not None
        security, _ = await asyncio.to_thread(_with_a_token, made)
        await allow(made, rule("Read"), rule("Read", "Group", "g"))
        await asyncio.to_thread(_reads_by_token, made[ID].address, security)
        audit_log = tmp_path / "proxy" / "audit.log"
        await asyncio.to_thread(wait_until, lambda: ETL in audit_log.read_text(), "the proxy notes who was refused")
        assert sorted(each.name for each in (tmp_path / "proxy").iterdir()) == ["audit.log"]


def _reads_by_token(port: str, security: Any) -> None:
    with Reader(port, security=security, forward=True) as reader:
        assert [n for batch in reader.read("t", 0) for n in batch.column("n").to_pylist()] == [1, 2, 3]


@real_time
async def test_an_id_that_is_a_brokers_is_refused(zookeeper: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidSetting, match=r"broker 2 is registered .* --id of its own"):
        async with proxied(zookeeper, tmp_path, secure=False, number=2):
            pass


@real_time
async def test_without_brokers_it_says_so(zookeeper: str, tmp_path: Path) -> None:
    config = BrokerConfig(
        ID,
        f"{HOST}:0",
        tmp_path,
        coordination=lambda: CoordinationService(ZooKeeperStore(zookeeper, LASTING_MS, root="/proxy-alone")),
        role=Role.PROXY,
    )
    proxy = await Broker(config).start()
    try:
        with pytest.raises(Unreachable, match="proxy 9 reaches no broker"):
            await proxy.metadata()
    finally:
        await proxy.stop()


@pytest.mark.parametrize(
    "fields",
    [
        {"http": f"{HOST}:0"},
        {"flight": f"{HOST}:0"},
        {"rack": "a"},
        {"peer_advertised": f"{HOST}:1"},
        {"encrypt": "file:/keys"},
        {"hold_max": -1},
        {"zookeeper": ""},
    ],
)
def test_what_a_proxy_does_not_have_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(InvalidSetting, match="--"):
        BrokerConfig(ID, f"{HOST}:0", Path("data"), role=Role.PROXY, **{"zookeeper": "127.0.0.1:2181", **fields})
