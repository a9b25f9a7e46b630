"""Metadata of Arrow messages that point at one thing many times: a kilobyte that becomes gigabytes as soon as Arrow
reads it."""

from __future__ import annotations

import struct
from collections.abc import Iterator

import pyarrow as pa
import pytest

from mq_protocol import limits
from mq_protocol.arrow import check_untrusted, encode_batch, schema_from_bytes, schema_to_bytes
from mq_protocol.errors import CorruptBatch

SCHEMA = pa.schema([("a", pa.int64())])
_PREFIX = struct.Struct("<Ii")
_HEAD = struct.Struct("<II HHHHHHH 2x iIqIhB1x")
_MESSAGE_TABLE = 24


def with_metadata(message: bytes, pairs: int, value_bytes: int) -> bytes:
    """The message, with so many entries of metadata that are all the same pair, written once."""
    metadata = message[_PREFIX.size :][: _PREFIX.unpack_from(message)[1]]
    body = message[_PREFIX.size + len(metadata) :]
    place = _fields(metadata, _u32(metadata, 0))
    header_at = place(2) + _u32(metadata, place(2))
    vector = _HEAD.size + len(metadata)
    head = _HEAD.pack(
        *(_MESSAGE_TABLE, 0),  # where the table is
        *(14, 24, 20, 22, 4, 8, 16),  # the table of its fields' places
        *(_MESSAGE_TABLE - 8, _HEAD.size + header_at - (_MESSAGE_TABLE + 4), len(body), vector - (_MESSAGE_TABLE + 16)),
        *(struct.unpack_from("<h", metadata, place(0))[0], metadata[place(1)]),
    )
    whole = head + metadata + _pairs(pairs, value_bytes)
    whole += bytes(-len(whole) % 8)
    return _PREFIX.pack(0xFFFFFFFF, len(whole)) + whole + body


def _pairs(count: int, value_bytes: int) -> bytes:
    """A vector that points `count` times at one pair of texts."""
    vector_bytes = 4 + 4 * count
    vector_bytes += -vector_bytes % 8
    offsets = struct.pack(f"<I{count}I", count, *(vector_bytes + 8 - (4 + 4 * n) for n in range(count)))
    pair = struct.pack("<HHHHiII4x I4s I", 8, 12, 4, 8, 8, 12, 16, 1, b"k", value_bytes) + b"v" * value_bytes
    return offsets + bytes(vector_bytes - len(offsets)) + pair + bytes(1)


def doubling(levels: int) -> bytes:
    """A schema of a struct in a struct …, in each of which both fields are one: two to the power of `levels` in all."""
    kind: pa.DataType = pa.int64()
    for _ in range(levels):
        kind = pa.struct([("x", kind), ("y", pa.int8())])
    message = bytearray(schema_to_bytes(pa.schema([("a", kind)])))
    metadata = memoryview(message)[_PREFIX.size :]
    schema = _fields(metadata, _u32(metadata, 0))(2)
    schema += _u32(metadata, schema)
    fields = _fields(metadata, schema)(1)
    field = next(_pointed_at(metadata, fields))
    for _ in range(levels):
        children = _fields(metadata, field)(5)
        field = next(_pointed_at(metadata, children))
        second = children + _u32(metadata, children) + 8
        struct.pack_into("<I", metadata, second, field - second)
    return bytes(message)


def _pointed_at(metadata: bytes | memoryview, place: int) -> Iterator[int]:
    vector = place + _u32(metadata, place)
    for at in range(vector + 4, vector + 4 + 4 * _u32(metadata, vector), 4):
        yield at + _u32(metadata, at)


def _fields(metadata: bytes | memoryview, table: int) -> Places:
    return Places(metadata, table)


class Places:
    """Where the fields of a table are."""

    def __init__(self, metadata: bytes | memoryview, table: int) -> None:
        self._metadata = metadata
        self._table = table
        self._places = table - struct.unpack_from("<i", metadata, table)[0]

    def __call__(self, field: int) -> int:
        return self._table + int(struct.unpack_from("<H", self._metadata, self._places + 4 + 2 * field)[0])


def _u32(metadata: bytes | memoryview, at: int) -> int:
    return int(struct.unpack_from("<I", metadata, at)[0])


def test_a_batch_whose_message_has_metadata_is_refused() -> None:
    batch = pa.record_batch([pa.array([1, 2, 3])], schema=SCHEMA)
    payload = with_metadata(bytes(encode_batch(batch)), pairs=100, value_bytes=100_000)
    read, metadata = pa.ipc.open_stream(schema_to_bytes(SCHEMA) + payload).read_next_batch_with_custom_metadata()
    assert read.equals(batch), "Arrow reads it"
    assert len(metadata) == 100, "and makes 10 MB of 100 kB"
    with pytest.raises(CorruptBatch, match="metadata of its own"):
        check_untrusted(memoryview(payload), SCHEMA, batch_bytes_max=1 << 20, record_count=3)


def test_a_schema_whose_message_names_one_text_many_times_is_refused() -> None:
    assert schema_from_bytes(with_metadata(schema_to_bytes(SCHEMA), pairs=2, value_bytes=1000)) == SCHEMA
    with pytest.raises(CorruptBatch, match=f"more than {limits.REQUEST_BYTES_MAX} bytes"):
        schema_from_bytes(with_metadata(schema_to_bytes(SCHEMA), pairs=100, value_bytes=100_000))


def test_a_schema_whose_fields_are_one_field_many_times_is_refused() -> None:
    kind = schema_from_bytes(doubling(levels=3)).field("a").type
    assert kind.field(1).type.field(1).type.num_fields == 2
    with pytest.raises(CorruptBatch, match=f"more than {limits.SCHEMA_FIELDS_MAX} fields"):
        schema_from_bytes(doubling(levels=16))
