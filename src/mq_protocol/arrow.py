"""Batches on the wire and on disk: one encapsulated Arrow IPC record batch message, without its schema, which is the
topic's.

Encoding, decoding without a copy, the schema's fingerprint, and `check_untrusted`: all that a broker verifies before it
stores a batch that came from outside. Not here: what a batch means (offsets, UUIDs), and fitting a user's table to a
topic (mq_client).
"""

from __future__ import annotations

import ctypes
import hashlib
import io
import struct
import traceback
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from mq_protocol import limits
from mq_protocol.errors import BatchTooLarge, CorruptBatch, SchemaMismatch
from mq_protocol.wire.envelope import Buffer
from mq_protocol.wire.ipc_message import (
    RecordBatchMessage,
    check_schema_message,
    codec_of,
    node_count,
    read_record_batch_message,
)

RECORD_SCHEMA: pa.Schema = pa.schema(
    [
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field(
            "headers",
            pa.list_(pa.field("element", pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]))),
        ),
        pa.field("timestamp", pa.timestamp("us", tz="UTC")),
    ]
)
"""What a topic of records stores. Field for field what Spark's Arrow conversion has, so that batches go to Spark as
stored."""

_PREFIX_BYTES = 8  # continuation marker and length before a message's metadata
_METADATA_LENGTH = struct.Struct("<i")
_POOLED_BYTES_MAX = 16 << 20
"""What a batch from outside may decompress to in Arrow's own pool, which keeps for each thread what that has freed."""

_DEMANDS_MAX = 1024
_BEGINNINGS_MAX = 64
_ASCII_MAX = 0x7F
_EXTENSION = b"ARROW:extension:name"


def column_of(values: NDArray[Any], kind: pa.DataType) -> pa.Array:
    """These numbers as they lie in memory, without a null; they have the width of `kind`. `pa.array` would import
    pandas first, where it is installed, which takes a new worker of Spark's longer than its first rows do."""
    assert values.itemsize * 8 == kind.bit_width, f"{values.dtype} is not laid out as {kind}"
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(np.ascontiguousarray(values))])


def numbers_of(column: pa.Array) -> NDArray[Any]:
    """The whole numbers of a column without a null, where they lie. `to_numpy` would import pandas first."""
    assert not column.null_count, "a null has no number"
    kind = f"{'i' if pa.types.is_signed_integer(column.type) else 'u'}{column.type.bit_width // 8}"
    return np.frombuffer(column.buffers()[1] or b"", dtype=kind)[column.offset : column.offset + len(column)]


def schema_to_bytes(schema: pa.Schema) -> bytes:
    """The schema as an encapsulated Arrow IPC message, without metadata."""
    data: bytes = schema.remove_metadata().serialize().to_pybytes()
    return data


def schema_from_bytes(data: Buffer) -> pa.Schema:
    """The schema of `schema_to_bytes`; empty bytes mean the record schema. Raises `CorruptBatch`, also for extension
    types: what they carry would be parsed by whatever code is registered for them."""
    if not data:
        return RECORD_SCHEMA
    check_schema_message(memoryview(data))
    if _EXTENSION in bytes(data):
        raise CorruptBatch("corrupt schema: it has extension types; give the types that they are stored as")
    try:
        schema = pa.ipc.read_schema(pa.py_buffer(data))
        for _text in _texts(schema):
            pass
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise CorruptBatch(f"corrupt schema: {error}") from error
    return schema


def schema_fingerprint(schema: pa.Schema) -> int:
    """64 bits of names, types and nullability, in order; the same in every process and release. Metadata does not
    count, nor do the names that Arrow gives to the elements of lists and the entries of maps (libraries differ in them,
    the bytes do not).
    """
    digest = hashlib.blake2b(digest_size=8)
    for field in schema:
        digest.update(_canonical_field(field).encode())
    return int.from_bytes(digest.digest(), "little")


def schema_nodes(schema: pa.Schema) -> int:
    """How many nodes a batch of the schema has (`mq_protocol.wire.ipc_message.node_count`): more columns have more of
    them."""
    return _demands_of(schema).nodes


def encode_batch(batch: pa.RecordBatch, compression: str | None = None) -> pa.Buffer:
    """The payload. `compression`: None, "lz4" or "zstd", of each buffer by itself."""
    if compression is None:
        return batch.serialize()
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema, options=pa.ipc.IpcWriteOptions(compression=compression)) as writer:
        writer.write_batch(batch)
        written = sink.tell()
    stream = sink.getvalue()
    return stream.slice(0, written).slice(_schema_message_bytes(stream))


def decode_batch(
    payload: Buffer | pa.Buffer, schema: pa.Schema, columns: Sequence[str] | None = None
) -> pa.RecordBatch:
    """The batch, its values in place (views of `payload`) unless it is compressed.

    `columns`: only these, in this order; columns that are not named are not decompressed. A batch of another version of
    the schema (sql/evolution.py) is read as well: columns that it lacks are null, those that `schema` lacks are left
    out. Values are trusted: for payloads that this process has checked, or a broker before it stored them (on its disk
    a checksum stands over them). Raises `CorruptBatch` for what Arrow cannot read, `SchemaMismatch` for a column
    that the schema lacks.
    """
    buffer = payload if isinstance(payload, pa.Buffer) else pa.py_buffer(payload)
    if columns is not None:
        for name in columns:
            _index(schema, name)
    try:
        return _decoded(buffer, schema, columns)
    except (pa.ArrowException, OSError, StopIteration) as error:  # fewer nodes than the schema has is one of them
        there = _beginning(schema, node_count(memoryview(buffer)))
        if there is None:
            raise CorruptBatch(f"corrupt batch: {error}") from error
    return _decoded_shorter(buffer, schema, there, columns)


def check_untrusted(
    payload: memoryview,
    schema: pa.Schema,
    *,
    batch_bytes_max: int,
    decoded_bytes_max: int = limits.BATCH_DECODED_BYTES_MAX,
    record_count: int,
) -> int:
    """Everything that must hold before a batch from outside is stored; its bytes once decompressed.

    In this order, so that nothing costs more than what has been bounded: size; exactly one record batch message; rows
    as claimed (1 to BATCH_RECORDS_MAX); columns and buffers as the schema has them, within the body; declared
    decompressed size; then it is decoded and its values are validated in full, nulls in columns that allow none
    included. Raises `BatchTooLarge`, `CorruptBatch` or `SchemaMismatch`.
    """
    if len(payload) > batch_bytes_max:
        raise BatchTooLarge(
            f"batch of {len(payload)} bytes is above the topic's batch_bytes_max={batch_bytes_max}: send smaller "
            "batches"
        )
    message = _counted(payload, record_count)
    demands = _demands_of(schema)
    _check_layout(message, demands)
    decoded_bytes = message.decoded_bytes()
    if decoded_bytes > decoded_bytes_max:
        raise BatchTooLarge(
            f"batch decompresses to {decoded_bytes} bytes, above the topic's "
            f"batch_decoded_bytes_max={decoded_bytes_max}: send smaller batches, or raise it (tritonmq topic alter)"
        )
    buffer = pa.py_buffer(payload)
    try:
        if decoded_bytes > _POOLED_BYTES_MAX:
            _check_apart(buffer, schema, demands.values)
        else:
            _check_values(pa.ipc.read_record_batch(buffer, schema), demands.values)
    except (pa.ArrowException, OSError, MemoryError) as error:
        raise CorruptBatch(f"corrupt batch: {error}") from error
    return decoded_bytes


def decode_untrusted(
    payload: memoryview, schema: pa.Schema, record_count: int, columns: Sequence[str] | None = None
) -> pa.RecordBatch:
    """As `decode_batch`, of bytes for which nobody vouches. What is read is checked as `check_untrusted` does, with the
    widest bounds that a topic can have, and is safe to hand to any code.

    Raises `CorruptBatch`, `BatchTooLarge` or `SchemaMismatch`.
    """
    message = _counted(payload, record_count)
    nodes = len(message.nodes)
    there = _beginning(schema, nodes) or schema
    if nodes <= _demands_of(there).nodes:  # one with columns that are not known here has more
        _check_layout(message, _demands_of(there))
    if (decoded_bytes := message.decoded_bytes()) > limits.BATCH_DECODED_BYTES_CEILING:
        raise BatchTooLarge(
            f"batch decompresses to {decoded_bytes} bytes, and no topic's may to more than "
            f"{limits.BATCH_DECODED_BYTES_CEILING}"
        )
    batch = decode_batch(payload, schema, columns)
    try:
        _check_values(batch, _values_of(schema, columns))
    except (pa.ArrowException, OSError) as error:
        raise CorruptBatch(f"corrupt batch: {error}") from error
    return batch


# ---------------------------------------------------------------- private


def _texts(fields: Iterable[pa.Field]) -> Iterator[str]:
    """Every name and time zone. Arrow keeps their bytes unread, and raises `UnicodeDecodeError` here if they are no
    UTF-8."""
    for field in fields:
        kind = field.type
        yield field.name
        if pa.types.is_timestamp(kind) and kind.tz is not None:
            yield kind.tz
        yield from _texts(kind.field(at) for at in range(kind.num_fields))


def _decoded(buffer: pa.Buffer, schema: pa.Schema, columns: Sequence[str] | None) -> pa.RecordBatch:
    if columns is None:
        return pa.ipc.read_record_batch(buffer, schema)
    if not columns or not _is_compressed(buffer):
        return pa.ipc.read_record_batch(buffer, schema).select(list(columns))
    options = pa.ipc.IpcReadOptions(included_fields=sorted(_index(schema, name) for name in columns))
    with pa.ipc.open_stream(pa.PythonFile(_SchemaThenPayload(schema, buffer), mode="r"), options=options) as reader:
        return reader.read_next_batch().select(list(columns))


def _counted(payload: memoryview, record_count: int) -> RecordBatchMessage:
    """One message of so many rows, which is a number that a batch may have."""
    message = read_record_batch_message(payload)
    if message.record_count != record_count:
        raise CorruptBatch(f"corrupt batch: it has {message.record_count} records, its header claims {record_count}")
    if record_count < 1:
        raise CorruptBatch("corrupt batch: it has no records; leave it out")
    if record_count > limits.BATCH_RECORDS_MAX:
        raise BatchTooLarge(
            f"batch of {record_count} records is above {limits.BATCH_RECORDS_MAX}: send smaller batches"
        )
    return message


def _check_values(batch: pa.RecordBatch, values: _Values) -> None:
    """All that Arrow's full validation looks at, and nulls. Texts that are ASCII, which one look at all of their bytes
    tells, are not looked at one by one: that would cost a reader more than all else."""
    batch.validate()
    if values.bare is None:
        batch.validate(full=True)
    else:
        batch.to_struct_array().view(values.bare).validate(full=True)
    for at in values.texts:
        _check_texts(batch.column(at))
    for at, field in values.required:
        _check_nulls(field, batch.column(at), field.name)


def _check_texts(column: pa.Array) -> None:
    """Once all places in it were found to be right."""
    kind = column.type
    if pa.types.is_string(kind):
        data = column.buffers()[2]
        if data is not None and np.frombuffer(data, np.uint8).max(initial=0) > _ASCII_MAX:
            column.validate(full=True)
    elif pa.types.is_struct(kind):
        for at in range(kind.num_fields):
            _check_texts(column.field(at))
    elif pa.types.is_map(kind):
        _check_texts(column.keys)
        _check_texts(column.items)
    elif pa.types.is_list(kind) and len(values := column.values):
        _check_texts(values)


def _check_apart(buffer: pa.Buffer, schema: pa.Schema, values: _Values) -> None:
    """In memory that the system has back as soon as it is free: one large batch costs its size once, however many
    threads check such batches in turn. Other threads run while it is freed."""
    stream = pa.PythonFile(_SchemaThenPayload(schema, buffer), mode="r")
    with pa.ipc.open_stream(stream, memory_pool=pa.system_memory_pool()) as reader:
        batch = reader.read_next_batch()
    memory = Memory(batch)
    try:
        _check_values(batch, values)
    except Exception as error:
        traceback.clear_frames(error.__traceback__)  # which hold the batch
        raise
    finally:
        del batch
        memory.free()


def _decoded_shorter(
    buffer: pa.Buffer, schema: pa.Schema, there: pa.Schema, columns: Sequence[str] | None
) -> pa.RecordBatch:
    """A batch that has only the first columns of the schema, those of `there`."""
    wanted = schema.names if columns is None else columns
    try:
        found = _decoded(buffer, there, None if columns is None else [name for name in wanted if name in there.names])
    except (pa.ArrowException, OSError, StopIteration) as error:
        raise CorruptBatch(f"corrupt batch: {error}") from error
    if not wanted:
        return found  # it has its rows, which a batch made of no columns would not
    fields = [schema.field(name) for name in wanted]
    arrays = [
        found.column(field.name) if field.name in there.names else pa.nulls(len(found), field.type) for field in fields
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema if columns is None else pa.schema(fields))


def _beginning(schema: pa.Schema, nodes: int) -> pa.Schema | None:
    """The first columns of the schema, those that have so many nodes together; None unless that is some and not all of
    them."""
    known = _demands_of(schema).beginnings
    if nodes not in known:
        found, left = None, nodes
        for count in range(1, len(schema)):
            left -= sum(1 for _ in _layout(schema.field(count - 1).type))
            if left <= 0:
                found = pa.schema(list(schema)[:count]) if left == 0 else None
                break
        if len(known) < _BEGINNINGS_MAX:
            known[nodes] = found
        return found
    return known[nodes]


class _SchemaThenPayload(io.RawIOBase):
    """A stream of a schema message and then a payload, read by Arrow without joining the two."""

    def __init__(self, schema: pa.Schema, payload: pa.Buffer) -> None:
        super().__init__()
        self._parts = [memoryview(schema.serialize()), memoryview(payload)]

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1, /) -> bytes:
        """A view of the next bytes. Arrow asks for a message's parts one by one, never across the two."""
        while self._parts and not self._parts[0]:
            self._parts.pop(0)
        if not self._parts:
            return b""
        head, self._parts[0] = self._parts[0][:size], self._parts[0][size:]
        return head  # type: ignore[return-value]  # any buffer will do for Arrow, and a view spares the copy


def _canonical_field(field: pa.Field) -> str:
    name = field.name
    return f"{len(name)}:{name} {_canonical_type(field.type)}{'?' if field.nullable else '!'};"


def _canonical_type(kind: pa.DataType) -> str:
    if pa.types.is_list(kind):
        return f"list<{_canonical_type(kind.value_type)}{'?' if kind.value_field.nullable else '!'}>"
    if pa.types.is_map(kind):
        nullable = "?" if kind.item_field.nullable else "!"
        return f"map<{_canonical_type(kind.key_type)},{_canonical_type(kind.item_type)}{nullable}>"
    if pa.types.is_struct(kind):
        return f"struct<{''.join(_canonical_field(field) for field in kind)}>"
    return str(kind)


def _schema_message_bytes(stream: pa.Buffer) -> int:
    metadata_bytes: int = _METADATA_LENGTH.unpack_from(stream, 4)[0]
    return _PREFIX_BYTES + metadata_bytes


def _is_compressed(payload: pa.Buffer) -> bool:
    return codec_of(memoryview(payload)) is not None


def _index(schema: pa.Schema, name: str) -> int:
    index: int = schema.get_field_index(name)
    if index < 0:
        raise SchemaMismatch(f"the topic has no column {name!r}: its columns are {', '.join(schema.names)}")
    return index


def _layout(kind: pa.DataType) -> Iterator[int]:
    """The number of buffers of each node of a column, depth first."""
    if pa.types.is_struct(kind):
        yield 1
        for field in kind:
            yield from _layout(field.type)
    elif pa.types.is_map(kind):
        yield from (2, 1)
        yield from _layout(kind.key_type)
        yield from _layout(kind.item_type)
    elif pa.types.is_list(kind):
        yield 2
        yield from _layout(kind.value_type)
    elif pa.types.is_string(kind) or pa.types.is_binary(kind):
        yield 3
    elif pa.types.is_primitive(kind) or pa.types.is_decimal128(kind):
        yield 2
    else:
        raise SchemaMismatch(f"no topic has a column of type {kind}: a newer TritonMQ may; upgrade this one")


class _Values(NamedTuple):
    """What is looked at in the values of some columns. `bare`: the columns as one struct, with bytes in place of texts;
    None if there are no texts. `texts`: the columns, by place, that have some. `required`: those in which some null is
    not allowed.
    """

    bare: pa.StructType | None
    texts: tuple[int, ...]
    required: tuple[tuple[int, pa.Field], ...]


class _Demands(NamedTuple):
    """What a schema asks of each of its batches: worked out once, since a batch of one record is checked as any other.

    `some_values`: of columns that were asked for. `beginnings`: former versions that were met, by nodes.
    """

    schema: pa.Schema  # kept, so that its id stays its own
    nodes: int
    buffers: int
    values: _Values
    some_values: dict[tuple[str, ...], _Values]
    beginnings: dict[int, pa.Schema | None]


_demands: dict[int, _Demands] = {}  # by the schema's id: hashing one costs more than all that is kept here


def _demands_of(schema: pa.Schema) -> _Demands:
    found = _demands.get(id(schema))
    if found is None:
        layout = [buffers for field in schema for buffers in _layout(field.type)]
        found = _Demands(schema, len(layout), sum(layout), _values(schema), {}, {})
        if len(_demands) >= _DEMANDS_MAX:
            _demands.clear()
        _demands[id(schema)] = found
    return found


def _values_of(schema: pa.Schema, columns: Sequence[str] | None) -> _Values:
    demands = _demands_of(schema)
    if columns is None:
        return demands.values
    chosen = tuple(columns)
    found = demands.some_values.get(chosen)
    if found is None:
        found = _values([schema.field(_index(schema, name)) for name in chosen])
        if len(demands.some_values) < _BEGINNINGS_MAX:
            demands.some_values[chosen] = found
    return found


def _values(fields: Iterable[pa.Field]) -> _Values:
    known = list(fields)
    bare = [_bare(field) for field in known]
    texts = tuple(at for at, field in enumerate(known) if field.type != bare[at].type)
    required = tuple((at, field) for at, field in enumerate(known) if not field.nullable or _has_required(field.type))
    return _Values(pa.struct(bare) if texts else None, texts, required)


def _bare(field: pa.Field) -> pa.Field:
    """With bytes in place of texts, and nulls everywhere: those are looked at by themselves."""
    return pa.field(field.name, _bare_type(field.type))


def _bare_type(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_string(kind):
        return pa.binary()
    if pa.types.is_struct(kind):
        return pa.struct([_bare(child) for child in kind])
    if pa.types.is_map(kind):
        return pa.map_(_bare_type(kind.key_type), _bare_type(kind.item_type))
    if pa.types.is_list(kind):
        return pa.list_(_bare(kind.value_field))
    return kind


def _check_layout(message: RecordBatchMessage, demands: _Demands) -> None:
    if len(message.nodes) != demands.nodes or len(message.buffers) != demands.buffers:
        raise SchemaMismatch(
            f"the batch has {len(message.nodes)} columns (nested ones counted) and {len(message.buffers)} buffers, "
            f"the topic's schema {demands.nodes} and {demands.buffers}: encode it with the topic's schema"
        )


def _check_nulls(field: pa.Field, column: pa.Array, path: str) -> None:
    """A null where the schema allows none; below a null parent nothing counts."""
    if not field.nullable and column.null_count:
        raise SchemaMismatch(
            f"column {path!r} is NOT NULL in the topic's schema and has nulls, {column.null_count} of {len(column)}"
        )
    kind = field.type
    if not _has_required(kind):
        return
    present = column.filter(column.is_valid()) if column.null_count else column
    if pa.types.is_struct(kind):
        for at, child in enumerate(kind):
            _check_nulls(child, pc.struct_field(present, [at]), f"{path}.{child.name}")
    elif pa.types.is_map(kind):
        _check_nulls(kind.key_field, present.keys, f"{path}.key")
        _check_nulls(kind.item_field, present.items, f"{path}.value")
    else:
        _check_nulls(kind.value_field, present.flatten(), f"{path}.element")


def _has_required(kind: pa.DataType) -> bool:
    """Whether a field below this type allows no nulls. A map's key never does, and full validation has looked at it."""
    if pa.types.is_map(kind):
        return not kind.item_field.nullable or _has_required(kind.item_type) or _has_required(kind.key_type)
    return any(not kind.field(at).nullable or _has_required(kind.field(at).type) for at in range(kind.num_fields))


class _ArrowArray(ctypes.Structure):
    """Of Arrow's C data interface (https://arrow.apache.org/docs/format/CDataInterface.html)."""


_Release: Final[Any] = ctypes.CFUNCTYPE(None, ctypes.POINTER(_ArrowArray))  # ctypes lets go of the interpreter

_ArrowArray._fields_ = [
    *((name, ctypes.c_int64) for name in ("length", "null_count", "offset", "n_buffers", "n_children")),
    *((name, ctypes.c_void_p) for name in ("buffers", "children", "dictionary")),
    ("release", _Release),
    ("private_data", ctypes.c_void_p),
]


class Memory:
    """Of a large batch, freed without the interpreter: it stays until `free`, and the batch itself must be gone before.

    pyarrow holds the interpreter while it frees memory. To give 60 MiB back to the system takes 4 ms, and no other
    thread runs Python meanwhile, the event loop neither.
    """

    def __init__(self, batch: pa.RecordBatch) -> None:
        self._array = _ArrowArray()
        batch._export_to_c(ctypes.addressof(self._array))  # noqa: SLF001 - pyarrow has no other way to a C structure

    def free(self) -> None:
        """Other threads run meanwhile."""
        self._array.release(ctypes.byref(self._array))
