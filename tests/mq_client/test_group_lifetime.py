"""How groups end: deleted by name, or by themselves after their last member."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from mq_client import Admin, Consumer, GroupInUse, InvalidRequest, InvalidSetting, Producer, UnknownGroup
from mq_client.cluster.connection import Connection
from mq_client.cluster.deadline import Deadline
from mq_client.cluster.requests import move_cursors
from tests.cluster.harness import wait_until


def publish(bootstrap: str, topic: str, *values: str) -> None:
    with Producer(bootstrap) as producer:
        for value in values:
            producer.publish(topic, value, partition=0).result(30)


def consume(bootstrap: str, topic: str, count: int, **options: Any) -> list[bytes]:
    with Consumer(bootstrap, start="earliest", **options) as consumer:
        consumer.subscribe(topic)
        taken = [consumer.take(30_000) for _ in range(count)]
    return [record.value for record in taken if record is not None]


def test_a_deleted_group_begins_anew(admin: Admin, bootstrap: str, topic: str) -> None:
    admin.create_topic(topic, partitions=2)
    publish(bootstrap, topic, "a", "b")
    assert consume(bootstrap, topic, 2, group=topic) == [b"a", b"b"]
    assert topic in admin.list_groups()
    admin.delete_group(topic)
    assert topic not in admin.list_groups()
    with pytest.raises(UnknownGroup):
        admin.delete_group(topic)
    assert consume(bootstrap, topic, 1, group=topic) == [b"a"]


def test_a_group_with_members_is_deleted_only_by_force_and_they_are_told(
    admin: Admin, bootstrap: str, topic: str
) -> None:
    admin.create_topic(topic)
    publish(bootstrap, topic, "a")
    consumer = Consumer(bootstrap, group=topic, start="earliest", member_id="m-1")
    consumer.subscribe(topic)
    with consumer:
        assert consumer.take(30_000) is not None
        wait_until(lambda: topic in admin.list_groups(), "the group's first place is written down")
        with pytest.raises(GroupInUse, match=r"has members \(m-1\)"):
            admin.delete_group(topic)
        assert topic in admin.list_groups()
        admin.delete_group(topic, force=True)
        with pytest.raises(UnknownGroup, match="was deleted"):
            consumer.take(30_000)
        assert consumer.subscription() == frozenset()
    assert topic not in admin.list_groups()


def test_what_a_throw_away_query_has_left_is_freed(admin: Admin, bootstrap: str, topic: str) -> None:
    admin.create_topic(topic, partitions=3)
    places = {topic: dict.fromkeys(range(3), 0)}
    move_cursors(Connection(bootstrap), f"spark-{topic}", places, Deadline(10_000), kind="spark")
    assert [cursor.kind for cursor in admin.describe_group(f"spark-{topic}").cursors] == ["spark"] * 3
    admin.delete_group(f"spark-{topic}")
    with pytest.raises(UnknownGroup):
        admin.describe_group(f"spark-{topic}")


def test_a_group_is_reset_to_either_end_to_an_offset_or_to_a_time(admin: Admin, bootstrap: str, topic: str) -> None:
    admin.create_topic(topic, partitions=2)
    publish(bootstrap, topic, "a", "b", "c")
    since = datetime.now(UTC)
    publish(bootstrap, topic, "d")
    for to, place in (("latest", {0: 4, 1: 0}), ("earliest", {0: 0, 1: 0}), (2, {0: 2, 1: 0}), (since, {0: 3, 1: 0})):
        assert admin.reset_group(topic, topic, to) == place
        assert {cursor.partition: cursor.offset for cursor in admin.describe_group(topic).cursors} == place
    for nonsense in ("newest", -1):
        with pytest.raises(InvalidRequest, match="is no place"):
            admin.reset_group(topic, topic, nonsense)


def test_all_members_of_a_group_say_alike_whether_it_ends_with_them(admin: Admin, bootstrap: str, topic: str) -> None:
    with pytest.raises(InvalidSetting, match="about a group"):
        Consumer(bootstrap, ephemeral=True)
    admin.create_topic(topic)
    publish(bootstrap, topic, "a")
    assert consume(bootstrap, topic, 1, group=topic) == [b"a"]
    with pytest.raises(InvalidRequest, match="is kept: give ephemeral=False"):
        consume(bootstrap, topic, 1, group=topic, ephemeral=True)
    assert consume(bootstrap, topic, 1, group=topic + "e", ephemeral=True) == [b"a"]
    assert [cursor.kind for cursor in admin.describe_group(topic + "e").cursors] == ["ephemeral"]
    with pytest.raises(InvalidRequest, match="ends with its last member: give ephemeral=True"):
        consume(bootstrap, topic, 1, group=topic + "e")
