"""Members that are pushed their records, at a real broker."""

from __future__ import annotations

import threading

import pytest

from mq_client import Admin, InvalidSetting, Producer, Queue
from mq_client.consuming.push_streams import this_process
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
    assert done.wait(10)


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


def test_what_is_worked_on_while_the_connection_breaks_stays_the_members(
    admin: Admin, bootstrap: str, topic: str
) -> None:
    admin.create_topic(topic, partitions=1)
    admin.declare_queue(topic, "g", resume_ms="30s")
    publish(bootstrap, topic, 50)
    with Queue(bootstrap, topic, "g") as queue:
        held = [queue.take(20_000) for _ in range(50)]
        break_streams()
        for record in held:
            assert record is not None
            record.ack().result(20)
    [described] = admin.describe_queue(topic, "g").partitions
    assert (described.accepted, described.returned) == (50, 0)


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


def test_many_members_of_one_process_share_a_stream_and_hold_one_record_each(
    admin: Admin, bootstrap: str, topic: str
) -> None:
    admin.create_topic(topic, partitions=3)
    publish(bootstrap, topic, 300, 3)
    seen: list[bytes] = []
    holding: list[int] = []

    def work() -> None:
        with Queue(bootstrap, topic, "g", in_flight_max=1) as queue:
            while len(seen) < 300 and (record := queue.take(5_000)) is not None:
                holding.append(admin.describe_queue(topic, "g").leased if len(seen) % 50 == 0 else 0)
                seen.append(record.value)
                record.ack().result(20)

    threads = [threading.Thread(target=work) for _ in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(seen) == sorted(b"%d" % number for number in range(300))
    assert max(holding) <= 10
    wait_until(lambda: not work_streams(this_process())._streams, "the stream ends with the last of them")


def test_a_callback_that_takes_its_time_holds_up_no_other_queue(admin: Admin, bootstrap: str, topic: str) -> None:
    admin.create_topic(topic, partitions=1)
    publish(bootstrap, topic, 2)
    admin.create_topic(f"{topic}-2", partitions=1)
    publish(bootstrap, f"{topic}-2", 1)
    going_on, called = threading.Event(), threading.Event()

    def slow(_future: object) -> None:
        called.set()
        going_on.wait(30)

    with Queue(bootstrap, topic, "g") as queue, Queue(bootstrap, f"{topic}-2", "g") as other:
        first = queue.take(20_000)
        assert first is not None
        first.ack().add_done_callback(slow)
        assert called.wait(20)
        for each in (other, queue):
            record = each.take(20_000)
            assert record is not None
            record.ack().result(20)
        going_on.set()
    admin.delete_topic(f"{topic}-2")


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
            assert admin.describe_queue(topic, "g").leased <= 20
            values.append(record.value)
            record.ack().result(20)
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


def test_of_a_group_in_order_one_member_is_active(admin: Admin, bootstrap: str, topic: str) -> None:
    admin.create_topic(topic, partitions=1)
    admin.declare_queue(topic, "g", order="all", priority="ignore")
    publish(bootstrap, topic, 4)
    with Queue(bootstrap, topic, "g", in_flight_max=1) as first:
        record = first.take(20_000)
        assert record is not None
        with Queue(bootstrap, topic, "g", in_flight_max=1) as second:
            assert second.take(0) is None
            wait_until(lambda: first.active and not second.active, "each knows it")
            first.close()
            record = second.take(20_000)
            assert record is not None
            assert second.active
            record.ack().result(20)
