"""Keys land where Kafka's default partitioner puts them; a column of keys lands where its keys do."""

from __future__ import annotations

import random

import pyarrow as pa
import pytest

from mq_protocol.errors import InvalidRequest
from mq_protocol.partitioner import coordinator_partition, murmur2, partition_for_key, partitions_for_keys

KAFKA = {  # the values of Kafka's own tests of its hash, as signed 32-bit integers
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
}


@pytest.mark.parametrize(("key", "signed"), KAFKA.items())
def test_the_hash_is_kafkas(key: bytes, signed: int) -> None:
    assert murmur2(key) == signed & 0xFFFFFFFF


def test_a_column_lands_where_its_keys_do() -> None:
    random_ = random.Random(7)
    keys = [random_.randbytes(random_.choice((0, 1, 2, 3, 4, 5, 8, 17, 255, 256, 257, 1000))) for _ in range(2000)]
    expected = [partition_for_key(key, 7) for key in keys]
    column = pa.array(keys, pa.binary())
    assert partitions_for_keys(column, 7).tolist() == expected
    assert partitions_for_keys(column.slice(3, 500), 7).tolist() == expected[3:503]
    assert partitions_for_keys(column.cast(pa.large_binary()), 7).tolist() == expected


def test_nulls_are_left_to_the_caller() -> None:
    expected = [-1, partition_for_key("é".encode(), 5), -1]
    assert partitions_for_keys(pa.array([None, "é", None]), 5).tolist() == expected
    assert partitions_for_keys(pa.array([], pa.string()), 5).tolist() == []
    assert partitions_for_keys(pa.array([None], pa.binary()), 5).tolist() == [-1]


@pytest.mark.parametrize(("kind", "width"), [(pa.int32(), 4), (pa.int64(), 8)])
def test_whole_numbers_hash_as_kafka_serializes_them(kind: pa.DataType, width: int) -> None:
    numbers = [0, 1, -1, 2**31 - 1, None, -(2**31)]
    expected = [-1 if n is None else partition_for_key(n.to_bytes(width, "big", signed=True), 11) for n in numbers]
    assert partitions_for_keys(pa.array(numbers, kind), 11).tolist() == expected
    assert partitions_for_keys(pa.array(numbers, kind).slice(1, 4), 11).tolist() == expected[1:5]


def test_a_column_that_cannot_be_a_key_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="type double"):
        partitions_for_keys(pa.array([1.5]), 3)


def test_keys_spread_evenly() -> None:
    counts = [0] * 6
    for partition in partitions_for_keys(pa.array([f"user-{i}" for i in range(60_000)]), 6):
        counts[partition] += 1
    assert max(counts) < 1.05 * min(counts)


def test_a_transaction_keeps_its_coordinator_over_releases() -> None:
    assert [coordinator_partition("query", sink, 8) for sink in ("", "a", "b")] == [4, 0, 5]
    assert coordinator_partition("a", "b", 8) == partition_for_key(b"a\0b", 8)
