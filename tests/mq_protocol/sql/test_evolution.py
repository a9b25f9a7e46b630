"""What columns can become, and batches of one version read by those who know another."""

from __future__ import annotations

import pyarrow as pa
import pytest

from mq_protocol.arrow import decode_batch, encode_batch, schema_nodes
from mq_protocol.errors import CorruptBatch, InvalidRequest, SchemaMismatch
from mq_protocol.sql.ddl import parse_schema
from mq_protocol.sql.evolution import check_extension, extended, versions
from mq_protocol.sql.row_filter import parse_filter
from mq_protocol.wire.ipc_message import node_count

FIRST = parse_schema("n long NOT NULL, place struct<x: double, tags: array<string>>")
ADDED = parse_schema("word string, pair struct<a: long, b: string>, many array<int>")
NEWEST = extended("t", FIRST, ADDED)
OLD = pa.RecordBatch.from_pylist([{"n": n, "place": {"x": 0.5, "tags": ["a"]}} for n in range(3)], schema=FIRST)
NEW = pa.RecordBatch.from_pylist(
    [{"n": n, "place": None, "word": "w", "pair": {"a": 1, "b": "c"}, "many": [n]} for n in range(3)], schema=NEWEST
)
CODECS = (None, "lz4", "zstd")


def test_nullable_columns_are_added_behind_the_others() -> None:
    assert NEWEST.names == ["n", "place", "word", "pair", "many"]
    check_extension("t", FIRST, NEWEST)
    check_extension("t", NEWEST, NEWEST)


@pytest.mark.parametrize(
    ("added", "remedy"),
    [
        ("m long NOT NULL", "leave NOT NULL out"),
        ("n string", "has a column 'n' already, which is long and stays so: choose another name"),
        ("N long", "has a column 'n' already"),
        ("a long, A string", "same name to Spark"),
    ],
)
def test_a_column_that_cannot_be_added_is_refused_with_what_to_do(added: str, remedy: str) -> None:
    with pytest.raises(InvalidRequest, match=remedy):
        extended(
            "t", FIRST, parse_schema(added) if "A" not in added else pa.schema([("a", pa.int64()), ("A", pa.string())])
        )


@pytest.mark.parametrize(
    ("after", "remedy"),
    [
        ("a long", "'b' of topic 't' cannot be dropped: leave it out where it is read"),
        ("b string", "'a' of topic 't' cannot be dropped"),
        ("a long, c string", r"'b' of topic 't' cannot be dropped \(nor be called 'c' from now on\)"),
        ("b string, a long", "'a' of topic 't' must stay where it is"),
        ("c int, a long, b string", "'a' of topic 't' must stay where it is: add columns behind the others"),
        ("a int, b string", "'a' of topic 't' is long and cannot become int: add a column under another name"),
        ("a long, b string NOT NULL", "'b' of topic 't' is string and cannot become string NOT NULL"),
        ("a long, b string, c int NOT NULL", "'c' is NOT NULL"),
    ],
)
def test_any_other_change_is_refused_with_what_to_do(after: str, remedy: str) -> None:
    with pytest.raises(InvalidRequest, match=remedy):
        check_extension("t", parse_schema("a long, b string"), parse_schema(after))


def test_each_version_is_the_beginning_of_the_next() -> None:
    assert [version.names for version in versions(NEWEST, (2, 3))] == [
        NEWEST.names,
        ["n", "place"],
        ["n", "place", "word"],
    ]
    assert versions(FIRST, ()) == (FIRST,)


@pytest.mark.parametrize("codec", CODECS)
def test_columns_that_a_batch_lacks_are_null(codec: str | None) -> None:
    payload = encode_batch(OLD, codec)
    read = decode_batch(payload, NEWEST)
    assert read.schema == NEWEST
    read.validate(full=True)
    assert read.select(["n", "place"]).to_pylist() == OLD.to_pylist()
    assert [read.column(name).null_count for name in ("word", "pair", "many")] == [3, 3, 3]


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("columns", [["many", "n"], ["place"], ["pair", "word"], []])
def test_a_projection_has_nulls_for_columns_that_a_batch_lacks(codec: str | None, columns: list[str]) -> None:
    read = decode_batch(encode_batch(OLD, codec), NEWEST, columns)
    assert (read.num_rows, read.schema.names) == (3, columns)
    for name in columns:
        assert read.column(name).to_pylist() == (OLD.column(name).to_pylist() if name in FIRST.names else [None] * 3)
    again = decode_batch(encode_batch(read, codec), pa.schema([NEWEST.field(name) for name in columns]))
    assert again.equals(read), "and is encoded as any other"


@pytest.mark.parametrize("codec", CODECS)
def test_who_knows_an_earlier_version_reads_its_columns_of_a_later_batch(codec: str | None) -> None:
    payload = encode_batch(NEW, codec)
    assert decode_batch(payload, FIRST).equals(NEW.select(FIRST.names))
    assert decode_batch(payload, FIRST, ["place"]).to_pylist() == [{"place": None}] * 3
    with pytest.raises(SchemaMismatch, match="no column 'word'"):
        decode_batch(payload, FIRST, ["word"])


def test_the_nodes_of_a_batch_tell_its_version() -> None:
    assert node_count(memoryview(encode_batch(OLD))) == schema_nodes(FIRST) == 5
    assert node_count(memoryview(encode_batch(NEW, "zstd"))) == schema_nodes(NEWEST) == 11


def test_a_batch_that_ends_within_a_column_is_no_earlier_version() -> None:
    payload = encode_batch(pa.RecordBatch.from_pylist([{"n": 1, "x": 0.5}], schema=parse_schema("n long, x double")))
    with pytest.raises(CorruptBatch):
        decode_batch(payload, NEWEST)


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("word = 'w'", 0),
        ("NOT word = 'w'", 0),
        ("word IS NULL", 3),
        ("word IS NOT NULL", 0),
        ("word IN ('w') OR n > 0", 2),
    ],
)
def test_to_a_filter_a_column_that_a_batch_lacks_is_null(text: str, kept: int) -> None:
    row_filter = parse_filter(text, NEWEST)
    assert row_filter.mask(decode_batch(encode_batch(OLD), NEWEST, row_filter.columns)).to_pylist().count(True) == kept
