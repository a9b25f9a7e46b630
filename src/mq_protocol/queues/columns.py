"""What leaders and members of a queue group read of a record's columns: the keys of a group with `order=key`, and what
its filter looks at.

A record's key is its key, or the value of the column that the group's `order_by` names. Records without one are in no
order. A filter looks at the columns of a topic that has columns. Of records it looks at `key` and `timestamp`, as
consumers see them: a record without a time of its own has that of its batch.
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from mq_protocol.arrow import RECORD_SCHEMA
from mq_protocol.errors import InvalidSetting
from mq_protocol.names import did_you_mean
from mq_protocol.queues.settings import Order, QueueSettings
from mq_protocol.sql.row_filter import RowFilter, parse_filter

RECORD_KEY: Final = "key"


def column_of(order_by: str) -> str:
    """Where the keys are."""
    return order_by or RECORD_KEY


def check_order(settings: QueueSettings, schema: pa.Schema, topic: str) -> None:
    """Raises `InvalidSetting` if records with this schema have no such keys."""
    if settings.order is not Order.KEY:
        return
    name = settings.order_by
    if schema == RECORD_SCHEMA:
        if name:
            raise InvalidSetting(
                f"order_by={name!r} is not allowed: topic {topic} has no columns, so its records are in order by their "
                "key: leave order_by out"
            )
        return
    usable = [column.name for column in schema if _is_key(column.type)]
    allowed = f"give one of {', '.join(usable[:20])}" if usable else "it has no column that could be a key"
    if not name:
        raise InvalidSetting(f"order=key needs order_by on topic {topic}, whose rows have columns: {allowed}")
    at = schema.get_field_index(name)
    if at < 0:
        raise InvalidSetting(f"order_by={name!r} is no column of topic {topic}{did_you_mean(name, usable)} {allowed}")
    if not _is_key(schema.field(at).type):
        raise InvalidSetting(
            f"order_by={name!r} is not allowed: a column of type {schema.field(at).type} cannot be a key, numbers with "
            f"a fraction, lists and structs cannot: {allowed}"
        )


def keys_of(rows: pa.RecordBatch, order_by: str) -> pa.Array:
    """The key of each row as bytes, null where it has none. Equal values have equal keys."""
    at = rows.schema.get_field_index(column_of(order_by))
    if at < 0:
        return pa.nulls(rows.num_rows, pa.large_binary())
    values = rows.column(at)
    if pa.types.is_dictionary(values.type):
        values = values.dictionary_decode()
    if pa.types.is_null(values.type):
        return pa.nulls(len(values), pa.large_binary())
    if not _is_binary(values.type):
        values = pc.cast(values, pa.large_string())
    return pc.cast(values, pa.large_binary())


def _is_key(kind: pa.DataType) -> bool:
    if pa.types.is_dictionary(kind):
        return _is_key(kind.value_type)
    types = pa.types
    return bool(
        _is_binary(kind)
        or types.is_string(kind)
        or types.is_large_string(kind)
        or types.is_integer(kind)
        or types.is_boolean(kind)
        or types.is_decimal(kind)
        or types.is_date(kind)
        or types.is_timestamp(kind)
    )


def _is_binary(kind: pa.DataType) -> bool:
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))


_TIMESTAMP: Final = "timestamp"
_OF_RECORDS: Final = pa.schema([RECORD_SCHEMA.field("key"), RECORD_SCHEMA.field(_TIMESTAMP)])
_BARRED: Final = ("value", "headers", "offset", "partition", "topic", "priority", "deliveries", "failures")


def bound_filter(text: str, schema: pa.Schema) -> RowFilter:
    """The filter for a topic with this schema. Raises `InvalidSetting` that says which character, column or literal is
    wrong."""
    if schema == RECORD_SCHEMA:
        return parse_filter(text, _OF_RECORDS, _BARRED)
    return parse_filter(text, schema)


def kept(row_filter: RowFilter, rows: pa.RecordBatch, schema: pa.Schema, timestamp_us: int) -> pa.BooleanArray:
    """For each row whether it is kept. `rows`: the filter's columns of a stored batch, which has this time."""
    at = rows.schema.get_field_index(_TIMESTAMP) if schema == RECORD_SCHEMA else -1
    if at >= 0:
        field = rows.schema.field(at)
        times = pc.fill_null(rows.column(at), pa.scalar(timestamp_us, pa.int64()).cast(field.type))
        rows = rows.set_column(at, field, times)
    return row_filter.mask(rows)
