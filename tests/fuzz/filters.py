"""Filters over columns of every type: text made by the grammar, with literals that are near and far from each type's
bounds, and text that was mutated afterwards."""

from __future__ import annotations

import random
from datetime import UTC, date, datetime
from decimal import Decimal

import pyarrow as pa

from mq_protocol.errors import InvalidSetting
from mq_protocol.sql.ddl import parse_schema
from mq_protocol.sql.row_filter import parse_filter

SCHEMA = parse_schema(
    "flag boolean, tiny byte, small short, id int, big long, single float, delay double, price decimal(8,2), whole "
    "decimal(38,0), fine decimal(38,38), digit decimal(1,1), carrier string, raw binary, day date, at timestamp, plain "
    "timestamp_ntz, many array<int>, pairs map<string,decimal(5,1)>, inner struct<x: double>, `and so` int, `é` "
    "string, `null` int"
)
ROWS = pa.RecordBatch.from_pylist(
    [
        {
            "flag": True,
            "tiny": 127,
            "small": -32768,
            "id": 2**31 - 1,
            "big": -(2**63),
            "single": 1.5,
            "delay": float("nan"),
            "price": Decimal("-999999.99"),
            "whole": Decimal("9" * 38),
            "fine": Decimal("0." + "9" * 38),
            "digit": Decimal("0.1"),
            "carrier": "O'Hare",
            "raw": b"\x00\xff",
            "day": date(1, 1, 1),
            "at": datetime(9999, 12, 31, 23, 59, 59, 999999, UTC),
            "plain": datetime(1, 1, 1),
            "many": [1],
            "pairs": [("a", Decimal("1.0"))],
            "inner": {"x": 1.0},
            "and so": 0,
            "é": "é",
            "null": 0,
        },
        {"id": 1},
    ],
    schema=SCHEMA,
)
EMPTY = ROWS.slice(0, 0)

_COLUMNS = [*SCHEMA.names, "ID", "absent", "n" * 300]
_INTERESTING = (0, 1, 2, 7, 9, 10, 37, 38, 39, 40, 76, 77, 127, 128, 255, 308, 309, 324, 325, 400)
_LARGE = (*_INTERESTING, 401, 999, 10**9, 2**31, 2**63, 2**64)
_MOMENTS = (
    "0001-01-01",
    "9999-12-31",
    "10000-01-01",
    "0000-01-01",
    "2026-02-29",
    "2026-03-29T01:30:00",
    "2026-W13-7",
    "20260329",
)
_ZONES = ("", "Z", "+00:00", "+23:59", "-23:59", "+24:00", "+00:00:00.000001", "-99:99")
_CHARACTERS = "aé'\\`\x00\n\u200b\u202e\U0001f600日;-%"
_WORDS = (
    "and",
    "or",
    "not",
    "is",
    "null",
    "in",
    "(",
    ")",
    ",",
    "=",
    "<",
    "'",
    "`",
    " ",
    "1e",
    ".",
    "+",
    "e",
    "--",
    "0x1",
    "inf",
    "٣",
)


def generate(chance: random.Random) -> bytes:
    text = _any(chance, 0)
    if chance.random() < 0.15:
        for _ in range(chance.randrange(1, 4)):
            at = chance.randrange(len(text) + 1)
            text = text[:at] + chance.choice(_WORDS) + text[at + chance.randrange(4) :]
    return text.encode("utf-8", "surrogatepass")


def check(data: bytes) -> bool:
    try:
        text = data.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:  # protobuf lets none in
        return False
    try:
        found = parse_filter(text, SCHEMA)
    except InvalidSetting:
        return False
    for rows in (ROWS, EMPTY):
        mask = found.mask(rows)
        assert len(mask) == len(rows)
        assert mask.null_count == 0
        mask.validate(full=True)
    return True


def _any(chance: random.Random, depth: int) -> str:
    kind = chance.random()
    if depth > 4 or kind < 0.6:
        return _test(chance)
    if kind < 0.7:
        return "not " * chance.choice((1, 2, 31, 33)) + _any(chance, depth + 1)
    if kind < 0.8:
        return f"({_any(chance, depth + 1)})"
    return f"{_any(chance, depth + 1)} {chance.choice(('and', 'or', 'OR'))} {_any(chance, depth + 1)}"


def _test(chance: random.Random) -> str:
    name = chance.choice(_COLUMNS)
    column = f"`{name}`" if " " in name or chance.random() < 0.2 or name == "null" else name
    literal = _fitting if chance.random() < 0.8 else _literal
    match chance.randrange(8):
        case 0:
            return f"{column} is {chance.choice(('', 'not '))}null"
        case 1 | 2:
            many = ", ".join(literal(chance, name) for _ in range(chance.choice((1, 2, 3, 40))))
            return f"{column} {chance.choice(('', 'not '))}in ({many})"
        case 3:
            return f"{literal(chance, name)}{chance.choice(_OPERATORS)}{column}"
        case 4:
            return column
        case _:
            return f"{column} {chance.choice(_OPERATORS)} {literal(chance, name)}"


_OPERATORS = ("=", "==", "!=", "<>", "<", "<=", ">", ">=")


def _fitting(chance: random.Random, name: str) -> str:
    """A literal of the column's kind, more or less."""
    if name not in SCHEMA.names:
        return _literal(chance, name)
    kind = SCHEMA.field(name).type
    if pa.types.is_boolean(kind):
        return chance.choice(("true", "FALSE"))
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        return _text(chance)
    if pa.types.is_date(kind) or pa.types.is_timestamp(kind):
        return _moment(chance)
    return _number(chance)


def _literal(chance: random.Random, _name: str) -> str:
    return chance.choice((_number, _text, _moment, lambda _: "true", lambda _: "null"))(chance)


def _number(chance: random.Random) -> str:
    def digits() -> str:
        count = chance.choice(_INTERESTING) if chance.random() < 0.3 else chance.randrange(6)
        return "".join(chance.choice(("0", "9", "1", "5")) for _ in range(count))

    text = chance.choice(("", "-", "+")) + chance.choice((digits(), str(chance.choice(_LARGE))))
    if chance.random() < 0.5:
        text += "." + digits()
    if chance.random() < 0.4:
        text += (
            chance.choice("eE")
            + chance.choice(("", "-", "+"))
            + chance.choice((str(chance.choice(_LARGE)), digits(), "9" * 390))
        )
    return text


def _text(chance: random.Random) -> str:
    length = chance.choice((0, 1, 2, 5, 2000))
    return "'" + "".join(chance.choice(_CHARACTERS) for _ in range(length)).replace("'", "''") + "'"


def _moment(chance: random.Random) -> str:
    day = chance.choice(_MOMENTS)
    if chance.random() < 0.5:
        day = f"{chance.randrange(1, 10000):04}-{chance.randrange(1, 13):02}-{chance.randrange(1, 32):02}"
    if chance.random() < 0.6:
        day += chance.choice(("T", " ")) + chance.choice(
            ("00:00", "23:59:59.999999", "24:00:00", "12:30:61", "01:02:03.1234567")
        )
        day += chance.choice(_ZONES)
    return f"'{day}'"
