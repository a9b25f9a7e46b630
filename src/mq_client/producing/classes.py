"""Columns and rows from classes: dataclasses, TypedDicts, NamedTuples and pydantic models. Pure.

pydantic is never imported: a model is known by its attributes. What a field's type becomes:

    bool, int, float, str, bytes      boolean, long, double, string, binary
    date, datetime                    date, timestamp (of a zone; `Annotated[datetime, "timestamp_ntz"]` of none)
    list[T], tuple[T, ...], dict[K, V]   array, map
    another such class                struct
    numpy's scalar types              the integer or float of that width
    Annotated[T, "int"]               the type in Spark's words, as in "decimal(10, 2)", or a pyarrow.DataType
    T | None                          T, and null is allowed; every other field is NOT NULL
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Mapping, MutableMapping, MutableSequence, Sequence
from datetime import date, datetime
from decimal import Decimal
from typing import Annotated, Any, Final, Literal, Union, get_args, get_origin

import numpy as np
import pyarrow as pa

from mq_client.errors import InvalidRequest
from mq_protocol.sql.ddl import check_schema, parse_schema

_SIMPLE: Final[Mapping[object, pa.DataType]] = {
    bool: pa.bool_(),
    int: pa.int64(),
    float: pa.float64(),
    str: pa.string(),
    bytes: pa.binary(),
    date: pa.date32(),
    datetime: pa.timestamp("us", tz="UTC"),
}
_LISTS: Final = (list, tuple, Sequence, MutableSequence)
_MAPS: Final = (dict, Mapping, MutableMapping)
_MARKS: Final = tuple(
    getattr(typing, name)
    for name in ("Required", "NotRequired", "ReadOnly", "Final", "ClassVar")
    if hasattr(typing, name)
)


def schema_of(given: object) -> pa.Schema:
    """The columns that a topic is to have: of an Arrow schema, Spark's words, or a class. Raises `InvalidRequest`
    naming the field."""
    if isinstance(given, str):
        return parse_schema(given)
    if isinstance(given, pa.Schema):
        return check_schema(given)
    if hasattr(given, "__arrow_c_schema__"):
        return check_schema(pa.schema(given))
    if isinstance(given, type) and is_row_class(given):
        return check_schema(pa.schema(_fields(given, ())))
    raise InvalidRequest(
        f"schema is {_name(given)}: give words such as 'id long, name string', a pyarrow.Schema, a dataclass, a "
        "TypedDict, a NamedTuple or a pydantic model"
    )


def is_row_class(kind: type) -> bool:
    """Whether its fields can be columns."""
    return dataclasses.is_dataclass(kind) or typing.is_typeddict(kind) or _is_named_tuple(kind) or _is_model(kind)


def as_mapping(value: object) -> Mapping[str, Any] | None:
    """A row's columns; None for what is none. Values are as they are: structs are looked at where they are stored."""
    if isinstance(value, pa.StructScalar):
        row: Mapping[str, Any] | None = value.as_py()
        return row
    if isinstance(value, Mapping):
        return value
    kind = type(value)
    if dataclasses.is_dataclass(kind):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(kind)}
    if _is_model(kind):
        found = {name: getattr(value, name) for name in _model_fields(kind)}
        return {**found, **(getattr(value, "model_extra", None) or {})}
    if _is_named_tuple(kind):
        return dict(zip(kind._fields, value, strict=True))  # type: ignore[attr-defined, call-overload]
    return None


def _is_named_tuple(kind: type) -> bool:
    return issubclass(kind, tuple) and isinstance(getattr(kind, "_fields", None), tuple)


def _is_model(kind: type) -> bool:
    return isinstance(getattr(kind, "model_fields", None), Mapping) and hasattr(kind, "model_validate")


def _model_fields(kind: type) -> Mapping[str, Any]:
    fields: Mapping[str, Any] = kind.model_fields  # type: ignore[attr-defined]
    return fields


def _fields(kind: type, within: tuple[type, ...]) -> list[pa.Field]:
    if kind in within:
        raise InvalidRequest(f"{_name(kind)} holds itself, and columns have an end: give its fields types of their own")
    try:
        hints = typing.get_type_hints(kind, include_extras=True)
    except Exception as error:
        raise InvalidRequest(
            f"the types of {_name(kind)} cannot be told ({type(error).__name__}: {error}): define the classes that it "
            "names in its own module"
        ) from error
    if dataclasses.is_dataclass(kind):
        names = [field.name for field in dataclasses.fields(kind)]
    elif _is_model(kind):
        names = list(_model_fields(kind))
    else:
        names = list(kind._fields) if _is_named_tuple(kind) else list(hints)  # type: ignore[attr-defined]
    optional: frozenset[str] = getattr(kind, "__optional_keys__", frozenset())
    return [
        _field(f"{_name(kind)}.{name}", name, hints[name], (*within, kind), nullable=name in optional) for name in names
    ]


def _field(place: str, name: str, hint: object, within: tuple[type, ...], *, nullable: bool = False) -> pa.Field:
    kind, may_be_null = _type(place, hint, within)
    return pa.field(name, kind, nullable=nullable or may_be_null)


def _type(place: str, hint: object, within: tuple[type, ...]) -> tuple[pa.DataType, bool]:
    """The type, and whether null is one of its values. `place`: which field, for errors."""
    if get_origin(hint) in _MARKS:
        kind, may_be_null = _type(place, get_args(hint)[0], within)
        return kind, may_be_null or get_origin(hint) is typing.NotRequired
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return _annotated(place, arguments, within)
    if origin in (Union, types.UnionType):
        left = [each for each in arguments if each is not type(None)]
        if len(left) == len(arguments) or len(left) != 1:
            raise InvalidRequest(f"{place} may be of several types, and a column has one: {hint}")
        return _type(place, left[0], within)[0], True
    if origin is Literal:
        kinds = {type(each) for each in arguments if each is not None}
        if len(kinds) != 1:
            raise InvalidRequest(f"{place} may be of several types, and a column has one: {hint}")
        return _type(place, kinds.pop(), within)[0], None in arguments
    if hasattr(hint, "__supertype__"):  # NewType
        return _type(place, hint.__supertype__, within)
    if isinstance(hint, pa.DataType):
        return hint, False
    if origin in _LISTS and arguments:
        if origin is tuple and arguments[1:] != (...,):
            raise InvalidRequest(f"{place} is a tuple of several values: make it a class, or tuple[T, ...]")
        return pa.list_(_field(place, "element", arguments[0], within)), False
    if origin in _MAPS and len(arguments) == 2:
        key, _ = _type(place, arguments[0], within)
        return pa.map_(key, _field(place, "value", arguments[1], within)), False
    return _plain(place, hint, within), False


def _annotated(place: str, arguments: Sequence[object], within: tuple[type, ...]) -> tuple[pa.DataType, bool]:
    base = arguments[0]
    may_be_null = type(None) in get_args(base) and get_origin(base) in (Union, types.UnionType)
    for each in arguments[1:]:
        if isinstance(each, pa.DataType):
            return each, may_be_null
        if isinstance(each, str):
            try:
                return parse_schema(f"it {each}").field(0).type, may_be_null
            except InvalidRequest as error:
                raise InvalidRequest(f"{place}: {error}") from None
    return _type(place, base, within)  # what pydantic checks by, say


def _plain(place: str, hint: object, within: tuple[type, ...]) -> pa.DataType:
    found = _SIMPLE.get(hint) if isinstance(hint, type) else None
    if found is not None:
        return found
    if isinstance(hint, type) and is_row_class(hint):
        return pa.struct(_fields(hint, within))
    if isinstance(hint, type) and issubclass(hint, np.generic):
        try:
            return pa.from_numpy_dtype(hint)
        except (pa.ArrowException, TypeError):
            pass
    advice = (
        " say how many digits, as in Annotated[Decimal, 'decimal(10, 2)']"
        if hint is Decimal
        else (" give a type that columns have, or say which it is stored as: Annotated[T, 'string']")
    )
    raise InvalidRequest(f"{place} is {_name(hint)}:{advice}")


def _name(kind: object) -> str:
    return kind.__qualname__.rpartition(".")[2] if isinstance(kind, type) else str(kind)[:100]
