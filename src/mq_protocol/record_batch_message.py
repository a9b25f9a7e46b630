"""Reads the metadata of one Arrow IPC record batch message from bytes that a stranger made, before anything else touches them.

A small flatbuffer reader of exactly the tables needed (Message, RecordBatch, FieldNode, Buffer, BodyCompression), every position
checked against the end. It decodes no values: `mq_protocol.arrow.check_untrusted` does, once this has bounded what decoding costs.
Layouts as in the Arrow format's Message.fbs and in "Encapsulated message format".
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from mq_protocol.errors import CorruptBatch
from mq_protocol.limits import SCHEMA_FIELDS_MAX

_PREFIX = struct.Struct("<Ii")  # continuation marker, bytes of metadata
_CONTINUATION = 0xFFFFFFFF
_METADATA_V5 = 4
_RECORD_BATCH = 3
_HEADER_NAMES = {1: "a schema", 2: "a dictionary batch", 4: "a tensor", 5: "a sparse tensor"}
_CODECS = {0: "lz4", 1: "zstd"}
_TABLE_BYTES_MIN = 4
_PAIRS_MAX = 6 * SCHEMA_FIELDS_MAX  # two nodes for a map, three buffers for each: sixteen bytes here are 120 of Python's

_U16, _I32, _U32, _I64 = (struct.Struct(code) for code in ("<H", "<i", "<I", "<q"))
_PAIR = struct.Struct("<qq")


@dataclass(frozen=True, slots=True)
class RecordBatchMessage:
    """What the metadata declares. `nodes`: (length, null count); `buffers`: (position in the body, bytes there)."""

    record_count: int
    nodes: tuple[tuple[int, int], ...]
    buffers: tuple[tuple[int, int], ...]
    codec: str | None
    body: memoryview

    def decoded_bytes(self) -> int:
        """Bytes of all buffers once decompressed, as they declare. Raises `CorruptBatch` for a declaration that makes no sense."""
        if self.codec is None:
            return sum(size for _, size in self.buffers)
        total = 0
        for at, size in self.buffers:
            if size == 0:
                continue
            if size < _I64.size:
                raise CorruptBatch("corrupt batch: a compressed buffer is too short to hold its length")
            declared: int = _I64.unpack_from(self.body, at)[0]
            if declared == -1:  # this buffer is stored as it is
                declared = size - _I64.size
            if declared < 0:
                raise CorruptBatch(f"corrupt batch: a compressed buffer declares {declared} bytes")
            total += declared
        return total


def node_count(payload: memoryview) -> int:
    """How many nodes a record batch message has: columns, nested ones counted. For one that was checked when it was stored: no more
    than that is looked at. Raises `CorruptBatch` if it has none to tell."""
    return _checked_before(payload).pairs_count(1)


def codec_of(payload: memoryview) -> str | None:
    """How its buffers are compressed: None, "lz4" or "zstd". Looks at no more than `node_count` does."""
    return _codec(_checked_before(payload))


def _checked_before(payload: memoryview) -> _Table:
    if len(payload) < _PREFIX.size:
        raise CorruptBatch(f"corrupt batch: {len(payload)} bytes are no Arrow message")
    _, metadata_bytes = _PREFIX.unpack_from(payload)
    batch = _Table.root(payload[_PREFIX.size : _PREFIX.size + metadata_bytes]).table(2)
    if batch is None:
        raise CorruptBatch("corrupt batch: the record batch is missing from its message")
    return batch


def read_record_batch_message(payload: memoryview) -> RecordBatchMessage:
    """Exactly one encapsulated record batch message, nothing before or behind it. Raises `CorruptBatch` saying what is wrong."""
    if len(payload) < _PREFIX.size:
        raise CorruptBatch(f"corrupt batch: {len(payload)} bytes are no Arrow message")
    marker, metadata_bytes = _PREFIX.unpack_from(payload)
    if marker != _CONTINUATION:
        raise CorruptBatch("corrupt batch: an Arrow message begins with FF FF FF FF; send an encapsulated record batch message")
    if not 0 < metadata_bytes <= len(payload) - _PREFIX.size:
        raise CorruptBatch(f"corrupt batch: metadata of {metadata_bytes} bytes does not fit {len(payload)} bytes")
    if metadata_bytes % 8:
        raise CorruptBatch("corrupt batch: metadata is not padded to 8 bytes")
    message = _Table.root(payload[_PREFIX.size : _PREFIX.size + metadata_bytes])
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
    batch = message.table(2)
    if batch is None:
        raise CorruptBatch("corrupt batch: the record batch is missing from its message")
    if batch.has(4) and batch.pairs_count(4):
        raise CorruptBatch("corrupt batch: view types are not stored in topics; use string and binary")
    return RecordBatchMessage(
        record_count=batch.i64(0, 0),
        nodes=_checked_nodes(batch),
        buffers=_checked_buffers(batch, len(body)),
        codec=_codec(batch),
        body=body,
    )


def _checked_nodes(batch: _Table) -> tuple[tuple[int, int], ...]:
    nodes = batch.pairs(1)
    for length, null_count in nodes:
        if length < 0 or not 0 <= null_count <= length:
            raise CorruptBatch(f"corrupt batch: a column of {length} values claims {null_count} nulls")
    return nodes


def _checked_buffers(batch: _Table, body_bytes: int) -> tuple[tuple[int, int], ...]:
    buffers = batch.pairs(2)
    for at, size in buffers:
        if at < 0 or size < 0 or at + size > body_bytes:
            raise CorruptBatch(f"corrupt batch: a buffer of {size} bytes at {at} lies outside the body of {body_bytes}")
        if at % 8:
            raise CorruptBatch(f"corrupt batch: a buffer at {at} is not aligned to 8 bytes")
    return buffers


def _codec(batch: _Table) -> str | None:
    compression = batch.table(3)
    if compression is None:
        return None
    codec, method = compression.u8(0, 0), compression.u8(1, 0)
    if codec not in _CODECS or method != 0:
        raise CorruptBatch(f"corrupt batch: compression codec {codec}, method {method} is not known; use lz4 or zstd")
    return _CODECS[codec]


class _Table:
    """A flatbuffer table within `data`. Field numbers are those of the schema file, in order, from 0."""

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
    def root(cls, data: memoryview) -> _Table:
        if len(data) < _U32.size:
            raise CorruptBatch("corrupt batch: the metadata is too short")
        root: int = _U32.unpack_from(data)[0]
        return cls(data, root)

    def has(self, field: int) -> bool:
        return self._place(field) is not None

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

    def table(self, field: int) -> _Table | None:
        at = self._place(field)
        return None if at is None else _Table(self._data, at + self._read(_U32, at))

    def pairs(self, field: int) -> tuple[tuple[int, int], ...]:
        """A vector of structs of two longs: FieldNode and Buffer both are."""
        at = self._place(field)
        if at is None:
            return ()
        at += self._read(_U32, at)
        count = self._read(_U32, at)
        if count > _PAIRS_MAX:
            raise CorruptBatch(f"corrupt batch: it lists {count} columns or buffers, more than any topic's schema has")
        at += _U32.size
        if at + count * _PAIR.size > len(self._data):
            raise CorruptBatch("corrupt batch: the metadata runs past its end")
        return tuple(_PAIR.iter_unpack(self._data[at : at + count * _PAIR.size]))

    def pairs_count(self, field: int) -> int:
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
