"""The copy of the list of topics: read again when a name is not in it, never more often than it may be."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from kazoo.client import KazooClient

from mq_broker.broker import BrokerConfig
from mq_broker.broker.metadata import brokers as cluster
from mq_broker.broker.metadata.topics import Topic, Topics
from mq_broker.coordination.file import FileCoordination
from mq_broker.coordination.interface import TopicSpec
from mq_broker.coordination.zookeeper import ZooKeeperCoordination
from mq_broker.core.messages import NodeState
from mq_protocol.errors import CoordinationUnavailable
from tests.mq_broker.broker.cluster import Broker, until
from tests.mq_broker.coordination.wire import id_of

STATE = NodeState(None, 0, ((1, ""),), 0, "")


def spec(name: str, **fields: object) -> TopicSpec:
    return TopicSpec(name, id_of(name), ((1,),), **fields)  # type: ignore[arg-type]


@asynccontextmanager
async def topics(data: Path) -> AsyncIterator[tuple[Topics, FileCoordination, list[dict[str, Topic]]]]:
    coordination = FileCoordination(data)
    await coordination.start(lambda _event: None)
    seen: list[dict[str, Topic]] = []
    try:
        yield Topics(coordination, lambda topics, _changed: seen.append(topics)), coordination, seen
    finally:
        await coordination.stop()


def test_a_topic_that_an_older_backup_of_zookeeper_lacks_is_not_taken_for_deleted(
    zookeeper: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        root = f"/{uuid.uuid4().hex}"
        coordination = ZooKeeperCoordination(zookeeper, root=root)
        await coordination.start(lambda _event: None)
        seen: list[dict[str, Topic]] = []
        copy = Topics(coordination, lambda topics, _changed: seen.append(topics))
        for name in ("old", "new"):
            await coordination.create_topic(spec(name), (STATE,))
        await copy.refresh()
        backup = KazooClient(zookeeper)
        await asyncio.to_thread(backup.start)
        try:  # what is left is what it was before "new" was made
            await asyncio.to_thread(backup.delete, f"{root}/topics/new")
            await asyncio.to_thread(backup.delete, f"{root}/topic_changes")
            await asyncio.to_thread(backup.create, f"{root}/topic_changes", b"")
            await copy.refresh()
            assert set(seen[-1]) == {id_of("old"), id_of("new")}
            assert "went back" in caplog.text
            await coordination.create_topic(spec("later"), (STATE,))
            await copy.refresh()
            assert set(seen[-1]) == {id_of("old"), id_of("new"), id_of("later")}
        finally:
            await asyncio.to_thread(backup.stop)
            await asyncio.to_thread(backup.close)
            await coordination.stop()

    asyncio.run(scenario())


def test_a_topic_that_a_newer_version_has_altered_is_not_taken_for_deleted(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with topics(tmp_path) as (copy, coordination, seen):
            await coordination.create_topic(spec("t"), (STATE,))
            await copy.refresh()
            found = await coordination.read_topic("t")
            assert found is not None
            await coordination.update_topic(found[0], spec("t", settings={"unheard_of": "1"}))
            await copy.refresh()
            assert list(seen[-1]) == [id_of("t")], "whoever is told that it is gone deletes its data (trap 18)"
            assert (await copy.get("t")).spec.settings == {}

    asyncio.run(scenario())


def test_a_document_that_cannot_be_read_costs_its_topic_only_what_would_have_changed(
    zookeeper: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker neither stops nor takes the topic for deleted, and its other topics do not notice."""
    monkeypatch.setattr(cluster, "SWEEP_S", 0.2)  # nothing tells of a node that was changed by others
    root = f"/topics-{uuid.uuid4().hex}"
    coordination = lambda: ZooKeeperCoordination(zookeeper, 4_000, root=root)  # noqa: E731

    async def scenario() -> None:
        broker = await Broker(BrokerConfig(1, "127.0.0.1:0", tmp_path, coordination=coordination)).start()
        client = KazooClient(hosts=zookeeper)
        await asyncio.to_thread(client.start, 10)
        try:
            info = await broker.create_topic("t")
            await broker.produce("t", 1)
            for path in ("topics/t", f"states/{info.topic_id}/0", "brokers/live/1"):
                await asyncio.to_thread(client.set, f"{root}/{path}", b"no document")
            await broker.create_topic("other")  # which has the list of topics read
            await broker.produce("other", 1)
            await broker.produce("t", 2)
            assert await broker.numbers("t") == [1, 2]

            async def registered_anew() -> bool:
                data, _ = await asyncio.to_thread(client.get, f"{root}/brokers/live/1")
                return data != b"no document"

            await until(registered_anew)
            assert [found.id for found in (await broker.metadata()).brokers] == [1]
        finally:
            await asyncio.to_thread(client.stop)
            client.close()
            await broker.stop()

        broker = await broker.start()  # which has never seen a document of that topic
        try:
            with pytest.raises(CoordinationUnavailable, match="document of topic 't' cannot be read"):
                await broker.produce("t", 3)
            assert await until(lambda: broker.numbers("other")) == [1]
            assert list((tmp_path / "partitions").glob(f"{info.topic_id}-0")), "its data is kept"
        finally:
            await broker.stop()

    asyncio.run(scenario())
