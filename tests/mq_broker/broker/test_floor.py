"""The security floor: raised where every broker offers it, kept by brokers that start, run, and come back, and lowered
only by whoever may."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import shutil
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from kazoo.client import KazooClient
from kazoo.security import OPEN_ACL_UNSAFE

from mq_broker.broker import BrokerConfig
from mq_broker.broker.administration.rights.floor import Floor
from mq_broker.broker.metadata.brokers import Cluster
from mq_broker.coordination.credential import Credential
from mq_broker.coordination.file import FileStore
from mq_broker.coordination.interface import (
    BrokerRegistration,
    CoordinationEvent,
    SecurityDocuments,
)
from mq_broker.coordination.service import CoordinationService
from mq_broker.coordination.store import Make, Put
from mq_broker.coordination.zookeeper import ZooKeeperStore
from mq_broker.security.names import Principal
from mq_dev.embedded_zookeeper import free_port
from mq_protocol import mq_pb2 as pb
from mq_protocol.errors import CoordinationUnavailable, InvalidRequest, InvalidSetting, PermissionDenied
from mq_protocol.versions import ours
from tests.coroutines import real_time, virtual_time
from tests.mq_broker.broker.cluster import DEADLINE_S, Broker, shared, until
from tests.mq_broker.broker.principals import ROOT, As, judging, named  # noqa: F401 - a fixture
from tests.mq_broker.broker.test_versions import Registered
from tests.mq_broker.coordination.wire import LASTING_MS, Heard
from tests.securing import HOST, Certs
from tests.virtual.world import the_world

Making = Callable[[], CoordinationService]
ROOT_NODE = "/floor"


def alter(add: tuple[str, ...] = (), remove: tuple[str, ...] = (), *, force: bool = False) -> Any:
    return pb.AlterSecurityFloorRequest(add=add, remove=remove, force=force)


async def floor_of(who: Broker) -> list[str]:
    return list((await who.ask("SecurityFloor", pb.SecurityFloorRequest())).demands)


async def does_not_start(config: BrokerConfig, error: type[Exception], match: str) -> None:
    broker = Broker(config)
    try:
        with pytest.raises(error, match=match):
            await broker.start()
    finally:
        await broker.abandon()


async def ended(broker: Broker) -> BaseException | None:
    """What a broker ended with by itself."""
    assert broker._task is not None
    await asyncio.wait({broker._task}, timeout=DEADLINE_S)
    assert broker._task.done(), "it still runs"
    task, broker._task = broker._task, None
    return task.exception()


def a_broker(number: int, data: Path, make: Making, **settings: Any) -> BrokerConfig:
    return BrokerConfig(number, f"{HOST}:0", data, superusers=(Principal.parse(ROOT),), coordination=make, **settings)


@contextlib.asynccontextmanager
async def running(*configs: BrokerConfig) -> AsyncIterator[list[Broker]]:
    async with contextlib.AsyncExitStack() as undo:
        brokers = []
        for config in configs:
            broker = Broker(config)
            undo.push_async_callback(broker.stop)
            brokers.append(await broker.start())
        yield brokers


@pytest.mark.usefixtures("named")
@virtual_time
async def test_only_who_may_lowers_the_floor_and_a_broker_below_does_not_start(tmp_path: Path) -> None:
    async with judging(tmp_path) as broker:
        root, etl = As(broker, ROOT), As(broker, "User:etl")
        for method, request in (
            ("SecurityFloor", pb.SecurityFloorRequest()),
            ("AlterSecurityFloor", alter(add=("authorize",))),
        ):
            with pytest.raises(PermissionDenied):
                await etl.ask(method, request)
        answer = await root.ask("AlterSecurityFloor", alter(add=("authorize",)))
        assert (list(answer.before), list(answer.demands)) == ([], ["authorize"])
        assert list((await root.metadata()).security_floor) == ["authorize"]
        with pytest.raises(PermissionDenied):
            await etl.ask("AlterSecurityFloor", alter(remove=("authorize",)))
        config = broker.config
    below = dataclasses.replace(config, authorize=False)
    await does_not_start(below, InvalidSetting, "does not offer authorize: start it .* or with --authorize ")
    async with running(config) as (broker,):
        root = As(broker, ROOT)
        assert await floor_of(root) == ["authorize"]
        await root.ask("AlterSecurityFloor", alter(remove=("authorize",)))
        assert await floor_of(root) == []
    async with running(below) as (broker,):
        assert await floor_of(broker) == []
    lines = (tmp_path / "audit.log").read_text()
    assert '"authorize -> nothing"' in lines
    assert lines.count('"User:etl"') == 3  # what was denied


@pytest.mark.usefixtures("named")
@virtual_time
async def test_what_cannot_be_demanded_is_refused_whole(tmp_path: Path) -> None:
    async with judging(tmp_path) as broker:
        root = As(broker, ROOT)
        for request, told in (
            (alter(), "nothing is named"),
            (alter(add=("authorize", "autorize")), "did you mean 'authorize'"),
            (alter(add=("authorize", "tls")), "broker 1 does not offer tls. To offer it, start it with --certs"),
            (alter(add=("authorize", "zk_auth")), "--zookeeper-auth"),
            (alter(add=("authorize",), remove=("authorize",)), "choose one"),
        ):
            with pytest.raises(InvalidRequest, match=told):
                await root.ask("AlterSecurityFloor", request)
            assert await floor_of(root) == []


@real_time
async def test_no_port_in_plain_text_is_served_where_tls_is_demanded(tmp_path: Path) -> None:
    certs = Certs(tmp_path / "certs", 1)
    root = Principal.parse("User:admin")
    data = CoordinationService(FileStore(tmp_path / "data"))
    await data.start(Heard())
    await data.security.write({"floor": (-1, b'{"demands":["tls","authorize"]}')})
    await data.stop()
    secure = BrokerConfig(1, f"{HOST}:0", tmp_path / "data", certs=certs.path, superusers=(root,))
    beside = dataclasses.replace(secure, also_plaintext=f"{HOST}:0", authorize=True)
    plain = BrokerConfig(1, f"{HOST}:0", tmp_path / "data", authorize=True)
    for below in (beside, plain):
        await does_not_start(below, InvalidSetting, "offer tls: start it with --certs DIR and without --also-plaintext")
    with_tokens = dataclasses.replace(secure, grpc=f"{HOST}:0", grpc_token=f"{HOST}:0")  # over TLS, too
    measured = dataclasses.replace(secure, http=f"{HOST}:{free_port(HOST)}")  # and so are metrics
    for kept in (secure, with_tokens, measured):
        async with running(kept):
            pass


def test_a_copied_certificate_starts_no_broker_of_another_id(tmp_path: Path) -> None:
    """So a broker that has none of its own does not reach the floor with somebody else's."""
    certs = Certs(tmp_path / "certs", 1)
    shutil.copytree(certs.path / "broker.1", certs.path / "broker.2")
    config = BrokerConfig(2, f"{HOST}:0", tmp_path / "data", certs=certs.path)
    asyncio.run(does_not_start(config, InvalidSetting, "is the certificate of Broker:1, not of broker 2"))


@pytest.mark.usefixtures("named")
@virtual_time
async def test_one_broker_that_offers_less_or_is_absent_keeps_the_floor_down(tmp_path: Path) -> None:
    make = shared("", LASTING_MS, ROOT_NODE)
    first, second = (
        a_broker(1, tmp_path / "1", make, authorize=True),
        a_broker(2, tmp_path / "2", make),
    )
    async with running(first) as (broker,):
        root = As(broker, ROOT)
        async with running(second):
            await until(lambda: _live(broker, 2))
            await root.create_topic("t", replicas=2)
            with pytest.raises(InvalidRequest, match="broker 2 does not offer authorize"):
                await root.ask("AlterSecurityFloor", alter(add=("authorize",), force=True))
        await until(lambda: _live(broker, 1))
        with pytest.raises(InvalidRequest, match=r"brokers \[2\] hold replicas and are not registered"):
            await root.ask("AlterSecurityFloor", alter(add=("authorize",)))
        assert await floor_of(root) == []
        answer = await root.ask("AlterSecurityFloor", alter(add=("authorize",), force=True))
        assert (list(answer.demands), list(answer.absent)) == (["authorize"], [2])
        await does_not_start(second, InvalidSetting, "does not offer authorize")
        assert await _live(broker, 1)
        async with running(dataclasses.replace(second, authorize=True)):
            await until(lambda: _live(broker, 2))


async def _live(root: Broker, count: int) -> bool:
    return len((await root.metadata()).brokers) == count


@pytest.mark.usefixtures("named")
@virtual_time
async def test_a_broker_that_runs_below_the_floor_stops(tmp_path: Path) -> None:
    """As if it had been registered just when the floor was raised."""
    make = shared("", LASTING_MS, ROOT_NODE)
    async with contextlib.AsyncExitStack() as undo:
        below = Broker(a_broker(2, tmp_path / "2", make))
        undo.push_async_callback(below.abandon)
        await below.start()
        service = the_world().zookeeper(ROOT_NODE, 0)
        service.apply([Make("security/floor", b'{"demands":["authorize"]}'), Put("security/changes", b"")], None)
        error = await ended(below)
        assert isinstance(error, InvalidSetting), error


@pytest.mark.cluster
@real_time
async def test_nodes_that_others_may_write_are_refused_where_the_floor_demands_it(
    zookeeper: str, tmp_path: Path
) -> None:
    credential = tmp_path / "zookeeper.auth"
    Credential.make(credential)
    ours_ = Credential.read(credential)
    root = f"/{tmp_path.name}"
    make = lambda: CoordinationService(ZooKeeperStore(zookeeper, LASTING_MS, root=root, credential=ours_))  # noqa: E731
    config = dataclasses.replace(a_broker(1, tmp_path / "1", make), zookeeper_auth=credential)
    async with running(config) as (broker,):
        answer = await broker.ask("AlterSecurityFloor", alter(add=("zk_auth",)))
        assert list(answer.demands) == ["zk_auth"]
    with_auth = KazooClient(zookeeper, auth_data=[ours_.auth])
    await asyncio.to_thread(with_auth.start)
    await asyncio.to_thread(with_auth.set_acls, root, OPEN_ACL_UNSAFE)
    await does_not_start(config, InvalidSetting, "are open to others than its brokers: .* secure-zookeeper")
    await asyncio.to_thread(with_auth.set_acls, root, ours_.acl)
    async with running(config):
        pass
    with_auth.stop()
    with_auth.close()


@pytest.mark.cluster
@real_time
async def test_zk_auth_is_not_demanded_before_the_nodes_are_closed(zookeeper: str, tmp_path: Path) -> None:
    credential = tmp_path / "zookeeper.auth"
    Credential.make(credential)
    root = f"/{tmp_path.name}"
    begun = CoordinationService(ZooKeeperStore(zookeeper, LASTING_MS, root=root))  # without a credential, so open
    await begun.start(Heard())
    await begun.stop()
    make = lambda: CoordinationService(  # noqa: E731
        ZooKeeperStore(zookeeper, LASTING_MS, root=root, credential=Credential.read(credential))
    )
    config = dataclasses.replace(a_broker(1, tmp_path / "1", make), zookeeper_auth=credential)
    async with running(config) as (broker,):
        with pytest.raises(InvalidRequest, match="are not closed yet: `tritonmq cluster secure-zookeeper`"):
            await broker.ask("AlterSecurityFloor", alter(add=("zk_auth",)))


# ---------------------------------------------------------------- what is read


def documents(data: bytes | None) -> SecurityDocuments:
    return SecurityDocuments(1, {} if data is None else {"floor": (0, data)})


def a_floor(*reads: bytes | None) -> Floor:
    found = Floor(lambda: "closed", lambda: None)
    for each in reads:
        found.taken(documents(each))
    return found


RAISED = b'{"demands":["tls"]}'


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{}",
        b"[]",
        b"\xff",
        b'{"demands":"tls"}',
        b'{"demands":[1]}',
        b'{"demands":[""]}',
        b'{"demands":["tls"],"more":1}',
        b'{"demands":[' + b'"a",' * 100 + b'"a"]}',
    ],
)
def test_a_floor_that_cannot_be_read_keeps_a_broker_from_starting_and_leaves_one_that_runs_as_it_is(
    data: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(CoordinationUnavailable, match="the security document floor"):
        a_floor(data)
    assert a_floor(RAISED, data, data).demands == {"tls"}
    assert sum("stays as it was read last" in record.getMessage() for record in caplog.records) == 1


def test_a_floor_that_is_removed_past_us_stays(caplog: pytest.LogCaptureFixture) -> None:
    assert a_floor(RAISED, None, None).demands == {"tls"}
    assert sum("removed in ZooKeeper" in record.getMessage() for record in caplog.records) == 1
    assert a_floor(RAISED, b'{"demands":[]}', None).demands == frozenset()


def test_what_a_newer_release_demands_is_offered_by_nobody_and_can_be_taken_away(tmp_path: Path) -> None:
    found = a_floor(b'{"demands":["tls","quantum"]}')
    secure = BrokerRegistration(1, 1, "h:1", tls_address="h:1")
    assert found.missing(secure) == ["quantum"]
    with pytest.raises(InvalidSetting, match="'quantum' is unknown to this release"):
        found.check_here(secure)


@contextlib.asynccontextmanager
async def clustered(
    data: Path, me: BrokerRegistration, *others: BrokerRegistration
) -> AsyncIterator[tuple[Cluster, Floor, Registered]]:
    service = Registered(FileStore(data))
    service.others = others
    await service.start(Heard())
    cluster = Cluster(service, me, lambda: None, lambda: None)
    floor = cluster.demanding = Floor(lambda: "", cluster.read_again)

    async def read() -> None:
        floor.taken(await service.security.read())

    floor.read = read
    try:
        yield cluster, floor, service
    finally:
        await service.stop()


AUTHORIZE = {"floor": (-1, b'{"demands":["authorize"]}')}


@real_time
async def test_a_broker_below_the_floor_takes_no_part(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    me = BrokerRegistration(1, 1, "h:1", versions=ours(), judges=True)
    below = BrokerRegistration(2, 5, "h:2", peer_address="h:3", versions=ours())
    async with clustered(tmp_path, me, below, dataclasses.replace(me, broker=3)) as (cluster, floor, service):
        await cluster.join()
        assert sorted(cluster.brokers) == [1, 2, 3]
        await service.security.write(AUTHORIZE)
        await floor.refresh()
        await cluster.join()
        await cluster.join()
        assert sorted(cluster.brokers) == [1, 3]
        told = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
        assert [line.partition(") ")[2] for line in told] == [
            "is below the cluster's security floor, and takes no part: it does not offer authorize"
        ]


@real_time
async def test_a_broker_whose_session_was_lost_reads_the_floor_before_it_is_registered_again(tmp_path: Path) -> None:
    me = BrokerRegistration(1, 1, "h:1", versions=ours())
    async with clustered(tmp_path, me) as (cluster, _, service):
        await cluster.join()
        assert cluster.is_live(1, 1)
        await service.security.write(AUTHORIZE)
        cluster.hear(CoordinationEvent.SESSION_LOST)
        with pytest.raises(InvalidSetting, match="authorize"):
            await cluster.join()
        assert not cluster.is_live(1, 1)
