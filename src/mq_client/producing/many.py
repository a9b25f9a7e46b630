"""Many values in one call: made a table at once, in place of a record at a time. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import pyarrow as pa

from mq_client.errors import InvalidRequest, SchemaMismatch
from mq_client.producing.batches import to_bytes
from mq_client.producing.rows import RowShape


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
