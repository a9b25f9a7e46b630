"""Records that are published later, as applications ask for them."""

from __future__ import annotations

import time
import uuid
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest

from mq_client import Admin, InvalidRequest, InvalidSetting, Producer, Reader
from mq_protocol.limits import DELAY_MS_MAX


def values(bootstrap: str, topic: str) -> list[int]:
    return [n for batch in Reader(bootstrap).read(topic, 0) for n in batch.column("n").to_pylist()]


def records(bootstrap: str, topic: str) -> list[dict[str, Any]]:
    return [row for batch in Reader(bootstrap).read(topic, 0) for row in batch.to_pylist()]


def test_records_and_tables_are_published_when_they_are_due(admin: Admin, bootstrap: str, topic: str) -> None:
    admin.create_topic(topic, schema="n long")
    later, name = datetime.now(UTC) + timedelta(seconds=1.5), uuid.uuid4()
    with Producer(bootstrap, acks="none") as producer:
        assert producer.publish(topic, {"n": 1}, deliver_at=later).result(30).offset == -1
        assert producer.publish(topic, {"n": 9}, delay_ms=3_600_000, uuid=name).result(30).offset == -1
        table = pa.table({"n": pa.array([2, 3], pa.int64())})
        after = later + timedelta(milliseconds=1)
        assert producer.publish_batch(topic, table, deliver_at=after).result(30).base_offset == -1
        too_early = values(bootstrap, topic)
        assert too_early == [] or datetime.now(UTC) >= later
        assert producer.cancel(topic, 0, name) == (True, False, -1)
        deadline = time.monotonic() + 20
        while len(values(bootstrap, topic)) < 3 and time.monotonic() < deadline:
            time.sleep(0.02)
        assert datetime.now(UTC) >= later
        assert values(bootstrap, topic) == [1, 2, 3]
        assert producer.cancel(topic, 0, uuid.uuid4()) == (False, False, -1)


def test_a_record_without_a_schema_keeps_its_key_and_headers(admin: Admin, bootstrap: str, topic: str) -> None:
    admin.create_topic(topic)
    name = uuid.uuid4()
    with Producer(bootstrap, key_serializer="string") as producer:
        producer.publish(topic, b"v", key="k", headers={"h": b"1"}, timestamp=7, delay_ms=1, uuid=name).result(30)
    deadline = time.monotonic() + 20
    while not (rows := records(bootstrap, topic)) and time.monotonic() < deadline:
        time.sleep(0.02)
    with Producer(bootstrap) as producer:
        assert producer.cancel(topic, 0, name) == (False, True, 0), "it came too late"
    (row,) = rows
    assert (row["key"], row["value"], [(h["key"], h["value"]) for h in row["headers"]]) == (b"k", b"v", [("h", b"1")])


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"deliver_at": 5, "delay_ms": 5}, "both given"),
        ({"delay_ms": -1}, "give 0 to"),
        ({"delay_ms": DELAY_MS_MAX + 1}, "a year"),
        ({"delay_ms": float("nan")}, "give 0 to"),
        ({"deliver_at": 0}, "before 1970"),
        ({"deliver_at": datetime.now(UTC) + timedelta(days=366)}, "more than a year ahead"),
    ],
)
def test_a_time_that_no_record_can_have_is_refused(given: dict[str, object], words: str) -> None:
    with Producer("127.0.0.1:1") as producer, pytest.raises(InvalidSetting, match=words):
        producer.publish("t", b"v", **given)  # type: ignore[arg-type]


def test_a_time_without_a_zone_is_refused() -> None:
    with Producer("127.0.0.1:1") as producer, pytest.raises(InvalidRequest, match="no zone"):
        producer.publish("t", b"v", deliver_at=datetime(2030, 1, 1))
