"""Cases of tests/SCENARIOS.md that no other test shows: short stories with one real broker."""

from __future__ import annotations

import pyarrow as pa

from mq_client import Admin, Consumer, ConsumerRecord, Producer, Reader

WAIT_MS = 30_000
SILENCE_MS = 200


def published(bootstrap: str, topic: str, values: list[bytes]) -> list[int]:
    """The offsets of those values, once each is acknowledged."""
    with Producer(bootstrap) as producer:
        return [future.result(30).offset for future in [producer.publish(topic, value) for value in values]]


def taken(consumer: Consumer, count: int) -> list[ConsumerRecord]:
    records = [record for _ in range(count) if (record := consumer.take(WAIT_MS)) is not None]
    assert len(records) == count
    return records


def values(records: list[ConsumerRecord]) -> list[bytes | None]:
    return [record.value for record in records]


def numbers(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


def read(bootstrap: str, topic: str, start: int, end: int) -> list[bytes | None]:
    batches = list(Reader(bootstrap).read(topic, partition=0, start=start, end=end))
    found: list[bytes | None] = pa.Table.from_batches(batches).column("value").to_pylist()
    return found


def test_one_consumer_of_several_topics_is_given_each_of_them_in_order(
    admin: Admin, bootstrap: str, topic: str
) -> None:
    topics = [f"{topic}-{number}" for number in range(5)]
    for each in topics:
        admin.create_topic(each)
    with Consumer(bootstrap, start="earliest") as consumer:
        consumer.subscribe(topics)
        for each in topics:
            published(bootstrap, each, numbers(10))
        records = taken(consumer, 50)
        assert consumer.take(SILENCE_MS) is None
    for each in topics:
        assert values([record for record in records if record.topic == each]) == numbers(10)


def test_each_of_many_subscribers_is_given_every_record_in_the_same_order(
    admin: Admin, bootstrap: str, topic: str
) -> None:
    admin.create_topic(topic)
    published(bootstrap, topic, numbers(1_000))
    subscribers = [Consumer(bootstrap, start="earliest") for _ in range(12)]
    for subscriber in subscribers:
        subscriber.subscribe(topic)
        subscriber.start()
    for subscriber in subscribers:
        assert values(taken(subscriber, 1_000)) == numbers(1_000)
        subscriber.stop()


def test_the_same_payloads_published_twice_are_there_twice_in_order(admin: Admin, bootstrap: str, topic: str) -> None:
    admin.create_topic(topic)
    with Producer(bootstrap) as producer:
        for _ in range(2):
            for value in numbers(20):
                producer.publish(topic, value)
        producer.flush()
    assert read(bootstrap, topic, 0, 40) == numbers(20) * 2


def test_a_producer_that_closes_leaves_the_batches_of_another_alone(admin: Admin, bootstrap: str, topic: str) -> None:
    admin.create_topic(topic)
    staying, closing = Producer(bootstrap, linger_ms=100), Producer(bootstrap, linger_ms=100)
    waiting = staying.publish(topic, b"stays")
    flushed = closing.publish(topic, b"closes")
    closing.close()
    assert flushed.done()
    assert sorted([waiting.result(30).offset, flushed.result(30).offset]) == [0, 1]
    staying.close()


def test_two_groups_read_the_same_log_without_taking_from_each_other(admin: Admin, bootstrap: str, topic: str) -> None:
    admin.create_topic(topic)
    published(bootstrap, topic, numbers(10))
    for group in ("now", "later"):
        with Consumer(bootstrap, group=f"{topic}-{group}", start="earliest") as consumer:
            consumer.subscribe(topic)
            assert values(taken(consumer, 10)) == numbers(10)
            assert consumer.take(SILENCE_MS) is None
    assert admin.offsets(topic) == {0: (0, 10)}


def test_reads_by_offset_and_peeks_move_no_group(admin: Admin, bootstrap: str, topic: str) -> None:
    admin.create_topic(topic)
    published(bootstrap, topic, numbers(10))
    admin.move_group(topic, {topic: {0: 4}})
    assert read(bootstrap, topic, 0, 10) == numbers(10)
    assert values(admin.peek(topic, topic, 3)) == numbers(10)[4:7]
    (cursor,) = admin.describe_group(topic).cursors
    assert cursor.offset == 4


def test_a_record_keeps_its_offset_when_those_before_it_are_dropped(admin: Admin, bootstrap: str, topic: str) -> None:
    admin.create_topic(topic)
    offsets = published(bootstrap, topic, numbers(20))
    assert admin.purge(topic, before=12) == {0: 12}
    assert read(bootstrap, topic, 15, 16) == [b"15"]
    assert published(bootstrap, topic, [b"next"]) == [offsets[-1] + 1]


def test_an_empty_payload_is_a_record_and_leaves_no_gap(admin: Admin, bootstrap: str, topic: str) -> None:
    admin.create_topic(topic)
    assert published(bootstrap, topic, [b"before", b"", b"after"]) == [0, 1, 2]
    assert read(bootstrap, topic, 0, 3) == [b"before", b"", b"after"]


def test_a_consumer_whose_wait_ended_is_given_what_comes_later(admin: Admin, bootstrap: str, topic: str) -> None:
    admin.create_topic(topic)
    with Consumer(bootstrap) as consumer:
        consumer.subscribe(topic)
        assert consumer.take(SILENCE_MS) is None
        published(bootstrap, topic, [b"late"])
        assert values(taken(consumer, 1)) == [b"late"]
