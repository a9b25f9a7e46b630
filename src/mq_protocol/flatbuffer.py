"""Reads flatbuffers that a stranger made: the tables that Arrow's metadata consists of, every position checked against
the end.

That all positions lie within the bytes says nothing about what the whole becomes: tables and texts may be pointed at
any number of times. Who walks over them must count (schema_message.py).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from mq_protocol.errors import CorruptBatch

_TABLE_BYTES_MIN = 4

_U16, _I32, _U32, _I64 = (struct.Struct(code) for code in ("<H", "<i", "<I", "<q"))
_PAIR = struct.Struct("<qq")


class Table:
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
