"""From users' values and tables to what a topic stores, with errors that name the column."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import numpy as np
import pyarrow as pa
import pytest

from mq_client.errors import BatchTooLarge, InvalidRequest, SchemaMismatch
from mq_client.producing.batches import (
    conform,
    largest_record_bytes,
    records_to_batch,
    split_by_partition,
    split_by_size,
    to_bytes,
    to_header_pairs,
    to_timestamp_us,
)
from mq_protocol.arrow import RECORD_SCHEMA, encode_batch
from mq_protocol.sql.ddl import parse_schema

SCHEMA = parse_schema("a long NOT NULL, b string, c array<string>, t timestamp")


def table(**columns: object) -> pa.Table:
    given: dict[str, object] = {"a": [1, 2], "b": ["x", None], "c": [["y"], None], "t": pa.array([0, 1], pa.timestamp("us", "UTC"))}
    return pa.table({**given, **columns})


# ---------------------------------------------------------------- records


def test_records_become_columns() -> None:
    batch = records_to_batch([b"k", None], [b"v", None], [[("h", b"1"), ("h", None)], None], [5, -5])
    assert batch.schema == RECORD_SCHEMA
    assert batch.to_pylist() == [
        {
            "key": b"k",
            "value": b"v",
            "headers": [{"key": "h", "value": b"1"}, {"key": "h", "value": None}],
            "timestamp": datetime(1970, 1, 1, 0, 0, 0, 5, UTC),
        },
        {"key": None, "value": None, "headers": None, "timestamp": datetime(1969, 12, 31, 23, 59, 59, 999995, UTC)},
    ]
    batch.validate(full=True)


def test_headers_may_be_a_mapping_or_pairs_and_repeat() -> None:
    assert to_header_pairs({"a": b"1", "b": None}) == [("a", b"1"), ("b", None)]
    assert to_header_pairs([("a", b"1"), ("a", "ü")]) == [("a", b"1"), ("a", "ü".encode())]  # type: ignore[list-item]
    for wrong in (["a"], [("a",)], [1], {"a": 1}, {"\ud805": b""}):
        with pytest.raises(InvalidRequest):
            to_header_pairs(wrong)  # type: ignore[arg-type]


def test_values_are_bytes_or_text() -> None:
    assert [to_bytes(value, "value") for value in (b"x", "ü", bytearray(b"y"), memoryview(b"z"))] == [
        b"x",
        "ü".encode(),
        b"y",
        b"z",
    ]
    with pytest.raises(InvalidRequest, match="value is int"):
        to_bytes(1, "value")


def test_timestamps_are_microseconds_or_datetimes_with_a_zone() -> None:
    assert to_timestamp_us(7) == 7
    assert to_timestamp_us(datetime(1970, 1, 1, 1, tzinfo=timezone(timedelta(hours=1)))) == 0
    assert to_timestamp_us(datetime(2013, 1, 1, 0, 0, 0, 1, UTC)) == 1_356_998_400_000_001
    for wrong in (datetime(2013, 1, 1), 1.5, 2**63):
        with pytest.raises(InvalidRequest):
            to_timestamp_us(wrong)  # type: ignore[arg-type]


# ---------------------------------------------------------------- tables


def test_columns_are_matched_by_name_in_any_order() -> None:
    given = table().select(["t", "c", "b", "a"])
    assert conform(given, SCHEMA, "t").equals(conform(table(), SCHEMA, "t"))
    assert conform(given, SCHEMA, "t").schema.equals(SCHEMA, check_metadata=True)


@pytest.mark.parametrize(
    "columns",
    [
        {"b": pa.array(["x", None], pa.large_string())},
        {"b": pa.array(["x", None], pa.string_view())},
        {"b": pa.array(["x", None]).dictionary_encode()},
        {"b": pa.nulls(2)},
        {"c": pa.array([["y"], None], pa.large_list(pa.large_string()))},
        {"t": pa.array([0, 1000], pa.timestamp("ns", "Europe/Paris"))},
    ],
)
def test_another_layout_of_the_same_values_is_taken(columns: dict[str, object]) -> None:
    assert conform(table(**columns), SCHEMA, "t").schema == SCHEMA


@pytest.mark.parametrize(
    ("columns", "says"),
    [
        ({"a": [1.0, 2.0]}, "column 'a' is double, topic 't' has it as long: cast it to long"),
        ({"a": pa.array([1, 2], pa.int32())}, "column 'a' is int"),
        ({"a": pa.array([1, None])}, "column 'a' of topic 't' is NOT NULL and has nulls, 1 of 2"),
        ({"b": [b"x", b"y"]}, "column 'b' is binary"),
        ({"t": pa.array([0, 1], pa.timestamp("us"))}, "column 't' is timestamp_ntz"),
        ({"t": pa.array([0, 1], pa.timestamp("ns", "UTC"))}, "column 't' does not fit timestamp"),
        ({"bb": [1, 2]}, "no column 'bb': did you mean 'b'"),
    ],
)
def test_what_does_not_fit_names_its_column(columns: dict[str, object], says: str) -> None:
    with pytest.raises(SchemaMismatch, match=says):
        conform(table(**columns), SCHEMA, "t")


def test_a_missing_or_doubled_column_is_named() -> None:
    with pytest.raises(SchemaMismatch, match=r"column 'a' \(long NOT NULL\) of topic 't' is missing"):
        conform(table().drop(["a"]), SCHEMA, "t")
    with pytest.raises(SchemaMismatch, match="column 'b' comes 2 times"):
        conform(table().append_column("b", [["p", "q"]]), SCHEMA, "t")


def test_records_need_only_a_value() -> None:
    made = conform(pa.table({"value": [b"x", b"y"]}), RECORD_SCHEMA, "t", now_us=99)
    assert made.schema == RECORD_SCHEMA
    assert made.column("timestamp").cast(pa.int64()).to_pylist() == [99, 99]
    assert made.column("key").null_count == made.column("headers").null_count == 2
    assert largest_record_bytes(made) == 1
    with pytest.raises(SchemaMismatch, match="'value'"):
        conform(pa.table({"key": [b"x"]}), RECORD_SCHEMA, "t", now_us=99)


def test_rows_are_split_by_partition_in_their_order() -> None:
    numbers = pa.table({"a": range(6)})
    parts = {
        partition: rows.column("a").to_pylist() for partition, rows in split_by_partition(numbers, np.array([1, 0, 1, -1, 0, 1]))
    }
    assert parts == {-1: [3], 0: [1, 4], 1: [0, 2, 5]}
    [(only, whole)] = split_by_partition(numbers, np.zeros(6))
    assert only == 0
    assert whole is numbers


@pytest.mark.parametrize("compression", [None, "zstd"])
def test_pieces_are_whole_in_order_and_small_enough(compression: str | None) -> None:
    rng = np.random.default_rng(3)
    sizes = rng.integers(0, 3_000, 500)
    given = pa.table({"key": pa.nulls(500, pa.binary()), "value": [b"x" * int(size) for size in sizes]})
    whole = conform(given, RECORD_SCHEMA, "t", now_us=1)
    pieces = list(split_by_size(whole, 20_000, 60_000))
    assert pa.Table.from_batches(pieces).equals(whole)
    assert len(pieces) > 20
    for piece in pieces:
        assert len(encode_batch(piece, compression)) <= 20_000 + 4096


def test_a_row_larger_than_a_piece_is_one_of_its_own_up_to_the_topics_bound() -> None:
    given = conform(pa.table({"value": [b"a", b"b" * 50_000, b"c"]}), RECORD_SCHEMA, "t", now_us=1)
    assert [piece.num_rows for piece in split_by_size(given, 20_000, 60_000)] == [1, 1, 1]
    with pytest.raises(BatchTooLarge, match="above 40000"):
        list(split_by_size(given, 20_000, 40_000))


def test_an_empty_table_has_no_pieces() -> None:
    assert sum(piece.num_rows for piece in split_by_size(table().slice(0, 0), 1000, 1000)) == 0
