"""Bounds one Arrow IPC schema message from bytes that a stranger made, before Arrow makes fields of them.

A flatbuffer may point at one table or text any number of times, and Arrow makes a new object, or a copy, each time: a
kilobyte can become gigabytes. So everything is counted as often as it is pointed at. Layouts as in the Arrow format's
Schema.fbs.
"""

from __future__ import annotations

import struct

from mq_protocol.errors import CorruptBatch
from mq_protocol.flatbuffer import Table
from mq_protocol.limits import REQUEST_BYTES_MAX, SCHEMA_DEPTH_MAX, SCHEMA_FIELDS_MAX

_PREFIX = struct.Struct("<Ii")  # continuation marker, bytes of metadata
_CONTINUATION = 0xFFFFFFFF
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
