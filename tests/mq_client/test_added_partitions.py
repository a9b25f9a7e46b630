"""Partitions added to a topic in use: producers and consumers that run find them by themselves."""

from __future__ import annotations

import time

import pytest

from mq_client import Admin, Consumer, InvalidSetting, Producer, UnknownPartition
from mq_client.transactions import TransactionClient
from mq_protocol.partitioner import partition_for_key

KEY = next(key for key in (f"k{n}" for n in range(100)) if partition_for_key(key.encode(), 4) == 3)
DEADLINE_S = 60.0


def test_a_producer_uses_added_partitions_after_a_bounded_time(admin: Admin, bootstrap: str, topic: str) -> None:
    admin.create_topic(topic)
    with Producer(bootstrap, metadata_age_ms_max=50, linger_ms=0) as producer:
        assert producer.publish(topic, "a", key=KEY).result(30).partition == 0
        admin.alter_topic(topic, partitions=4)
        deadline = time.monotonic() + DEADLINE_S
        while producer.publish(topic, "b", key=KEY).result(30).partition != 3:
            assert time.monotonic() < deadline
        spread = {producer.publish(topic, "c").result(30).partition for _ in range(40)}
        assert spread == {0, 1, 2, 3}


def test_a_partition_that_is_named_is_asked_for_before_it_is_an_error(admin: Admin, bootstrap: str, topic: str) -> None:
    admin.create_topic(topic)
    admin.create_topic(f"{topic}-typed", schema="n long")
    with Producer(bootstrap) as producer, TransactionClient(bootstrap) as client:
        for name, value in ((topic, "a"), (f"{topic}-typed", {"n": 1})):
            producer.publish(name, value, partition=0).result(30)
            admin.alter_topic(name, partitions=2)
            assert producer.publish(name, value, partition=1).result(30).partition == 1
        assert producer.publish(topic, "b", key=KEY).result(30).partition == partition_for_key(KEY.encode(), 2), (
            "it knows by now"
        )
        admin.alter_topic(topic, partitions=3)
        assert producer.publish(topic, "c", partition=2, uuid=b"u" * 16).result(30).partition == 2
        client.stage(f"{topic}-typed", 0, [], ("q", topic), 0, "run")
        for wrong in (-1, 7):
            with pytest.raises(UnknownPartition, match="0 to 2"):
                producer.publish(topic, "d", partition=wrong)


def test_a_uuid_is_known_in_its_partition_alone_so_a_key_that_moves_leaves_it_behind(
    admin: Admin, bootstrap: str, topic: str
) -> None:
    """As docs/python.md says under "Records with UUIDs"."""
    admin.create_topic(topic)
    with Producer(bootstrap) as producer:
        first = producer.publish(topic, "a", key=KEY, uuid=b"u" * 16).result(30)
    admin.alter_topic(topic, partitions=4)
    with Producer(bootstrap) as producer:  # a new one knows of all partitions
        named = producer.publish(topic, "a", key=KEY, uuid=b"u" * 16, partition=first.partition).result(30)
        assert (named.partition, named.offset, named.duplicate) == (0, first.offset, True)
        moved = producer.publish(topic, "a", key=KEY, uuid=b"u" * 16).result(30)
        assert (moved.partition, moved.duplicate) == (3, False)
        again = producer.publish(topic, "a", key=KEY, uuid=b"u" * 16).result(30)
        assert (again.partition, again.offset, again.duplicate) == (3, moved.offset, True)


def test_order_within_a_partition_is_kept_while_partitions_are_added(admin: Admin, bootstrap: str, topic: str) -> None:
    admin.create_topic(topic)
    futures = []
    with Producer(bootstrap, metadata_age_ms_max=20, linger_ms=1) as producer:
        for number in range(3_000):
            futures.append(producer.publish(topic, b"%d" % number, partition=0))
            if number in (500, 1500):
                admin.alter_topic(topic, partitions=2 if number == 500 else 3)
    assert [future.result(30).offset for future in futures] == list(range(3_000))


def test_a_consumer_that_runs_is_pushed_all_of_an_added_partition(admin: Admin, bootstrap: str, topic: str) -> None:
    admin.create_topic(topic)
    with (
        Consumer(bootstrap, start="latest") as alone,
        Consumer(bootstrap, group=topic, start="latest", member_id="a") as member,
        Consumer(bootstrap, group=topic, start="latest", member_id="b") as other,
    ):
        for consumer in (alone, member, other):
            consumer.subscribe(topic)
        admin.alter_topic(topic, partitions=3)
        with Producer(bootstrap) as producer:
            sent = [producer.publish(topic, b"%d" % n, partition=n % 3).result(30) for n in range(30)]
        assert len(sent) == 30
        taken = [record for _ in range(30) if (record := alone.take(DEADLINE_S * 1000)) is not None]
        assert sorted(int(record.value) for record in taken) == list(range(30))
        shared: list[int] = []
        deadline = time.monotonic() + DEADLINE_S
        while len(shared) < 30 and time.monotonic() < deadline:
            shared += [int(record.value) for consumer in (member, other) if (record := consumer.take(50)) is not None]
        assert sorted(shared) == list(range(30))


def test_partitions_that_were_there_before_a_topic_was_subscribed_to_are_no_added_ones(
    admin: Admin, bootstrap: str, topic: str
) -> None:
    admin.create_topic(topic)
    with Consumer(bootstrap, start="latest") as consumer, Producer(bootstrap) as producer:
        consumer.subscribe(topic)
        consumer.unsubscribe(topic)
        admin.alter_topic(topic, partitions=2)
        producer.publish(topic, "before", partition=1).result(30)
        consumer.subscribe(topic)
        producer.publish(topic, "after", partition=1).result(30)
        record = consumer.take(30_000)
        assert record is not None
        assert record.value == b"after"


def test_an_age_that_makes_no_sense_is_named() -> None:
    with pytest.raises(InvalidSetting, match="metadata_age_ms_max"):
        Producer("127.0.0.1:1", metadata_age_ms_max=0)
