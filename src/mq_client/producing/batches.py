"""From what users have to what a topic stores: records to columns, tables to batches of the topic's schema and size.
Rows: rows.py.

Pure: no clock, threads or network. Errors name the column.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from mq_client.errors import BatchTooLarge, InvalidRequest, SchemaMismatch
from mq_protocol import limits
from mq_protocol.arrow import RECORD_SCHEMA, column_of
from mq_protocol.names import did_you_mean
from mq_protocol.sql.ddl import format_type

Headers: TypeAlias = Mapping[str, bytes | None] | Sequence[tuple[str, bytes | None]]

RECORD_OVERHEAD_BYTES = 32
"""What a record takes beside its key, value and headers: offsets, timestamp, validity. Also bounds the records in a
batch."""

FEW: Final = 100
"""Up to so many keys, values or headers are made a column without PyArrow's help."""

_HEADER_TYPE = RECORD_SCHEMA.field("headers").type
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_TIME_MIN_US: Final = -62_135_596_800_000_000
_TIME_MAX_US: Final = 253_402_300_799_999_999
_MICROSECOND = timedelta(microseconds=1)


# ---------------------------------------------------------------- records


def to_bytes(value: object, what: str) -> bytes:
    """Bytes as they are, text as UTF-8. Raises `InvalidRequest` for anything else."""
    match value:
        case bytes():
            return value
        case str():
            return value.encode()
        case bytearray() | memoryview():
            return bytes(value)
        case _:
            hint = f' (a Producer makes JSON of it with {what}_serializer="json")' if what in ("key", "value") else ""
            raise InvalidRequest(f"{what} is {type(value).__name__}: give bytes or str{hint}")


def to_header_pairs(headers: Headers) -> list[tuple[str, bytes | None]]:
    """Name and value of each header, in order; a name may come twice."""
    items: Iterable[tuple[str, bytes | None]] = headers.items() if isinstance(headers, Mapping) else headers
    try:
        pairs = [(str(name), None if value is None else to_bytes(value, f"header {name!r}")) for name, value in items]
    except (TypeError, ValueError):
        raise InvalidRequest("headers are not pairs: give {'name': b'value'} or [('name', b'value'), …]") from None
    for name, _ in pairs:
        if not name.isascii() and any("\ud800" <= mark <= "\udfff" for mark in name):
            raise InvalidRequest(f"header name {name!a} is not text: it has a lone surrogate")
    return pairs


def to_timestamp_us(timestamp: int | datetime, name: str = "timestamp") -> int:
    """Microseconds since 1970, UTC. Raises `InvalidRequest` for a datetime without a zone: it could mean anything."""
    if isinstance(timestamp, int):
        if not -(2**63) <= timestamp < 2**63:
            raise InvalidRequest(f"{name}={timestamp} is out of range: give microseconds since 1970")
        return timestamp
    if not isinstance(timestamp, datetime):
        raise InvalidRequest(f"{name} is {type(timestamp).__name__}: give microseconds since 1970 or a datetime")
    if timestamp.tzinfo is None:
        raise InvalidRequest(f"{name} has no zone: give e.g. datetime.now(timezone.utc)")
    return (timestamp - _EPOCH) // _MICROSECOND


def record_time_us(timestamp: int | datetime) -> int:
    """A record's own time. Raises `InvalidRequest` for one that no datetime and no Spark could show: nanoseconds, most
    likely."""
    time_us = to_timestamp_us(timestamp)
    if not _TIME_MIN_US <= time_us <= _TIME_MAX_US:
        raise InvalidRequest(
            f"timestamp={timestamp} is not in the years 1 to 9999: give microseconds since 1970, time.time_ns() // 1000"
        )
    return time_us


def one_record(key: Any, value: Any, headers: Headers | None, timestamp: int | datetime | None) -> pa.RecordBatch:
    """A batch of it alone. Without a timestamp it has the clock's time."""
    return records_to_batch(
        [None if key is None else to_bytes(key, "key")],
        [None if value is None else to_bytes(value, "value")],
        [None if headers is None else to_header_pairs(headers)],
        [time.time_ns() // 1000 if timestamp is None else record_time_us(timestamp)],
    )


def record_size(key: bytes | None, value: bytes | None, pairs: Sequence[tuple[str, bytes | None]] | None) -> int:
    """What a record takes of a batch and of the producer's memory, about, in bytes."""
    headers = sum(len(name) + len(content or b"") + 8 for name, content in pairs) if pairs else 0
    return RECORD_OVERHEAD_BYTES + len(key or b"") + len(value or b"") + headers


def records_to_batch(
    keys: Sequence[bytes | None],
    values: Sequence[bytes | None],
    headers: Sequence[Sequence[tuple[str, bytes | None]] | None],
    timestamps_us: Sequence[int] | np.ndarray,
) -> pa.RecordBatch:
    """The batch of a topic of records, built a column at a time. Records beyond the end of `keys` or `headers` have
    none."""
    count = len(values)
    columns = [
        _with_nulls(_binaries(keys), count),
        _binaries(values),
        _with_nulls(_header_column(headers), count),
        column_of(np.asarray(timestamps_us, dtype=np.int64), RECORD_SCHEMA.field("timestamp").type),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=RECORD_SCHEMA)


def _binaries(values: Sequence[bytes | None]) -> pa.Array:
    """As `pa.array` makes them. That imports pandas first, where it is installed, and takes longer for it than all else
    that a process needs for its first record: few values are laid out here, at the same cost."""
    if len(values) > FEW:
        return pa.array(values, pa.binary())
    ends = np.cumsum([0, *(len(value or b"") for value in values)], dtype=np.int32)
    data = b"".join([value or b"" for value in values])
    return pa.Array.from_buffers(pa.binary(), len(values), [_given(values), pa.py_buffer(ends), pa.py_buffer(data)])


def _given(values: Sequence[object]) -> pa.Buffer | None:
    """Arrow's bit for each value, whether it is there; None if all are."""
    if all(value is not None for value in values):
        return None
    return pa.py_buffer(np.packbits([value is not None for value in values], bitorder="little"))


def _with_nulls(column: pa.Array, count: int) -> pa.Array:
    """The column, `count` long."""
    missing = count - len(column)
    if not missing:
        return column
    nulls = pa.nulls(missing, column.type)
    return pa.concat_arrays([column, nulls]) if len(column) else nulls


def _header_column(headers: Sequence[Sequence[tuple[str, bytes | None]] | None]) -> pa.Array:
    if not any(headers):
        return pa.nulls(len(headers), _HEADER_TYPE)
    flat = [pair for pairs in headers for pair in pairs or ()]
    names, values = _binaries([name.encode() for name, _ in flat]), _binaries([value for _, value in flat])
    struct = pa.StructArray.from_arrays([names.view(pa.string()), values], fields=list(_HEADER_TYPE.value_type))
    ends = np.cumsum([0, *(len(pairs or ()) for pairs in headers)], dtype=np.int32)
    buffers = [_given(headers), pa.py_buffer(ends)]
    return pa.Array.from_buffers(_HEADER_TYPE, len(headers), buffers, children=[struct])


# ---------------------------------------------------------------- tables


def conform(
    table: pa.RecordBatch | pa.Table,
    schema: pa.Schema,
    topic: str,
    *,
    now_us: int | None = None,
    first_columns: int | None = None,
) -> pa.Table:
    """The table with the topic's columns, in its order and types.

    Columns are matched by name. A type may differ from the topic's only in how it is laid out (large or view strings,
    dictionaries, other zones of the same instant): nothing is narrowed or parsed. For a topic of records, `key`,
    `headers` and `timestamp` may be left out; `now_us` then stands for the timestamp. Of a typed topic, columns from
    number `first_columns` on may be left out: they were added when there were producers already. Raises
    `SchemaMismatch` naming the column.
    """
    if isinstance(table, pa.RecordBatch):
        table = pa.Table.from_batches([table])
    if table.schema.equals(schema):
        _refuse_nulls_in(table, schema, topic)
        return table.replace_schema_metadata(None)
    for name in table.schema.names:
        if name not in schema.names:
            raise SchemaMismatch(
                f"topic {topic!r} has no column {name!r}{did_you_mean(name, schema.names) or ':'} rename or drop it"
            )
    first = len(schema) if first_columns is None else first_columns
    columns = [_conform_column(table, field, topic, now_us, added=at >= first) for at, field in enumerate(schema)]
    return pa.Table.from_arrays(columns, schema=schema)


def _conform_column(
    table: pa.Table, field: pa.Field, topic: str, now_us: int | None, *, added: bool
) -> pa.ChunkedArray:
    found = table.schema.get_all_field_indices(field.name)
    if len(found) > 1:
        raise SchemaMismatch(f"column {field.name!r} comes {len(found)} times: rename or drop one")
    if not found and added:
        return pa.chunked_array([pa.nulls(table.num_rows, field.type)])
    if not found:
        return _absent_column(table.num_rows, field, topic, now_us)
    column = table.column(found[0])
    if column.type != field.type:
        if not _same_values(column.type, field.type):
            wanted = format_type(field.type)
            raise SchemaMismatch(
                f"column {field.name!r} is {format_type(column.type)}, topic {topic!r} has it as {wanted}: cast it to "
                f"{wanted}"
            )
        try:
            column = column.cast(field.type)
        except pa.ArrowException as error:
            raise SchemaMismatch(f"column {field.name!r} does not fit {format_type(field.type)}: {error}") from None
    _refuse_nulls(column, field, topic)
    return column


def _absent_column(rows: int, field: pa.Field, topic: str, now_us: int | None) -> pa.ChunkedArray:
    if now_us is not None and field.name == "timestamp":
        return pa.chunked_array([pa.repeat(pa.scalar(now_us, pa.int64()), rows).cast(field.type)])
    if now_us is not None and field.name in ("key", "headers"):
        return pa.chunked_array([pa.nulls(rows, field.type)])
    wanted = "" if field.nullable else " NOT NULL"
    raise SchemaMismatch(
        f"column {field.name!r} ({format_type(field.type)}{wanted}) of topic {topic!r} is missing: add it"
    )


def _same_values(given: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether every value of `given` is one of `wanted`, only laid out otherwise."""
    types = pa.types
    if given == wanted or types.is_null(given):
        return True
    if types.is_dictionary(given):
        return _same_values(given.value_type, wanted)
    if types.is_string(wanted):
        return bool(types.is_large_string(given) or types.is_string_view(given))
    if types.is_binary(wanted):
        return bool(types.is_large_binary(given) or types.is_binary_view(given) or types.is_fixed_size_binary(given))
    if types.is_timestamp(wanted) and types.is_timestamp(given):
        # Finer units are cast with a check that nothing is cut off.
        return (given.tz is None) == (wanted.tz is None)
    if types.is_map(wanted):
        return (
            bool(types.is_map(given))
            and _same_values(given.key_type, wanted.key_type)
            and _same_values(given.item_type, wanted.item_type)
        )
    if types.is_list(wanted):
        lists = types.is_list(given) or types.is_large_list(given) or types.is_fixed_size_list(given)
        return bool(lists) and _same_values(given.value_type, wanted.value_type)
    if types.is_struct(wanted) and types.is_struct(given):
        return [field.name for field in given] == [field.name for field in wanted] and all(
            _same_values(given.field(at).type, wanted.field(at).type) for at in range(wanted.num_fields)
        )
    return False


def _refuse_nulls_in(table: pa.Table, schema: pa.Schema, topic: str) -> None:
    for field, column in zip(schema, table.columns, strict=True):
        _refuse_nulls(column, field, topic)


def _refuse_nulls(column: pa.Array | pa.ChunkedArray, field: pa.Field, topic: str) -> None:
    if not field.nullable and column.null_count:
        raise SchemaMismatch(
            f"column {field.name!r} of topic {topic!r} is NOT NULL and has nulls, {column.null_count} of {len(column)}"
        )


def split_by_partition(table: pa.Table, partitions: np.ndarray) -> Iterator[tuple[int, pa.Table]]:
    """The rows of each partition, in their order. `partitions[row]` -1: of none yet (a null key)."""
    order = np.argsort(partitions, kind="stable")
    found, starts = np.unique(partitions[order], return_index=True)
    if len(found) == 1:
        yield int(found[0]), table
        return
    ends = [*starts[1:], len(order)]
    for partition, start, end in zip(found, starts, ends, strict=True):
        yield int(partition), table.take(pa.array(order[start:end]))


def split_by_size(table: pa.Table, most: int, row_bytes_max: int) -> Iterator[pa.RecordBatch]:
    """Batches of at most `most` bytes, rows in order; a row larger than that is a batch of its own.

    Raises `BatchTooLarge` for a row above `row_bytes_max`.
    """
    pieces = [table.slice(at, limits.BATCH_RECORDS_MAX) for at in range(0, table.num_rows, limits.BATCH_RECORDS_MAX)]
    pieces.reverse()
    while pieces:
        piece = pieces.pop()
        rows, size = piece.num_rows, _padded_bytes(piece)
        if size <= most:
            yield from piece.combine_chunks().to_batches()
        elif rows == 1:
            if size > row_bytes_max:
                raise BatchTooLarge(
                    f"a row of {size} bytes is above {row_bytes_max}: raise the topic's batch_bytes_max"
                )
            yield from piece.combine_chunks().to_batches()
        else:
            # Rows are seldom of one size: cut into what would fit on average, and look at each again.
            count = max(1, min(rows // 2, rows * most // size))
            pieces += [piece.slice(at, count) for at in range(0, rows, count)][::-1]


def _padded_bytes(table: pa.Table) -> int:
    """The table's bytes as one payload: Arrow pads each buffer to 8 bytes, and writes a line of metadata for it."""
    fields = sum(_fields(field.type) for field in table.schema)
    return int(table.nbytes) + fields * 3 * (16 + 8)


def _fields(kind: pa.DataType) -> int:
    return 1 + sum(_fields(kind.field(at).type) for at in range(kind.num_fields))


def record_key_column(table: pa.Table) -> str | None:
    """For a topic of records: "key" if any row has one."""
    column = table.column("key")
    return "key" if column.null_count < len(column) else None


def largest_record_bytes(table: pa.Table) -> int:
    """Bytes of the largest key and value together, of a table of the record schema."""
    if table.num_rows == 0:
        return 0
    none = column_of(np.zeros(table.num_rows, dtype=np.int32), pa.int32())
    lengths = [pc.coalesce(pc.binary_length(table.column(name)), none) for name in ("key", "value")]
    return int(pc.max(pc.add(*lengths)).as_py())
