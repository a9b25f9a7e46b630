"""Topics, cluster and groups against a real broker."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from mq_client import (
    Admin,
    BatchTooLarge,
    Consumer,
    InvalidRequest,
    InvalidSetting,
    InvalidTopicName,
    NotEnoughBrokers,
    Producer,
    TopicExists,
    UnknownGroup,
    UnknownTopic,
)
from mq_client.cluster.connection import Connection
from mq_client.shown.descriptions import PartitionMove
from mq_protocol import limits
from mq_protocol import mq_pb2 as pb
from mq_protocol.arrow import RECORD_SCHEMA
from mq_protocol.sql.ddl import parse_schema
from tests.cluster.harness import wait_until


def test_a_topic_is_what_it_was_made_to_be(admin: Admin, topic: str) -> None:
    made = admin.create_topic(
        topic, partitions=3, schema="a long, b array<string>", durability="os", dedup_uuids_max=1000
    )
    assert made == admin.describe_topic(topic)
    assert (made.name, made.typed, made.settings) == (topic, True, {"durability": "os", "dedup_uuids_max": "1000"})
    assert made.schema == parse_schema("a long, b array<string>")
    assert [(p.partition, p.leader, p.replicas, p.isr) for p in made.partitions] == [
        (n, 1, (1,), (1,)) for n in range(3)
    ]
    assert topic in admin.list_topics()
    assert admin.offsets(topic) == {0: (0, 0), 1: (0, 0), 2: (0, 0)}
    admin.delete_topic(topic)
    assert topic not in admin.list_topics()


def test_a_topic_is_altered_while_it_is_in_use(admin: Admin, bootstrap: str, topic: str) -> None:
    admin.create_topic(topic, partitions=2, batch_bytes_max="1MiB")
    with Producer(bootstrap) as producer:
        producer.publish(topic, b"before", partition=1).result(30)
        altered = admin.alter_topic(topic, partitions=4, batch_bytes_max="64KiB", record_bytes_max=100)
        assert altered.settings == {"batch_bytes_max": "64KiB", "record_bytes_max": "100"}
        assert [(p.partition, p.leader, p.replicas) for p in altered.partitions] == [(n, 1, (1,)) for n in range(4)]
    with Producer(bootstrap) as producer:
        producer.publish(topic, b"after", partition=3).result(30)
        with pytest.raises(BatchTooLarge):
            producer.publish(topic, b"x" * 200, partition=0).result(30)
    assert admin.offsets(topic) == {0: (0, 0), 1: (0, 1), 2: (0, 0), 3: (0, 1)}
    assert admin.alter_topic(topic, record_bytes_max=None).settings == {"batch_bytes_max": "64KiB"}
    with pytest.raises(InvalidRequest, match="has 4 partitions and cannot have fewer"):
        admin.alter_topic(topic, partitions=3)
    with pytest.raises(InvalidSetting, match="durability cannot be changed"):
        admin.alter_topic(topic, durability="memory")
    with pytest.raises(NotEnoughBrokers, match="need 2 brokers and 1 are live"):
        admin.alter_topic(topic, replicas=2)
    with pytest.raises(UnknownTopic, match=f"did you mean '{topic}'"):
        admin.alter_topic(topic[:-1], partitions=5)


def test_a_cluster_of_one_has_nowhere_to_move_anything(admin: Admin, topic: str) -> None:
    admin.create_topic(topic)
    assert admin.plan_balance() == []
    assert admin.moves() == []
    assert admin.needed_by(1) >= 1
    with pytest.raises(NotEnoughBrokers, match="without broker 1 only 0 brokers are live"):
        admin.plan_drain(1)
    with pytest.raises(InvalidRequest, match="broker 2, which is not live"):
        admin.move_partition(topic, 0, [2])
    with pytest.raises(InvalidRequest, match="holds no replica"):
        admin.transfer_leadership(topic, 0, 2)
    with pytest.raises(InvalidRequest, match="there is nothing to recover"):
        admin.recover_partition(topic, 0)
    admin.transfer_leadership(topic, 0, 1)
    admin.cancel_move(topic, 0)


def test_without_a_schema_it_is_a_topic_of_records(admin: Admin, topic: str) -> None:
    made = admin.create_topic(topic)
    assert not made.typed
    assert made.schema == RECORD_SCHEMA


def test_an_arrow_schema_is_stored_as_spark_has_it(admin: Admin, topic: str) -> None:
    given = pa.schema([pa.field("a", pa.list_(pa.field("item", pa.int32())), metadata={"x": "y"})])
    assert str(admin.create_topic(topic, schema=given).schema) == str(parse_schema("a array<int>"))


def test_what_cannot_be_made_says_why(admin: Admin, topic: str) -> None:
    admin.create_topic(topic)
    with pytest.raises(TopicExists, match=r"choose another name, .*if_not_exists=True"):
        admin.create_topic(topic)
    assert len(admin.create_topic(topic, partitions=2, if_not_exists=True).partitions) == 1, "it stays as it is"
    with pytest.raises(InvalidTopicName):
        admin.create_topic("a/b")
    with pytest.raises(InvalidTopicName, match="brokers' own"):
        admin.create_topic("__mine")
    with pytest.raises(InvalidSetting, match="did you mean 'durability'"):
        admin.create_topic(topic + "2", durabilty="os")
    with pytest.raises(InvalidSetting, match="partitions=0"):
        admin.create_topic(topic + "2", partitions=0)
    with pytest.raises(NotEnoughBrokers):
        admin.create_topic(topic + "2", replicas=3)
    with pytest.raises(InvalidRequest, match="did you mean 'long'"):
        admin.create_topic(topic + "2", schema="a lng")
    with pytest.raises(InvalidRequest, match=r"schema is .*give words"):
        admin.create_topic(topic + "2", schema={"a": "long"})  # type: ignore[arg-type]
    with pytest.raises(InvalidRequest, match="use long"):
        admin.create_topic(topic + "2", schema=pa.schema([("a", pa.uint32())]))
    assert topic + "2" not in admin.list_topics()


def test_topics_are_made_together_and_one_that_is_there_keeps_no_other_back(admin: Admin, topic: str) -> None:
    admin.create_topic(f"{topic}-3")
    names = [f"{topic}-{number}" for number in range(150)]
    made = admin.create_topics(names, partitions=2, schema="a long", durability="os")
    assert [each.name for each in made] == names
    refused = [each for each in made if each.error is not None]
    assert [each.name for each in refused] == [f"{topic}-3"]
    assert isinstance(refused[0].error, TopicExists)
    for name in (names[0], names[-1]):
        found = admin.describe_topic(name)
        assert (len(found.partitions), found.settings, found.typed) == (2, {"durability": "os"}, True)
        assert all(partition.leader for partition in found.partitions)
    again = admin.create_topics([*names, f"{topic}-new"], if_not_exists=True)
    assert [each.was_there for each in again] == [True] * 150 + [False]
    assert not any(each.error for each in again)
    for name in [*names, f"{topic}-new"]:
        admin.delete_topic(name)


def test_topics_that_cannot_be_made_so_are_refused_before_any_is_made(admin: Admin, topic: str) -> None:
    wrong: list[tuple[Any, dict[str, Any], str]] = [
        ([topic, "a/b"], {}, "a/b"),
        ([topic, topic], {}, "given twice"),
        (topic, {}, "give a list"),
        ([topic], {"durabilty": "os"}, "durability"),
        ([topic], {"partitions": 0}, "out of range"),
        ([topic], {"partitions": 1 << 31}, "out of range"),
    ]
    for names, options, says in wrong:
        with pytest.raises((InvalidRequest, InvalidSetting, InvalidTopicName), match=says):
            admin.create_topics(names, **options)
    assert topic not in admin.list_topics()
    assert admin.create_topics([]) == []
    too_many = admin.create_topics([topic], replicas=3)
    assert isinstance(too_many[0].error, NotEnoughBrokers)


def test_the_cluster_names_its_brokers(admin: Admin, bootstrap: str) -> None:
    described = admin.describe_cluster()
    assert [(broker.id, broker.address) for broker in described.brokers] == [(1, bootstrap)]
    assert (described.coordination, described.answered_by) == ("file", 1)
    assert described.brokers[0].incarnation >= 1


def test_offsets_are_found_by_time(admin: Admin, bootstrap: str, topic: str) -> None:
    admin.create_topic(topic)
    with Producer(bootstrap) as producer:
        stamps = [producer.publish(topic, b"x").result(30).timestamp for _ in range(3)]
    assert admin.offsets_at(topic, 0) == {0: 0}
    assert admin.offsets_at(topic, stamps[2]) == {0: 2}
    assert admin.offsets_at(topic, stamps[2] + 10**9) == {0: 3}


def test_a_group_is_described_by_its_cursors_and_can_be_moved(admin: Admin, bootstrap: str, topic: str) -> None:
    admin.create_topic(topic, partitions=2)
    with Producer(bootstrap) as producer:
        for number in range(10):
            producer.publish(topic, b"%d" % number, partition=number % 2)
    consumer = Consumer(bootstrap, group=topic, start="earliest")
    consumer.subscribe(topic)
    with consumer:
        for _ in range(10):
            assert consumer.take(30_000) is not None
        # A group's places are written down one by one, while its records are already pushed
        wait_until(
            lambda: [len(cursor.members) for cursor in admin.describe_group(topic).cursors] == [1, 1],
            "both places have a member",
        )
    described = admin.describe_group(topic)
    assert [(c.topic, c.partition, c.offset, c.lag, c.kind) for c in described.cursors] == [
        (topic, 0, 5, 0, "consumer"),
        (topic, 1, 5, 0, "consumer"),
    ]
    assert topic in admin.list_groups()
    admin.move_group(topic, {topic: {0: 2}})
    assert [cursor.offset for cursor in admin.describe_group(topic).cursors] == [2, 5]
    assert admin.describe_group(topic).lag == 3
    with pytest.raises(UnknownGroup, match=f"did you mean '{topic}'"):
        admin.describe_group(topic + "x")
    with pytest.raises(InvalidRequest):
        admin.move_group(topic, {topic: {0: -1}})


def test_many_moves_are_started_by_several_requests_and_those_of_a_topic_by_one(
    bootstrap: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[list[tuple[str, int]]] = []

    def ask(_connection: Connection, method: str, request: pb.StartMovesRequest, *_: object) -> None:
        assert method == "StartMoves"
        asked.append([(move.topic, move.partition) for move in request.moves])

    monkeypatch.setattr(Connection, "ask_any", ask)
    together = limits.REQUEST_PLACES_MAX * 2 // 3
    places = [(topic, number) for number in range(together) for topic in "ab"]
    places += [("c", number) for number in range(limits.REQUEST_PLACES_MAX - together)] + [("d", 0)]
    with Admin(bootstrap) as admin:
        admin.start_moves([PartitionMove(topic, number, (1,), (2,)) for topic, number in places])
        admin.start_moves([])
    assert asked == [[place for place in places if place[0] in topics] for topics in ("a", "bc", "d")]
