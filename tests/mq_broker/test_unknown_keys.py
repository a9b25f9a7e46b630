"""Keys that a newer version has put into a stored document survive every write of this version."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from kazoo.client import KazooClient

from mq_broker.broker import BrokerConfig
from mq_broker.broker.administration.topic_changes import arrived, begun, called_off, with_columns, with_settings
from mq_broker.coordination import documents
from mq_broker.coordination.interface import Move, TopicSpec
from mq_broker.coordination.service import CoordinationService
from mq_broker.coordination.zookeeper import ZooKeeperStore
from mq_broker.core.messages import LeaderName, NodeState
from mq_broker.core.replication.replica_state import Node
from mq_broker.storage.files import OsFiles
from mq_broker.storage.identity import LogIdentity, load_identity
from mq_broker.storage.opening.directory import DataDirectory
from mq_protocol import mq_pb2 as pb
from mq_protocol.arrow import schema_to_bytes
from mq_protocol.errors import InternalError
from mq_protocol.limits import TOPIC_DOCUMENT_BYTES_MAX
from mq_protocol.unknown_keys import STATE_UNKNOWN_BYTES_MAX, unknown_keys, with_unknown
from tests.coroutines import real_time
from tests.mq_broker.broker.administration.test_recovery import chosen, status
from tests.mq_broker.broker.cluster import SCHEMA, Broker, standalone, until
from tests.mq_broker.coordination.wire import id_of
from tests.mq_broker.core.replication import test_election, test_membership
from tests.mq_broker.releases import next_level as next_level
from tests.mq_broker.storage.bed import PLACE

NEWER = {"lease": {"until": 7, "of": ["a", None, 1.5]}, "zeta": "ö"}
TEXT = json.dumps(NEWER, separators=(",", ":"), sort_keys=True)

STATE = NodeState(LeaderName(1, 7), 3, ((1, "a"), (2, "b")), 1, "1.7.9", 5, TEXT)
TOPIC = TopicSpec(
    "t",
    id_of("t"),
    ((1, 2), (2, 1, 3)),
    schema_to_bytes(SCHEMA),
    {"durability": "os"},
    {1: Move((2, 3), (2, 1), TEXT)},
    unknown=TEXT,
)


def test_a_document_is_written_with_the_keys_that_it_was_read_with() -> None:
    state = {**documents.state_to_json(replace(STATE, unknown="")), **NEWER}
    assert documents.state_to_json(documents.state_from_json(state)) == state
    topic = documents.topic_to_json(TOPIC)
    assert topic["lease"] == topic["moving"]["1"]["lease"] == NEWER["lease"]
    assert documents.topic_to_json(documents.topic_from_json(topic)) == topic
    assert documents.topic_from_json(topic) == TOPIC


def test_a_known_key_is_never_taken_from_the_unknown_ones() -> None:
    assert with_unknown({"a": 1}, '{"a":2,"b":3}') == {"a": 1, "b": 3}
    assert unknown_keys({"a": 1, "b": 3}, ("a",), 100) == '{"b":3}'
    assert unknown_keys({"a": 1}, ("a",), 100) == ""


def _nested(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


@pytest.mark.parametrize("newer", [{"x": "y" * STATE_UNKNOWN_BYTES_MAX}, {"x": _nested(40)}], ids=["large", "deep"])
def test_unknown_keys_beyond_the_bounds_make_a_document_unreadable(newer: dict[str, Any]) -> None:
    document = documents.dump({**documents.state_to_json(replace(STATE, unknown="")), **newer})
    with pytest.raises(InternalError, match="keys that this version does not know"):
        documents.load(document, documents.state_from_json, "/x")


def test_unknown_keys_count_towards_the_size_of_a_topic() -> None:
    large = replace(TOPIC, unknown=json.dumps({"x": "y" * TOPIC_DOCUMENT_BYTES_MAX}))
    with pytest.raises(Exception, match="would take"):
        documents.check_topic_size(large, TOPIC)


def test_every_change_of_a_topic_keeps_them() -> None:
    wider = pa.schema([*SCHEMA, pa.field("more", pa.int64())])
    changed = [
        begun(TOPIC, {0: (3, 1)}, (1, 2, 3)),
        begun(TOPIC, {1: (1, 3)}, (1, 2, 3)),
        called_off(TOPIC, {1}),
        arrived(replace(TOPIC, moving={**TOPIC.moving, 0: Move((2, 1), (1, 2))}), {0: Move((2, 1), (1, 2))}),
        with_columns(replace(TOPIC, moving={1: TOPIC.moving[1]}), wider),
        with_settings(TOPIC, {"retention_ms": "7d"}),
    ]
    for topic in changed:
        assert topic != TOPIC
        assert (topic.unknown, topic.moving[1].unknown) == (TEXT, TEXT)


def test_every_change_of_a_partitions_state_keeps_them() -> None:
    claim = test_election.Scene(replace(test_election.STATE, unknown=TEXT)).claimed()
    assert claim is not None
    assert (claim.leader_epoch, claim.unknown) == (5, TEXT)
    standing_back = test_election.Scene(replace(test_election.STATE, leader=test_election.ME, unknown=TEXT))
    standing_back.election.stand_back_until_ms = 1_000
    nobody = standing_back.claimed()
    assert nobody is not None
    assert (nobody.leader, nobody.unknown) == (None, TEXT)

    leading = test_membership.Scene()
    leading.shared.node = Node(7, replace(leading.state, unknown=TEXT))
    del leading.shared.live[3]
    shrunk = leading.proposed()
    assert shrunk is not None
    assert (shrunk.state.isr, shrunk.state.unknown) == (test_membership.TWO, TEXT)
    resigning = test_membership.Scene()
    resigning.shared.node = Node(7, replace(resigning.state, unknown=TEXT))
    assert resigning.membership.resign(test_membership.TWO)
    assert [effect.state.unknown for effect in resigning.effects() if hasattr(effect, "state")] == [TEXT]

    lost = replace(STATE, isr=((1, "one"), (2, "two")))
    assert chosen(status(1, "new1"), status(2, "new2"), state=lost).state.unknown == TEXT


def test_what_a_broker_with_zookeeper_writes_keeps_them(
    zookeeper: str, tmp_path: Path, request: pytest.FixtureRequest, next_level: int
) -> None:
    root = f"/{request.node.name}"
    config = BrokerConfig(
        1,
        "127.0.0.1:0",
        tmp_path,
        coordination=lambda: CoordinationService(ZooKeeperStore(zookeeper, 4_000, root=root)),
    )
    client = KazooClient(zookeeper)
    client.start()

    async def first_life() -> None:
        broker = await Broker(config).start()
        await broker.create_topic("t", 2)
        await broker.produce("t", 1, partition=1)
        await broker.stop()

    async def second_life() -> None:
        broker = await Broker(config).start()
        await until(lambda: broker.end("t", 1))
        await broker.ask("AlterTopic", pb.AlterTopicRequest(name="t", partitions=3, settings={"retention_ms": "7d"}))
        await broker.ask("Upgrade", pb.UpgradeRequest())
        await broker.stop()

    try:
        asyncio.run(first_life())
        (topic_id,) = client.get_children(f"{root}/states")
        paths = [f"{root}/topics/t", f"{root}/states/{topic_id}/0", f"{root}/states/{topic_id}/1"]
        paths.append(f"{root}/cluster")
        before = [client.get(path)[0] for path in paths]
        for path, data in zip(paths, before, strict=True):
            client.set(path, json.dumps({**json.loads(data), **NEWER}).encode())
        asyncio.run(second_life())
        after = [json.loads(client.get(path)[0]) for path in paths]
        assert after[-1]["level"] == next_level
        assert [{key: document[key] for key in NEWER} for document in after] == [NEWER] * 4
        assert all(document != {**json.loads(data), **NEWER} for document, data in zip(after, before, strict=True)), (
            "all written"
        )
    finally:
        client.stop()
        client.close()


@real_time
async def test_what_a_broker_that_stands_alone_writes_keeps_them(tmp_path: Path, next_level: int) -> None:
    path = tmp_path / "coordination.json"
    async with standalone(tmp_path) as broker:
        await broker.create_topic("t")
        await broker.produce("t", 1)
    stored = json.loads(path.read_text())
    (state,) = (name for name in stored["nodes"] if name.startswith("states/") and name.endswith("/0"))
    places = ("cluster", "topics/t", state)
    for place in places:
        version, born, data = stored["nodes"][place]
        stored["nodes"][place] = [version, born, json.dumps({**json.loads(data), **NEWER})]
    path.write_text(json.dumps(stored))
    owner = {**json.loads((tmp_path / "broker.json").read_text()), **NEWER}
    (tmp_path / "broker.json").write_text(json.dumps(owner))
    async with standalone(tmp_path) as broker:
        await until(lambda: broker.end("t"))
        await broker.ask("AlterTopic", pb.AlterTopicRequest(name="t", partitions=2))
        await broker.ask("Upgrade", pb.UpgradeRequest())
    nodes = json.loads(path.read_text())["nodes"]
    assert all(nodes[place][0] > stored["nodes"][place][0] for place in places), "all written"
    cluster, topic, changed = (json.loads(nodes[place][2]) for place in places)
    assert changed["leader_epoch"] > 1
    assert len(topic["assignment"]) == 2
    assert cluster["level"] == next_level
    owner = json.loads((tmp_path / "broker.json").read_text())
    for document in (cluster, topic, changed, owner):
        assert {key: document.get(key) for key in NEWER} == NEWER


def test_what_is_written_about_a_log_and_its_broker_keeps_them(tmp_path: Path) -> None:
    log = tmp_path / "log.json"
    LogIdentity("id", "boot", False, "os", PLACE.topic_id, PLACE.partition).store(tmp_path, OsFiles())
    log.write_text(json.dumps({**json.loads(log.read_text()), **NEWER}))
    identity = load_identity(tmp_path, PLACE)
    assert identity is not None
    identity.renewed().store(tmp_path, OsFiles())
    assert {key: json.loads(log.read_text())[key] for key in NEWER} == NEWER

    DataDirectory.open(tmp_path / "data", 7).close()
    owner = tmp_path / "data" / "broker.json"
    owner.write_text(json.dumps({**json.loads(owner.read_text()), **NEWER}))
    directory = DataDirectory.open(tmp_path / "data", 7)
    directory.join_cluster("c-1")
    directory.close()
    assert json.loads(owner.read_text()) == {"broker": 7, "cluster_id": "c-1", **NEWER}
