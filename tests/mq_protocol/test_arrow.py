"""Payloads and fingerprints; what `check_untrusted` lets in and keeps out."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from mq_protocol import arrow, limits
from mq_protocol.arrow import (
    RECORD_SCHEMA,
    check_untrusted,
    column_of,
    decode_batch,
    decode_untrusted,
    encode_batch,
    numbers_of,
    schema_fingerprint,
    schema_from_bytes,
    schema_to_bytes,
)
from mq_protocol.errors import BatchTooLarge, CorruptBatch, SchemaMismatch
from mq_protocol.sql.ddl import parse_schema

BATCH = pa.record_batch({"a": [1, 2, 3], "b": ["x", None, "z"], "c": [[1], None, []]})
SCHEMA = parse_schema("a long, b string, c array<long>")


def check(payload: bytes, schema: pa.Schema = SCHEMA, *, count: int = 3, most: int = 1 << 20) -> int:
    return check_untrusted(
        memoryview(payload), schema, batch_bytes_max=1 << 20, decoded_bytes_max=most, record_count=count
    )


def test_the_record_schema_is_what_spark_converts_to() -> None:
    types = pytest.importorskip("pyspark.sql.types")
    conversion = pytest.importorskip("pyspark.sql.pandas.types")
    header = types.StructType(
        [types.StructField("key", types.StringType()), types.StructField("value", types.BinaryType())]
    )
    spark = types.StructType(
        [
            types.StructField("key", types.BinaryType()),
            types.StructField("value", types.BinaryType()),
            types.StructField("headers", types.ArrayType(header)),
            types.StructField("timestamp", types.TimestampType()),
        ]
    )
    expected = conversion.to_arrow_schema(spark, timezone="UTC")
    assert RECORD_SCHEMA.equals(expected, check_metadata=True)
    assert str(RECORD_SCHEMA) == str(expected)  # the elements' names too, which equals() ignores


@pytest.mark.parametrize("codec", [None, "lz4", "zstd"])
def test_a_batch_comes_back_as_it_went(codec: str | None) -> None:
    payload = bytes(encode_batch(BATCH, codec))
    assert decode_batch(payload, SCHEMA).equals(BATCH)
    assert check(payload) == sum(len(part) for part in _parts(BATCH))


def _parts(batch: pa.RecordBatch) -> list[bytes]:
    """Every buffer of the batch, as long as its values need."""
    plain = bytes(encode_batch(batch))
    from mq_protocol.wire.ipc_message import read_record_batch_message

    message = read_record_batch_message(memoryview(plain))
    return [bytes(message.body[at : at + size]) for at, size in message.buffers]


@pytest.mark.parametrize("codec", [None, "lz4", "zstd"])
def test_columns_are_picked_in_the_order_asked_for(codec: str | None) -> None:
    payload = memoryview(bytes(encode_batch(BATCH, codec)))
    assert decode_batch(payload, SCHEMA, ["c", "a"]).equals(BATCH.select(["c", "a"]))
    assert decode_batch(payload, SCHEMA, []).num_rows == 3


def test_a_column_the_topic_lacks_is_named() -> None:
    with pytest.raises(SchemaMismatch, match=r"no column 'z': its columns are a, b, c"):
        decode_batch(encode_batch(BATCH), SCHEMA, ["z"])


def test_decoding_an_uncompressed_payload_copies_nothing() -> None:
    payload = bytes(encode_batch(BATCH))
    values = decode_batch(memoryview(payload), SCHEMA).column("a").buffers()[1]
    start = pa.py_buffer(payload).address
    assert start <= values.address < start + len(payload)


def test_a_slice_is_sent_without_the_rest() -> None:
    long = pa.record_batch({"a": list(range(100_000))})
    assert len(encode_batch(long.slice(50_000, 1))) < 1_000


def test_schemas_survive_the_wire_without_their_metadata() -> None:
    tagged = SCHEMA.with_metadata({"pandas": "{}"})
    assert schema_from_bytes(schema_to_bytes(tagged)).equals(SCHEMA, check_metadata=True)
    assert schema_from_bytes(b"") == RECORD_SCHEMA
    with pytest.raises(CorruptBatch):
        schema_from_bytes(b"no schema at all")


def test_the_fingerprint_is_stable_over_processes_and_releases() -> None:
    assert schema_fingerprint(RECORD_SCHEMA) == 0x6B6C3D1FFA0F3AC4
    code = "from mq_protocol.arrow import *; print(schema_fingerprint(RECORD_SCHEMA))"
    for seed in ("0", "1"):
        answer = subprocess.run(
            [sys.executable, "-c", code],
            check=True,
            capture_output=True,
            text=True,
            env={**os.environ, "PYTHONHASHSEED": seed},
        )
        assert int(answer.stdout) == 0x6B6C3D1FFA0F3AC4


def test_the_fingerprint_counts_names_types_nullability_and_order_and_nothing_else() -> None:
    same = schema_fingerprint(parse_schema("a long, b array<int>, c map<string,int>"))
    others = [
        "A long, b array<int>, c map<string,int>",
        "a int, b array<int>, c map<string,int>",
        "a long NOT NULL, b array<int>, c map<string,int>",
        "b array<int>, a long, c map<string,int>",
        "a long, b array<long>, c map<string,int>",
        "a long, b array<struct<x: int>>, c map<string,int>",
        "a long, b array<int>, c map<string,long>",
        "a long, b array<int>",
    ]
    assert len({same, *(schema_fingerprint(parse_schema(other)) for other in others)}) == len(others) + 1
    relabelled = pa.schema(
        [
            pa.field("a", pa.int64(), metadata={"comment": "x"}),
            pa.field("b", pa.list_(pa.field("item", pa.int32()))),
            pa.field("c", pa.map_(pa.string(), pa.int32())),
        ],
        metadata={"x": "y"},
    )
    assert schema_fingerprint(relabelled) == same


# ---------------------------------------------------------------- strangers


def test_trailing_bytes_are_refused() -> None:
    with pytest.raises(CorruptBatch, match="the body is"):
        check(bytes(encode_batch(BATCH)) + b"\0" * 8)


def test_a_stream_with_its_schema_is_not_a_batch() -> None:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, BATCH.schema) as writer:
        writer.write_batch(BATCH)
    with pytest.raises(CorruptBatch, match="the message is a schema, not a record batch"):
        check(sink.getvalue().to_pybytes())


def test_a_dictionary_batch_is_refused() -> None:
    sink = pa.BufferOutputStream()
    dictionary = pa.record_batch({"a": pa.array(["x", "x"]).dictionary_encode()})
    with pa.ipc.new_stream(sink, dictionary.schema) as writer:
        writer.write_batch(dictionary)
    stream = sink.getvalue()
    skip = 8 + int.from_bytes(stream[4:8].to_pybytes(), "little")
    with pytest.raises(CorruptBatch, match="dictionary batch"):
        check(stream.to_pybytes()[skip:])


@pytest.mark.parametrize("claimed", [0, 2, 4, 1_000_000_000])
def test_the_number_of_records_must_be_as_claimed(claimed: int) -> None:
    with pytest.raises(CorruptBatch, match=f"it has 3 records, its header claims {claimed}"):
        check(bytes(encode_batch(BATCH)), count=claimed)


def test_an_empty_batch_is_refused_because_it_has_no_offset() -> None:
    with pytest.raises(CorruptBatch, match="no records"):
        check(bytes(encode_batch(BATCH.slice(0, 0))), count=0)


def test_more_records_than_a_batch_may_have_are_refused() -> None:
    count = limits.BATCH_RECORDS_MAX + 1
    bools = pa.record_batch({"a": pa.array([True]).take(pa.array([0] * count))})
    with pytest.raises(BatchTooLarge, match=str(limits.BATCH_RECORDS_MAX)):
        check(bytes(encode_batch(bools)), parse_schema("a boolean"), count=count)


def test_a_batch_above_the_topics_bound_is_refused() -> None:
    payload = memoryview(encode_batch(BATCH))
    with pytest.raises(BatchTooLarge, match="batch_bytes_max=100"):
        check_untrusted(payload, SCHEMA, batch_bytes_max=100, record_count=3)


@pytest.mark.parametrize("codec", ["lz4", "zstd"])
def test_a_decompression_bomb_is_refused_before_it_is_decoded(codec: str) -> None:
    bomb = pa.record_batch({"a": pa.array([b"\0" * (200 << 20)], pa.binary())})
    payload = bytes(encode_batch(bomb, codec))
    assert len(payload) < 1 << 20
    before = pa.total_allocated_bytes()
    peak = pa.default_memory_pool().max_memory()
    del bomb
    with pytest.raises(BatchTooLarge, match="decompresses to 2097"):
        check(payload, parse_schema("a binary"), count=1, most=64 << 20)
    assert pa.total_allocated_bytes() <= before
    assert pa.default_memory_pool().max_memory() == peak


CHECKED_AGAIN_AND_AGAIN = """
import threading
from pathlib import Path
from typing import Any
import pyarrow as pa
from mq_protocol.arrow import check_untrusted, encode_batch

def resident(field):
    [line] = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(field)]
    return int(line.split()[1]) << 10

rows = pa.record_batch({"a": pa.array(["0" * (60 << 20)])})
schema, payload = rows.schema, bytes(encode_batch(rows, "zstd"))
del rows
pa.default_memory_pool().release_unused()

def check():
    check_untrusted(memoryview(payload), schema, batch_bytes_max=1 << 20, record_count=1)

Path("/proc/self/clear_refs").write_text("5")
before = resident("VmRSS")
for _ in range(3):
    check()
    thread = threading.Thread(target=check)
    thread.start()
    thread.join()
print(resident("VmHWM") - before, resident("VmRSS") - before)
"""


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="the system does not tell what memory was most")
def test_batches_that_are_large_inside_cost_their_size_once_and_leave_nothing() -> None:
    answer = subprocess.run([sys.executable, "-c", CHECKED_AGAIN_AND_AGAIN], check=True, capture_output=True, text=True)
    most, left = map(int, answer.stdout.split())
    assert 60 << 20 <= most < 76 << 20
    assert left < 16 << 20


def test_a_batch_that_is_large_inside_is_checked_like_any_other() -> None:
    long = pa.record_batch({"a": pa.array(["0" * (20 << 20)])})
    good = bytes(encode_batch(long, "zstd"))
    assert check(good, long.schema, count=1, most=64 << 20) > 20 << 20
    wrong = pa.record_batch([pa.array([b"\xff" * (20 << 20)]).cast(pa.binary()).view(pa.binary())], names=["a"])
    with pytest.raises(CorruptBatch, match="UTF8"):
        check(bytes(encode_batch(wrong, "zstd")), long.schema, count=1, most=64 << 20)
    demanded = pa.schema([pa.field("a", pa.string(), nullable=False), pa.field("b", pa.string())])
    absent = pa.record_batch([pa.array([None], pa.string()), long["a"]], names=["a", "b"])
    with pytest.raises(SchemaMismatch, match="null"):
        check(bytes(encode_batch(absent, "zstd")), demanded, count=1, most=64 << 20)


def test_a_batch_that_is_large_inside_is_freed_whatever_is_kept_of_its_refusal() -> None:
    before = pa.system_memory_pool().bytes_allocated()
    long = pa.record_batch([pa.array([b"\xff" * (20 << 20)])], names=["a"])
    payload = bytes(encode_batch(long, "zstd"))
    with pytest.raises(CorruptBatch) as kept:
        check(payload, pa.schema([("a", pa.string())]), count=1, most=64 << 20)
    assert kept.value.__traceback__ is not None
    assert pa.system_memory_pool().bytes_allocated() == before
    check(payload, long.schema, count=1, most=64 << 20)
    assert pa.system_memory_pool().bytes_allocated() == before


def test_a_batch_of_another_schema_is_refused() -> None:
    with pytest.raises(SchemaMismatch, match="columns"):
        check(bytes(encode_batch(BATCH.select(["a", "b"]))))
    with pytest.raises((SchemaMismatch, CorruptBatch)):
        check(bytes(encode_batch(BATCH)), parse_schema("a string, b long, c array<long>"))


def test_schemas_that_are_checked_in_turn_are_not_taken_for_each_other() -> None:
    strict = parse_schema("a long NOT NULL")
    nulls = encode_batch(pa.record_batch({"a": pa.array([None], pa.int64())})).to_pybytes()
    for _ in range(3):
        check(nulls, parse_schema("a long"), count=1)
        with pytest.raises(SchemaMismatch, match="NOT NULL"):
            check(nulls, strict, count=1)
        check(encode_batch(BATCH).to_pybytes())


def test_what_is_kept_of_schemas_is_bounded() -> None:
    payload = encode_batch(BATCH).to_pybytes()
    for _ in range(1_100):
        check(payload, parse_schema("a long, b string, c array<long>"))
        assert len(arrow._demands) <= 1_024


def test_forged_offsets_are_found_before_a_value_is_touched() -> None:
    payload = bytearray(encode_batch(pa.record_batch({"a": ["x" * 10, "y" * 10]})))
    place = bytes(payload).index(b"\x0a\0\0\0\x14\0\0\0")
    payload[place : place + 4] = (2**30).to_bytes(4, "little")
    with pytest.raises(CorruptBatch):
        check(bytes(payload), parse_schema("a string"), count=2)


def test_a_string_that_is_not_utf8_is_refused() -> None:
    payload = bytes(encode_batch(pa.record_batch({"a": pa.array([b"\xff\xfe"], pa.binary())})))
    with pytest.raises(CorruptBatch, match="UTF8"):
        check(payload, parse_schema("a string"), count=1)
    assert check(payload, parse_schema("a binary"), count=1)


@pytest.mark.parametrize(
    ("ddl", "row"),
    [
        ("a array<string>", ["abcd"]),
        ("a struct<x: string>", {"x": "abcd"}),
        ("a map<string,int>", [("abcd", 1)]),
        ("a map<int,array<struct<x: string>>>", [(1, [{"x": "abcd"}])]),
    ],
)
@pytest.mark.parametrize("text", [b"ab\xffd", b"abc\xc3", b"\x80bcd"])
def test_a_nested_string_that_is_not_utf8_is_refused(ddl: str, row: Any, text: bytes) -> None:
    schema = parse_schema(ddl)
    payload = bytes(encode_batch(pa.RecordBatch.from_pylist([{"a": None}, {"a": row}], schema)))
    assert payload.count(b"abcd") == 1
    assert decode_untrusted(memoryview(payload.replace(b"abcd", "aéb".encode())), schema, 2).num_rows == 2
    with pytest.raises(CorruptBatch, match="UTF8"):
        decode_untrusted(memoryview(payload.replace(b"abcd", text)), schema, 2)


def test_only_the_columns_that_are_read_are_checked() -> None:
    schema = parse_schema("a string, b long")
    payload = bytes(encode_batch(pa.RecordBatch.from_pydict({"a": ["abcd"], "b": [1]}, schema)))
    wrong = memoryview(payload.replace(b"abcd", b"ab\xffd"))
    assert decode_untrusted(wrong, schema, 1, ["b"]).to_pylist() == [{"b": 1}]
    with pytest.raises(CorruptBatch, match="UTF8"):
        decode_untrusted(wrong, schema, 1, ["b", "a"])


@pytest.mark.parametrize(
    ("ddl", "rows", "named"),
    [
        ("a int NOT NULL", [1, None], "'a'"),
        ("a struct<x: int NOT NULL>", [{"x": 1}, {"x": None}], "'a.x'"),
        ("a array<struct<x: int NOT NULL>>", [[{"x": 1}], [{"x": None}]], "'a.element.x'"),
        ("a map<string,struct<x: int NOT NULL>>", [[("k", {"x": 1})], [("k", {"x": None})]], "'a.value.x'"),
    ],
)
def test_a_null_where_none_is_allowed_is_named(ddl: str, rows: list[object], named: str) -> None:
    strict, lax = parse_schema(ddl), parse_schema(ddl.replace(" NOT NULL", ""))
    payload = bytes(encode_batch(pa.record_batch([pa.array(rows, lax.field(0).type)], schema=lax)))
    assert check(payload, lax, count=2)
    with pytest.raises(
        SchemaMismatch, match=re.escape(f"column {named} is NOT NULL in the topic's schema and has nulls, 1 of ")
    ):
        check(payload, strict, count=2)


def test_a_null_struct_may_have_anything_below_it() -> None:
    lax = parse_schema("a struct<x: int>")
    payload = bytes(encode_batch(pa.record_batch([pa.array([{"x": 1}, None], lax.field(0).type)], schema=lax)))
    assert check(payload, parse_schema("a struct<x: int NOT NULL>"), count=2)


@pytest.mark.parametrize(("kind", "dtype"), [(pa.int32(), np.int32), (pa.int64(), np.int64), (pa.uint8(), np.uint8)])
def test_numbers_become_a_column_and_a_column_numbers(kind: pa.DataType, dtype: type) -> None:
    numbers = np.arange(20, dtype=dtype)
    column = column_of(numbers[::2], kind)
    assert column.equals(pa.array(range(0, 20, 2), kind))
    assert numbers_of(column.slice(3, 4)).tolist() == [6, 8, 10, 12]
    assert numbers_of(column).dtype == dtype
    assert numbers_of(pa.array([], kind)).tolist() == []
    with pytest.raises(AssertionError, match="a null has no number"):
        numbers_of(pa.array([1, None, 3], kind))


def test_numbers_of_another_width_are_no_column() -> None:
    with pytest.raises(AssertionError, match="int64 is not laid out as int32"):
        column_of(np.arange(3), pa.int32())
