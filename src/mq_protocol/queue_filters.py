"""The filters of work queues: which columns they may look at, and which rows they keep.

On a topic with columns they look at those. Of records they look at `key` and `timestamp`, as consumers see them: a
record without a time of its own has that of its batch.
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from mq_protocol.arrow import RECORD_SCHEMA
from mq_protocol.sql.row_filter import RowFilter, parse_filter

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
