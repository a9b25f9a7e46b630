"""Lines of JSON and cells of CSV become the values that they stand for, or are refused in words that name the
column."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pytest

from mq_cli.records.row_texts import CsvRows, JsonRows, JsonTables, UnreadableRow
from mq_client.producing.rows import RowShape
from mq_protocol.sql.ddl import parse_schema

NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)


def stored(words: str, row: dict[str, Any]) -> Any:
    schema = parse_schema(f"c {words}")
    shape = RowShape(schema, "t")
    return shape.batch([shape.fit(row)[0]]).column(0)[0].as_py()


@pytest.mark.parametrize(
    ("words", "text", "kept"),
    [
        ("long", "9223372036854775807", 2**63 - 1),
        ("boolean", "true", True),
        ("string", '"gr\\u00fc\\u00dfe"', "grüße"),
        ("double", "0.1", 0.1),
        ("double", "12345678901234567890", 12345678901234567890.0),
        ("double", "Infinity", float("inf")),
        ("float", "16777217", 16_777_216.0),
        ("decimal(5,2)", "1.10", Decimal("1.10")),
        ("decimal(5,2)", '"1.10"', Decimal("1.10")),
        ("decimal(20,1)", "123456789012345678.9", Decimal("123456789012345678.9")),
        ("timestamp", '"2026-01-31T12:00:00Z"', NOON),
        ("timestamp", '"2026-01-31T14:00:00+02:00"', NOON),
        ("timestamp", '"2026-01-31 12:00"', NOON),
        ("timestamp", "1769860800000000", NOON),
        ("timestamp_ntz", '"2026-01-31T12:00:00"', NOON.replace(tzinfo=None)),
        ("date", '"2026-01-31"', date(2026, 1, 31)),
        ("binary", '"text"', b"text"),
        ("binary", '{"base64": "AP8="}', b"\x00\xff"),
        ("array<long>", "[1, null]", [1, None]),
        ("map<string,long>", '{"a": 2, "b": null}', [("a", 2), ("b", None)]),
        ("map<int,date>", '{"5": "2026-01-31"}', [(5, date(2026, 1, 31))]),
        ("map<int,string>", '[[5, "five"]]', [(5, "five")]),
        ("struct<a:decimal(3,1),b:array<double>>", '{"a": 1.5, "b": [1]}', {"a": Decimal("1.5"), "b": [1.0]}),
        ("long", "null", None),
    ],
)
def test_a_json_value_is_stored_as_what_it_stands_for(words: str, text: str, kept: object) -> None:
    row = JsonRows(parse_schema(f"c {words}")).row(f'{{"c": {text}}}'.encode())
    assert stored(words, row) == kept


@pytest.mark.parametrize(
    ("words", "text", "says"),
    [
        ("long", "1.0", "1.0 is no integer"),
        ("long", '"1"', '"1" is no integer'),
        ("long", "true", "true is no integer"),
        ("string", "1", "1 is no string: put it in quotes"),
        ("boolean", "1", "1 is no boolean"),
        ("double", "1e400", "out of the range of a double"),
        ("double", '"1.5"', "is no number"),
        ("decimal(5,2)", '"1_0"', "is no number"),
        ("decimal(5,2)", "true", "is no number"),
        ("timestamp", '"yesterday"', "is no time: give one like"),
        ("timestamp", '"2026-01-31T12:00:00.1234567Z"', "more than six digits"),
        ("timestamp", "1.5", "is no time"),
        ("timestamp_ntz", '"2026-01-31T12:00:00Z"', "has a zone"),
        ("date", '"2026-02-30"', "is no date"),
        ("date", '"2026-01-31T12:00"', "is no date"),
        ("binary", "5", "is no binary"),
        ("binary", '{"base64": "?"}', "no base64"),
        ("array<long>", "1", "give an array"),
        ("array<long>", "[1.5]", "1.5 is no integer"),
        ("map<string,long>", "[1]", "an object, or an array of [key, value]"),
        ("map<int,long>", '{"x": 1}', '"x" is no integer'),
        ("struct<name:long>", '{"nmae": 1}', "did you mean 'name'?"),
    ],
)
def test_a_json_value_that_its_column_does_not_take_is_refused_by_name(words: str, text: str, says: str) -> None:
    with pytest.raises(UnreadableRow) as refused:
        JsonRows(parse_schema(f"c {words}")).row(f'{{"c": {text}}}'.encode())
    assert str(refused.value).startswith("column 'c': ")
    assert says in str(refused.value)


@pytest.mark.parametrize(
    ("line", "says"),
    [
        (b"nope", 'no JSON: expecting value at character 1; give {"c": …}, or CSV with --csv'),
        (b"[1]", "is no JSON object of columns"),
        (b'{"c": 1} {"c": 2}', "no JSON: extra data"),
        (b'{"c": 1, "c": 2}', "'c' comes twice"),
        (b'{"cc": 1}', "no column 'cc': did you mean 'c'?"),
        (b'{"c": "\xff"}', "byte 8 is no UTF-8"),
        (b'{"c": ' + b"9" * 5_000 + b"}", "number that cannot be read"),
        (b"[" * 100_000, "nested too deep"),
    ],
)
def test_a_line_that_is_no_row_is_refused_with_the_reason(line: bytes, says: str) -> None:
    with pytest.raises(UnreadableRow) as refused:
        JsonRows(parse_schema("c long")).row(line)
    assert says in str(refused.value)


@pytest.mark.parametrize(
    ("words", "cell", "kept"),
    [
        ("long", "-5", -5),
        ("double", "1e3", 1000.0),
        ("double", "nan", pytest.approx(float("nan"), nan_ok=True)),
        ("boolean", "True", True),
        ("decimal(5,2)", "1.10", Decimal("1.10")),
        ("string", " kept ", " kept "),
        ("string not null", "", ""),
        ("string", "", None),
        ("long", "", None),
        ("date", "2026-01-31", date(2026, 1, 31)),
        ("timestamp", "2026-01-31T12:00:00", NOON),
        ("binary", "text", b"text"),
        ("array<string>", '["x"]', ["x"]),
        ("map<string,long>", '{"a": 1}', [("a", 1)]),
    ],
)
def test_a_cell_is_stored_as_what_it_stands_for(words: str, cell: str, kept: object) -> None:
    assert stored(words, CsvRows(parse_schema(f"c {words}"), ["c"]).row([cell])) == kept


@pytest.mark.parametrize(
    ("words", "cell"), [("long", "1.0"), ("long", "1_0"), ("double", "1_0"), ("boolean", "yes"), ("array<long>", "[1")]
)
def test_a_cell_that_its_column_does_not_take_is_refused_by_name(words: str, cell: str) -> None:
    with pytest.raises(UnreadableRow, match="column 'c': "):
        CsvRows(parse_schema(f"c {words}"), ["c"]).row([cell])


def test_columns_and_cells_of_csv_must_match() -> None:
    schema = parse_schema("name string, id long")
    with pytest.raises(UnreadableRow, match="did you mean 'name'"):
        CsvRows(schema, ["nmae"])
    with pytest.raises(UnreadableRow, match="no column 'UA'; the first line names the columns, unless --columns does"):
        CsvRows(schema, ["UA", "12"])
    with pytest.raises(UnreadableRow, match="comes twice"):
        CsvRows(schema, ["id", "id"])
    with pytest.raises(UnreadableRow, match="3 cells, and there are 2 columns"):
        CsvRows(schema, ["id", "name"]).row(["1", "a", "b"])
    assert CsvRows(schema, ["id", "name"]).row(["1", "a"]) == {"id": 1, "name": "a"}


@pytest.mark.parametrize(
    "row",
    [
        {"a": 1, "d": 1.5, "s": "x", "b": True, "t": "2026-01-31T12:00:00"},
        {
            "a": -(2**63),
            "d": 12345678901234567890,
            "s": "gr\u00fc\u00dfe \u2603",
            "b": None,
            "t": "2026-01-31T14:00:00+02:00",
        },
        {"d": -0.0, "t": "2026-01-31"},
        {},
    ],
)
def test_many_lines_at_once_are_read_as_each_of_them(row: dict[str, Any]) -> None:
    schema = parse_schema("a long, d double, s string, b boolean, t timestamp")
    line = json.dumps(row).encode()
    shape = RowShape(schema, "t")
    one = shape.batch([shape.fit(JsonRows(schema).row(line))[0]])
    table = JsonTables(schema).read([line, line])
    assert table is not None
    assert table.to_pylist() == one.to_pylist() * 2


@pytest.mark.parametrize(
    "line", [b'{"a":1}{"a":2}', b'{"a":1.0}', b'{"b":1}', b"", b'{"s":"\xff"}', b'{"a":1,"a":1}', b"[1]"]
)
def test_many_lines_of_which_one_is_not_plain_are_left_to_be_read_one_by_one(line: bytes) -> None:
    assert JsonTables(parse_schema("a long, s string")).read([b'{"a":1}', line]) is None


def test_a_line_of_two_objects_beside_an_empty_one_is_not_taken_for_two_lines() -> None:
    assert JsonTables(parse_schema("a long")).read([b'{"a":1}{"a":2}', b""]) is None


@pytest.mark.parametrize(
    "words", ["c float", "c timestamp_ntz", "c decimal(5,2)", "c binary", "c map<string,long>", "c date"]
)
def test_columns_that_arrow_reads_otherwise_are_left_to_be_read_one_by_one(words: str) -> None:
    assert JsonTables(parse_schema(words)).read([b"{}"]) is None
