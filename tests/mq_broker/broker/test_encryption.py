"""Brokers that seal what they write: what waits for a key, what goes on meanwhile, and what lies on the disk."""

from __future__ import annotations

import asyncio
import json
import signal
import stat
from collections.abc import Callable
from pathlib import Path

import click
import pyarrow as pa
import pytest
from click.testing import CliRunner, Result

from mq_broker.broker.host import shell
from mq_broker.measured import ALARMS
from mq_broker.storage.key_file import KeyFile, read_key_file, write_key_file
from mq_cli.machines.health import health
from mq_cli.managing.cluster import cluster
from mq_client import Admin, Producer
from mq_client.transactions import TransactionClient
from mq_protocol import mq_pb2 as pb
from mq_protocol.errors import InvalidSetting, NotLeader
from tests.coroutines import real_time, virtual_time
from tests.mq_broker.broker.cluster import Broker, standalone, until
from tests.mq_cli.processes import Command
from tests.switch import plain_text

MARKER = "THIS-IS-A-PAYLOAD"


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    content = KeyFile()
    content.add("default")
    content.add("orders")
    write_key_file(tmp_path / "keys.json", content)
    return tmp_path / "keys.json"


async def command(to_run: click.Command, *words: str) -> Result:
    return await asyncio.to_thread(CliRunner().invoke, to_run, list(words), standalone_mode=False)


def without(keys: Path, name: str) -> Callable[[], None]:
    """Take the keys of that name out of the file. Returns what puts them back."""
    before, content = read_key_file(keys), read_key_file(keys)
    del content.keys[content.current.pop(name)]
    write_key_file(keys, content)
    return lambda: write_key_file(keys, before)


async def keeps_closed(broker: Broker, without_key: int, altered: int) -> None:
    """Until the broker says that it keeps so many partitions closed for these reasons."""

    def told() -> tuple[float, float]:
        with Admin(broker.address) as admin:
            values = admin.observe("broker").brokers[0].values
        return values["partitions_without_key"], values["partitions_altered"]

    async def holds() -> bool:
        return await asyncio.to_thread(told) == (without_key, altered)

    await until(holds)


@real_time
async def test_a_partition_without_its_key_waits_and_others_are_served(
    tmp_path: Path, keys: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shell, "REOPEN_S", 0.05)

    async def read(broker: Broker, topic: str) -> list[int]:
        return await broker.numbers(topic)

    data, encrypt = tmp_path / "data", f"file:{keys}"
    async with standalone(data, encrypt=encrypt) as broker:
        await broker.create_topic("plain-name")
        await broker.create_topic("orders", encryption_key="orders")
        for topic in ("plain-name", "orders"):
            await broker.produce(topic, 7)
            await broker.produce(topic, 8)
    names = {path: json.loads(path.read_text())["log_id"] for path in data.rglob("log.json")}
    put_back = without(keys, "orders")
    told = ALARMS.rows()["sealed_away",]
    async with standalone(data, led=False, encrypt=encrypt) as broker:
        assert await until(lambda: read(broker, "plain-name")) == [7, 8]
        broker.asks_again = False
        with pytest.raises(NotLeader, match="keeps its replica of orders-0 closed: its key is missing"):
            await broker.fetch("orders", 0, 2)
        assert ALARMS.rows()["sealed_away",] == told + 1
        await keeps_closed(broker, 1, 0)
        put_back()
        assert await until(lambda: read(broker, "orders")) == [7, 8]
        await keeps_closed(broker, 0, 0)
    async with standalone(data, led=False) as broker:  # and without --encrypt
        broker.asks_again = False
        with pytest.raises(NotLeader, match="keeps its replica of plain-name-0 closed: its key is missing"):
            await broker.fetch("plain-name", 0, 2)
        looked = await command(cluster, "status", "--bootstrap", broker.address)
        assert (looked.return_value, "lacks the key of 2 partitions" in looked.output) == (0, True), looked.output
        assert "2 without a leader, 2 not fully in sync" in looked.output
        looked = await command(cluster, "status", "--json", "--bootstrap", broker.address)
        (counted,) = json.loads(looked.stdout)["brokers"]
        assert (counted["replicas"], counted["in_sync"]) == (2, 0)
        waited = await command(cluster, "wait", "--in-sync", "--for", "0", "--bootstrap", broker.address)
        assert (waited.return_value, "lacks the key of 2 partitions" in waited.output) == (1, True), waited.output
        ready = await command(health, broker.address, "--ready")
        assert (ready.return_value, "its key is missing or wrong" in ready.output) == (1, True), ready.output
        with Admin(broker.address) as admin:
            await asyncio.to_thread(admin.delete_topic, "orders")
        await keeps_closed(broker, 1, 0)
    assert {path: json.loads(path.read_text())["log_id"] for path in data.rglob("log.json")} == names
    assert not list(data.rglob("aside-*"))


@virtual_time
async def test_a_topic_with_a_key_that_the_broker_lacks_is_not_made(tmp_path: Path, keys: Path) -> None:
    async with standalone(tmp_path / "sealed", encrypt=f"file:{keys}") as broker:
        with pytest.raises(InvalidSetting, match="broker 1 has no key called 'nokey': make it with"):
            await broker.create_topic("t", encryption_key="nokey")
        await broker.create_topic("orders", encryption_key="orders")
        with pytest.raises(InvalidSetting, match="encryption_key cannot be changed"):
            await broker.ask("AlterTopic", pb.AlterTopicRequest(name="orders", settings={"encryption_key": "nokey"}))
        await broker.create_topic("on-no-disk", encryption_key="nokey", durability="memory")
        assert {topic.name for topic in (await broker.metadata()).topics} == {"orders", "on-no-disk"}
    async with standalone(tmp_path / "plain") as broker:
        with pytest.raises(InvalidSetting, match="broker 1 has no key called 'orders': it was given no keys"):
            await broker.create_topic("t", encryption_key="orders")
        assert not (await broker.metadata()).topics


def test_a_broker_refuses_keys_that_are_of_no_use(tmp_path: Path, keys: Path) -> None:
    async def refused(encrypt: str, match: str) -> None:
        with pytest.raises(InvalidSetting, match=match):
            async with standalone(tmp_path / "data", encrypt=encrypt):
                pass

    async def scenario() -> None:
        await refused("keys.json", "write file:PATH")
        await refused("vault:x", "no key provider is called 'vault'")
        await refused(f"file:{tmp_path / 'none'}", "tritonmq keys create")
        await asyncio.to_thread(keys.chmod, 0o644)
        await refused(f"file:{keys}", "chmod 600")

    asyncio.run(scenario())
    assert not (tmp_path / "data").exists()


@pytest.mark.cluster
@pytest.mark.processes
@plain_text("it starts a broker by itself; an encrypted cluster is tested over TLS too")
def test_a_broker_that_is_killed_has_no_payload_in_any_file_and_loses_nothing(tmp_path: Path, keys: Path) -> None:
    data = tmp_path / "data"
    data.mkdir(mode=0o755)
    arguments = ["broker", "--id", "1", "--listen", "127.0.0.1:0", "--data", str(data), "--standalone"]
    arguments += ["--encrypt", f"file:{keys}"]
    schema = pa.schema([("word", pa.string())])
    with Command(*arguments) as broker:
        address = str(broker.remark_with("broker 1 serves")).split(" at ")[1].split(",")[0]
        with Admin(address) as admin, Producer(address) as producer, TransactionClient(address) as transactions:
            admin.create_topic("words", schema=schema)
            sent = [producer.publish("words", {"word": f"{MARKER}-{n}"}) for n in range(100)]
            sent.append(producer.publish("words", {"word": f"{MARKER}-later"}, delay_ms=3_600_000))
            [future.result(30) for future in sent]
            staged = pa.record_batch({"word": [MARKER] * 10}, schema)
            transactions.stage("words", 0, [staged], ("query", "sink"), 0, "run")
            broker.process.send_signal(signal.SIGKILL)
            broker.process.wait(30)
    files = [path for path in data.rglob("*") if path.is_file()]
    assert any(path.suffix == ".log" and path.stat().st_size > 4_500 for path in files)
    assert [path for path in files if MARKER.encode() in path.read_bytes()] == []
    assert {stat.S_IMODE(path.stat().st_mode) & 0o027 for path in data.rglob("*")} == {0}
    assert stat.S_IMODE(data.stat().st_mode) == 0o750
    with Command(*arguments) as broker:
        address = str(broker.remark_with("broker 1 serves")).split(" at ")[1].split(",")[0]
        with Admin(address) as admin:
            assert admin.offsets("words") == {0: (0, 100)}
