"""Columns as Spark has them: checked against pyspark's own conversion. Those of a catalog's table carry its options."""

from __future__ import annotations

from datetime import UTC, datetime

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import types as spark
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import LongType, StringType, StructType

from mq_protocol.arrow import RECORD_SCHEMA
from mq_protocol.errors import InvalidSetting, SchemaMismatch
from mq_protocol.sql.ddl import parse_schema
from mq_spark.datasource.schemas import Projection, StoredRows, Topic, options_of, stream_schema, with_options

RECORDS = Topic("orders", "id", RECORD_SCHEMA, typed=False, partitions=3)
FLIGHTS = Topic(
    "flights", "id", parse_schema("id long NOT NULL, carrier string, stops array<int>"), typed=True, partitions=2
)
EVERY_TYPE = parse_schema(
    "a boolean, b byte, c short, d int, e long, f float, g double, h decimal(12,3), i string, j binary, k date, l "
    "timestamp, m timestamp_ntz, n array<string>, o map<string,double>, p struct<x: int, y: array<struct<z: binary>>>"
)


def typed(schema: pa.Schema) -> Topic:
    return Topic("t", "id", schema, typed=True, partitions=1)


def records(*values: bytes, timestamp: datetime | None = None) -> pa.RecordBatch:
    rows = [
        {"key": None, "value": value, "headers": [{"key": "h", "value": b"1"}], "timestamp": timestamp}
        for value in values
    ]
    return pa.RecordBatch.from_pylist(rows, schema=RECORD_SCHEMA)


def test_every_type_that_a_topic_stores_is_exactly_sparks_arrow_form() -> None:
    wanted = stream_schema([typed(EVERY_TYPE)], include_headers=False, include_metadata=True)
    made = Projection(typed(EVERY_TYPE), wanted).schema
    assert made.equals(to_arrow_schema(wanted, timezone="UTC"))


def test_a_stream_of_records_looks_like_kafkas() -> None:
    plain = stream_schema([RECORDS], include_headers=False, include_metadata=False)
    assert plain.simpleString() == (
        "struct<key:binary,value:binary,topic:string,partition:int,offset:bigint,timestamp:timestamp>"
    )
    with_headers = stream_schema([RECORDS], include_headers=True, include_metadata=False)
    assert with_headers["headers"].dataType.simpleString() == "array<struct<key:string,value:binary>>"
    assert Projection(RECORDS, with_headers).schema.equals(to_arrow_schema(with_headers, timezone="UTC"))


def test_a_typed_topic_streams_its_own_columns_and_its_place_in_the_log_on_request() -> None:
    assert stream_schema([FLIGHTS], include_headers=False, include_metadata=False).names == ["id", "carrier", "stops"]
    assert stream_schema([FLIGHTS], include_headers=False, include_metadata=True).names[3:] == [
        "_topic",
        "_partition",
        "_offset",
        "_timestamp",
    ]


def test_topics_of_different_schemas_cannot_be_one_stream() -> None:
    with pytest.raises(SchemaMismatch, match="topics orders and flights have different schemas"):
        stream_schema([RECORDS, FLIGHTS], include_headers=False, include_metadata=False)


def test_stored_batches_that_follow_one_another_become_one_with_their_offsets_and_times() -> None:
    projection = Projection(RECORDS, stream_schema([RECORDS], include_headers=True, include_metadata=False))
    own = datetime(2026, 1, 2, 3, 4, 5, 678, tzinfo=UTC)
    stored = [
        StoredRows(records(b"a", b"b").select(projection.columns), 40, 1_000_000),
        StoredRows(records(b"c", timestamp=own).select(projection.columns), 42, 2_000_000),
    ]
    batch = projection.convert(2, stored)
    assert batch.schema.equals(projection.schema)
    batch.validate(full=True)
    assert [(row["value"], row["offset"]) for row in batch.to_pylist()] == [(b"a", 40), (b"b", 41), (b"c", 42)]
    assert {(row["topic"], row["partition"]) for row in batch.to_pylist()} == {("orders", 2)}
    assert [row["timestamp"] for row in batch.to_pylist()] == [datetime.fromtimestamp(1, UTC)] * 2 + [own]


def test_a_schema_given_by_the_user_is_a_projection_in_its_own_order_and_case() -> None:
    wanted = spark.StructType().add("_offset", "long").add("Carrier", "string")
    projection = Projection(FLIGHTS, wanted)
    assert projection.columns == ["carrier"]
    rows = pa.RecordBatch.from_pylist(
        [{"carrier": "UA"}, {"carrier": None}], schema=pa.schema([("carrier", pa.string())])
    )
    batch = projection.convert(0, [StoredRows(rows, 7, 0)])
    assert batch.to_pylist() == [{"_offset": 7, "Carrier": "UA"}, {"_offset": 8, "Carrier": None}]


def test_computed_columns_alone_need_no_stored_one() -> None:
    projection = Projection(FLIGHTS, spark.StructType().add("_offset", "long"))
    assert projection.columns == []
    none = pa.RecordBatch.from_pylist([{"x": 1}, {"x": 2}]).select([])
    batch = projection.convert(0, [StoredRows(none, 0, 0), StoredRows(none, 2, 0)])
    assert batch.column(0).to_pylist() == [0, 1, 2, 3]


def test_a_column_that_is_not_there_is_answered_with_the_nearest() -> None:
    with pytest.raises(SchemaMismatch, match=r"topic flights has no column 'carier': did you mean 'carrier'\?"):
        Projection(FLIGHTS, spark.StructType().add("carier", "string"))


def test_a_column_of_another_type_is_refused_naming_both() -> None:
    with pytest.raises(SchemaMismatch, match=r"column 'id' is bigint in topic flights and int in \.schema"):
        Projection(FLIGHTS, spark.StructType().add("id", "integer"))


def test_nulls_in_a_column_that_the_user_calls_not_null_are_an_error_and_not_a_zero() -> None:
    projection = Projection(FLIGHTS, spark.StructType().add("carrier", "string", nullable=False))
    rows = pa.RecordBatch.from_pylist([{"carrier": None}], schema=pa.schema([("carrier", pa.string())]))
    with pytest.raises(SchemaMismatch, match="'carrier' holds nulls"):
        projection.convert(0, [StoredRows(rows, 0, 0)])


def test_rows_that_a_filter_has_kept_have_the_offsets_that_they_had() -> None:
    wanted = spark.StructType(
        [spark.StructField("id", spark.LongType()), spark.StructField("_offset", spark.LongType())]
    )
    projection = Projection(FLIGHTS, wanted)
    schema = pa.schema([("id", pa.int64())])

    def kept(*offsets: int) -> StoredRows:
        rows = pa.RecordBatch.from_pydict({"id": [10 * offset for offset in offsets]}, schema=schema)
        return StoredRows(rows, offsets[0] - 1, 5_000_000, np.array(offsets), offsets[-1] + 3)

    made = projection.convert(0, [kept(3, 7), kept(12)])
    assert made.column("id").to_pylist() == [30, 70, 120]
    assert made.column("_offset").to_pylist() == [3, 7, 12]
    assert kept(3, 7).next_offset == 10


COLUMNS = StructType().add("id", LongType()).add("carrier", StringType())
TABLE = {"provider": "tritonmq", "subscribe": "t", "option.subscribe": "t", "made.by": "me"}


def test_the_columns_of_a_table_have_its_options_and_others_have_none() -> None:
    kept = StructType.fromJson(with_options(COLUMNS, TABLE).jsonValue())  # as the catalog keeps them
    assert options_of(kept) == {"provider": "tritonmq", "subscribe": "t", "option.subscribe": "t"}
    assert [field.dataType for field in kept] == [field.dataType for field in COLUMNS]
    assert with_options(COLUMNS, {"subscribe": "t"}) == COLUMNS
    assert options_of(COLUMNS) == options_of(None) == {}


def test_a_secret_is_not_kept_where_whoever_sees_the_table_sees_it() -> None:
    with pytest.raises(InvalidSetting, match=r"option kafka\.sasl\.password holds a secret") as caught:
        with_options(COLUMNS, {**TABLE, "option.kafka.sasl.password": "open sesame"})
    assert "sesame" not in str(caught.value)
