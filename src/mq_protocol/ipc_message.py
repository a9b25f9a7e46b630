"""Reads the metadata of one Arrow IPC record batch message from bytes that a stranger made, before anything else
touches them.

Exactly the tables needed (Message, RecordBatch, FieldNode, Buffer, BodyCompression). It decodes no values:
`mq_protocol.arrow.check_untrusted` does, once this has bounded what decoding costs.
Layouts as in the Arrow format's Message.fbs and in "Encapsulated message format".
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from mq_protocol.errors import CorruptBatch
from mq_protocol.flatbuffer import Table
from mq_protocol.limits import SCHEMA_FIELDS_MAX

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
