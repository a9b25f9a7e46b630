"""From offsets to journal entries: one record of 56 bytes for each published batch.

The index is derived: the core says again at every start which batches are published, so it is never synced, never recovered, and a
file that is there already is emptied. Records are found by binary search over bytes; there is no Python object for each of them.
A small index lives in a `bytearray`; past 64 KiB one that was given a file moves into it, mapped, with its blocks allocated
beforehand (a mapped hole on a full disk would kill the process). If the disk has no room for it, it stays in memory: an index is no
reason to refuse a message.
"""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Final

from mq_broker.core.messages import Published
from mq_protocol.errors import OffsetOutOfRange

# base_offset, index, timestamp_us, newest_us, bytes_before, record_count, payload_bytes, decoded_bytes, unused
_RECORD: Final = struct.Struct("<QQqqQIIII")
_U64: Final = struct.Struct("<Q")
_I64: Final = struct.Struct("<q")
_NEWEST_AT: Final = 24
_SIZE: Final = _RECORD.size
_MEMORY_BYTES_MAX: Final = 64 << 10


class OffsetIndex:
    """Owns the records of one partition, in order of offset and without gaps.

    `path` is the file to move into when it grows; None keeps it in memory. `log_start_offset`: where the first record begins.
    """

    def __init__(self, path: Path | None = None, log_start_offset: int = 0) -> None:
        self.log_start_offset = log_start_offset
        self.log_end_offset = log_start_offset
        self.bytes_total = 0
        self._path = path
        self._data: bytearray | mmap.mmap = bytearray()
        self._count = 0
        self._newest_us = -(1 << 63)

    def __len__(self) -> int:
        """How many batches."""
        return self._count

    def append(self, published: Published) -> None:
        """The next batch; its offsets follow those of the one before."""
        assert published.base_offset == self.log_end_offset, f"offset {published.base_offset} after {self.log_end_offset}"
        assert published.record_count > 0, "a batch has records"
        self._newest_us = max(self._newest_us, published.timestamp_us)
        if (self._count + 1) * _SIZE > len(self._data):
            self._grow()
        _RECORD.pack_into(
            self._data,
            self._count * _SIZE,
            published.base_offset,
            published.index,
            published.timestamp_us,
            self._newest_us,
            self.bytes_total,
            published.record_count,
            published.payload_bytes,
            published.decoded_bytes,
            0,
        )
        self._count += 1
        self.bytes_total += published.payload_bytes
        self.log_end_offset += published.record_count

    def find(self, offset: int) -> Published:
        """The batch that holds `offset`. Raises `OffsetOutOfRange` outside `log_start_offset .. log_end_offset - 1`."""
        return self._record(self._position_of(offset))

    def range(self, start_offset: int, end_offset: int, bytes_max: int) -> list[Published]:
        """The batches that hold `start_offset .. end_offset - 1`, whole: the first one, then as many as fit `bytes_max` of payload.

        Empty if the range is. Raises `OffsetOutOfRange` if `start_offset` is not in the log.
        """
        if start_offset >= end_offset:
            return []
        records: list[Published] = []
        room = bytes_max
        for n in range(self._position_of(start_offset), self._count):
            record = self._record(n)
            if record.base_offset >= end_offset or (records and record.payload_bytes > room):
                break
            records.append(record)
            room -= record.payload_bytes
        return records

    def find_time(self, timestamp_us: int) -> int:
        """The first offset of a batch of `timestamp_us` or later; `log_end_offset` if all are older."""
        n = self._first(lambda n: bool(_I64.unpack_from(self._data, n * _SIZE + _NEWEST_AT)[0] >= timestamp_us))
        return self._base_offset(n) if n < self._count else self.log_end_offset

    def bytes_between(self, start_offset: int, end_offset: int) -> int:
        """Stored payload bytes of `start_offset .. end_offset - 1`; offsets outside the log count as its ends. A batch's bytes are
        shared out evenly among its records, so that neighbouring ranges add up."""
        return max(0, self._bytes_before(end_offset) - self._bytes_before(start_offset))

    def close(self) -> None:
        """Give the file back. The index is empty afterwards."""
        if isinstance(self._data, mmap.mmap):
            self._data.close()
        self._data = bytearray()
        self._count = 0
        self.log_end_offset = self.log_start_offset

    # -------------------------------------------------------------- searching

    def _position_of(self, offset: int) -> int:
        if not self.log_start_offset <= offset < self.log_end_offset:
            raise OffsetOutOfRange(
                f"offset {offset} is not within the log, {self.log_start_offset} to {self.log_end_offset - 1}: read there"
            )
        return self._first(lambda n: self._base_offset(n) > offset) - 1

    def _first(self, holds: Callable[[int], bool]) -> int:
        """The first record for which it holds, given that it then holds for all after it; the count if for none."""
        low, high = 0, self._count
        while low < high:
            middle = (low + high) // 2
            if holds(middle):
                high = middle
            else:
                low = middle + 1
        return low

    def _base_offset(self, n: int) -> int:
        return int(_U64.unpack_from(self._data, n * _SIZE)[0])

    def _record(self, n: int) -> Published:
        base_offset, index, timestamp_us, _, _, record_count, payload_bytes, decoded_bytes, _ = _RECORD.unpack_from(
            self._data, n * _SIZE
        )
        return Published(base_offset, record_count, index, timestamp_us, payload_bytes, decoded_bytes)

    def _bytes_before(self, offset: int) -> int:
        if offset >= self.log_end_offset:
            return self.bytes_total
        if offset <= self.log_start_offset:
            return 0
        n = self._position_of(offset)
        base_offset, _, _, _, before, record_count, payload_bytes, _, _ = _RECORD.unpack_from(self._data, n * _SIZE)
        return int(before + payload_bytes * (offset - base_offset) // record_count)

    # -------------------------------------------------------------- growing

    def _grow(self) -> None:
        size = max(4096, 2 * len(self._data))
        if self._path is not None and size > _MEMORY_BYTES_MAX:
            try:
                self._data = self._mapped(self._path, size)
                return
            except OSError:  # no room on that disk: in memory from here on
                self._path = None
        grown = bytearray(size)
        grown[: len(self._data)] = self._data
        if isinstance(self._data, mmap.mmap):
            self._data.close()
        self._data = grown

    def _mapped(self, path: Path, size: int) -> mmap.mmap:
        first_time = not isinstance(self._data, mmap.mmap)
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | (os.O_TRUNC if first_time else 0), 0o640)
        try:
            os.posix_fallocate(fd, 0, size)
            mapped = mmap.mmap(fd, size)
        finally:
            os.close(fd)
        if isinstance(self._data, mmap.mmap):
            self._data.close()
        else:
            mapped[: len(self._data)] = bytes(self._data)
        return mapped
