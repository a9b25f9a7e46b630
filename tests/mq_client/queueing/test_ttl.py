"""Records of a work queue that are too old, at a real broker."""

from __future__ import annotations

import pyarrow as pa

from mq_client import Admin, Producer, Queue, Reader
from tests.cluster.harness import wait_until


def test_records_that_nobody_took_in_time_go_and_newer_ones_are_lent(admin: Admin, bootstrap: str, topic: str) -> None:
    admin.create_topic(topic, partitions=1)
    admin.declare_queue(topic, "g", ttl_ms="1s")
    with Producer(bootstrap) as producer:
        for number in range(3):
            producer.publish(topic, f"{number}").result(30)
        wait_until(lambda: admin.describe_queue(topic, "g").partitions[0].dropped == {"expired": 3}, "nobody asked")
        admin.alter_queue(topic, "g", ttl_ms="forever")
        producer.publish(topic, "new").result(30)
    with Queue(bootstrap, topic, "g") as queue:
        record = queue.take(30_000)
        assert record is not None
        assert record.value == b"new"
        record.ack().result(30)


def test_records_with_a_time_to_live_of_their_own_go_and_others_stay(admin: Admin, bootstrap: str, topic: str) -> None:
    admin.create_topic(topic, partitions=1)
    admin.declare_queue(topic, "g")
    with Producer(bootstrap) as producer:
        for number in range(4):
            producer.publish(topic, f"{number}", ttl_ms=300 if number % 2 else None)
        rows = pa.table({"value": [b"urgent", b"usual"], "level": [9, None]})
        producer.publish_batch(topic, rows, priority_column="level", ttl_ms=600_000).result(30)
        producer.publish(topic, "later", delay_ms=500, ttl_ms=300).result(30)
        wait_until(lambda: admin.describe_queue(topic, "g").partitions[0].dropped == {"expired": 3}, "nobody asked")
    found = [record.value for record in admin.peek_queue(topic, "g", 10)]
    assert sorted(found) == [b"0", b"2", b"urgent", b"usual"]
    with Queue(bootstrap, topic, "g", in_flight_max=1) as queue:
        record = queue.take(30_000)
        assert record is not None
        assert record.value == b"urgent"
        record.ack().result(30)
    read = [value for batch in Reader(bootstrap).read(topic, 0) for value in batch.column("value").to_pylist()]
    assert len(read) == 7, "readers of streams see all of it"
