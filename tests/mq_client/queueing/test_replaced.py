"""Two live processes that give one `member_id`, at a real broker."""

from __future__ import annotations

import pytest

from mq_client import Admin, MemberInUse, Producer, Queue


def test_of_two_processes_of_one_name_the_older_one_is_told_and_the_newer_one_works(
    admin: Admin, bootstrap: str, topic: str
) -> None:
    admin.create_topic(topic, partitions=2)
    admin.declare_queue(topic, "g", retry_ms="0", delivery_limit="0")
    with Producer(bootstrap) as producer:
        for number in range(20):
            producer.publish(topic, f"{number}", partition=number % 2).result(30)
    with Queue(bootstrap, topic, "g", member_id="worker") as older:
        assert older.take(30_000) is not None
        with Queue(bootstrap, topic, "g", member_id="worker") as newer:
            values = set()
            while len(values) < 20:
                record = newer.take(30_000)
                assert record is not None
                values.add(record.value)
                record.ack().result(30)
            words = "another process works as member 'worker'.*give each process a member_id of its own"
            with pytest.raises(MemberInUse, match=words):
                older.take(20_000)
            assert newer.take(0) is None, "the newer one is not told so"
    described = admin.describe_queue(topic, "g")
    assert sum(each.accepted for each in described.partitions) == 20
    assert sum(each.charged for each in described.partitions) <= 2, "one for each partition, as if it had died"
