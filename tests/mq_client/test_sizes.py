"""Records of all sizes, from nothing to more than a megabyte: written, read, pushed to a group and worked off."""

from __future__ import annotations

import os

from mq_client import Admin, Consumer, Producer, Queue
from mq_client.reader import Reader


def test_records_of_all_sizes_are_written_in_order(bootstrap: str, admin: Admin, topic: str) -> None:
    admin.create_topic(topic, partitions=1, batch_bytes_max=3 << 20, record_bytes_max=2 << 20)
    values = [os.urandom(size) for size in (0, 1, 100, 40_000, 1 << 20, 5, 2 << 20)]
    with Producer(bootstrap, linger_ms=0) as producer:
        outcomes = [producer.publish(topic, value) for value in values]
        assert [outcome.result().offset for outcome in outcomes] == list(range(len(values)))
    with Reader(bootstrap) as reader:
        found = [value for rows in reader.read(topic, 0) for value in rows.column("value").to_pylist()]
    assert found == values


def test_a_group_is_pushed_each_record_once_and_goes_on_where_it_was(bootstrap: str, admin: Admin, topic: str) -> None:
    admin.create_topic(topic, partitions=1, batch_bytes_max=3 << 20, record_bytes_max=2 << 20)
    values = [os.urandom(size) for size in (1, 100, 40_000, 1 << 20, 5, 2 << 20)]
    with Producer(bootstrap, linger_ms=0) as producer:
        for value in values:
            producer.publish(topic, value).result(30)
    found: list[bytes] = []
    for _ in range(2):
        with Consumer(bootstrap, group=topic, start="earliest") as consumer:
            consumer.subscribe(topic)
            for _ in range(len(values) // 2):
                record = consumer.take(30_000)
                assert record is not None
                found.append(record.value)
    assert found == values


def test_a_queue_is_worked_off(bootstrap: str, admin: Admin, topic: str) -> None:
    admin.create_topic(topic, partitions=2)
    admin.declare_queue(topic, "g")
    values = {os.urandom(size) for size in (10, 100, 40_000, 200_000)}
    with Producer(bootstrap, linger_ms=0) as producer:
        for value in values:
            producer.publish(topic, value).result(30)
    found = set()
    with Queue(bootstrap, topic, "g", idle_ms=30_000) as queue:
        for _ in values:
            record = queue.take()
            assert record is not None
            found.add(record.value)
            record.ack()
    assert found == values
    assert admin.describe_queue(topic, "g").ready == 0
