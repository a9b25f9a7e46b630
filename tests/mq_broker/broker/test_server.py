"""A broker process as a whole: what it needs to start, and ZooKeeper stopped and started again below it (rule 9)."""

from __future__ import annotations

import asyncio
import importlib
import inspect
import pkgutil
import signal
import threading
import uuid
from collections.abc import Coroutine
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import pytest
from grpc import aio

from mq_broker import broker as parts
from mq_broker.broker import BrokerConfig, serve, server
from mq_broker.broker.administration.retention import Retention
from mq_broker.broker.host.shell import Shell
from mq_broker.broker.runtime.memory import Held, memory_high_by_default
from mq_broker.coordination.file import FileCoordination
from mq_broker.coordination.zookeeper import ZooKeeperCoordination
from mq_broker.measured import TOPIC_RECORDS_IN
from mq_broker.rpc.peer_service import PEER_UNARY, peer_path
from mq_broker.storage.journal.recovery import recover
from mq_dev.embedded_zookeeper import EmbeddedZooKeeper
from mq_protocol import mq_pb2 as pb
from mq_protocol.errors import CoordinationUnavailable, InvalidSetting, StorageFailed
from mq_protocol.limits import MEMORY_HIGH_FLOOR, MESSAGE_BYTES_MAX, MESSAGE_OVERHEAD_BYTES
from tests.mq_broker.broker.cluster import DEADLINE_S, Broker, standalone, until
from tests.mq_broker.coordination.wire import end_session_of


def test_a_leader_goes_on_serving_while_zookeeper_is_away(tmp_path: Path) -> None:
    zookeeper = EmbeddedZooKeeper(tmp_path / "zookeeper")
    zookeeper.start()

    async def scenario() -> None:
        broker = Broker(
            BrokerConfig(
                1,
                "127.0.0.1:0",
                tmp_path / "1",
                coordination=lambda: ZooKeeperCoordination(
                    zookeeper.hosts, session_timeout_ms=3_000, request_timeout_ms=6_000
                ),
            )
        )
        await broker.start()
        await broker.create_topic("t")
        await broker.produce("t", 1)
        await asyncio.to_thread(zookeeper.kill)
        await until(lambda: _condition(broker, "suspended"))
        assert [p.leader for p in (await broker.metadata("t")).topics[0].partitions] == [1]
        await broker.produce("t", 2)
        with pytest.raises(CoordinationUnavailable):
            await broker.create_topic("u")
        await asyncio.to_thread(zookeeper.start)
        await until(lambda: _condition(broker, "connected"))
        await until(lambda: broker.produce("t", 3))
        assert await until(lambda: broker.numbers("t")) == [1, 2, 3]
        await broker.stop()

    try:
        asyncio.run(scenario())
    finally:
        zookeeper.stop()


def test_after_its_session_was_lost_a_broker_registers_again_and_claims_anew(zookeeper: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        coordination = ZooKeeperCoordination(zookeeper, session_timeout_ms=2_000, root=f"/{uuid.uuid4().hex}")
        broker = await Broker(BrokerConfig(1, "127.0.0.1:0", tmp_path, coordination=lambda: coordination)).start()
        await broker.create_topic("t")
        await broker.produce("t", 1)
        first = await broker.metadata("t")
        before = first.topics[0].partitions[0]
        await asyncio.to_thread(end_session_of, coordination)

        async def claimed_anew() -> bool:
            answer = await broker.metadata("t")
            return (
                answer.topics[0].partitions[0].leader == 1
                and answer.topics[0].partitions[0].leader_epoch > before.leader_epoch
            )

        await until(claimed_anew)
        assert (await broker.metadata("t")).brokers == first.brokers
        await broker.produce("t", 2)
        assert await broker.numbers("t") == [1, 2]
        await broker.stop()

    asyncio.run(scenario())


async def _condition(broker: Broker, condition: str) -> bool:
    return (await broker.ask("Metadata", pb.MetadataRequest())).coordination == condition


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_a_broker_cleanly(tmp_path: Path, number: signal.Signals) -> None:
    unheard: list[int] = []

    async def scenario() -> None:
        ready = asyncio.Event()
        serving = asyncio.create_task(
            serve(BrokerConfig(1, "127.0.0.1:0", tmp_path), ready=lambda _address: ready.set())
        )
        await asyncio.wait_for(ready.wait(), DEADLINE_S)
        signal.raise_signal(number)
        await asyncio.sleep(0)
        if unheard:
            serving.cancel()
        await asyncio.wait_for(serving, DEADLINE_S)

    former = signal.signal(number, lambda heard, _frame: unheard.append(heard))  # else it would end the tests
    try:
        asyncio.run(scenario())
    finally:
        signal.signal(number, former)
    assert not unheard


def test_a_broker_without_its_zookeeper_says_so_and_ends(tmp_path: Path) -> None:
    async def scenario() -> None:
        config = BrokerConfig(
            1,
            "127.0.0.1:0",
            tmp_path,
            coordination=lambda: ZooKeeperCoordination("127.0.0.1:1", session_timeout_ms=1_000, connect_timeout_ms=500),
        )
        with pytest.raises(CoordinationUnavailable, match=r"127\.0\.0\.1:1"):
            await serve(config, stop=asyncio.Event())

    asyncio.run(scenario())


def test_a_directory_of_another_broker_is_refused(tmp_path: Path) -> None:
    async def scenario() -> None:
        broker = await Broker(BrokerConfig(1, "127.0.0.1:0", tmp_path)).start()
        with pytest.raises(InvalidSetting, match="in use by another process"):
            await serve(BrokerConfig(1, "127.0.0.1:0", tmp_path), stop=asyncio.Event())
        taken = broker.address
        with pytest.raises(InvalidSetting, match=taken):
            await serve(BrokerConfig(1, taken, tmp_path / "other"), stop=asyncio.Event())
        await broker.stop()
        with pytest.raises(InvalidSetting, match="belongs to broker 1, not 2"):
            await serve(BrokerConfig(2, "127.0.0.1:0", tmp_path), stop=asyncio.Event())

    asyncio.run(scenario())


def test_a_configuration_that_cannot_be_is_refused_by_option(tmp_path: Path) -> None:
    with pytest.raises(InvalidSetting, match="--id"):
        BrokerConfig(0, "127.0.0.1:0", tmp_path)
    with pytest.raises(InvalidSetting, match="--listen"):
        BrokerConfig(1, "localhost", tmp_path)
    with pytest.raises(InvalidSetting, match="--advertise"):
        BrokerConfig(1, "127.0.0.1:0", tmp_path, advertised="localhost:port")
    assert BrokerConfig(1, "127.0.0.1:0", tmp_path, advertised="there:7400").address(7) == "there:7400"
    assert BrokerConfig(1, "127.0.0.1:0", tmp_path).address(7) == "127.0.0.1:7"
    assert not BrokerConfig(1, "0.0.0.0:0", tmp_path, insecure=True).address(7).startswith("0.0.0.0")


def test_a_broker_told_to_stop_while_it_recovers_does_not_wait_for_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opening, go_on = threading.Event(), threading.Event()

    def long_recovery(*what: Any, **how: Any) -> Any:
        opening.set()
        assert go_on.wait(DEADLINE_S)
        return recover(*what, **how)

    async def scenario() -> None:
        async with standalone(tmp_path) as broker:
            await broker.create_topic("t")
            await broker.produce("t", 1)
        with monkeypatch.context() as patch:
            patch.setattr("mq_broker.storage.opening.opening.recover", long_recovery)
            stop = asyncio.Event()
            serving = asyncio.create_task(serve(BrokerConfig(1, "127.0.0.1:0", tmp_path), stop=stop))
            assert await asyncio.to_thread(opening.wait, DEADLINE_S)
            stop.set()
            await asyncio.wait_for(serving, DEADLINE_S / 2)
            go_on.set()
        again = await until(lambda: _started(tmp_path))
        assert await until(lambda: again.numbers("t")) == [1]
        await again.stop()

    asyncio.run(scenario())


def test_a_broker_is_ready_once_what_is_assigned_to_it_is_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ready = threading.Event()
    early: list[bool] = []

    def slow_recovery(*what: Any, **how: Any) -> Any:
        early.append(ready.wait(0.2))
        return recover(*what, **how)

    async def scenario() -> None:
        async with standalone(tmp_path) as broker:
            await broker.create_topic("t")
        monkeypatch.setattr("mq_broker.storage.opening.opening.recover", slow_recovery)
        stop = asyncio.Event()

        def serves(_address: str) -> None:
            ready.set()
            stop.set()

        await asyncio.wait_for(serve(BrokerConfig(1, "127.0.0.1:0", tmp_path), ready=serves, stop=stop), DEADLINE_S)
        assert early == [False]

    asyncio.run(scenario())


def test_whatever_says_that_it_runs_until_cancelled_runs_in_a_broker_that_serves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    modules = [
        importlib.import_module(each.name) for each in pkgutil.walk_packages(parts.__path__, "mq_broker.broker.")
    ]
    classes = {each for module in modules for each in vars(module).values() if inspect.isclass(each)}
    methods = [method for each in classes for method in vars(each).values() if inspect.iscoroutinefunction(method)]
    endless = {method.__qualname__ for method in methods if "Runs until cancelled" in (method.__doc__ or "")}
    assert len(endless) > 5
    spawn = Shell.spawn
    spawned: set[str] = set()

    def noted(shell: Shell, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        spawned.add(work.__qualname__)
        return spawn(shell, work, name)

    monkeypatch.setattr(Shell, "spawn", noted)

    async def scenario() -> None:
        async with standalone(tmp_path, authorize=True):
            assert endless - spawned == set()

    asyncio.run(scenario())


def test_a_broker_ends_with_the_error_of_a_part_that_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fails(_self: Retention) -> None:
        raise StorageFailed("the disk is gone")

    async def scenario() -> None:
        with pytest.raises(StorageFailed, match="the disk is gone"):
            await asyncio.wait_for(serve(BrokerConfig(1, "127.0.0.1:0", tmp_path), stop=asyncio.Event()), DEADLINE_S)

    monkeypatch.setattr(Retention, "keep", fails)
    asyncio.run(scenario())


def test_a_start_that_is_given_up_has_ended_before_its_parts_are_taken_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended: list[str] = []
    stop = asyncio.Event()

    async def start(_self: server._Broker) -> None:
        stop.set()
        try:
            await asyncio.Event().wait()
        finally:
            for _ in range(3):
                await asyncio.sleep(0)
            ended.append("start")

    async def leave(_self: server._Broker, seconds: float) -> None:
        ended.append(f"leave within {seconds} s")

    monkeypatch.setattr(server._Broker, "start", start)
    monkeypatch.setattr(server._Broker, "leave", leave)
    config = BrokerConfig(1, "127.0.0.1:0", tmp_path, stop_timeout_ms=7_000)
    asyncio.run(asyncio.wait_for(serve(config, stop=stop), DEADLINE_S))
    assert ended == ["start", "leave within 7.0 s"]


@pytest.mark.parametrize("told", [0, MEMORY_HIGH_FLOOR])
def test_the_mark_of_memory_is_what_the_broker_was_told_or_else_half_of_what_there_is(
    tmp_path: Path, told: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    marks: list[int] = []

    def noted(high: int, callers_max: int) -> Held:
        marks.append(high)
        return Held(high, callers_max)

    monkeypatch.setattr(server, "Held", noted)

    async def scenario() -> None:
        async with standalone(tmp_path, memory_high=told):
            assert marks == [told or memory_high_by_default()]

    asyncio.run(scenario())


def test_what_is_known_of_topics_is_forgotten_when_one_is_gone_and_moves_are_looked_at_on_every_change() -> None:
    did: list[str] = []
    stand_in: Any = SimpleNamespace(
        _shell=SimpleNamespace(follow_topics=lambda _topics, _changed: did.append("follow")),
        _admin=SimpleNamespace(forget=lambda _topics: did.append("forget")),
        _moves=SimpleNamespace(wake=lambda: did.append("wake")),
        _declared=SimpleNamespace(keep=lambda _topics: did.append("keep")),
        _consumed=SimpleNamespace(keep=lambda _topics: did.append("keep groups")),
        _beginning=SimpleNamespace(topics_changed=lambda changed: did.append(f"begin queues {changed}")),
        _working=SimpleNamespace(settings_changed=lambda changed: did.append(f"settings {changed}")),
    )
    topics: Any = {name: SimpleNamespace(spec=SimpleNamespace(name=name)) for name in ("a", "b")}
    for changed, forgotten in ((None, True), ({"a"}, False), ({"a", "b"}, False), ({"a", "gone"}, True)):
        did.clear()
        for name in ("a", "gone"):
            TOPIC_RECORDS_IN.add(name)
        server._Broker._on_topics(stand_in, topics, changed)
        gone = ["forget", "keep", "keep groups"] if forgotten else []
        assert did == ["follow", *gone, "wake", f"begin queues {changed}", f"settings {changed}"], changed
        assert {name for (name,) in TOPIC_RECORDS_IN.rows()} & {"a", "gone"} == ({"a"} if forgotten else {"a", "gone"})
    TOPIC_RECORDS_IN.keep(())


def test_queue_groups_that_waited_for_the_level_of_features_are_looked_at_once_it_is_raised() -> None:
    looked: list[int] = []
    shell: Any = SimpleNamespace(level=1, brokers_seen=lambda _live: None)
    stand_in: Any = SimpleNamespace(
        _shell=shell,
        cluster=SimpleNamespace(level=1, live=(), brokers={}),
        _links=SimpleNamespace(know=lambda _brokers: None),
        _ports=SimpleNamespace(peer_address_of=None, link_address_of=None),
        _beginning=SimpleNamespace(topics_changed=lambda: looked.append(shell.level)),
    )
    server._Broker._on_brokers(stand_in)
    assert looked == []
    stand_in.cluster.level = 2
    server._Broker._on_brokers(stand_in)
    server._Broker._on_brokers(stand_in)
    assert looked == [2], "once, and with the new level"


def test_a_broker_that_takes_smaller_messages_than_a_topic_has_batches_says_so_when_it_starts(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        async with standalone(tmp_path, message_bytes_max=MESSAGE_BYTES_MAX) as broker:
            await broker.create_topic("usual")
            await broker.create_topic("large", batch_bytes_max="32MiB")
        assert told() == []
        async with standalone(tmp_path, message_bytes_max=(32 << 20) + MESSAGE_OVERHEAD_BYTES):
            assert told() == []
        async with standalone(tmp_path):
            assert [text.split(" has batches")[0] for text in told()] == ["topic large"]

    def told() -> list[str]:
        return [each.getMessage() for each in caplog.records if "--message-bytes-max" in each.getMessage()]

    asyncio.run(scenario())


async def _started(data: Path) -> Broker | None:
    """None while the former recovery still holds the lock."""
    try:
        return await Broker(BrokerConfig(1, "127.0.0.1:0", data)).start()
    except InvalidSetting:
        return None


@pytest.mark.parametrize(
    ("config", "served", "dialled"),
    [
        (BrokerConfig(1, "10.0.0.5:7400", Path(), insecure=True), "10.0.0.5:0", "10.0.0.5:7501"),
        (
            BrokerConfig(1, "0.0.0.0:7400", Path(), advertised="one.example:7400", insecure=True),
            "0.0.0.0:0",
            "one.example:7501",
        ),
        (
            BrokerConfig(1, "0.0.0.0:7400", Path(), peer_listen="10.0.0.5:7501", insecure=True),
            "10.0.0.5:7501",
            "10.0.0.5:7501",
        ),
        (
            BrokerConfig(1, "h:1", Path(), peer_listen="0.0.0.0:7501", peer_advertised="p:9", insecure=True),
            "0.0.0.0:7501",
            "p:9",
        ),
    ],
)
def test_other_brokers_dial_the_host_of_the_client_port_unless_told_otherwise(
    config: BrokerConfig, served: str, dialled: str
) -> None:
    assert (config.peers_at, config.peer_address(7501)) == (served, dialled)


def test_a_broker_registers_its_peer_port(zookeeper: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        coordination = ZooKeeperCoordination(zookeeper, root=f"/{uuid.uuid4().hex}")
        broker = await Broker(BrokerConfig(1, "127.0.0.1:0", tmp_path, coordination=lambda: coordination)).start()
        found = (await coordination.brokers())[1]
        assert found.peer_address.startswith("127.0.0.1:")
        assert found.peer_address != found.address
        async with aio.insecure_channel(found.peer_address) as channel:
            ask = channel.unary_unary(peer_path(next(iter(PEER_UNARY))), None, None)
            with pytest.raises(aio.AioRpcError) as refused:
                await ask(b"", timeout=DEADLINE_S)
            assert refused.value.code() != grpc.StatusCode.UNIMPLEMENTED, "it serves brokers there, and this is none"
        await broker.stop()

    asyncio.run(scenario())


def test_a_broker_that_stands_alone_has_no_peer_port(tmp_path: Path) -> None:
    async def scenario() -> None:
        coordination = FileCoordination(tmp_path)
        broker = await Broker(BrokerConfig(1, "127.0.0.1:0", tmp_path, coordination=lambda: coordination)).start()
        assert (await coordination.brokers())[1].peer_address == ""
        await broker.stop()

    asyncio.run(scenario())


def test_a_broker_that_has_stopped_leaves_no_threads_behind_that_worked_for_its_clients(tmp_path: Path) -> None:
    def working() -> list[str]:
        return [
            thread.name for thread in threading.enumerate() if thread.name.startswith(("check-batch", "filter-rows"))
        ]

    async def scenario() -> None:
        async with standalone(tmp_path) as broker:
            await broker.create_topic("t")
            await broker.produce("t", *range(10_000))
            await broker.fetch("t", 0, 1, filter="n = 1")
            assert len({name.rpartition("_")[0] for name in working()}) == 2

        async def none() -> bool:
            return not working()

        await until(none)

    asyncio.run(scenario())
