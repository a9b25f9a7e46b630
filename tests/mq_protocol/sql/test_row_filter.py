"""The filter that brokers carry out: what it keeps is what Spark keeps, and what is wrong is said by column and
character."""

from __future__ import annotations

import math
from datetime import UTC, date, datetime
from decimal import Decimal

import pyarrow as pa
import pytest

from mq_protocol import limits
from mq_protocol.errors import InvalidSetting
from mq_protocol.sql.ddl import parse_schema
from mq_protocol.sql.row_filter import parse_filter

SCHEMA = parse_schema(
    "id long, delay double, small float, carrier string, ok boolean, day date, at timestamp, price decimal(8,2), "
    "raw binary, many array<int>, `and so` int"
)
ROWS = pa.RecordBatch.from_pylist(
    [
        {
            "id": 0,
            "delay": 5.5,
            "small": 0.1,
            "carrier": "UA",
            "ok": True,
            "day": date(2026, 3, 1),
            "price": Decimal("9.99"),
        },
        {
            "id": 1,
            "delay": math.nan,
            "small": -0.0,
            "carrier": "O'Hare",
            "ok": False,
            "at": datetime(2026, 3, 1, 12, tzinfo=UTC),
        },
        {"id": 2, "raw": b"x", "many": [1], "and so": 7},
        {"id": 3, "delay": -1.0, "carrier": "AA", "ok": None, "day": date(2026, 3, 2), "price": Decimal("10.00")},
    ],
    schema=SCHEMA,
)


def kept(text: str) -> list[int]:
    mask = parse_filter(text, SCHEMA).mask(ROWS)
    assert mask.null_count == 0
    return [row["id"] for row in ROWS.filter(mask).to_pylist()]


@pytest.mark.parametrize(
    ("text", "ids"),
    [
        ("id >= 2", [2, 3]),
        ("2 > id", [0, 1]),
        ("ID == 1 or Id <> 1 and id = 3", [1, 3]),
        ("(id = 1 or id != 1) and id = 3", [3]),
        ("not id = 1", [0, 2, 3]),
        ("delay > 5", [0, 1]),  # NaN is above every number, as in Spark
        ("delay < 1e3", [0, 3]),
        ("delay >= -1", [0, 1, 3]),
        ("small > 0.1", [0]),  # a float is compared as the double that it is
        ("small = 0", [1]),
        ("small in (0.0, 7)", [1]),
        ("carrier = 'O''Hare'", [1]),
        ("carrier in ('UA', 'AA')", [0, 3]),
        ("carrier not in ('UA')", [1, 3]),  # unknown is not kept, and neither is its opposite
        ("carrier is null", [2]),
        ("carrier is not null and not ok", [1]),
        ("ok", [0]),
        ("ok = false", [1]),
        ("not (ok or carrier = 'AA')", [1]),
        ("ok or carrier = 'AA'", [0, 3]),
        ("day > '2026-03-01'", [3]),
        ("at >= '2026-03-01T13:00:00+01:00'", [1]),
        ("at > '2026-03-01 12:00:00'", []),
        ("price < 10", [0]),
        ("price in (10, 9.99)", [0, 3]),
        ("raw = 'x'", [2]),
        ("many is not null", [2]),
        ("`and so` = 7", [2]),
    ],
)
def test_rows_are_kept_for_which_the_whole_is_true(text: str, ids: list[int]) -> None:
    assert kept(text) == ids


@pytest.mark.parametrize(
    ("text", "ids"),
    [
        ("price < 1e1", [0]),
        ("price = +999e-2", [0]),
        ("price = 9.990000", [0]),
        ("price > -0.0e-9", [0, 3]),
        ("price = 00000000000000000000000000000000000000000010", [3]),
        ("price in (0e999999999, .1E+2)", [3]),
    ],
)
def test_a_decimal_is_worked_out_from_its_text(text: str, ids: list[int]) -> None:
    assert kept(text) == ids


@pytest.mark.parametrize(
    "text",
    [
        "price = 1e-39",  # a far exponent ends the process if it reaches Arrow: see tests/fuzz/corpus
        "price = 1e999999999",
        "price = 0.001",
        "price = 1000000",  # decimal(8,2) has six digits before its point
        "price = -1e6",
        f"id = {'9' * 400}",
        "at > '0001-01-01T00:00:00+23:59'",  # a year before the first one, in UTC
        "at > '9999-12-31T23:59:59-00:01'",
        "at > '10000-01-01'",
        "day = '0000-01-01'",
    ],
)
def test_a_literal_that_the_column_cannot_hold_never_reaches_arrow(text: str) -> None:
    with pytest.raises(InvalidSetting, match="write a value of that type"):
        parse_filter(text, SCHEMA)


def test_it_says_which_columns_it_looks_at() -> None:
    assert parse_filter("carrier = 'UA' or ID > 3 or id < 0", SCHEMA).columns == ("id", "carrier")


@pytest.mark.parametrize(
    ("text", "first_words"),
    [
        ("", "filter has the end at character 1 where a column is expected"),
        ("id", "filter has the end at character 3 where a comparison of column 'id'"),
        ("idd = 1", "filter names column 'idd', which the topic does not have: did you mean 'id'?"),
        ("id = 'x'", "filter compares column 'id', which is int64, with 'x': write a value of that type"),
        ("id = 1.5", "filter compares column 'id', which is int64, with 1.5"),
        ("id = 9999999999999999999", "filter compares column 'id'"),
        (
            "carrier = 1",
            "filter compares column 'carrier', which is string, with 1: write a value of that type, in quotes",
        ),
        ("price = 1.234", "filter compares column 'price'"),
        ("day = 'soon'", "filter compares column 'day'"),
        ("ok = 1", "filter compares column 'ok'"),
        ("id = null", "filter compares with NULL, which is never true: write IS NULL"),
        ("many = 1", "filter compares column 'many', which is list<element: int32>: only IS NULL can be asked of it"),
        ("id = id", "filter has 'id' at character 6 where a number, a 'text', TRUE or FALSE is expected"),
        ("id + 1 = 2", "filter is not understood at character 4, '+ 1 = 2'"),
        ("upper(carrier) = 'UA'", "filter calls 'upper', and filters have no functions"),
        ("id = 1 id = 2", "filter has 'id' at character 8 where AND, OR or the end is expected"),
        ("(id = 1", "filter has the end at character 8 where ) is expected"),
        ("id in ()", "filter has ')' at character 8"),
        ("carrier = 'UA", "filter is not understood at character 11"),
        ("id = 1; drop", "filter is not understood at character 7"),
        ("not " * (limits.FILTER_DEPTH_MAX + 1) + "ok", "filter is nested more than 32 deep"),
        ("(" * 2_000 + "ok", "filter is nested more than 32 deep"),
        ("x" * (limits.FILTER_CHARACTERS_MAX + 1), "filter has 4097 characters"),
        ("delay > 0." + "1" * 399, "filter has a number of 401 characters at character 9: at most 400 are allowed"),
        ("id = ٣", "filter is not understood at character 6"),  # a digit to Python, not to SQL
    ],
)
def test_what_is_wrong_is_said_by_column_or_character(text: str, first_words: str) -> None:
    with pytest.raises(InvalidSetting) as caught:
        parse_filter(text, SCHEMA)
    assert str(caught.value).startswith(first_words), str(caught.value)
