"""publish_many: each value once, in order, where its key says; one future; all are refused for one that is bad."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from mq_client import Admin, BatchTooLarge, InvalidRequest, Producer, Reader, SchemaMismatch, UnknownPartition


@dataclass
class Row:
    n: int
    s: str | None = None


def stored(bootstrap: str, topic: str) -> dict[int, list[Any]]:
    reader, found = Reader(bootstrap), dict[int, list[Any]]()
    for partition in reader.offsets(topic):
        rows = reader.rows(topic, partitions=[partition]).to_arrow()
        found[partition] = rows.column(0 if "n" in rows.schema.names else "value").to_pylist()
    return found


def test_values_come_in_order_behind_what_was_published_before(admin: Admin, bootstrap: str, topic: str) -> None:
    admin.create_topic(topic)
    with Producer(bootstrap, linger_ms=60_000, batch_bytes_max=1_000) as producer:
        first = producer.publish(topic, "first")
        future = producer.publish_many(topic, [f"m{n}" for n in range(500)])
        producer.publish(topic, "last")
        producer.flush()
        assert first.result(0).offset == 0
        done = future.result(0)
    assert done.record_count == 500
    assert len(done.places) > 1
    assert done.base_offset == 1
    assert stored(bootstrap, topic)[0] == [b"first", *(f"m{n}".encode() for n in range(500)), b"last"]


def test_a_key_chooses_the_partition_that_it_chooses_for_publish(admin: Admin, bootstrap: str, topic: str) -> None:
    admin.create_topic(topic, partitions=5)
    admin.create_topic(f"{topic}-rows", partitions=5, schema="n long, s string")
    keys = [f"k{n}" for n in range(40)]
    with Producer(bootstrap) as producer:
        told = [producer.publish(topic, "one", key=key).result(20).partition for key in keys]
        producer.publish_many(topic, keys, keys).result(20)
        producer.publish_many(f"{topic}-rows", [Row(n) for n in range(40)], keys).result(20)
        where = producer.publish_many(topic, [b"x", b"y"], ["k1", None], partition=3).result(20)
    assert {place.partition for place in where.places} == {3}
    for partition, values in stored(bootstrap, topic).items():
        theirs = [key.encode() for key, chosen in zip(keys, told, strict=True) if chosen == partition]
        assert [value for value in values if value not in (b"one", b"x", b"y")] == theirs
    for partition, numbers in stored(bootstrap, f"{topic}-rows").items():
        assert numbers == [n for n, chosen in enumerate(told) if chosen == partition]


def test_rows_may_be_dicts_and_objects_and_know_columns_that_were_just_added(
    admin: Admin, bootstrap: str, topic: str
) -> None:
    admin.create_topic(topic, schema="n long")
    with Producer(bootstrap) as producer:
        producer.publish_many(topic, [{"n": 1}, {"n": np.int64(2)}]).result(20)
        admin.alter_topic(topic, add_columns="s string")
        producer.publish_many(topic, [Row(3, "x"), {"n": 4}]).result(20)
    rows = Reader(bootstrap).rows(topic).to_arrow().to_pylist()
    assert rows == [{"n": 1, "s": None}, {"n": 2, "s": None}, {"n": 3, "s": "x"}, {"n": 4, "s": None}]


def test_every_kind_of_value_that_publish_takes(admin: Admin, bootstrap: str, topic: str) -> None:
    admin.create_topic(topic)
    values = [b"b", "é", None, bytearray(b"a"), memoryview(b"m")]
    with Producer(bootstrap) as producer, Producer(bootstrap, value_serializer="json") as as_json:
        producer.publish_many(topic, values).result(20)
        producer.publish_many(topic, iter("ab")).result(20)
        producer.publish_many(topic, pa.array(["arrow"])).result(20)
        assert producer.publish_many(topic, []).result(20).places == ()
        as_json.publish_many(topic, [{"a": 1}, None]).result(20)
    expected = [b"b", "é".encode(), None, b"a", b"m", b"a", b"b", b"arrow", b'{"a":1}', None]
    assert stored(bootstrap, topic)[0] == expected


def test_one_that_is_bad_refuses_all(admin: Admin, bootstrap: str, topic: str) -> None:
    admin.create_topic(topic, record_bytes_max=1_000)
    admin.create_topic(f"{topic}-rows", schema="n int")
    with Producer(bootstrap) as producer:
        with pytest.raises(InvalidRequest, match=r"values\[1\]: value is int"):
            producer.publish_many(topic, ["a", 1])
        with pytest.raises(InvalidRequest, match=r"keys\[0\]: key is float"):
            producer.publish_many(topic, ["a"], [1.5])
        with pytest.raises(InvalidRequest, match=r"values\[0\]: .*surrogate"):
            producer.publish_many(topic, ["\ud800"])
        with pytest.raises(InvalidRequest, match="values is str: give a list"):
            producer.publish_many(topic, "abc")
        with pytest.raises(InvalidRequest, match="values is dict"):
            producer.publish_many(f"{topic}-rows", {"n": 1})
        with pytest.raises(InvalidRequest, match="2 values and 1 keys"):
            producer.publish_many(topic, ["a", "b"], ["k"])
        with pytest.raises(BatchTooLarge, match="record_bytes_max"):
            producer.publish_many(topic, ["a", "x" * 2_000])
        with pytest.raises(SchemaMismatch, match=r"values\[1\]: column 'n'.*out of its range"):
            producer.publish_many(f"{topic}-rows", [{"n": 1}, {"n": 1 << 40}])
        with pytest.raises(SchemaMismatch, match="no column 'm'"):
            producer.publish_many(f"{topic}-rows", [{"n": 1, "m": 2}])
        with pytest.raises(InvalidRequest, match=r"values\[1\]: .*the value is int"):
            producer.publish_many(f"{topic}-rows", [{"n": 1}, 3])
        with pytest.raises(UnknownPartition):
            producer.publish_many(topic, ["a"], partition=9)
    assert stored(bootstrap, topic) == {0: []}
    assert stored(bootstrap, f"{topic}-rows") == {0: []}


def test_a_partitioner_chooses_by_keys_of_rows_too(admin: Admin, bootstrap: str, topic: str) -> None:
    admin.create_topic(topic, partitions=3, schema="n long")
    with Producer(bootstrap, partitioner=lambda _topic, key, _count: 0 if key is None else int(key) % 3) as producer:
        producer.publish_many(topic, [{"n": n} for n in range(9)], [str(n) for n in range(9)]).result(20)
    assert stored(bootstrap, topic) == {0: [0, 3, 6], 1: [1, 4, 7], 2: [2, 5, 8]}
