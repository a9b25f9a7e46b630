"""Rows given as dicts or objects, fitted to a topic's schema one value at a time: each is stored as the value that it
is, or refused.

Arrow's own conversion of Python values would cut 1.5 to 1 and a datetime to its day without a word, and would refuse a
whole column for one value. So a row is checked when it is published, and what is left for Arrow cannot fail. Pure.

What a column takes, beside None where it allows nulls:

    boolean                    bool
    byte, short, int, long     int within the type's range; no bool, no float
    float, double              float; int if it is that number exactly. `float` keeps the nearest number of 32 bits
    decimal(p, s)              Decimal or int that needs no rounding
    string, binary             str; bytes, bytearray or memoryview
    date                       date that is no datetime
    timestamp                  datetime with a zone, or int: microseconds since 1970
    timestamp_ntz              datetime without a zone, or int
    array, map, struct         list or tuple; dict or pairs; dict, or an object that stands for one (classes.py). What
                               they hold likewise

numpy's scalars are taken for the Python value that they stand for.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa

from mq_client.errors import InvalidRequest, SchemaMismatch
from mq_client.producing.batches import to_bytes
from mq_client.producing.classes import as_mapping
from mq_protocol.names import did_you_mean
from mq_protocol.sql.ddl import format_type

Check: TypeAlias = Callable[[Any], Any]
"""The value as Arrow is to be given it. Raises `_Unfit`."""

Size: TypeAlias = Callable[[Any], int]
"""Bytes of a value that was checked."""

_ABSENT: Final = object()
_FLOAT32: Final = struct.Struct("<f")
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_EPOCH_NTZ: Final = datetime(1970, 1, 1)
_MICROSECOND: Final = timedelta(microseconds=1)
_ROW_BYTES: Final = 8
_SHOWN_CHARACTERS_MAX: Final = 60


class _Unfit(Exception):
    def __init__(self, value: object, reason: str) -> None:
        super().__init__(reason)
        self.value = value
        self.reason = reason


class _Column(NamedTuple):
    """`exact`: a value of just this class is stored as it is. `size`: None for a type of fixed width."""

    name: str
    nullable: bool
    exact: type | None
    check: Check
    size: Size | None


class RowShape:
    """What a topic with a schema asks of each of its rows."""

    __slots__ = ("_columns", "_fixed_bytes", "_topic", "schema")

    def __init__(self, schema: pa.Schema, topic: str) -> None:
        self.schema = schema
        self._topic = topic
        self._columns = [_column(field) for field in schema]
        self._fixed_bytes = _ROW_BYTES + sum(_fixed_bytes(field.type) for field in schema)

    def fit(self, row: Mapping[str, object]) -> tuple[list[Any], int]:
        """The row's values in the topic's order, as Arrow is to be given them, and about how many bytes they take.

        Raises `SchemaMismatch` naming the column and the value.
        """
        values: list[Any] = []
        size, found = self._fixed_bytes, 0
        for column in self._columns:
            name, nullable, exact, check, size_of = column
            value = row.get(name, _ABSENT)
            if value is _ABSENT:
                value = None
            else:
                found += 1
            if value is None:
                if not nullable:
                    raise SchemaMismatch(f"column {name!r} of topic {self._topic!r} is NOT NULL: the row has none")
            else:
                if type(value) is not exact:
                    try:
                        value = check(value)
                    except _Unfit as unfit:
                        raise self._mismatch(name, unfit) from None
                if size_of is not None:
                    size += size_of(value)
            values.append(value)
        if found != len(row):
            raise self._unknown(row)
        return values, size

    def columns_of(self, row: object) -> Mapping[str, object]:
        """The row as columns. Raises `InvalidRequest` for what is none."""
        found = as_mapping(row)
        if found is None:
            many = "; a table goes by publish_batch" if isinstance(row, pa.RecordBatch | pa.Table) else ""
            raise InvalidRequest(
                f"topic {self._topic!r} has its own schema, and the value is {type(row).__name__}: give a dict of its "
                f"columns ({', '.join(self.schema.names)}), a dataclass or a pydantic model{many}"
            )
        return found

    def knows(self, names: Iterable[str]) -> bool:
        """Whether the topic has all these columns."""
        return set(self.schema.names).issuperset(names)

    def batch(self, rows: Sequence[Sequence[Any]]) -> pa.RecordBatch:
        """The batch of rows that `fit` has made."""
        columns = zip(*rows, strict=True)
        arrays = [pa.array(column, field.type) for column, field in zip(columns, self.schema, strict=True)]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def _mismatch(self, name: str, unfit: _Unfit) -> SchemaMismatch:
        shown = str(unfit.value) if isinstance(unfit.value, Decimal) else repr(unfit.value)
        if len(shown) > _SHOWN_CHARACTERS_MAX:
            shown = f"{shown[:_SHOWN_CHARACTERS_MAX]}…"
        kind = format_type(self.schema.field(name).type)
        return SchemaMismatch(
            f"column {name!r} of topic {self._topic!r} is {kind}, and {shown} ({type(unfit.value).__name__}) "
            f"{unfit.reason}"
        )

    def _unknown(self, row: Mapping[str, object]) -> SchemaMismatch:
        names = self.schema.names
        strange = next(name for name in row if name not in names)
        return SchemaMismatch(f"topic {self._topic!r} has no column {strange!r}{did_you_mean(str(strange), names)}")


def _column(field: pa.Field) -> _Column:
    exact = next((found for is_it, found in _EXACT if is_it(field.type)), None)
    return _Column(field.name, field.nullable, exact, _check(field.type), _size(field.type))


_EXACT: Final[Sequence[tuple[Callable[[pa.DataType], bool], type]]] = (
    (pa.types.is_boolean, bool),
    (pa.types.is_float64, float),
    (pa.types.is_binary, bytes),
)


# ---------------------------------------------------------------- checks


def _check(kind: pa.DataType) -> Check:
    types = pa.types
    if types.is_integer(kind):
        return _integers(kind)
    if types.is_decimal(kind):
        return _decimals(kind.precision, kind.scale)
    if types.is_timestamp(kind):
        return _timestamps(zoned=kind.tz is not None)
    if types.is_map(kind):
        return _maps(_check(kind.key_type), _element(kind.item_field))
    if types.is_list(kind):
        return _lists(_element(kind.value_field))
    if types.is_struct(kind):
        return _structs({kind.field(at).name: _element(kind.field(at)) for at in range(kind.num_fields)})
    return next(check for is_it, check in _SIMPLE if is_it(kind))


def _element(field: pa.Field) -> Check:
    check, nullable = _check(field.type), field.nullable

    def check_element(value: Any) -> Any:
        if value is not None:
            return check(value)
        if not nullable:
            raise _Unfit(value, "is not allowed there: it is NOT NULL")
        return None

    return check_element


def _boolean(value: Any) -> bool:
    if isinstance(value, bool | np.bool_):
        return bool(value)
    raise _Unfit(value, "is no bool: give True or False")


def _integers(kind: pa.DataType) -> Check:
    lowest, highest = -(1 << kind.bit_width - 1), (1 << kind.bit_width - 1) - 1

    def check(value: Any) -> int:
        if type(value) is not int:
            value = _int_of(value, "is no integer: round it, or convert it to int")
        if not lowest <= value <= highest:
            raise _Unfit(value, f"is out of its range, {lowest} to {highest}")
        return int(value)

    return check


def _int_of(value: Any, otherwise: str) -> int:
    if isinstance(value, int | np.integer) and not isinstance(value, bool):
        return int(value)
    raise _Unfit(value, otherwise)


def _double(value: Any) -> float:
    if isinstance(value, float | np.floating):
        found = float(value)
        if found == value or found != found:
            return found
        raise _Unfit(value, "has more digits than a double")  # numpy's long double
    whole = _int_of(value, "is no number: convert it to float")
    try:
        found = float(whole)
    except OverflowError:
        found = 0.0
    if found != whole:
        raise _Unfit(value, "is not the same number as a double: convert it to float")
    return found


def _float(value: Any) -> float:
    number = _double(value)
    try:
        found: float = _FLOAT32.unpack(_FLOAT32.pack(number))[0]
    except OverflowError:
        raise _Unfit(value, "is out of the range of a 32-bit float: use a column of type double") from None
    if (found == 0 != number) or (type(value) is not float and isinstance(value, int | np.integer) and found != value):
        raise _Unfit(value, "is not the same number as a 32-bit float: use a column of type double")
    return found


def _decimals(precision: int, scale: int) -> Check:
    def check(value: Any) -> Decimal:
        if not isinstance(value, Decimal):
            value = Decimal(_int_of(value, "is no Decimal: give decimal.Decimal(…) or an int"))
        _, digits, exponent = value.as_tuple()
        if not isinstance(exponent, int):
            raise _Unfit(value, "is no number")
        if value == 0:
            return _ZERO
        while digits[-1] == 0:
            digits, exponent = digits[:-1], exponent + 1
        if -exponent > scale:
            raise _Unfit(value, f"has more than {scale} digits behind the point: quantize it")
        if len(digits) + exponent > precision - scale:
            raise _Unfit(value, f"has more than {precision - scale} digits before the point")
        return Decimal((1 if value < 0 else 0, digits, exponent))

    return check


_ZERO: Final = Decimal(0)


def _string(value: Any) -> str:
    if not isinstance(value, str):
        raise _Unfit(value, "is no str")
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            raise _Unfit(ascii(value), "is no text: it has a lone surrogate") from None
    return value if type(value) is str else str.__str__(value)


def _binary(value: Any) -> bytes:
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    raise _Unfit(value, "is not bytes: encode it" if isinstance(value, str) else "is not bytes")


def _date(value: Any) -> date:
    if isinstance(value, date) and not isinstance(value, datetime):
        return value
    hint = ": its time would be lost, give its .date()" if isinstance(value, datetime) else ": give a datetime.date"
    raise _Unfit(value, f"is no date{hint}")


def _timestamps(*, zoned: bool) -> Check:
    epoch = _EPOCH if zoned else _EPOCH_NTZ
    zone = (
        "has no zone: give e.g. datetime.now(timezone.utc)"
        if zoned
        else "has a zone: convert it, then .replace(tzinfo=None)"
    )
    in_range = _integers(pa.int64())

    def check(value: Any) -> int:
        if not isinstance(value, datetime):
            in_range(_int_of(value, "is no datetime: give one, or microseconds since 1970 as an int"))
            return int(value)
        if value != value:
            raise _Unfit(value, "is no time: give None")  # pandas' NaT
        if (value.utcoffset() is not None) != zoned:
            raise _Unfit(value, zone)
        if getattr(value, "nanosecond", 0):
            raise _Unfit(value, "has nanoseconds: round it to microseconds")  # pandas' Timestamp
        return (value - epoch) // _MICROSECOND

    return check


def _lists(element: Check) -> Check:
    def check(value: Any) -> list[Any]:
        if isinstance(value, np.ndarray) and value.ndim == 1:
            value = list(value)
        if not isinstance(value, list | tuple):
            raise _Unfit(value, "is no list")
        return [element(item) for item in value]

    return check


def _maps(key: Check, item: Check) -> Check:
    def check(value: Any) -> list[tuple[Any, Any]]:
        pairs = value.items() if isinstance(value, Mapping) else value
        if not isinstance(value, Mapping | list | tuple) or any(
            not isinstance(pair, tuple) or len(pair) != 2 for pair in pairs
        ):
            raise _Unfit(value, "is neither a dict nor a list of pairs")
        if any(name is None for name, _ in pairs):
            raise _Unfit(value, "has a key that is None")
        return [(key(name), item(content)) for name, content in pairs]

    return check


def _structs(fields: Mapping[str, Check]) -> Check:
    def check(value: Any) -> dict[str, Any]:
        given = as_mapping(value)
        if given is None:
            raise _Unfit(value, f"is no dict of its fields, {', '.join(fields)}")
        for name in given:
            if name not in fields:
                raise _Unfit(value, f"has a field {name!r}{did_you_mean(str(name), fields)} that it lacks")
        return {name: check_field(given.get(name)) for name, check_field in fields.items()}

    return check


_SIMPLE: Final[Sequence[tuple[Callable[[pa.DataType], bool], Check]]] = (
    (pa.types.is_boolean, _boolean),
    (pa.types.is_float32, _float),
    (pa.types.is_float64, _double),
    (pa.types.is_string, _string),
    (pa.types.is_binary, _binary),
    (pa.types.is_date32, _date),
)


# ---------------------------------------------------------------- sizes


def _fixed_bytes(kind: pa.DataType) -> int:
    """Of every value of the type: its width, or the offset that says where one of no fixed width ends."""
    if pa.types.is_string(kind) or pa.types.is_binary(kind) or pa.types.is_list(kind) or pa.types.is_map(kind):
        return 4
    if pa.types.is_struct(kind):
        return 1 + sum(_fixed_bytes(kind.field(at).type) for at in range(kind.num_fields))
    bits: int = kind.bit_width
    return max(1, bits // 8)


def _size(kind: pa.DataType) -> Size | None:
    """What a value takes beyond `_fixed_bytes`; None if that is nothing."""
    types = pa.types
    if types.is_string(kind):
        return _utf8_bytes
    if types.is_binary(kind):
        return len
    if types.is_map(kind):
        of_pair = _fixed_bytes(kind.key_type) + _fixed_bytes(kind.item_type)
        of_key, of_item = _size(kind.key_type), _size(kind.item_type)
        return lambda pairs: (
            of_pair * len(pairs) + _sum(of_key, (key for key, _ in pairs)) + _sum(of_item, (item for _, item in pairs))
        )
    if types.is_list(kind):
        of_one, of_value = _fixed_bytes(kind.value_type), _size(kind.value_type)
        return lambda values: of_one * len(values) + _sum(of_value, values)
    if types.is_struct(kind):
        sizes = [(kind.field(at).name, _size(kind.field(at).type)) for at in range(kind.num_fields)]
        return lambda fields: sum((_sum(of_field, (fields[name],)) for name, of_field in sizes), 0)
    return None


def _utf8_bytes(value: str) -> int:
    return len(value) if value.isascii() else len(value.encode())


def _sum(size_of: Size | None, values: Iterable[Any]) -> int:
    return 0 if size_of is None else sum(size_of(value) for value in values if value is not None)


def listed(what: str, values: Iterable[Any]) -> list[Any]:
    """Raises `InvalidRequest` for one value in place of many."""
    if isinstance(values, str | bytes | bytearray | memoryview | Mapping) or not isinstance(values, Iterable):
        raise InvalidRequest(f"{what} is {type(values).__name__}: give a list, or use publish for one")
    if isinstance(values, pa.Array | pa.ChunkedArray):
        found: list[Any] = values.to_pylist()
        return found
    return values if isinstance(values, list) else list(values)


def binaries(what: str, values: list[Any], serializer: Callable[[Any], bytes] | None) -> pa.Array:
    """As bytes, text as UTF-8; None stays. Raises `InvalidRequest` naming the first that is neither."""
    if serializer is not None:
        values = [None if value is None else serializer(value) for value in values]
    try:
        return pa.array(values, pa.binary())
    except (pa.ArrowException, ValueError, TypeError):
        return pa.array([_bytes(what, at, value) for at, value in enumerate(values)], pa.binary())


def _bytes(what: str, at: int, value: object) -> bytes | None:
    try:
        return None if value is None else to_bytes(value, what)
    except (InvalidRequest, UnicodeEncodeError) as error:
        raise InvalidRequest(f"{what}s[{at}]: {error}") from None


def rows_table(shape: RowShape, values: list[Any], newer: Callable[[set[str]], RowShape | None]) -> pa.Table:
    """Rows of a topic with a schema. `newer`: asks for the topic with these columns, if it may have got them. Raises
    `SchemaMismatch` and `InvalidRequest` naming the first that does not fit."""
    try:
        return _table(shape, values)
    except SchemaMismatch:
        columns = {name for value in values for name in shape.columns_of(value)}
        known = None if shape.knows(columns) else newer(columns)
        if known is None:
            raise
        return _table(known, values)


def _table(shape: RowShape, values: list[Any]) -> pa.Table:
    fitted = []
    for at, value in enumerate(values):
        try:
            fitted.append(shape.fit(value if type(value) is dict else shape.columns_of(value))[0])
        except SchemaMismatch as error:
            raise SchemaMismatch(f"values[{at}]: {error}") from None
        except InvalidRequest as error:
            raise InvalidRequest(f"values[{at}]: {error}") from None
    return pa.Table.from_batches([shape.batch(fitted)] if fitted else [], shape.schema)
