"""A broker process as a whole: what it needs to start, and ZooKeeper stopped and started again below it (rule 9)."""

from __future__ import annotations

import asyncio
import signal
import threading
import uuid
from pathlib import Path
from typing import Any

import pytest

from mq_broker.broker import BrokerConfig, serve
from mq_broker.broker.administration.retention import Retention
from mq_broker.coordination.file import FileStore
from mq_broker.coordination.service import CoordinationService
from mq_broker.coordination.zookeeper import ZooKeeperStore
from mq_broker.storage.journal.recovery import recover
from mq_protocol.errors import CoordinationUnavailable, InvalidSetting, StorageFailed
from mq_protocol.limits import MESSAGE_BYTES_MAX, MESSAGE_OVERHEAD_BYTES
from tests.coroutines import real_time, virtual_time
from tests.mq_broker.broker.cluster import DEADLINE_S, Broker, standalone, until
from tests.mq_broker.coordination.wire import LASTING_MS, end_session_of
from tests.virtual.world import in_virtual_time


@real_time
async def test_after_its_session_was_lost_a_broker_registers_again_and_claims_anew(
    zookeeper: str, tmp_path: Path
) -> None:
    coordination = CoordinationService(ZooKeeperStore(zookeeper, LASTING_MS, root=f"/{uuid.uuid4().hex}"))
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


@real_time
async def test_a_broker_without_its_zookeeper_says_so_and_ends(tmp_path: Path) -> None:
    config = BrokerConfig(
        1,
        "127.0.0.1:0",
        tmp_path,
        coordination=lambda: CoordinationService(ZooKeeperStore("127.0.0.1:1", 1_000, connect_timeout_ms=500)),
    )
    with pytest.raises(CoordinationUnavailable, match=r"127\.0\.0\.1:1"):
        await serve(config, stop=asyncio.Event())


@real_time
async def test_a_directory_of_another_broker_is_refused(tmp_path: Path) -> None:
    broker = await Broker(BrokerConfig(1, "127.0.0.1:0", tmp_path)).start()
    with pytest.raises(InvalidSetting, match="in use by another process"):
        await serve(BrokerConfig(1, "127.0.0.1:0", tmp_path), stop=asyncio.Event())
    taken = broker.address
    with pytest.raises(InvalidSetting, match=taken):
        await serve(BrokerConfig(1, taken, tmp_path / "other"), stop=asyncio.Event())
    await broker.stop()
    with pytest.raises(InvalidSetting, match="belongs to broker 1, not 2"):
        await serve(BrokerConfig(2, "127.0.0.1:0", tmp_path), stop=asyncio.Event())


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


@real_time
async def test_a_broker_told_to_stop_while_it_recovers_does_not_wait_for_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opening, go_on = threading.Event(), threading.Event()

    def long_recovery(*what: Any, **how: Any) -> Any:
        opening.set()
        assert go_on.wait(DEADLINE_S)
        return recover(*what, **how)

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


def test_a_broker_ends_with_the_error_of_a_part_that_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fails(_self: Retention) -> None:
        raise StorageFailed("the disk is gone")

    async def scenario() -> None:
        with pytest.raises(StorageFailed, match="the disk is gone"):
            await asyncio.wait_for(serve(BrokerConfig(1, "127.0.0.1:0", tmp_path), stop=asyncio.Event()), DEADLINE_S)

    monkeypatch.setattr(Retention, "look", fails)
    asyncio.run(scenario())


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

    in_virtual_time(scenario())


async def _started(data: Path) -> Broker | None:
    """None while the former recovery still holds the lock."""
    try:
        return await Broker(BrokerConfig(1, "127.0.0.1:0", data)).start()
    except InvalidSetting:
        return None


@real_time
async def test_a_broker_registers_one_address_for_clients_and_brokers(zookeeper: str, tmp_path: Path) -> None:
    coordination = CoordinationService(ZooKeeperStore(zookeeper, LASTING_MS, root=f"/{uuid.uuid4().hex}"))
    broker = await Broker(BrokerConfig(1, "127.0.0.1:0", tmp_path, coordination=lambda: coordination)).start()
    found = (await coordination.brokers())[1]
    assert found.address == found.peer_address == broker.address
    assert (found.tls_address, found.grpc_address, found.flight_address) == ("", "", "")
    await broker.stop()


@virtual_time
async def test_a_broker_that_stands_alone_has_no_address_for_other_brokers(tmp_path: Path) -> None:
    coordination = CoordinationService(FileStore(tmp_path))
    broker = await Broker(BrokerConfig(1, "127.0.0.1:0", tmp_path, coordination=lambda: coordination)).start()
    assert (await coordination.brokers())[1].peer_address == ""
    await broker.stop()
