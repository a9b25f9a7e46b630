"""Records of a work queue that are too old, at a real broker."""

from __future__ import annotations

from mq_client import Admin, Producer, Queue
from tests.cluster.harness import wait_until


def test_records_that_nobody_took_in_time_go_and_newer_ones_are_lent(admin: Admin, bootstrap: str, topic: str) -> None:
    admin.create_topic(topic, partitions=1)
    admin.declare_queue(topic, "g", ttl_ms="1s")
    with Producer(bootstrap) as producer:
        for number in range(3):
            producer.publish(topic, f"{number}").result(10)
        wait_until(lambda: admin.describe_queue(topic, "g").partitions[0].dropped == {"expired": 3}, "nobody asked")
        admin.alter_queue(topic, "g", ttl_ms="forever")
        producer.publish(topic, "new").result(10)
    with Queue(bootstrap, topic, "g") as queue:
        record = queue.take(10_000)
        assert record is not None
        assert record.value == b"new"
        record.ack().result(10)
