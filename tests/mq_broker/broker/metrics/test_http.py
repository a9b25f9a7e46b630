"""The pages that programs watch a broker by, asked of a broker that runs in this process."""

from __future__ import annotations

import asyncio
import json
import re
import socket
from pathlib import Path
from typing import Any

import pytest

from mq_broker.broker.config import BrokerConfig, http_listener
from mq_dev.embedded_zookeeper import free_port
from mq_protocol.errors import InvalidSetting
from tests.coroutines import real_time
from tests.mq_broker.broker.cluster import Broker, standalone
from tests.mq_broker.broker.metrics.test_exposition import of, read

DOCUMENT = Path(__file__).parents[4] / "docs" / "metrics.md"


async def get(port: int, path: str, method: str = "GET") -> tuple[int, str]:
    """The status and the body."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"{method} {path} HTTP/1.1\r\nhost: b\r\nconnection: close\r\n\r\n".encode())
    answer = (await reader.read()).decode()
    writer.close()
    head, _, body = answer.partition("\r\n\r\n")
    return int(head.split()[1]), body


@real_time
async def test_a_broker_serves_what_it_counts_and_says_when_it_is_ready(tmp_path: Path) -> None:
    port = free_port()
    async with standalone(tmp_path, http=f"127.0.0.1:{port}") as broker:
        await broker.create_topic("t", partitions=2)
        before = read((await get(port, "/metrics"))[1].encode())
        await broker.produce("t", 0, 1, 2)
        await broker.produce("t", 3)

        async def records() -> dict[Any, float]:
            while True:
                seen = read((await get(port, "/metrics"))[1].encode())
                if seen["topic_records"][of(topic="t")] == 4:
                    return seen  # type: ignore[return-value]

        after: Any = await asyncio.wait_for(records(), 10)
        batches = of(code="OK")
        grown = after["produce_batches_total"][batches] - before.get("produce_batches_total", {}).get(batches, 0)
        assert (grown, after["topic_records_in_total"][of(topic="t")]) == (2, 4)
        assert after["broker_state"][of(state="serving")] == 1
        assert after["process_resident_memory_bytes"][()] > 0
        assert after["fsync_seconds_count"][of(kind="commit")] > 0
        assert after["requests_total"][of(method="CreateTopic", code="OK")] >= 1

        assert await get(port, "/livez") == (200, "ok\n")
        assert await get(port, "/readyz") == (200, "ok\n")
        assert await get(port, "/readyz", "HEAD") == (200, "")
        status, text = await get(port, "/observation?detail=partition")
        seen = json.loads(text)
        assert (status, seen["broker"], [row["partition"] for row in seen["partitions"]]) == (200, 1, [0, 1])
        assert (await get(port, "/metrics?detail=all"))[0] == 400
        assert (await get(port, "/"))[0] == 404
        assert (await get(port, "/metrics", "POST"))[0] == 405
        broker_part(broker)._observing.state = "draining"
        assert await get(port, "/readyz") == (503, "draining\n")
    with pytest.raises(OSError):
        await get(port, "/livez")


def broker_part(broker: Broker) -> Any:
    """The parts of the broker."""
    import gc

    from mq_broker.broker.server import _Broker

    [found] = [each for each in gc.get_objects() if isinstance(each, _Broker) and each.address == broker.address]
    return found


def test_every_metric_is_in_the_document_and_no_other_is(tmp_path: Path) -> None:
    """Names, types and labels: so the document can be believed, and dashboards can be made of it."""

    async def scenario() -> str:
        port = free_port()
        async with standalone(tmp_path, http=f"127.0.0.1:{port}"):
            return (await get(port, "/metrics?detail=partition"))[1]

    text = asyncio.run(scenario())
    kinds = dict(re.findall(r"^# TYPE tritonmq_(\S+) (\S+)$", text, re.MULTILINE))
    helps = dict(re.findall(r"^# HELP tritonmq_(\S+) (.+)$", text, re.MULTILINE))
    documented = re.findall(r"^\| `(\w+)` \| (\w+) \| ([\w, ]*) \| .+ \|$", DOCUMENT.read_text(), re.MULTILINE)
    assert {name: kind for name, kind, _ in documented} == kinds
    assert kinds.keys() == helps.keys()
    labels = {name: set(filter(None, of_it.split(", "))) for name, _, of_it in documented}
    for name, rows in read(text.encode()).items():
        family = re.sub(r"_(bucket|sum|count)$", "", name) if name not in labels else name
        if family in labels:
            for place in rows:
                assert {label for label, _ in place} - {"le"} == labels[family], name


@pytest.mark.parametrize("address", ["0.0.0.0:7401", "192.0.2.1:7401", "example.org:7401", "[::]:7401"])
def test_another_address_than_loopback_needs_a_certificate_or_a_word(tmp_path: Path, address: str) -> None:
    with pytest.raises(InvalidSetting, match=f"--http {re.escape(address)} can be reached from other machines: give"):
        BrokerConfig(1, "127.0.0.1:0", tmp_path, http=address)
    assert not BrokerConfig(1, "127.0.0.1:0", tmp_path, http=address, certs=tmp_path).plain_to_others
    said = BrokerConfig(1, "127.0.0.1:0", tmp_path, http=address, insecure=True)
    assert said.plain_to_others == (("--http", address),)


@pytest.mark.parametrize("address", ["127.0.0.1:7401", "localhost:7401", "[::1]:7401"])
def test_loopback_addresses_are_taken(tmp_path: Path, address: str) -> None:
    BrokerConfig(1, "127.0.0.1:0", tmp_path, http=address)


def test_a_port_that_is_taken_is_said_at_once() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(InvalidSetting, match=f"--http 127.0.0.1:{port} cannot be used"):
            http_listener(f"127.0.0.1:{port}")
