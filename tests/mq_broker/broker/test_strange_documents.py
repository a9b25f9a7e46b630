"""A broker among altered documents in ZooKeeper: it starts, serves what is whole, and writes nowhere but in its own
directory."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kazoo.client import KazooClient

from mq_broker.broker import BrokerConfig
from mq_broker.coordination import documents
from mq_broker.coordination.interface import BrokerRegistration, Move, TopicSpec
from mq_broker.core.messages import LeaderName, NodeState
from mq_protocol import mq_pb2 as pb
from mq_protocol.arrow import schema_to_bytes
from tests.mq_broker.broker.cluster import SCHEMA, Broker, until
from tests.mq_broker.coordination.absurd import altered
from tests.mq_broker.coordination.wire import LASTING_MS, id_of

MINE = 1


@contextlib.contextmanager
def stranger(hosts: str) -> Iterator[KazooClient]:
    client = KazooClient(hosts=hosts)
    client.start(timeout=30)
    try:
        yield client
    finally:
        client.stop()
        client.close()


def _spec(name: str) -> dict[str, Any]:
    whole = TopicSpec(
        name, id_of(name), ((1,), (1, 2)), schema_to_bytes(SCHEMA), {"durability": "os"}, {1: Move((1,), (1, 2))}, (1,)
    )
    return documents.topic_to_json(whole)


def _state() -> dict[str, Any]:
    return documents.state_to_json(NodeState(LeaderName(MINE, 1), 3, ((1, "a"), (2, "b")), 1, "1.7.9", 5))


def _plant(client: KazooClient, root: str) -> str:
    """Hundreds of topics, partitions and brokers, each with one field that nobody would write. A topic of theirs that
    is whole."""
    whole, count = documents.dump(_state()), 0
    made: list[Any] = []

    def create(path: str, data: bytes) -> None:
        made.append(client.create_async(f"{root}/{path}", data))

    def topic(name: str, data: bytes, state: bytes) -> None:
        create(f"states/{id_of(name)}", b"")
        for number in range(2):
            create(f"states/{id_of(name)}/{number}", state)
        create(f"topics/{name}", data)

    for count, (_, data) in enumerate(altered(_spec("of")), start=1):
        name = f"t{count}"
        topic(
            name, data.replace(b'"of"', f'"{name}"'.encode()).replace(id_of("of").encode(), id_of(name).encode()), whole
        )
    topics = count
    for count, (_, data) in enumerate(altered(_state()), start=topics + 1):
        topic(f"t{count}", documents.dump(_spec(f"t{count}")), data)
    states = count
    registration = documents.registration_to_json(BrokerRegistration(99, 1, "127.0.0.1:1", "r", "127.0.0.1:1"))
    for count, (_, data) in enumerate(altered(registration), start=states + 1):
        create(f"brokers/live/{count}", data.replace(b'"broker": 99', f'"broker": {count}'.encode()))
    for name in ("-1", "0", "x", "²", "9" * 400):
        create(f"brokers/live/{name}", documents.dump({**registration, "broker": 99}))
    assert count > 500
    for each in made:
        each.get(timeout=60)
    return f"t{states}"


def test_a_broker_lives_among_altered_documents_and_writes_nowhere_else(
    zookeeper: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        place = "/strange-documents"
        config = BrokerConfig(
            MINE,
            "127.0.0.1:0",
            tmp_path / "deep" / "er" / "data",
            zookeeper=zookeeper + place,
            session_timeout_ms=LASTING_MS,
            stop_timeout_ms=200,
        )
        root = f"{place}/tritonmq"
        broker = await Broker(config).start()
        try:
            await broker.create_topic("whole")
            await broker.produce("whole", 1)
            with stranger(zookeeper) as client:
                listed = await asyncio.to_thread(_plant, client, root)
                # Who runs reads them all for that
                client.set(f"{root}/topic_changes", b"9 ../../x\n" + b"7" * 5_000 + b" t1")
                await until(lambda: _knows(broker, listed))
                await broker.produce("whole", 2)
                await broker.stop()
                await broker.start()  # who starts among them as well
                assert await until(lambda: broker.numbers("whole")) == [1, 2]
                version = client.get(f"{root}/brokers/lives/{MINE}")[1].version
                lie = BrokerRegistration(MINE, version + 1_000, broker.address, "", broker.address)
                client.set(f"{root}/brokers/live/{MINE}", documents.dump(documents.registration_to_json(lie)))
                await broker.produce("whole", 3)
                assert await broker.numbers("whole") == [1, 2, 3]
        finally:
            await broker.stop()
        inside = re.compile(r"deep(/er(/data(/(broker\.\w+|partitions(/[0-9a-f]{32}-[01](/.*)?)?))?)?)?")
        files = [path.relative_to(tmp_path) for path in tmp_path.rglob("*")]  # noqa: ASYNC240 - nothing else runs any more
        assert [str(path) for path in files if not inside.fullmatch(str(path))] == []

    asyncio.run(scenario())
    told = [
        record.getMessage() for record in caplog.records if "does not hold what TritonMQ writes" in record.getMessage()
    ]
    assert len(told) > 300
    assert all(text.isprintable() for text in told)
    assert not [record for record in caplog.records if record.exc_info]


async def _knows(broker: Broker, topic: str) -> bool:
    """Whether it has read them all: it lists that topic, which is whole."""
    answer = await broker.ask("Metadata", pb.MetadataRequest(all_topics=True))
    return topic in [known.name for known in answer.topics]
