"""Rows as dicts: what a column takes is stored as the value that it is, and whatever it would change is refused,
named."""

from __future__ import annotations

import struct
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from random import Random
from typing import Any

import numpy as np
import pandas as pd
import pytest

from mq_client import SchemaMismatch
from mq_client.producing.rows import RowShape
from mq_protocol.sql.ddl import parse_schema

MOMENT = datetime(2024, 2, 29, 12, 30, 0, 123456, tzinfo=UTC)


LONGER_THAN_DOUBLE = pytest.mark.skipif(
    np.finfo(np.longdouble).eps == np.finfo(np.float64).eps, reason="numpy's long double is a double on this machine"
)


def stored(words: str, value: object) -> Any:
    """What is read back of a value that was given for the one column `c` of these words."""
    schema = parse_schema(f"c {words}")
    shape = RowShape(schema, "t")
    values, size = shape.fit({"c": value})
    assert size > 0
    batch = shape.batch([values])
    batch.validate(full=True)
    assert batch.schema == schema
    return batch.column(0)[0].as_py()


def refusal(words: str, value: object) -> str:
    with pytest.raises(SchemaMismatch) as refused:
        RowShape(parse_schema(f"c {words}"), "t").fit({"c": value})
    assert "column 'c' of topic 't' is" in str(refused.value)
    return str(refused.value)


@pytest.mark.parametrize(
    ("words", "given", "kept"),
    [
        ("long", 2**63 - 1, 2**63 - 1),
        ("long", np.int32(-5), -5),
        ("byte", -128, -128),
        ("boolean", np.bool_(True), True),
        ("double", 1e300, 1e300),
        ("double", 2**53, 2.0**53),
        ("double", np.float32(0.5), 0.5),
        ("float", 0.1, struct.unpack("<f", struct.pack("<f", 0.1))[0]),
        ("float", float("inf"), float("inf")),
        ("float", 16_777_216, 16_777_216.0),
        ("decimal(5,2)", Decimal("1.5"), Decimal("1.50")),
        ("decimal(5,2)", Decimal("1.500"), Decimal("1.50")),
        ("decimal(5,2)", 999, Decimal("999.00")),
        ("decimal(5,2)", Decimal("1E+2"), Decimal("100.00")),
        ("decimal(5,2)", Decimal("-0"), Decimal("0.00")),
        ("decimal(38,0)", 10**37, Decimal(10**37)),
        ("string", "grün", "grün"),
        ("binary", bytearray(b"\xff"), b"\xff"),
        ("date", date(1, 1, 1), date(1, 1, 1)),
        ("timestamp", MOMENT, MOMENT),
        ("timestamp", MOMENT.astimezone(timezone(timedelta(hours=-3))), MOMENT),
        (
            "timestamp",
            datetime.max.replace(tzinfo=UTC),
            datetime.max.replace(tzinfo=UTC),
        ),  # no float of 64 bits has its microseconds
        (
            "timestamp",
            datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC),
            datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC),
        ),
        ("timestamp", 5, datetime(1970, 1, 1, 0, 0, 0, 5, tzinfo=UTC)),
        ("timestamp", pd.Timestamp(MOMENT), MOMENT),
        ("timestamp_ntz", MOMENT.replace(tzinfo=None), MOMENT.replace(tzinfo=None)),
        ("array<int>", (1, None), [1, None]),
        ("array<long>", np.array([1, 2]), [1, 2]),
        ("map<string, double>", {"a": 1.5, "b": None}, [("a", 1.5), ("b", None)]),
        ("map<string, date>", [("a", date(2020, 1, 1))], [("a", date(2020, 1, 1))]),
        ("struct<x: int, y: array<timestamp>>", {"y": [MOMENT]}, {"x": None, "y": [MOMENT]}),
        ("string", None, None),
    ],
)
def test_a_value_is_stored_as_it_was_given(words: str, given: object, kept: object) -> None:
    assert stored(words, given) == kept


@pytest.mark.parametrize(
    ("words", "given", "says"),
    [
        ("long", 1.5, "1.5 (float) is no integer"),
        ("long", 1.0, "1.0 (float) is no integer"),
        ("int", Decimal("1.5"), "1.5 (Decimal) is no integer"),
        ("long", True, "True (bool) is no integer"),
        ("long", "1", "'1' (str) is no integer"),
        ("long", 2**63, "is out of its range"),
        ("byte", 128, "is out of its range, -128 to 127"),
        ("boolean", 1, "is no bool"),
        ("float", 1e300, "1e+300 (float) is out of the range of a 32-bit float"),
        ("float", 1e-300, "is not the same number as a 32-bit float"),
        ("float", 16_777_217, "is not the same number as a 32-bit float"),
        ("double", 2**53 + 1, "is not the same number as a double"),
        ("double", 10**400, "is not the same number as a double"),
        ("double", Decimal("1.5"), "is no number"),
        ("double", True, "is no number"),
        ("double", "1.5", "is no number"),
        ("decimal(5,2)", 1.5, "is no Decimal"),
        ("decimal(5,2)", Decimal("1.555"), "more than 2 digits behind the point"),
        ("decimal(5,2)", Decimal(1000), "more than 3 digits before the point"),
        ("decimal(5,2)", Decimal("1e1000000"), "more than 3 digits before the point"),
        ("decimal(5,2)", Decimal("NaN"), "is no number"),
        ("string", b"bytes", "is no str"),
        ("string", 5, "is no str"),
        ("string", "\ud800", "lone surrogate"),
        ("binary", "text", "is not bytes: encode it"),
        ("date", MOMENT, "its time would be lost"),
        ("date", 5, "is no date"),
        ("timestamp", 5.7, "5.7 (float) is no datetime"),
        ("timestamp", MOMENT.replace(tzinfo=None), "has no zone"),
        ("timestamp", date(2020, 1, 1), "is no datetime"),
        ("timestamp", pd.Timestamp(MOMENT) + pd.Timedelta(1, "ns"), "has nanoseconds"),
        ("timestamp", pd.NaT, "is no time: give None"),
        ("timestamp_ntz", MOMENT, "has a zone"),
        ("array<long>", [1, 1.5], "1.5 (float) is no integer"),
        ("array<long>", "12", "is no list"),
        ("map<string, int>", {"a": 1.5}, "1.5 (float) is no integer"),
        ("map<string, int>", {None: 1}, "has a key that is None"),
        ("map<string, int>", ["ab"], "is neither a dict nor a list of pairs"),
        ("struct<x: float>", {"x": 1e39}, "is out of the range of a 32-bit float"),
        ("struct<x: float>", {"xx": 1.0}, "has a field 'xx': did you mean 'x'"),
        ("struct<x: int NOT NULL>", {"x": None}, "is not allowed there: it is NOT NULL"),
        ("struct<x: int NOT NULL>", {}, "is not allowed there: it is NOT NULL"),
        ("struct<x: float>", 1.0, "is no dict of its fields, x"),
        ("array<string>", ["x" * 500, 5], "5 (int) is no str"),
    ],
)
def test_a_value_that_would_be_changed_is_refused(words: str, given: object, says: str) -> None:
    assert says in refusal(words, given)


def test_a_row_that_does_not_fit_names_its_column() -> None:
    shape = RowShape(parse_schema("a long NOT NULL, b string"), "t")
    for row, says in (
        ({"a": 1, "bb": 2}, "no column 'bb': did you mean 'b'"),
        ({"b": "x"}, "column 'a' of topic 't' is NOT NULL"),
        ({"a": None}, "column 'a' of topic 't' is NOT NULL"),
    ):
        with pytest.raises(SchemaMismatch, match=says):
            shape.fit(row)
    assert len(refusal("long", "x" * 10_000)) < 300


# What Python has, of every kind and at every edge.
_EDGES: list[Any] = [
    *(
        sign * (1 << bits) + step
        for bits in (0, 7, 8, 15, 24, 31, 53, 63, 64, 127)
        for sign in (1, -1)
        for step in (-1, 0, 1)
    ),
    *(0.0, -0.0, 0.1, 1.5, 3.4028235e38, 3.5e38, 1e-45, 1e-46, 1e300, float("inf"), float("nan")),
    *(
        Decimal(text)
        for text in ("0", "0E+50", "1.50", "-1.005", "99999.99", "1E+20", "1E-20", "NaN", "Infinity", "9" * 38)
    ),
    *(
        "",
        "x",
        "é" * 20,
        "\ud800",
        "1",
        b"",
        b"\xff",
        True,
        None,
        [],
        [1],
        [None],
        {},
        {"x": 1},
        {"a": None},
        [("a", 1)],
        object(),
    ),
    *(
        date.min,
        date.max,
        datetime.min,
        datetime.max,
        datetime.min.replace(tzinfo=UTC),
        datetime.max.replace(tzinfo=UTC),
        MOMENT,
    ),
    *(np.int8(1), np.uint64(2**64 - 1), np.float16(0.1), np.longdouble(0.1), np.datetime64("2020-01-01"), np.str_("x")),
]
_WORDS = [
    *(
        "boolean",
        "byte",
        "short",
        "int",
        "long",
        "float",
        "double",
        "decimal(7,2)",
        "decimal(38,0)",
        "decimal(38,38)",
        "string",
    ),
    *(
        "binary",
        "date",
        "timestamp",
        "timestamp_ntz",
        "array<long>",
        "array<string>",
        "map<string, long>",
        "struct<x: double>",
    ),
]


@pytest.mark.parametrize("words", _WORDS)
def test_arrow_takes_whatever_was_found_to_fit_and_keeps_its_value(words: str) -> None:
    """A batch is built when its records can no longer be refused one by one."""
    schema = parse_schema(f"c {words}")
    shape, taken = RowShape(schema, "t"), 0
    candidates = [*_EDGES, *(Random(5).choices(_EDGES, k=3) for _ in range(50)), *({"x": value} for value in _EDGES)]
    for value in candidates:
        try:
            values, _ = shape.fit({"c": value})
        except SchemaMismatch:
            continue
        taken += 1
        batch = shape.batch([values, values])
        batch.validate(full=True)
        if words not in ("float", "timestamp", "timestamp_ntz", "map<string, long>") and isinstance(
            value, int | Decimal | str | date
        ):
            assert batch.column(0)[1].as_py() == value
    assert taken > 1


@pytest.mark.parametrize(
    ("words", "value", "size"),
    [
        ("boolean", True, 1),
        ("byte", 1, 1),
        ("short", 1, 2),
        ("long", 1, 8),
        ("decimal(38,0)", Decimal(1), 16),
        ("string", None, 4),
        ("string", "xyz", 4 + 3),
        ("binary", b"xyz", 4 + 3),
        ("array<int>", [1, None, 3], 4 + 3 * 4),
        ("array<string>", ["ab", None], 4 + 2 * 4 + 2),
        ("map<string, int>", {"ab": 1, "c": None}, 4 + 2 * (4 + 4) + 3),
        ("map<int, string>", {1: "abc", 2: None}, 4 + 2 * (4 + 4) + 3),
        ("struct<x: long, y: string>", {"x": 1, "y": "abc"}, 1 + 8 + 4 + 3),
        ("struct<x: long, y: string>", {}, 1 + 8 + 4),
        ("struct<x: array<string>>", {"x": ["ab"]}, 1 + 4 + 4 + 2),
    ],
)
def test_a_value_counts_with_its_width_and_what_it_holds(words: str, value: object, size: int) -> None:
    assert RowShape(parse_schema(f"c {words}"), "t").fit({"c": value})[1] == 8 + size


def test_a_row_knows_its_columns_and_names_a_strange_one() -> None:
    shape = RowShape(parse_schema("a long, b string"), "t")
    assert shape.knows(["b"])
    assert shape.knows([])
    assert not shape.knows(["a", "c"])
    with pytest.raises(SchemaMismatch, match=r"topic 't' has no column 'zz'"):
        shape.fit({"a": 1, "zz": 2, "b": "x"})


@pytest.mark.parametrize(
    ("words", "given", "says"),
    [
        pytest.param("double", np.longdouble(1) / 3, "has more digits than a double", marks=LONGER_THAN_DOUBLE),
        ("float", np.int64(16_777_217), "is not the same number as a 32-bit float"),
        ("decimal(3,2)", Decimal("10.00"), "more than 1 digits before the point"),
        ("decimal(3,2)", True, "is no Decimal"),
        ("timestamp", True, "is no datetime"),
        ("timestamp", 2**63, "is out of its range"),
        ("array<long>", np.array([[1]]), "is no list"),
        ("map<string, int>", [("a", 1, 2)], "is neither a dict nor a list of pairs"),
        ("map<string, int>", [["a", 1]], "is neither a dict nor a list of pairs"),
        ("map<string, int>", {("a", 1)}, "is neither a dict nor a list of pairs"),
        ("map<string, int>", [("a", 1), (None, 1)], "has a key that is None"),
        ("map<int, int>", {"a": 1}, "'a' (str) is no integer"),
        ("struct<x: int>", {"x": 1, "y": 2}, "has a field 'y'"),
        ("binary", 5, "is not bytes"),
        ("date", 5, "give a datetime.date"),
    ],
)
def test_a_value_at_the_edge_of_what_fits_is_refused(words: str, given: object, says: str) -> None:
    assert says in refusal(words, given)


@pytest.mark.parametrize(
    ("words", "given", "kept"),
    [
        ("float", np.int64(16_777_216), 16_777_216.0),
        ("float", np.float64(0.1), struct.unpack("<f", struct.pack("<f", 0.1))[0]),
        ("float", 0, 0.0),
        ("float", -0.0, 0.0),
        ("decimal(3,2)", Decimal("9.99"), Decimal("9.99")),
        ("decimal(3,2)", Decimal("-9.99"), Decimal("-9.99")),
        ("decimal(3,3)", Decimal("0.001"), Decimal("0.001")),
        ("timestamp", 2**53, datetime(2255, 6, 5, 23, 47, 34, 740_992, tzinfo=UTC)),
        ("array<string>", (), []),
        ("map<string, int>", (("a", 1),), [("a", 1)]),
        ("string", np.str_("x"), "x"),
    ],
)
def test_a_value_at_the_edge_of_what_fits_is_taken(words: str, given: object, kept: object) -> None:
    assert stored(words, given) == kept
