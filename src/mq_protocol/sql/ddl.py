"""Schemas in words: Spark SQL's `a long, b string NOT NULL` to Arrow and back, and which Arrow schemas a topic can
have.

A topic's schema is exactly what Spark's own Arrow conversion makes of the same words, so that stored batches go to
Spark as they are: elements of lists are named `element`, timestamps are in microseconds, strings have 32-bit offsets.
Not here: how a user's batch is fitted to it (mq_client.producing.batches).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import NoReturn

import pyarrow as pa

from mq_protocol import limits
from mq_protocol.errors import InvalidRequest
from mq_protocol.names import check_column_name, did_you_mean

_SIMPLE: dict[str, pa.DataType] = {
    "boolean": pa.bool_(),
    "byte": pa.int8(),
    "short": pa.int16(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestamp_ntz": pa.timestamp("us"),
}
_ALIASES = {
    "bool": "boolean",
    "tinyint": "byte",
    "smallint": "short",
    "integer": "int",
    "bigint": "long",
    "real": "float",
    "timestamp_ltz": "timestamp",
}
_DECIMAL = ("decimal", "dec", "numeric")
_NESTED = ("array", "map", "struct")
_NAMES = (*_SIMPLE, "decimal", *_NESTED)
_SPARK_ALONE = ("variant", "char", "varchar", "interval", "void", "null", "object", "time", "geometry", "geography")
"""Types that Spark has and topics have not: they are no slip for another."""

_KNOWN = (*_NAMES, *_ALIASES, *_DECIMAL)

_DECIMAL_PRECISION_MAX = 38

_TOKEN = re.compile(r"\s*(?:(?P<word>\w+)|`(?P<quoted>(?:[^`]|``)+)`|(?P<text>'(?:[^'\\]|\\.)*')|(?P<mark>[<>(),:]))")
_PLAIN_NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)


def parse_schema(text: str) -> pa.Schema:
    """The Arrow schema of Spark's words, e.g. `"a long, b string NOT NULL, c array<int>, d struct<x: double, y:
    string>"`.

    Names in backquotes may hold anything. `COMMENT '...'` is read and dropped. Raises `InvalidRequest` that shows the
    place and, for a type that is not known, the nearest that is.
    """
    return check_schema(pa.schema(_Parser(text).columns()))


def format_schema(schema: pa.Schema) -> str:
    """The words of a schema that a topic can have; `parse_schema` gives back an equal one."""
    return ", ".join(_format_field(field, " ") for field in schema)


def check_schema(schema: pa.Schema) -> pa.Schema:
    """The schema as a topic stores it: metadata dropped, inner fields of lists and maps named and nullable as Spark has
    them.

    Raises `InvalidRequest` naming the field, for a type that Spark does not have (with what to use instead), for names
    that are empty or differ only in case (Spark takes them for the same), and for schemas too wide or too deep.
    """
    if len(schema) == 0:
        raise InvalidRequest("schema has no column: give at least one, e.g. 'a long'")
    stored = pa.schema([_stored_field(field, (), 1) for field in schema])
    _check_names(schema, ())
    count = sum(_count(field) for field in stored)
    if count > limits.SCHEMA_FIELDS_MAX:
        raise InvalidRequest(
            f"schema has {count} fields, nested ones counted: at most {limits.SCHEMA_FIELDS_MAX} are allowed"
        )
    return stored


def check_column_names(columns: Iterable[pa.Field]) -> None:
    """For columns that are to be made, nested ones included. Raises `InvalidRequest` naming the first that cannot be a
    name."""
    for field in columns:
        check_column_name(field.name)
        if pa.types.is_struct(field.type):
            check_column_names(field.type)
        else:
            for at in range(field.type.num_fields):  # of lists and maps, whose own inner names are ours
                check_column_names([field.type.field(at)])


# ---------------------------------------------------------------- reading


class _Parser:
    """One pass over the text, one token ahead. Owns the place, for errors."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._next()

    def columns(self) -> list[pa.Field]:
        if self._ended():
            raise InvalidRequest("schema is empty: give at least one column, e.g. 'a long'")
        fields = self._fields(end=None, depth=1)
        if not self._ended():
            self._fail("expected ',' or the end")
        return fields

    def _next(self) -> None:
        found = _TOKEN.match(self._text, self._at)
        if found:
            self._kind, self._start = found.lastgroup, found.start(found.lastgroup or 0)
            self._token = found[found.lastgroup or 0]
            self._at = found.end()
        elif self._text[self._at :].strip():
            self._start = self._at + len(self._text[self._at :]) - len(self._text[self._at :].lstrip())
            self._fail(f"unexpected {self._text[self._start]!r}")
        else:
            self._kind, self._token, self._start = None, "", len(self._text)

    def _ended(self) -> bool:
        return self._kind is None

    def _fail(self, fault: str) -> NoReturn:
        line = re.sub(r"\s", " ", self._text)
        raise InvalidRequest(f"schema: {fault} at character {self._start + 1}\n  {line}\n  {' ' * self._start}^")

    def _mark(self, mark: str) -> bool:
        if self._kind == "mark" and self._token == mark:
            self._next()
            return True
        return False

    def _expect(self, mark: str, after: str) -> None:
        if not self._mark(mark):
            self._fail(f"expected {mark!r} {after}")

    def _keyword(self, keyword: str) -> bool:
        if self._kind == "word" and self._token.upper() == keyword:
            self._next()
            return True
        return False

    def _fields(self, end: str | None, depth: int) -> list[pa.Field]:
        fields = [self._field(depth)]
        while self._mark(","):
            fields.append(self._field(depth))
        if end is not None:
            self._expect(end, "after a struct's fields")
        return fields

    def _field(self, depth: int) -> pa.Field:
        if self._kind not in ("word", "quoted"):
            self._fail("expected a name")
        name = self._token.replace("``", "`") if self._kind == "quoted" else self._token
        self._next()
        self._mark(":")
        if self._kind != "word":
            self._fail(f"expected the type of {name!r}")
        kind = self._type(depth)
        nullable = True
        if self._keyword("NOT"):
            if not self._keyword("NULL"):
                self._fail("expected NULL after NOT")
            nullable = False
        if self._keyword("COMMENT"):
            if self._kind != "text":
                self._fail("expected a text in single quotes after COMMENT")
            self._next()
        return pa.field(name, kind, nullable=nullable)

    def _type(self, depth: int) -> pa.DataType:
        if depth > limits.SCHEMA_DEPTH_MAX:
            self._fail(f"types are nested deeper than {limits.SCHEMA_DEPTH_MAX}")
        if self._kind != "word":
            self._fail("expected a type")
        word = self._token.lower()
        if word not in _KNOWN:
            types = f" (types are: {', '.join(_NAMES)})"
            not_here = f", which topics do not have{types}" if word in _SPARK_ALONE else ""
            hint = not_here or did_you_mean(word, _KNOWN) or types
            self._fail(f"unknown type {self._token!r}{hint}")
        start = self._start
        self._next()
        if word in _DECIMAL:
            return self._decimal(start)
        if word not in _NESTED:
            return _SIMPLE[_ALIASES.get(word, word)]
        self._expect("<", f"after {word}")
        if word == "struct":
            return pa.struct(self._fields(end=">", depth=depth + 1))
        inner = self._type(depth + 1)
        if word == "map":
            self._expect(",", "between the map's types")
            inner = pa.map_(inner, self._type(depth + 1))
        else:
            inner = pa.list_(pa.field("element", inner))
        self._expect(">", f"after the {word}'s types")
        return inner

    def _decimal(self, start: int) -> pa.DataType:
        precision, scale = 10, 0
        if self._mark("("):
            precision = self._number()
            if self._mark(","):
                scale = self._number()
            self._expect(")", "after the decimal's precision and scale")
        if not (1 <= precision <= _DECIMAL_PRECISION_MAX and 0 <= scale <= precision):
            self._start = start
            self._fail(
                f"decimal({precision},{scale}) needs 1 <= precision <= {_DECIMAL_PRECISION_MAX} and 0 <= scale <= "
                "precision"
            )
        return pa.decimal128(precision, scale)

    def _number(self) -> int:
        if self._kind != "word" or not self._token.isdecimal():
            self._fail("expected a number")
        value = int(self._token[:9])
        self._next()
        return value


# ---------------------------------------------------------------- writing


def _format_field(field: pa.Field, between: str) -> str:
    name = field.name if _PLAIN_NAME.fullmatch(field.name) else "`" + field.name.replace("`", "``") + "`"
    return f"{name}{between}{format_type(field.type)}{'' if field.nullable else ' NOT NULL'}"


def format_type(kind: pa.DataType) -> str:
    """A type's word, as in `format_schema`; Arrow's own for a type that no topic can have."""
    for word, simple in _SIMPLE.items():
        if kind == simple:
            return word
    if pa.types.is_decimal128(kind):
        return f"decimal({kind.precision},{kind.scale})"
    if pa.types.is_list(kind):
        return f"array<{format_type(kind.value_type)}>"
    if pa.types.is_map(kind):
        return f"map<{format_type(kind.key_type)},{format_type(kind.item_type)}>"
    if pa.types.is_struct(kind):
        return f"struct<{', '.join(_format_field(field, ': ') for field in kind)}>"
    return str(kind)


# ---------------------------------------------------------------- checking


def _is(*types: pa.DataType) -> Callable[[pa.DataType], bool]:
    return lambda kind: kind in types


_INSTEAD: tuple[tuple[Callable[[pa.DataType], bool], str], ...] = (
    (pa.types.is_dictionary, "use the type of its values"),
    (_is(pa.large_string(), pa.string_view()), "use string"),
    (_is(pa.large_binary(), pa.binary_view()), "use binary"),
    (pa.types.is_fixed_size_binary, "use binary"),
    (pa.types.is_large_list, "use array"),
    (pa.types.is_fixed_size_list, "use array"),
    (_is(pa.uint8()), "use short"),
    (_is(pa.uint16()), "use int"),
    (_is(pa.uint32()), "use long"),
    (_is(pa.uint64()), "use decimal(20,0)"),
    (pa.types.is_float16, "use float"),
    (pa.types.is_timestamp, "use timestamp (microseconds, UTC) or timestamp_ntz (microseconds, no zone)"),
    (pa.types.is_date, "use date (days) or timestamp_ntz"),
    (pa.types.is_time, "use long or string"),
    (pa.types.is_duration, "use long"),
    (pa.types.is_decimal, f"use decimal with at most {_DECIMAL_PRECISION_MAX} digits"),
    (pa.types.is_null, "give the column a type"),
)


def _stored_field(field: pa.Field, above: tuple[str, ...], depth: int) -> pa.Field:
    return pa.field(field.name, _stored_type(field.type, (*above, field.name), depth), nullable=field.nullable)


def _stored_type(kind: pa.DataType, path: tuple[str, ...], depth: int) -> pa.DataType:
    if depth > limits.SCHEMA_DEPTH_MAX:
        raise InvalidRequest(f"column {_dotted(path)}: types are nested deeper than {limits.SCHEMA_DEPTH_MAX}")
    if pa.types.is_list(kind):
        return pa.list_(pa.field("element", _stored_type(kind.value_type, (*path, "element"), depth + 1)))
    if pa.types.is_map(kind):
        key = _stored_type(kind.key_type, (*path, "key"), depth + 1)
        return pa.map_(
            pa.field("key", key, nullable=False),
            pa.field("value", _stored_type(kind.item_type, (*path, "value"), depth + 1)),
        )
    if pa.types.is_struct(kind):
        if kind.num_fields == 0:
            raise InvalidRequest(f"column {_dotted(path)}: a struct needs at least one field")
        _check_names(kind, path)
        return pa.struct([_stored_field(field, path, depth + 1) for field in kind])
    if kind in _SIMPLE.values() or (pa.types.is_decimal128(kind) and 0 <= kind.scale <= kind.precision):
        return kind
    advice = next((advice for matches, advice in _INSTEAD if matches(kind)), f"types are: {', '.join(_NAMES)}")
    raise InvalidRequest(f"column {_dotted(path)}: type {kind} cannot be stored in a topic: {advice}")


def _check_names(fields: Iterable[pa.Field], above: tuple[str, ...]) -> None:
    seen: dict[str, str] = {}
    for field in fields:
        if not field.name:
            raise InvalidRequest(f"a field of {_dotted(above) if above else 'the schema'} has an empty name")
        lower = field.name.lower()
        if lower in seen:
            both = f"{_dotted((*above, seen[lower]))} and {_dotted((*above, field.name))}"
            raise InvalidRequest(f"columns {both} are the same name to Spark")
        seen[lower] = field.name


def _dotted(path: tuple[str, ...]) -> str:
    return repr(".".join(path))


def _count(field: pa.Field) -> int:
    return 1 + sum(_count(field.type.field(at)) for at in range(field.type.num_fields))
