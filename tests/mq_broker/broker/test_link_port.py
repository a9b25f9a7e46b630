"""The link port of a whole broker: registered, and there."""

from __future__ import annotations

import asyncio
import uuid
from pathlib import Path

from mq_broker.broker.config import BrokerConfig
from mq_broker.coordination.file import FileCoordination
from mq_broker.coordination.zookeeper import ZooKeeperCoordination
from mq_protocol.framing import preamble
from mq_protocol.limits import STREAMS_MAX
from tests.mq_broker.broker.cluster import Broker
from tests.mq_broker.coordination.wire import LASTING_MS
from tests.mq_broker.rpc.test_peer_port import MAX_CONCURRENT_STREAMS, Stranger


def test_a_broker_registers_its_link_port(zookeeper: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        coordination = ZooKeeperCoordination(zookeeper, LASTING_MS, root=f"/{uuid.uuid4().hex}")
        broker = await Broker(BrokerConfig(1, "127.0.0.1:0", tmp_path, coordination=lambda: coordination)).start()
        found = (await coordination.brokers())[1]
        assert found.link_address not in ("", found.address, found.peer_address)
        host, _, port = found.link_address.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        assert await reader.readexactly(len(preamble())) == preamble(), "links are held there"
        writer.close()
        await broker.stop()

    asyncio.run(scenario())


def test_the_port_for_other_brokers_of_a_whole_broker_has_its_bounds(zookeeper: str, tmp_path: Path) -> None:
    """By what it says to whoever connects."""

    async def scenario() -> None:
        coordination = ZooKeeperCoordination(zookeeper, LASTING_MS, root=f"/{uuid.uuid4().hex}")
        broker = await Broker(BrokerConfig(1, "127.0.0.1:0", tmp_path, coordination=lambda: coordination)).start()
        found = (await coordination.brokers())[1]
        stranger = await Stranger.connect(int(found.peer_address.rpartition(":")[2]))
        assert (await stranger.settings())[MAX_CONCURRENT_STREAMS] == STREAMS_MAX
        stranger.close()
        await broker.stop()

    asyncio.run(scenario())


def test_a_broker_that_stands_alone_has_no_link_port(tmp_path: Path) -> None:
    async def scenario() -> None:
        coordination = FileCoordination(tmp_path)
        broker = await Broker(BrokerConfig(1, "127.0.0.1:0", tmp_path, coordination=lambda: coordination)).start()
        assert (await coordination.brokers())[1].link_address == ""
        await broker.stop()

    asyncio.run(scenario())
