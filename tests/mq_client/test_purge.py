"""Purge: records dropped now, and what it leaves alone."""

from __future__ import annotations

import time
import uuid
from datetime import UTC, datetime

import pyarrow as pa
import pytest

from mq_client import Admin, InvalidRequest, Producer, Reader, UnknownPartition
from mq_client.transactions import StagedPart, TransactionClient, TransactionKey


def values(bootstrap: str, topic: str, partition: int = 0) -> list[int]:
    return [n for batch in Reader(bootstrap).read(topic, partition) for n in batch.column("n").to_pylist()]


def publish(bootstrap: str, topic: str, numbers: range, partition: int = 0) -> None:
    with Producer(bootstrap) as producer:
        for number in numbers:
            producer.publish(topic, {"n": number}, partition=partition).result(30)


def test_purge_drops_what_is_below_an_offset_and_says_where_the_log_starts(
    admin: Admin, bootstrap: str, topic: str
) -> None:
    admin.create_topic(topic, schema="n long", partitions=2)
    publish(bootstrap, topic, range(6))
    publish(bootstrap, topic, range(2), partition=1)
    assert admin.purge(topic, 0, before=4) == {0: 4}
    assert values(bootstrap, topic) == [4, 5]
    assert admin.purge(topic, 0, before=1) == {0: 4}
    assert admin.purge(topic, before=5) == {0: 5, 1: 2}
    assert admin.offsets(topic) == {0: (5, 6), 1: (2, 2)}
    assert admin.purge(topic) == {0: 6, 1: 2}
    publish(bootstrap, topic, range(9, 10))
    assert admin.offsets(topic)[0] == (6, 7)
    assert values(bootstrap, topic) == [9]


def test_purge_by_time_keeps_what_came_since(admin: Admin, bootstrap: str, topic: str) -> None:
    admin.create_topic(topic, schema="n long")
    publish(bootstrap, topic, range(3))
    time.sleep(0.002)  # the next record is of a later microsecond than `since`, whatever the clock's resolution
    since = datetime.now(UTC)
    publish(bootstrap, topic, range(3, 5))
    assert admin.purge(topic, before=since) == {0: 3}
    assert values(bootstrap, topic) == [3, 4]


def test_purge_leaves_what_a_query_has_staged(admin: Admin, bootstrap: str, topic: str) -> None:
    admin.create_topic(topic, schema="n long NOT NULL")
    key = TransactionKey(uuid.uuid4().hex, topic)
    publish(bootstrap, topic, range(3))
    with TransactionClient(bootstrap) as client:
        staged = client.stage(topic, 0, [pa.table({"n": pa.array([7, 8], pa.int64())})], key, 0, "run")
        publish(bootstrap, topic, range(3, 5))
        assert admin.purge(topic) == {0: 5}
        client.decide(key, 0, "run", [StagedPart(topic, 0, tuple(staged), 2)])
    assert admin.offsets(topic) == {0: (5, 7)}
    assert values(bootstrap, topic) == [7, 8]


def test_purge_is_refused_for_what_is_not_there(admin: Admin, topic: str) -> None:
    admin.create_topic(topic)
    with pytest.raises(UnknownPartition):
        admin.purge(topic, 1)
    with pytest.raises(InvalidRequest, match="from 0 on"):
        admin.purge(topic, before=-1)
