"""From users' values and tables to what a topic stores, with errors that name the column."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from datetime import UTC, datetime, timedelta, timezone

import numpy as np
import pyarrow as pa
import pytest

from mq_client.errors import BatchTooLarge, InvalidRequest, InvalidSetting, SchemaMismatch
from mq_client.producing.batches import (
    FEW,
    RECORD_OVERHEAD_BYTES,
    conform,
    largest_record_bytes,
    one_record,
    record_key_column,
    record_size,
    records_to_batch,
    split_by_partition,
    split_by_size,
    to_bytes,
    to_header_pairs,
    to_timestamp_us,
)
from mq_client.producing.scheduling import due_of
from mq_protocol.arrow import RECORD_SCHEMA, encode_batch
from mq_protocol.sql.ddl import parse_schema

SCHEMA = parse_schema("a long NOT NULL, b string, c array<string>, t timestamp")


def table(**columns: object) -> pa.Table:
    given: dict[str, object] = {
        "a": [1, 2],
        "b": ["x", None],
        "c": [["y"], None],
        "t": pa.array([0, 1], pa.timestamp("us", "UTC")),
    }
    return pa.table({**given, **columns})


# ---------------------------------------------------------------- records


def test_headers_may_be_a_mapping_or_pairs_and_repeat() -> None:
    assert to_header_pairs({"a": b"1", "b": None}) == [("a", b"1"), ("b", None)]
    assert to_header_pairs([("a", b"1"), ("a", "ü")]) == [("a", b"1"), ("a", "ü".encode())]  # type: ignore[list-item]
    for wrong in (["a"], [("a",)], [1], {"a": 1}, {"\ud805": b""}):
        with pytest.raises(InvalidRequest):
            to_header_pairs(wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("count", [1, FEW, FEW + 1])
@pytest.mark.parametrize("headers", [[("a", b"1"), ("é", None)], None])
def test_few_records_and_many_are_the_columns_that_arrow_makes_of_them(
    count: int, headers: list[tuple[str, bytes | None]] | None
) -> None:
    keys, values = [None, b"", b"k"] * count, [b"v", None, b"\xff" * 100] * count
    every = [headers, [("b", b"")], None] * count
    batch = records_to_batch(keys[:count], values[:count], every[:count], list(range(count)))
    batch.validate(full=True)
    rows = zip(keys[:count], values[:count], every[:count], range(count), strict=True)
    assert batch.equals(pa.RecordBatch.from_pylist([_row(*row) for row in rows], RECORD_SCHEMA))


def _row(key: object, value: object, pairs: list[tuple[str, bytes | None]] | None, time_us: int) -> dict[str, object]:
    headers = None if pairs is None else [{"key": name, "value": content} for name, content in pairs]
    return {"key": key, "value": value, "headers": headers, "timestamp": time_us}


def test_a_process_that_publishes_a_few_records_does_not_import_pandas() -> None:
    """It took longer than all else that a first record needs."""
    code = (
        "import sys; from mq_client.producing.batches import records_to_batch\n"
        "records_to_batch([b'k'], [b'v'], [[('a', b'1')]], [0]); print('pandas' in sys.modules)"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert importlib.util.find_spec("pandas") is not None
    assert found.stdout == "False\n"


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
        partition: rows.column("a").to_pylist()
        for partition, rows in split_by_partition(numbers, np.array([1, 0, 1, -1, 0, 1]))
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


# ---------------------------------------------------------------- sizes and bounds


def test_a_record_counts_with_all_that_it_holds() -> None:
    assert record_size(None, None, None) == RECORD_OVERHEAD_BYTES
    assert record_size(b"kk", b"vvv", []) == RECORD_OVERHEAD_BYTES + 5
    assert record_size(None, b"v", [("ab", b"xyz"), ("c", None)]) == RECORD_OVERHEAD_BYTES + 1 + (2 + 3 + 8) + (1 + 8)


def test_the_largest_record_is_measured_by_key_and_value_together() -> None:
    rows = {"key": [b"k" * 5, None, b"kk"], "value": [b"v" * 4, b"v" * 8, None]}
    assert largest_record_bytes(pa.table(rows, schema=pa.schema([("key", pa.binary()), ("value", pa.binary())]))) == 9
    assert largest_record_bytes(pa.table({"key": pa.array([], pa.binary()), "value": pa.array([], pa.binary())})) == 0


def test_times_reach_from_the_first_to_the_last_that_64_bits_hold() -> None:
    assert [to_timestamp_us(time) for time in (-(2**63), 2**63 - 1)] == [-(2**63), 2**63 - 1]
    with pytest.raises(InvalidRequest, match="out of range"):
        to_timestamp_us(-(2**63) - 1)


def test_a_record_has_a_time_that_can_be_shown_and_not_nanoseconds() -> None:
    last = datetime.max.replace(tzinfo=UTC)
    assert one_record(None, b"v", None, last).column("timestamp").to_pylist() == [last]
    for time_us in (1_712_345_678_123_456_789, to_timestamp_us(last) + 1, -62_135_596_800_000_001):
        with pytest.raises(InvalidRequest, match="not in the years 1 to 9999: give microseconds since 1970"):
            one_record(None, b"v", None, time_us)


def test_keys_spread_a_table_if_any_row_has_one() -> None:
    assert record_key_column(pa.table({"key": pa.array([None, b"k"], pa.binary())})) == "key"
    assert record_key_column(pa.table({"key": pa.nulls(2, pa.binary())})) is None


def test_a_name_of_a_header_may_be_any_text() -> None:
    assert to_header_pairs({"grün\ud7ff\ue000": b""})
    for lone in ("\ud800", "\udfff", "x\ud800"):
        with pytest.raises(InvalidRequest, match="lone surrogate"):
            to_header_pairs({lone: b""})


def test_columns_that_were_added_may_be_left_out_and_those_before_them_not() -> None:
    made = conform(table().drop(["c", "t"]), SCHEMA, "t", first_columns=2)
    assert made.schema == SCHEMA
    assert made.column("c").null_count == made.column("t").null_count == 2
    with pytest.raises(SchemaMismatch, match="column 'b'"):
        conform(table().drop(["b", "c"]), SCHEMA, "t", first_columns=2)


def test_a_table_of_the_topics_own_schema_is_taken_as_it_is_unless_it_has_nulls_where_none_may_be() -> None:
    whole = pa.table({"a": [1], "b": ["x"], "c": [["y"]], "t": pa.array([0], pa.timestamp("us", "UTC"))}, schema=SCHEMA)
    assert conform(whole.replace_schema_metadata({"k": "v"}), SCHEMA, "t").schema.metadata is None
    assert conform(whole.to_batches()[0], SCHEMA, "t").equals(whole)
    empty = pa.table({**whole.to_pydict(), "a": [None]}, schema=SCHEMA)
    with pytest.raises(SchemaMismatch, match="NOT NULL and has nulls, 1 of 1"):
        conform(empty, SCHEMA, "t")


def test_a_typed_topic_fills_in_no_column_of_a_record() -> None:
    with pytest.raises(SchemaMismatch, match="'timestamp'"):
        conform(pa.table({"value": [b"x"]}), pa.schema([("timestamp", pa.int64()), ("value", pa.binary())]), "t")
    with pytest.raises(SchemaMismatch, match="'key'"):
        conform(pa.table({"value": [b"x"]}), pa.schema([("key", pa.binary()), ("value", pa.binary())]), "t")


def test_a_value_that_is_no_bytes_is_refused_with_the_serializer_that_takes_it() -> None:
    with pytest.raises(InvalidRequest, match=r'^value is dict: give bytes or str \(.* value_serializer="json"\)$'):
        to_bytes({"a": 1}, "value")
    with pytest.raises(InvalidRequest, match=r"^header 'a' is int: give bytes or str$"):
        to_header_pairs({"a": 1})  # type: ignore[dict-item]


def test_a_delay_that_is_text_is_refused_with_its_number() -> None:
    with pytest.raises(InvalidSetting, match=r"delay_ms=5000$"):
        due_of(None, "5s")  # type: ignore[arg-type]
