"""Members that are pushed their records, at a real broker."""

from __future__ import annotations

import threading

import pytest

from mq_client import Admin, InvalidSetting, Producer, Queue
from mq_client.cluster.loop import this_process
from mq_client.queueing.work_streams import work_streams
from tests.cluster.harness import wait_until


def publish(bootstrap: str, topic: str, count: int, partitions: int = 1) -> None:
    with Producer(bootstrap) as producer:
        for number in range(count):
            producer.publish(topic, f"{number}", partition=number % partitions)


def publish_to(bootstrap: str, topic: str, partition: int, count: int) -> None:
    with Producer(bootstrap) as producer:
        for _ in range(count):
            producer.publish(topic, "x", partition=partition)


def break_streams() -> None:
    """All of this process, as when the network does."""
    loop, done = this_process(), threading.Event()

    def cancel() -> None:
        for stream in list(work_streams(loop)._streams.values()):
            stream._task.cancel()
        done.set()

    loop.call(cancel)
    assert done.wait(30)


def test_a_member_whose_connection_breaks_again_and_again_is_redelivered_nothing(
    admin: Admin, bootstrap: str, topic: str
) -> None:
    admin.create_topic(topic, partitions=2)
    admin.declare_queue(topic, "g")
    publish(bootstrap, topic, 600, 2)
    with Queue(bootstrap, topic, "g", in_flight_max=100) as queue:
        acks = []
        for number in range(600):
            record = queue.take(20_000)
            assert record is not None
            acks.append(record.ack())
            if number % 100 == 50:
                break_streams()
        for ack in acks:
            ack.result(20)
        assert queue.take(0) is None
    described = admin.describe_queue(topic, "g")
    assert (described.accepted, described.charged, described.ready) == (600, 0, 0)


def test_a_leader_of_which_bytes_alone_were_taken_back_is_given_credit_again(
    admin: Admin, bootstrap: str, topic: str
) -> None:
    """The member waited for ever for its word that they were taken back."""
    admin.create_topic(topic, partitions=2)
    with Queue(bootstrap, topic, "g", in_flight_max=12) as queue:
        held = []
        # One leader lends all but one of its share, then the other has more
        for partition, count, lent in ((1, 5, 5), (0, 20, 6)):
            publish_to(bootstrap, topic, partition, count)
            for _ in range(lent):
                record = queue.take(20_000)
                assert record is not None
                held.append(record)
            assert queue.take(1_000) is None, "the first may lend one still"
        for record in held:
            record.ack()
        publish_to(bootstrap, topic, 1, 30)
        for _ in range(5 + 20 + 30 - len(held)):
            next_one = queue.take(20_000)
            assert next_one is not None, "a leader lends nothing more"
            next_one.ack()


def test_a_member_is_configured_while_it_works(admin: Admin, bootstrap: str, topic: str) -> None:
    admin.create_topic(topic, partitions=2)
    with Queue(bootstrap, topic, "g", in_flight_max=100) as queue:
        assert queue.active
        queue.configure(in_flight_max=0)
        publish(bootstrap, topic, 20, 2)
        wait_until(lambda: admin.describe_queue(topic, "g").ready > 0, "what was on its way has come")
        queue.configure(in_flight_max=4)
        values = []
        while len(values) < 20:
            record = queue.take(20_000)
            assert record is not None
            values.append(record.value)
            record.ack().result(20)
        publish(bootstrap, topic, 20, 2)
        wait_until(lambda: admin.describe_queue(topic, "g").leased == 4, "it is lent what it may hold now")
        for _ in range(20):
            record = queue.take(20_000)
            assert record is not None
            record.ack()
        queue.configure(filter="key = 'wanted'", priority=3)
        with Producer(bootstrap) as producer:
            producer.publish(topic, "left", key="other", partition=0).result(20)
            producer.publish(topic, "taken", key="wanted", partition=0).result(20)
        record = queue.take(20_000)
        assert record is not None
        assert record.value == b"taken"
        record.ack()
        queue.configure(filter="")
        record = queue.take(20_000)
        assert record is not None
        assert record.value == b"left"
        record.ack()
        for wrong in ({"in_flight_max": -1}, {"priority": 32}, {"filter": 5}):
            with pytest.raises(InvalidSetting):
                queue.configure(**wrong)  # type: ignore[arg-type]
    assert not queue.active
