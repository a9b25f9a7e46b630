"""Reads the metadata of one Arrow IPC message from bytes that a stranger made, before anything else touches them: of a
record batch, and of a schema.

Of a record batch exactly the tables needed (Message, RecordBatch, FieldNode, Buffer, BodyCompression). It decodes no
values: `mq_protocol.arrow.check_untrusted` does, once this has bounded what decoding costs.

A flatbuffer may point at one table or text any number of times, and Arrow makes a new object, or a copy, each time: a
kilobyte can become gigabytes. So everything in a schema is counted as often as it is pointed at.

Layouts as in the Arrow format's Message.fbs and Schema.fbs, and in "Encapsulated message format".
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

from mq_protocol.errors import CorruptBatch
from mq_protocol.limits import REQUEST_BYTES_MAX, SCHEMA_DEPTH_MAX, SCHEMA_FIELDS_MAX

_PREFIX = struct.Struct("<Ii")  # continuation marker, bytes of metadata
_CONTINUATION = 0xFFFFFFFF
_METADATA_V5 = 4
_RECORD_BATCH = 3
_HEADER_NAMES = {1: "a schema", 2: "a dictionary batch", 4: "a tensor", 5: "a sparse tensor"}
_CODECS = {0: "lz4", 1: "zstd"}
# Two nodes for a map, three buffers for each: sixteen bytes here are 120 of Python's
_PAIRS_MAX = 6 * SCHEMA_FIELDS_MAX

_LENGTH = struct.Struct("<q")


@dataclass(frozen=True, slots=True)
class RecordBatchMessage:
    """What the metadata declares. `nodes`: (length, null count); `buffers`: (position in the body, bytes there)."""

    record_count: int
    nodes: tuple[tuple[int, int], ...]
    buffers: tuple[tuple[int, int], ...]
    codec: str | None
    body: memoryview

    def decoded_bytes(self) -> int:
        """Bytes of all buffers once decompressed, as they declare. Raises `CorruptBatch` for a declaration that makes
        no sense."""
        if self.codec is None:
            return sum(size for _, size in self.buffers)
        total = 0
        for at, size in self.buffers:
            if size == 0:
                continue
            if size < _LENGTH.size:
                raise CorruptBatch("corrupt batch: a compressed buffer is too short to hold its length")
            declared: int = _LENGTH.unpack_from(self.body, at)[0]
            if declared == -1:  # this buffer is stored as it is
                declared = size - _LENGTH.size
            if declared < 0:
                raise CorruptBatch(f"corrupt batch: a compressed buffer declares {declared} bytes")
            total += declared
        return total


def node_count(payload: memoryview) -> int:
    """How many nodes a record batch message has: columns, nested ones counted. For one that was checked when it was
    stored: no more than that is looked at. Raises `CorruptBatch` if it has none to tell."""
    return _checked_before(payload).count(1)


def codec_of(payload: memoryview) -> str | None:
    """How its buffers are compressed: None, "lz4" or "zstd". Looks at no more than `node_count` does."""
    return _codec(_checked_before(payload))


def _checked_before(payload: memoryview) -> Table:
    if len(payload) < _PREFIX.size:
        raise CorruptBatch(f"corrupt batch: {len(payload)} bytes are no Arrow message")
    _, metadata_bytes = _PREFIX.unpack_from(payload)
    batch = Table.root(payload[_PREFIX.size : _PREFIX.size + metadata_bytes]).table(2)
    if batch is None:
        raise CorruptBatch("corrupt batch: the record batch is missing from its message")
    return batch


def read_record_batch_message(payload: memoryview) -> RecordBatchMessage:
    """Exactly one encapsulated record batch message, nothing before or behind it. Raises `CorruptBatch` saying what is
    wrong."""
    if len(payload) < _PREFIX.size:
        raise CorruptBatch(f"corrupt batch: {len(payload)} bytes are no Arrow message")
    marker, metadata_bytes = _PREFIX.unpack_from(payload)
    if marker != _CONTINUATION:
        raise CorruptBatch(
            "corrupt batch: an Arrow message begins with FF FF FF FF; send an encapsulated record batch message"
        )
    if not 0 < metadata_bytes <= len(payload) - _PREFIX.size:
        raise CorruptBatch(f"corrupt batch: metadata of {metadata_bytes} bytes does not fit {len(payload)} bytes")
    if metadata_bytes % 8:
        raise CorruptBatch("corrupt batch: metadata is not padded to 8 bytes")
    message = Table.root(payload[_PREFIX.size : _PREFIX.size + metadata_bytes])
    if message.u16(0, 0) != _METADATA_V5:
        raise CorruptBatch("corrupt batch: Arrow metadata version 5 is needed (Arrow 1.0 or later)")
    header = message.u8(1, 0)
    if header != _RECORD_BATCH:
        found = _HEADER_NAMES.get(header, f"header type {header}")
        raise CorruptBatch(
            f"corrupt batch: the message is {found}, not a record batch; send one batch, without schema or dictionaries"
        )
    body = payload[_PREFIX.size + metadata_bytes :]
    body_bytes = message.i64(3, 0)
    if body_bytes != len(body):
        raise CorruptBatch(f"corrupt batch: the body is {len(body)} bytes, the metadata says {body_bytes}")
    if message.count(4):  # Arrow copies all of it, and one value may be named a million times
        raise CorruptBatch("corrupt batch: the message has metadata of its own, which topics do not keep; leave it out")
    batch = message.table(2)
    if batch is None:
        raise CorruptBatch("corrupt batch: the record batch is missing from its message")
    if batch.count(4):
        raise CorruptBatch("corrupt batch: view types are not stored in topics; use string and binary")
    return RecordBatchMessage(
        record_count=batch.i64(0, 0),
        nodes=_checked_nodes(batch),
        buffers=_checked_buffers(batch, len(body)),
        codec=_codec(batch),
        body=body,
    )


def _checked_nodes(batch: Table) -> tuple[tuple[int, int], ...]:
    nodes = batch.pairs(1, _PAIRS_MAX)
    for length, null_count in nodes:
        if length < 0 or not 0 <= null_count <= length:
            raise CorruptBatch(f"corrupt batch: a column of {length} values claims {null_count} nulls")
    return nodes


def _checked_buffers(batch: Table, body_bytes: int) -> tuple[tuple[int, int], ...]:
    buffers = batch.pairs(2, _PAIRS_MAX)
    for at, size in buffers:
        if at < 0 or size < 0 or at + size > body_bytes:
            raise CorruptBatch(f"corrupt batch: a buffer of {size} bytes at {at} lies outside the body of {body_bytes}")
        if at % 8:
            raise CorruptBatch(f"corrupt batch: a buffer at {at} is not aligned to 8 bytes")
    return buffers


def _codec(batch: Table) -> str | None:
    compression = batch.table(3)
    if compression is None:
        return None
    codec, method = compression.u8(0, 0), compression.u8(1, 0)
    if codec not in _CODECS or method != 0:
        raise CorruptBatch(f"corrupt batch: compression codec {codec}, method {method} is not known; use lz4 or zstd")
    return _CODECS[codec]


_SCHEMA = 1
_TIMESTAMP, _UNION = 10, 14
_DEPTH_MAX = 2 * SCHEMA_DEPTH_MAX + 1  # a map has a struct of its entries between itself and its value

# Places of fields in the tables.
_MESSAGE_HEADER_TYPE, _MESSAGE_HEADER, _MESSAGE_METADATA = 1, 2, 4
_SCHEMA_FIELDS, _SCHEMA_METADATA = 1, 2
_FIELD_NAME, _FIELD_TYPE_KIND, _FIELD_TYPE, _FIELD_CHILDREN, _FIELD_METADATA = 0, 2, 3, 5, 6


def check_schema_message(data: memoryview) -> None:
    """Raises `CorruptBatch` unless it is one schema message, with at most `SCHEMA_FIELDS_MAX` fields and
    `REQUEST_BYTES_MAX` bytes of names and metadata in all."""
    if len(data) < _PREFIX.size:
        raise CorruptBatch(f"corrupt schema: {len(data)} bytes are no Arrow message")
    marker, metadata_bytes = _PREFIX.unpack_from(data)
    if marker != _CONTINUATION or not 0 < metadata_bytes <= len(data) - _PREFIX.size:
        raise CorruptBatch("corrupt schema: it is no encapsulated Arrow message; send what Schema.serialize() gives")
    message = Table.root(data[_PREFIX.size : _PREFIX.size + metadata_bytes])
    schema = message.table(_MESSAGE_HEADER)
    if schema is None or message.u8(_MESSAGE_HEADER_TYPE, 0) != _SCHEMA:
        raise CorruptBatch("corrupt schema: the message is no schema; send what Schema.serialize() gives")
    walk = _Walk()
    walk.metadata(message, _MESSAGE_METADATA)
    walk.metadata(schema, _SCHEMA_METADATA)
    for field in schema.tables(_SCHEMA_FIELDS):
        walk.field(field, 1)


class _Walk:
    """Owns the counts of one message: its fields, nested ones too, and bytes of text, each as often as it is pointed
    at."""

    def __init__(self) -> None:
        self._fields = 0
        self._bytes = 0

    def field(self, field: Table, depth: int) -> None:
        self._fields += 1
        if self._fields > SCHEMA_FIELDS_MAX:
            raise CorruptBatch(
                f"corrupt schema: it has more than {SCHEMA_FIELDS_MAX} fields, nested ones counted; make several topics"
            )
        if depth > _DEPTH_MAX:
            raise CorruptBatch(f"corrupt schema: types are nested deeper than {SCHEMA_DEPTH_MAX}; make it flatter")
        self._add(field.count(_FIELD_NAME))
        kind, described = field.u8(_FIELD_TYPE_KIND, 0), field.table(_FIELD_TYPE)
        if described is not None and kind in (_TIMESTAMP, _UNION):
            self._add(described.count(1))  # a time zone's text, or a union's list of types
        self.metadata(field, _FIELD_METADATA)
        for child in field.tables(_FIELD_CHILDREN):
            self.field(child, depth + 1)

    def metadata(self, table: Table, at: int) -> None:
        for pair in table.tables(at):
            self._add(_PAIR_BYTES + pair.count(0) + pair.count(1))

    def _add(self, count: int) -> None:
        self._bytes += count
        if self._bytes > REQUEST_BYTES_MAX:
            raise CorruptBatch(
                f"corrupt schema: its names and metadata have more than {REQUEST_BYTES_MAX} bytes; leave metadata out"
            )


_PAIR_BYTES = 64
"""About what a pair of texts takes beside them."""

_TABLE_BYTES_MIN = 4

_U16, _I32, _U32, _I64 = (struct.Struct(code) for code in ("<H", "<i", "<I", "<q"))
_PAIR = struct.Struct("<qq")


class Table:
    """A flatbuffer table within `data`, every position checked against the end. Field numbers are those of the schema
    file, in order, from 0."""

    def __init__(self, data: memoryview, at: int) -> None:
        self._data = data
        self._at = at
        self._vtable = at - self._read(_I32, at)
        self._vtable_bytes = self._read(_U16, self._vtable)
        self._table_bytes = self._read(_U16, self._vtable + 2)
        if self._vtable_bytes < _TABLE_BYTES_MIN or self._vtable_bytes % 2 or self._table_bytes < _TABLE_BYTES_MIN:
            raise CorruptBatch("corrupt batch: the metadata is no flatbuffer")
        if self._vtable + self._vtable_bytes > len(data) or at + self._table_bytes > len(data):
            raise CorruptBatch("corrupt batch: the metadata runs past its end")

    @classmethod
    def root(cls, data: memoryview) -> Table:
        if len(data) < _U32.size:
            raise CorruptBatch("corrupt batch: the metadata is too short")
        root: int = _U32.unpack_from(data)[0]
        return cls(data, root)

    def u8(self, field: int, default: int) -> int:
        at = self._place(field)
        if at is None:
            return default
        if at >= len(self._data):
            raise CorruptBatch("corrupt batch: the metadata runs past its end")
        return self._data[at]

    def u16(self, field: int, default: int) -> int:
        at = self._place(field)
        return default if at is None else self._read(_U16, at)

    def i64(self, field: int, default: int) -> int:
        at = self._place(field)
        return default if at is None else self._read(_I64, at)

    def table(self, field: int) -> Table | None:
        at = self._place(field)
        return None if at is None else Table(self._data, at + self._read(_U32, at))

    def pairs(self, field: int, most: int) -> tuple[tuple[int, int], ...]:
        """A vector of structs of two longs: FieldNode and Buffer both are."""
        at = self._place(field)
        if at is None:
            return ()
        at += self._read(_U32, at)
        count = self._read(_U32, at)
        if count > most:
            raise CorruptBatch(f"corrupt batch: it lists {count} columns or buffers, more than any topic's schema has")
        at += _U32.size
        if at + count * _PAIR.size > len(self._data):
            raise CorruptBatch("corrupt batch: the metadata runs past its end")
        return tuple(_PAIR.iter_unpack(self._data[at : at + count * _PAIR.size]))

    def tables(self, field: int) -> Iterator[Table]:
        """A vector of tables, one by one. Nothing keeps a stranger's vector from naming one table many times."""
        at = self._place(field)
        if at is None:
            return
        at += self._read(_U32, at)
        for place in range(at + _U32.size, at + _U32.size * (1 + self._read(_U32, at)), _U32.size):
            yield Table(self._data, place + self._read(_U32, place))

    def count(self, field: int) -> int:
        """How many elements a vector has, or how many bytes a text; 0 where there is none."""
        at = self._place(field)
        return 0 if at is None else self._read(_U32, at + self._read(_U32, at))

    def _place(self, field: int) -> int | None:
        entry = _TABLE_BYTES_MIN + 2 * field
        if entry >= self._vtable_bytes:
            return None
        offset = self._read(_U16, self._vtable + entry)
        if offset >= self._table_bytes:
            raise CorruptBatch("corrupt batch: the metadata points outside its table")
        return self._at + offset if offset else None

    def _read(self, form: struct.Struct, at: int) -> int:
        if at < 0 or at + form.size > len(self._data):
            raise CorruptBatch("corrupt batch: the metadata runs past its end")
        value: int = form.unpack_from(self._data, at)[0]
        return value
