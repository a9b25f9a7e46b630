"""Peek: what a group would be given next, without taking it."""

from __future__ import annotations

import random
from itertools import islice

import pytest

from mq_client import Admin, Consumer, InvalidRequest, Producer, UnknownGroup
from mq_client.administration.peek import PEEK_BYTES_MAX, shared_out


def test_peek_gives_what_is_next_for_the_group_and_moves_nothing(admin: Admin, bootstrap: str, topic: str) -> None:
    admin.create_topic(topic, partitions=2)
    with Producer(bootstrap) as producer:
        for number in range(10):
            producer.publish(topic, str(number), partition=number % 2)
        producer.flush()
    # Partition 0 has offsets 2 to 4 left: 4, 6 and 8; partition 1 has none
    admin.move_group(topic, {topic: {0: 2, 1: 5}})
    before = [(cursor.partition, cursor.offset, cursor.moved_us) for cursor in admin.describe_group(topic).cursors]
    for count, expected in ((2, [b"4", b"6"]), (100, [b"4", b"6", b"8"])):
        given = admin.peek(topic, topic, count)
        assert [record.value for record in given] == expected
        assert [(record.partition, record.offset) for record in given] == [(0, 2 + at) for at in range(len(expected))]
    after = [(cursor.partition, cursor.offset, cursor.moved_us) for cursor in admin.describe_group(topic).cursors]
    assert after == before
    with Consumer(bootstrap, group=topic, idle_ms=30_000) as consumer:
        consumer.subscribe(topic)
        assert [record.value for record in islice(consumer, 3)] == [b"4", b"6", b"8"]
        assert consumer.take(300) is None
    assert admin.peek(topic, topic) == []


def test_peek_begins_at_the_first_record_that_is_kept_and_where_the_group_has_no_place(
    admin: Admin, bootstrap: str, topic: str
) -> None:
    admin.create_topic(topic, partitions=2, schema="n long")
    with Producer(bootstrap) as producer:
        for number in range(8):
            producer.publish(topic, {"n": number}, partition=number % 2)
        producer.flush()
    admin.move_group(topic, {topic: {0: 1}})
    admin.purge(topic, 0, before=3)
    assert [record.value["n"] for record in admin.peek(topic, topic, 3)] == [6, 1, 3]


def test_peek_is_refused_for_what_is_unknown_and_for_more_than_one_can_hold(admin: Admin, topic: str) -> None:
    admin.create_topic(topic)
    with pytest.raises(UnknownGroup, match="unknown group"):
        admin.peek(topic, topic)
    for count in (0, 10_001):
        with pytest.raises(InvalidRequest, match="from 1 to 10000 records"):
            admin.peek(topic, topic, count)


def test_partitions_share_what_is_peeked_at_evenly_and_to_the_last_record() -> None:
    assert shared_out(5, {0: 9, 1: 9, 2: 0}) == {0: 3, 1: 2}
    assert shared_out(2, {0: 9, 1: 9, 2: 9}) == {0: 1, 1: 1}
    random_ = random.Random(3)
    for _ in range(300):
        behind = {number: random_.choice((0, 1, 5, 1_000)) for number in range(random_.randint(1, 6))}
        count = random_.randint(1, 2_000)
        shares = shared_out(count, behind)
        assert sum(shares.values()) == min(count, sum(behind.values()))
        assert all(0 < share <= behind[number] for number, share in shares.items())
        unfinished = [shares.get(number, 0) for number in behind if shares.get(number, 0) < behind[number]]
        assert not unfinished or max(shares.values(), default=0) - min(unfinished) <= 1


def test_a_peek_ends_with_its_bytes(admin: Admin, bootstrap: str, topic: str) -> None:
    admin.create_topic(topic)
    size = PEEK_BYTES_MAX // 16
    value = random.Random(3).randbytes(size - 10_000)
    with Producer(bootstrap, batch_bytes_max=size) as producer:
        for _ in range(19):
            producer.publish(topic, value)
    admin.move_group(topic, {topic: {0: 0}})
    assert 16 <= len(admin.peek(topic, topic, 19)) <= 17
