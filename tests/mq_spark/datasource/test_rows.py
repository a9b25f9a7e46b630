"""Rows fitted to a topic: what fits, what is refused and how it is said, and where rows go."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import types as spark

from mq_protocol.arrow import RECORD_SCHEMA
from mq_protocol.errors import InvalidRequest, SchemaMismatch
from mq_protocol.partitioner import partition_for_key
from mq_spark.datasource.rows import SPREAD, Fit, by_partition, by_topic, even_slices
from mq_spark.datasource.schemas import Topic

NOW_US = 1_700_000_000_000_000
RECORDS = Topic("orders", "id", RECORD_SCHEMA, typed=False, partitions=4)
FLIGHTS = Topic(
    "flights",
    "id",
    pa.schema([pa.field("id", pa.int64(), nullable=False), ("carrier", pa.string()), ("fare", pa.decimal128(12, 2))]),
    typed=True,
    partitions=2,
)


def columns(**kinds: str) -> spark.StructType:
    struct = spark.StructType()
    for name, kind in kinds.items():
        struct = struct.add(name, kind)
    return struct


def refused(topic: Topic, given: spark.StructType, routed: bool = False) -> str:
    with pytest.raises(SchemaMismatch) as caught:
        Fit(topic, given, routed=routed)
    return str(caught.value)


def batch(**arrays: Any) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(arrays)


def test_columns_are_matched_by_name_and_missing_nullable_ones_are_null() -> None:
    fit = Fit(FLIGHTS, columns(CARRIER="string", id="long"), routed=False)
    made = fit.convert(batch(CARRIER=["UA", None], id=pa.array([1, 2], pa.int64())), NOW_US)
    assert made.schema == FLIGHTS.schema
    assert made.to_pylist() == [{"id": 1, "carrier": "UA", "fare": None}, {"id": 2, "carrier": None, "fare": None}]


def test_a_wider_number_of_the_same_kind_takes_a_narrower_one() -> None:
    fit = Fit(FLIGHTS, columns(id="integer", fare="decimal(5,1)"), routed=False)
    rows = batch(id=pa.array([1], pa.int32()), fare=pa.array([Decimal("7.5")], pa.decimal128(5, 1)))
    assert fit.convert(rows, NOW_US).to_pylist() == [{"id": 1, "carrier": None, "fare": Decimal("7.50")}]


def test_an_unknown_column_is_named_with_the_nearest_right_one() -> None:
    assert refused(FLIGHTS, columns(id="long", carier="string")) == (
        "unknown column 'carier': did you mean 'carrier'? (topic flights takes id, carrier, fare, "
        "partition): select the columns to write"
    )
    assert refused(RECORDS, columns(value="binary", offset="long")).startswith("unknown column 'offset'")


def test_a_column_of_another_type_is_refused_before_a_row_is_seen() -> None:
    assert refused(FLIGHTS, columns(id="string")) == "column 'id' is string and topic flights has it as bigint: cast it"
    assert refused(FLIGHTS, columns(id="long", fare="decimal(12,3)")).startswith("column 'fare' is decimal(12,3)")
    assert refused(RECORDS, columns(value="long")).startswith("column 'value' is bigint")
    assert refused(RECORDS, columns(value="binary", partition="string")).startswith("column 'partition' is string")


def test_a_column_that_must_be_there_is_missed_by_name() -> None:
    assert refused(FLIGHTS, columns(carrier="string")).startswith(
        "column 'id' is missing and is NOT NULL in topic flights"
    )
    assert refused(RECORDS, columns(key="binary")).startswith("column 'value' is missing: topic orders stores records")


def test_a_null_where_the_topic_has_none_is_an_error() -> None:
    fit = Fit(FLIGHTS, columns(id="long"), routed=False)
    with pytest.raises(SchemaMismatch, match="column 'id' is NOT NULL in topic flights and has nulls, 1 of 2"):
        fit.convert(batch(id=pa.array([1, None], pa.int64())), NOW_US)


def test_records_take_text_for_key_and_value_and_headers_as_they_come_out() -> None:
    struct = columns(key="string", value="string").add(
        "headers", spark.ArrayType(spark.StructType().add("key", "string").add("value", "binary"), containsNull=False)
    )
    kind = pa.list_(pa.field("element", pa.struct([("key", pa.string()), ("value", pa.binary())]), nullable=False))
    rows = batch(key=["k"], value=["v"], headers=pa.array([[{"key": "h", "value": b"1"}]], kind))
    made = Fit(RECORDS, struct, routed=False).convert(rows, NOW_US)
    assert made.schema == RECORD_SCHEMA
    assert made.to_pylist() == [
        {
            "key": b"k",
            "value": b"v",
            "headers": [{"key": "h", "value": b"1"}],
            "timestamp": datetime.fromtimestamp(NOW_US // 1_000_000, UTC),
        }
    ]


def test_a_record_goes_to_its_partition_or_else_where_its_key_hashes_to_or_else_anywhere() -> None:
    fit = Fit(RECORDS, columns(key="binary", value="binary", partition="integer"), routed=False)
    rows = batch(
        key=pa.array([b"a", b"b", None], pa.binary()),
        value=[b"", b"", b""],
        partition=pa.array([3, None, None], pa.int32()),
    )
    chosen = fit.partitions(rows)
    assert chosen is not None
    assert chosen.tolist() == [3, partition_for_key(b"b", 4), SPREAD]


def test_rows_without_key_or_partition_are_not_looked_at_one_by_one() -> None:
    assert Fit(RECORDS, columns(value="binary"), routed=False).partitions(batch(value=[b"x"])) is None
    assert Fit(FLIGHTS, columns(id="long"), routed=False).partitions(batch(id=[1])) is None
    fit = Fit(RECORDS, columns(key="binary", value="binary", partition="integer"), routed=False)
    nothing = batch(key=pa.nulls(1, pa.binary()), value=[b"x"], partition=pa.nulls(1, pa.int32()))
    assert fit.partitions(nothing) is None


@pytest.mark.parametrize("number", [-1, 4])
def test_a_partition_that_the_topic_does_not_have_is_an_error(number: int) -> None:
    fit = Fit(RECORDS, columns(value="binary", partition="integer"), routed=False)
    with pytest.raises(InvalidRequest, match=f"column 'partition' holds {number}: topic orders has partitions 0 to 3"):
        fit.partitions(batch(value=[b"x"], partition=pa.array([number], pa.int32())))


def test_splitting_by_partition_keeps_every_row_once_and_in_order() -> None:
    chosen = np.array([2, 0, SPREAD, 2, 0], dtype=np.int32)
    split = {number: piece.column(0).to_pylist() for number, piece in by_partition(chosen, batch(n=[0, 1, 2, 3, 4]), 2)}
    assert split == {0: [1, 4], 2: [0, 2, 3]}


def test_rows_that_may_go_anywhere_are_cut_into_large_even_slices() -> None:
    rows = batch(n=pa.array(range(1000), pa.int64()))
    cut = list(even_slices(rows, 3_000))
    assert [piece.num_rows for piece in cut] == [333, 333, 334]
    assert pa.Table.from_batches(cut).to_pylist() == rows.to_pylist()
    assert [piece.num_rows for piece in even_slices(batch(value=[b"x" * 1000] * 2), 10)] == [1, 1]


def test_splitting_by_topic_keeps_every_row_once_and_refuses_nulls() -> None:
    names = pa.array(["b", "a", "b"])
    split = {name: piece.column(0).to_pylist() for name, piece in by_topic(names, batch(n=[0, 1, 2]))}
    assert split == {"a": [1], "b": [0, 2]}
    with pytest.raises(InvalidRequest, match="column 'topic' has nulls, 1 of "):
        list(by_topic(pa.array(["a", None]), batch(n=[0, 1])))


def test_the_topic_column_of_routed_rows_is_not_a_column_of_a_typed_topic() -> None:
    fit = Fit(FLIGHTS, columns(topic="string", id="long"), routed=True)
    assert fit.convert(batch(topic=["flights"], id=[1]), NOW_US).schema == FLIGHTS.schema
    assert refused(FLIGHTS, columns(topic="string", id="long")).startswith("unknown column 'topic'")


def test_a_column_that_only_another_topic_of_routed_rows_has_must_be_null_here() -> None:
    given = columns(topic="string", id="long", value="binary")
    rows = batch(topic=["flights", "flights"], id=[1, 2], value=pa.nulls(2, pa.binary()))
    assert Fit(FLIGHTS, given, routed=True).convert(rows, NOW_US).column("id").to_pylist() == [1, 2]
    strays = batch(topic=["orders"], id=[1], value=[b"x"])
    with pytest.raises(SchemaMismatch, match=r"unknown column 'id'.*or make it null in the rows of this topic"):
        Fit(RECORDS, given, routed=True).convert(strays, NOW_US)
    assert refused(FLIGHTS, columns(id="long", value="binary")).startswith("unknown column 'value'")


def test_typed_rows_go_where_the_key_column_says_as_the_producers_do() -> None:
    rows = batch(id=pa.array([1, 2, 3], pa.int32()), carrier=["UA", None, "AA"])
    given = columns(id="integer", carrier="string")
    found = Fit(FLIGHTS, given, routed=False, key_column="CARRIER").partitions(rows)
    assert found is not None
    assert found.tolist() == [partition_for_key(b"UA", 2), SPREAD, partition_for_key(b"AA", 2)]
    found = Fit(FLIGHTS, given, routed=False, key_column="id").partitions(rows)
    assert found is not None
    # Hashed as the topic has it: a long
    assert found.tolist() == [partition_for_key(n.to_bytes(8, "big"), 2) for n in (1, 2, 3)]
    assert Fit(FLIGHTS, given, routed=False).partitions(rows) is None


def test_typed_rows_go_to_the_partition_that_they_name_unless_that_is_a_column_of_the_topics_own() -> None:
    rows = batch(id=pa.array([1, 2], pa.int64()), partition=pa.array([1, None], pa.int32()))
    given = columns(id="long", partition="integer")
    found = Fit(FLIGHTS, given, routed=False).partitions(rows)
    assert found is not None
    assert found.tolist() == [1, SPREAD]
    assert Fit(FLIGHTS, given, routed=False).convert(rows, NOW_US).schema.names == ["id", "carrier", "fare"]
    own = Topic("t", "id", pa.schema([("id", pa.int64()), ("Partition", pa.int32())]), typed=True, partitions=2)
    assert Fit(own, given, routed=False).partitions(rows) is None
    assert Fit(own, given, routed=False).convert(rows, NOW_US).column("Partition").to_pylist() == [1, None]
    with pytest.raises(InvalidRequest, match="column 'partition' holds 7"):
        Fit(FLIGHTS, given, routed=False).partitions(
            batch(id=pa.array([1], pa.int64()), partition=pa.array([7], pa.int32()))
        )


def test_a_key_column_is_one_of_the_topics_and_of_a_type_that_is_hashed() -> None:
    given = columns(id="long")
    for topic, name, first_words in (
        (FLIGHTS, "carier", "keyColumn='carier' is no column of topic flights: did you mean 'carrier'?"),
        (FLIGHTS, "fare", "keyColumn='fare' is decimal128(12, 2): only a string, binary, int or long"),
        (RECORDS, "carrier", "keyColumn='carrier' has no meaning for topic orders, whose records have a column key"),
    ):
        with pytest.raises(SchemaMismatch) as caught:
            Fit(topic, given if topic.typed else columns(value="binary"), routed=False, key_column=name)
        assert str(caught.value).startswith(first_words)
