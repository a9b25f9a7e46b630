"""Rows that come as text, a line of JSON or the cells of a line of CSV: the values that they stand for, by column type.

What JSON or CSV has no type for is text in it, as `tritonmq consume` writes it: times and dates in ISO 8601, decimals,
and bytes as their UTF-8 or as `{"base64": …}`. Nothing is rounded or guessed. Whether a value fits its column is for
the producer to say (rows.py of the client). Pure.
"""

from __future__ import annotations

import base64
import binascii
import io
import json
import math
import re
from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal, InvalidOperation
from typing import Any, Final, TypeAlias

import pyarrow as pa
from pyarrow import json as arrow_json

from mq_protocol.names import did_you_mean
from mq_protocol.sql.ddl import format_type

Parse: TypeAlias = Callable[[Any], Any]
"""A value of JSON, or the text of a cell, as the producer takes it. Raises `UnreadableRow`."""

_SHOWN_CHARACTERS_MAX: Final = 60
_INTEGER: Final = re.compile(r"[+-]?[0-9]{1,40}")
_NUMBER: Final = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]{1,6})?")
_NO_NUMBERS: Final = re.compile(r"[+-]?(nan|inf|infinity)", re.IGNORECASE)
_MANY_DIGITS: Final = re.compile(r"[.,][0-9]{7,}")
_DATE: Final = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")


class UnreadableRow(Exception):
    """A line that is no row; the message is a sentence about it, without its number."""


class _NoJson(UnreadableRow):
    pass


class JsonRows:
    """Reads lines of JSON, an object of columns each, for a topic with this schema."""

    def __init__(self, schema: pa.Schema) -> None:
        self._columns = {field.name: _of_json(field.type) for field in schema}
        self._names = schema.names
        self._decode = json.JSONDecoder(parse_float=Decimal, parse_constant=float, object_pairs_hook=_object).decode

    def row(self, line: bytes) -> dict[str, Any]:
        """Raises `UnreadableRow`, naming the column if it is one's fault."""
        try:
            found = _decoded(self._decode, line)
        except _NoJson as error:
            raise UnreadableRow(f"{error}; give {self._example()}, or CSV with --csv") from None
        if not isinstance(found, dict):
            raise UnreadableRow(f"{_shown(found)} is no JSON object of columns, such as {self._example()}")
        return {name: self._value(name, value) for name, value in found.items()}

    def _example(self) -> str:
        return f"{{{json.dumps(self._names[0])}: …}}"

    def _value(self, name: str, value: Any) -> Any:
        parse = self._columns.get(name)
        if parse is None:
            raise UnreadableRow(f"the topic has no column {name!r}{did_you_mean(name, self._names)}")
        return None if value is None else _of_column(name, parse, value)


_BLOCK_BYTES_MIN = 1 << 20


class JsonTables:
    """Reads blocks of lines for a topic with this schema, where it can."""

    def __init__(self, schema: pa.Schema) -> None:
        self._reads = all(_read_alike(field.type) for field in schema)
        self._options = arrow_json.ParseOptions(explicit_schema=schema, unexpected_field_behavior="error")

    def read(self, lines: Sequence[bytes]) -> pa.Table | None:
        """A row for each line. None if these must be read one at a time, be it to find the one that is no row."""
        # Arrow takes objects one after another, wherever lines end.
        if not self._reads or not all(line.startswith(b"{") and line.endswith(b"}") for line in lines):
            return None
        block = b"\n".join(lines)
        try:
            block.decode()
            table = arrow_json.read_json(
                io.BytesIO(block),
                read_options=arrow_json.ReadOptions(
                    use_threads=False, block_size=max(_BLOCK_BYTES_MIN, len(block) + 1)
                ),
                parse_options=self._options,
            )
        except (pa.ArrowException, UnicodeDecodeError):
            return None
        return table if table.num_rows == len(lines) else None


def _read_alike(kind: pa.DataType) -> bool:
    """Of other types it rounds, drops zones, or takes texts that are none."""
    types = pa.types
    return bool(
        types.is_boolean(kind)
        or types.is_integer(kind)
        or types.is_float64(kind)
        or types.is_string(kind)
        or (types.is_timestamp(kind) and kind.tz is not None)
    )


class CsvRows:
    """Reads lines of CSV whose cells are these columns of a topic with this schema.

    An empty cell is a null; in a string column that allows none it is an empty string. Arrays, maps and structs are
    JSON. Raises `UnreadableRow` for a column that is not there.
    """

    def __init__(self, schema: pa.Schema, columns: Sequence[str]) -> None:
        for at, name in enumerate(columns):
            if name not in schema.names:
                near = did_you_mean(name, schema.names) or "; the first line names the columns, unless --columns does"
                raise UnreadableRow(f"the topic has no column {name!r}{near}")
            if name in columns[:at]:
                raise UnreadableRow(f"column {name!r} comes twice")
        self._columns = [(name, _of_cell(schema.field(name).type), _empty(schema.field(name))) for name in columns]

    def row(self, cells: Sequence[str]) -> dict[str, Any]:
        """Raises `UnreadableRow`, naming the column if it is one's fault."""
        if len(cells) != len(self._columns):
            raise UnreadableRow(f"it has {len(cells)} cells, and there are {len(self._columns)} columns")
        return {
            name: _of_column(name, parse, cell) if cell else empty
            for (name, parse, empty), cell in zip(self._columns, cells, strict=True)
        }


def _empty(field: pa.Field) -> str | None:
    return "" if pa.types.is_string(field.type) and not field.nullable else None


def _of_column(name: str, parse: Parse, value: Any) -> Any:
    try:
        return parse(value)
    except UnreadableRow as error:
        raise UnreadableRow(f"column {name!r}: {error}") from None


def _shown(value: Any) -> str:
    try:
        text = str(value) if isinstance(value, Decimal) else json.dumps(value, ensure_ascii=False, default=str)
    except (ValueError, RecursionError):
        text = "this"
    return text if len(text) <= _SHOWN_CHARACTERS_MAX else f"{text[:_SHOWN_CHARACTERS_MAX]}…"


def _decoded(decode: Callable[[str], Any], line: bytes | str) -> Any:
    try:
        return decode(line.decode("utf-8-sig") if isinstance(line, bytes) else line)
    except json.JSONDecodeError as error:
        raise _NoJson(f"it is no JSON: {error.msg.lower()} at character {error.colno}") from None
    except UnicodeDecodeError as error:
        raise UnreadableRow(f"its byte {error.start + 1} is no UTF-8") from None
    except RecursionError:
        raise UnreadableRow("its JSON is nested too deep") from None
    except (ValueError, ArithmeticError) as error:  # a number of more digits than Python reads
        raise UnreadableRow(f"it has a number that cannot be read: {error}") from None


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise UnreadableRow(f"{twice!r} comes twice in one object")
    return found


# ---------------------------------------------------------------- values of JSON


def _of_json(kind: pa.DataType) -> Parse:
    types = pa.types
    if types.is_floating(kind):
        return _number
    if types.is_decimal(kind):
        return _decimal
    if types.is_binary(kind):
        return _bytes
    if types.is_date(kind):
        return _date
    if types.is_timestamp(kind):
        return lambda value: _timestamp(value, zoned=kind.tz is not None)
    if types.is_map(kind):
        return _map_of(kind)
    if types.is_list(kind):
        element = _nullable(_of_json(kind.value_type))
        return lambda value: (
            [element(item) for item in value] if isinstance(value, list) else _wrong(value, kind, "an array")
        )
    if types.is_struct(kind):
        return _struct_of(kind)
    return next(parse for is_it, parse in _PLAIN if is_it(kind))


def _plain(kind: type, what: str) -> Parse:
    def parse(value: Any) -> Any:
        if type(value) is not kind:
            raise UnreadableRow(f"{_shown(value)} is no {what}")
        return value

    return parse


_PLAIN: Final[Sequence[tuple[Callable[[pa.DataType], bool], Parse]]] = (
    (pa.types.is_boolean, _plain(bool, "boolean: give true or false")),
    (pa.types.is_integer, _plain(int, "integer")),
    (pa.types.is_string, _plain(str, "string: put it in quotes")),
)


def _nullable(parse: Parse) -> Parse:
    return lambda value: None if value is None else parse(value)


def _wrong(value: Any, kind: pa.DataType, wanted: str) -> Any:
    raise UnreadableRow(f"{_shown(value)} is no {format_type(kind)}: give {wanted}")


def _number(value: Any) -> Any:
    if isinstance(value, float):
        return value
    if not isinstance(value, Decimal | int) or isinstance(value, bool):
        raise UnreadableRow(f"{_shown(value)} is no number")
    try:
        found = float(value)
    except OverflowError:
        found = math.inf
    if math.isinf(found):
        raise UnreadableRow(f"{_shown(value)} is out of the range of a double")
    return found


def _decimal(value: Any) -> Any:
    if isinstance(value, Decimal) or type(value) is int:
        return value
    if not isinstance(value, str):
        raise UnreadableRow(f"{_shown(value)} is no number")
    if not _NUMBER.fullmatch(value):
        raise UnreadableRow(f"{_shown(value)} is no number")
    try:
        return Decimal(value)
    except InvalidOperation:
        raise UnreadableRow(f"{_shown(value)} is no number") from None


def _bytes(value: Any) -> Any:
    if isinstance(value, dict) and value.keys() == {"base64"} and isinstance(value["base64"], str):
        try:
            return base64.b64decode(value["base64"], validate=True)
        except (binascii.Error, ValueError):
            raise UnreadableRow(f"{_shown(value['base64'])} is no base64") from None
    if not isinstance(value, str):
        raise UnreadableRow(f'{_shown(value)} is no binary: give its text, or {{"base64": "…"}}')
    try:
        return value.encode()
    except UnicodeEncodeError:
        raise UnreadableRow("it is no UTF-8 text") from None


def _date(value: Any) -> date:
    if isinstance(value, str) and _DATE.fullmatch(value):
        try:
            return date.fromisoformat(value)
        except ValueError:
            pass
    raise UnreadableRow(f'{_shown(value)} is no date: give one like "2026-01-31"')


def _timestamp(value: Any, *, zoned: bool) -> Any:
    """A time without a zone is in UTC; a column without zones takes none."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    example = "2026-01-31T08:30:00Z" if zoned else "2026-01-31T08:30:00"
    if not isinstance(value, str):
        raise UnreadableRow(f'{_shown(value)} is no time: give one like "{example}", or whole microseconds since 1970')
    if _MANY_DIGITS.search(value):
        raise UnreadableRow(f"{_shown(value)} has more than six digits of a second")
    try:
        moment = datetime.fromisoformat(value)
    except ValueError:
        raise UnreadableRow(f'{_shown(value)} is no time: give one like "{example}"') from None
    if zoned:
        return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    if moment.tzinfo is not None:
        raise UnreadableRow(f'{_shown(value)} has a zone, and the column has none: give one like "{example}"')
    return moment


def _map_of(kind: pa.DataType) -> Parse:
    key_cell, key, item = _of_cell(kind.key_type), _of_json(kind.key_type), _nullable(_of_json(kind.item_type))

    def parse(value: Any) -> list[tuple[Any, Any]]:
        if isinstance(value, dict):
            return [(key_cell(name), item(content)) for name, content in value.items()]
        if isinstance(value, list) and all(isinstance(pair, list) and len(pair) == 2 for pair in value):
            return [(key(name), item(content)) for name, content in value]
        return _wrong(value, kind, "an object, or an array of [key, value]")  # type: ignore[no-any-return]

    return parse


def _struct_of(kind: pa.DataType) -> Parse:
    fields = {kind.field(at).name: _nullable(_of_json(kind.field(at).type)) for at in range(kind.num_fields)}

    def parse(value: Any) -> Any:
        if not isinstance(value, dict):
            return _wrong(value, kind, f"an object of {', '.join(fields)}")
        for name in value:
            if name not in fields:
                raise UnreadableRow(f"it has no field {name!r}{did_you_mean(name, fields)}")
        return {name: fields[name](content) for name, content in value.items()}

    return parse


# ---------------------------------------------------------------- texts of cells


def _of_cell(kind: pa.DataType) -> Parse:
    types = pa.types
    if types.is_boolean(kind):
        return _boolean_cell
    if types.is_integer(kind):
        return _integer_cell
    if types.is_floating(kind):
        return _number_cell
    if types.is_timestamp(kind):
        return lambda text: _timestamp(int(text) if _INTEGER.fullmatch(text) else text, zoned=kind.tz is not None)
    if types.is_nested(kind):
        decode = json.JSONDecoder(parse_float=Decimal, parse_constant=float, object_pairs_hook=_object).decode
        parse = _of_json(kind)
        return lambda text: parse(_decoded(decode, text))
    return _of_json(kind)  # strings, bytes, decimals and dates are texts in JSON too


def _boolean_cell(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise UnreadableRow(f"{_shown(text)} is no boolean: give true or false")
    return text.lower() == "true"


def _integer_cell(text: str) -> int:
    if not _INTEGER.fullmatch(text):
        raise UnreadableRow(f"{_shown(text)} is no integer")
    return int(text)


def _number_cell(text: str) -> float:
    if _NO_NUMBERS.fullmatch(text):
        return float(text)
    if not _NUMBER.fullmatch(text):
        raise UnreadableRow(f"{_shown(text)} is no number")
    return _number(Decimal(text))  # type: ignore[no-any-return]
