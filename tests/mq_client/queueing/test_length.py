"""A bound on how many records a queue keeps, at a real broker."""

from __future__ import annotations

import pytest

from mq_client import Admin, Producer, Queue, QueueFull
from tests.cluster.harness import wait_until


def test_a_full_queue_refuses_records_until_some_are_worked_off(admin: Admin, bootstrap: str, topic: str) -> None:
    admin.create_topic(topic, partitions=1)
    admin.declare_queue(topic, "g", length_max=3)
    with Producer(bootstrap) as producer:
        for number in range(3):
            producer.publish(topic, f"{number}").result(30)
    with Producer(bootstrap, retries=1) as producer:
        with pytest.raises(QueueFull, match="queue group 'g' keeps 3 records of this partition"):
            producer.publish(topic, "too much").result(30)
        assert admin.describe_queue(topic, "g").ready == 3
    with Producer(bootstrap) as producer:
        late = producer.publish(topic, "late")
        with Queue(bootstrap, topic, "g") as queue:
            for _ in range(4):
                record = queue.take(30_000)
                assert record is not None
                record.ack()
        late.result(30)
    admin.alter_queue(topic, "g", overflow="drop_head")
    with Producer(bootstrap) as producer:
        for number in range(10, 15):
            producer.publish(topic, f"{number}").result(30)
    wait_until(
        lambda: admin.describe_queue(topic, "g").partitions[0].dropped == {"length": 2}, "the oldest are dropped"
    )
    assert [record.value for record in admin.peek_queue(topic, "g", 10)] == [b"12", b"13", b"14"]
    admin.alter_queue(topic, "g", length_max=1)
    wait_until(
        lambda: admin.describe_queue(topic, "g").partitions[0].dropped == {"length": 4}, "a lower bound holds at once"
    )
