"""The copy of the list of topics: read again when a name is not in it, never more often than it may be."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from kazoo.client import KazooClient

from mq_broker.broker import BrokerConfig
from mq_broker.broker.administration.topic_changes import with_columns
from mq_broker.broker.metadata import brokers as cluster
from mq_broker.broker.metadata import topics as reading
from mq_broker.broker.metadata.topics import Topic, Topics
from mq_broker.coordination.file import FileCoordination
from mq_broker.coordination.interface import TopicSpec
from mq_broker.coordination.zookeeper import ZooKeeperCoordination
from mq_broker.core.messages import NodeState
from mq_protocol.arrow import schema_fingerprint, schema_to_bytes
from mq_protocol.errors import CoordinationUnavailable, InvalidTopicName, UnknownTopic
from mq_protocol.sql.ddl import parse_schema
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


def test_a_name_that_is_not_known_is_looked_up(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with topics(tmp_path) as (copy, coordination, seen):
            await coordination.create_topic(spec("t"), (STATE,))
            assert (await copy.get("t")).spec.name == "t"
            assert [list(topics) for topics in seen] == [[id_of("t")]]

    asyncio.run(scenario())


def test_names_that_do_not_exist_cause_few_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "REFRESH_S_MIN", 60.0)

    async def scenario() -> None:
        async with topics(tmp_path) as (copy, _coordination, seen):
            for _ in range(20):
                with pytest.raises(UnknownTopic, match="nothing"):
                    await copy.get("nothing")
            assert len(seen) == 1

    asyncio.run(scenario())


def test_readers_that_come_during_a_read_share_the_next_one(zookeeper: str) -> None:
    async def scenario() -> None:
        coordination = ZooKeeperCoordination(zookeeper, root=f"/{uuid.uuid4().hex}")
        await coordination.start(lambda _event: None)
        seen: list[dict[str, Topic]] = []
        copy = Topics(coordination, lambda topics, _changed: seen.append(topics))
        await asyncio.gather(*(copy.refresh() for _ in range(20)))
        assert len(seen) == 2
        await coordination.stop()

    asyncio.run(scenario())


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


def test_a_topic_of_a_newer_version_is_left_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        async with topics(tmp_path) as (copy, coordination, _seen):
            await coordination.create_topic(spec("newer", settings={"unheard_of": "1"}), (STATE,))
            await coordination.create_topic(spec("t"), (STATE,))
            await copy.refresh()
            assert [topic.spec.name for topic in copy.all()] == ["t"]
            assert "topic 'newer' cannot be read" in caplog.text

    asyncio.run(scenario())


def test_a_topic_that_becomes_unreadable_again_is_told_again_and_otherwise_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        async with topics(tmp_path) as (copy, coordination, _seen):
            await coordination.create_topic(spec("t"), (STATE,))
            for settings in ({"unheard_of": "1"}, {}, {"unheard_of": "1"}):
                found = await coordination.read_topic("t")
                assert found is not None
                await coordination.update_topic(found[0], spec("t", settings=settings))
                for _ in range(2):
                    await copy.refresh()
            assert len([words for words in caplog.messages if "topic 't' cannot be read" in words]) == 2

    asyncio.run(scenario())


def test_a_client_that_knows_a_topic_made_again_before_this_broker_does_is_given_that_one(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with topics(tmp_path) as (copy, coordination, _seen):
            await coordination.create_topic(spec("t"), (STATE,))
            former = await copy.meant("t", id_of("t"))
            await coordination.delete_topic("t")
            await coordination.create_topic(replace(spec("t"), topic_id=id_of("t again")), (STATE,))
            assert copy.find("t") is former, "this broker has not heard of it"
            assert (await copy.meant("t", id_of("t again"))).spec.topic_id == id_of("t again")
            with pytest.raises(UnknownTopic, match="deleted and made again"):
                await copy.meant("t", id_of("t"))

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


def test_a_topic_is_read_anew_for_clients_that_know_more_and_keeps_what_it_was(tmp_path: Path) -> None:
    before, after = parse_schema("a long"), parse_schema("a long, b int")

    async def scenario() -> None:
        async with topics(tmp_path) as (copy, coordination, seen):
            await coordination.create_topic(spec("t", schema=schema_to_bytes(before)), (STATE,))
            known = await copy.get("t")
            found = await coordination.read_topic("t")
            assert found is not None
            await coordination.update_topic(found[0], with_columns(found[1], after))
            newer, again = await asyncio.gather(copy.renewed(known), copy.renewed(known))
            assert newer is again
            assert newer.versions == {schema_fingerprint(after): after, schema_fingerprint(before): before}
            assert len(seen) <= 3, "who asks at once shares a read"

    asyncio.run(scenario())


def test_a_topic_that_was_made_a_moment_ago_is_found_by_whoever_looks_for_it(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with topics(tmp_path) as (copy, coordination, seen):
            await copy.refresh()
            await coordination.create_topic(spec("t"), (STATE,))
            with pytest.raises(UnknownTopic):
                await copy.get("t")
            found = await asyncio.gather(*(copy.looked_for("t") for _ in range(9)))
            assert {topic.spec.topic_id for topic in found} == {id_of("t")}
            assert len(seen) <= 4, "who looks at once shares a read"
            with pytest.raises(UnknownTopic):
                await copy.looked_for("u")
            with pytest.raises(InvalidTopicName):
                await copy.looked_for("../t")

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
