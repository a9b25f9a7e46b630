"""From offsets to journal entries: one record of 64 bytes for each published batch.

The index is derived: the core says again at every start which batches are published, so it is never synced, never
recovered, and a file that is there already is emptied. What a checkpoint has of it (`FrozenIndex`) it goes on from.
Records are found by binary search over bytes; there is no Python object for each of them. A small index lives in a
`bytearray`; past 64 KiB one that was given a file moves into it, mapped, with its blocks allocated beforehand (a mapped
hole on a full disk would kill the process). If the disk has no room for it, it stays in memory: an index is no reason
to refuse a message.

The log's start moves up by retention: records below it are dead, and go once they are more than half. Offsets may be
lost, too, by a recovery (rule 15): such a gap is remembered as two numbers.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import struct
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

from mq_broker.core.entries import PRIORITY_USUAL
from mq_broker.core.messages import Published
from mq_protocol.errors import OffsetOutOfRange

# base_offset, index, timestamp_us, newest_us, bytes_before, record_count, payload_bytes, decoded_bytes, priority,
# expires_us
_RECORD: Final = struct.Struct("=QQqqQIIIIq")
_U64: Final = struct.Struct("=Q")
_I64: Final = struct.Struct("=q")
_U32: Final = struct.Struct("=I")
_NEWEST_AT: Final = 24
_BYTES_BEFORE_AT: Final = 32
_RECORD_COUNT_AT: Final = 40
_SIZE: Final = _RECORD.size
_WORDS: Final = _SIZE // 8
_INDEX_WORD: Final = 1
_FIRST_BYTES: Final = 4096
_MEMORY_BYTES_MAX: Final = 64 << 10


class FrozenIndex(NamedTuple):
    """An index as it was at one moment. `records`: those that are not dead, as they are in memory."""

    log_start_offset: int
    log_end_offset: int
    bytes_appended: int
    newest_us: int
    gaps: tuple[tuple[int, int], ...]
    has_priorities: bool
    has_expiries: bool
    records: bytes


class OffsetIndex:
    """Owns the records of one partition, in order of offset.

    `path` is the file to move into when it grows; None keeps it in memory. `log_start_offset` and `next_offset` are
    those of the snapshot that the journal begins with: nothing below either is in the journal, so the log starts at the
    higher one (rule 13).

    `has_priorities`: whether a batch was appended that has another priority than the usual one. `has_expiries`: whether
    one was that expires by itself.

    - records `_first` to `_count - 1` hold offsets at or above `log_start_offset`; those before are dead;
    - between neighbouring records there are no offsets but those of `_gaps`, each (first, next), ascending.
    """

    def __init__(self, path: Path | None = None, log_start_offset: int = 0, next_offset: int = 0) -> None:
        self.log_start_offset = max(log_start_offset, next_offset)
        self.log_end_offset = self.log_start_offset
        self._path = path
        self._data: bytearray | mmap.mmap = bytearray()
        self._first = 0
        self._count = 0
        self._gaps: list[tuple[int, int]] = []
        self._bytes_appended = 0
        self._newest_us = -(1 << 63)
        self._moves = 0
        self.has_priorities = False
        self.has_expiries = False

    @classmethod
    def thawed(cls, frozen: FrozenIndex, path: Path | None = None) -> OffsetIndex:
        """One that goes on from there."""
        index = cls(path, frozen.log_start_offset)
        index.log_end_offset = frozen.log_end_offset
        index._bytes_appended = frozen.bytes_appended
        index._newest_us = frozen.newest_us
        index._gaps = list(frozen.gaps)
        index.has_priorities, index.has_expiries = frozen.has_priorities, frozen.has_expiries
        used, size = len(frozen.records), _FIRST_BYTES
        while size < used:
            size *= 2
        if used:
            index._resize(size)
            index._data[:used] = frozen.records
            index._count = used // _SIZE
        return index

    def __len__(self) -> int:
        """How many batches."""
        return self._count - self._first

    @property
    def bytes_total(self) -> int:
        """Stored payload bytes of `log_start_offset .. log_end_offset - 1`."""
        return self._bytes_appended - self._bytes_before(self.log_start_offset)

    def append(self, published: Published) -> None:
        """The next batch; its offsets follow those of the one before.

        A replay after a snapshot publishes staged batches anew that retention has passed: below `log_start_offset` they
        are passed over here too.
        """
        end_offset = published.base_offset + published.record_count
        assert published.record_count > 0, "a batch has records"
        if end_offset <= self.log_start_offset and not len(self):
            self.log_end_offset = max(self.log_end_offset, end_offset)
            return
        assert published.base_offset == self.log_end_offset or not len(self), (
            f"offset {published.base_offset} after {self.log_end_offset}"
        )
        self.has_priorities = self.has_priorities or published.priority != PRIORITY_USUAL
        self.has_expiries = self.has_expiries or published.expires_us != 0
        self._newest_us = max(self._newest_us, published.timestamp_us)
        if (self._count + 1) * _SIZE > len(self._data):
            self._resize(max(_FIRST_BYTES, 2 * len(self._data)))
        _RECORD.pack_into(
            self._data,
            self._count * _SIZE,
            published.base_offset,
            published.index,
            published.timestamp_us,
            self._newest_us,
            self._bytes_appended,
            published.record_count,
            published.payload_bytes,
            published.decoded_bytes,
            published.priority,
            published.expires_us,
        )
        self._count += 1
        self._bytes_appended += published.payload_bytes
        self.log_end_offset = end_offset

    def skip(self, first: int, next_offset: int) -> None:
        """Offsets `first .. next_offset - 1` are lost: nobody is given them again, and who asks for them is told (rule
        15)."""
        if next_offset <= self.log_end_offset:
            return
        assert first == self.log_end_offset, f"offset {first} after {self.log_end_offset}"
        self._gaps.append((first, next_offset))
        self.log_end_offset = next_offset

    def trim(self, log_start_offset: int) -> None:
        """Retention: offsets below are not to be read any more. Never goes back; at or below the log's end."""
        if log_start_offset <= self.log_start_offset:
            return
        assert log_start_offset <= self.log_end_offset, f"trim to {log_start_offset}, the end is {self.log_end_offset}"
        self.log_start_offset = log_start_offset
        self._gaps = [gap for gap in self._gaps if gap[1] > log_start_offset]
        self._first = self._first_from(log_start_offset)
        if 2 * self._first > self._count:
            self._drop_dead()

    def find(self, offset: int) -> Published:
        """The batch that holds `offset`. Raises `OffsetOutOfRange`, which says where to go on, outside
        `log_start_offset .. log_end_offset - 1` and for offsets that are lost."""
        return self._record(self._position_of(offset))

    def kept_from(self, offset: int) -> int:
        """The first offset at or above `offset` that is neither dropped nor lost; the log's end, or beyond, if there is
        none."""
        offset = max(offset, self.log_start_offset)
        for first, next_offset in self._gaps:
            if first <= offset < next_offset:
                offset = next_offset
        return offset

    def lost_from(self, offset: int) -> tuple[tuple[int, int], ...]:
        """The offsets at or above `offset` that no record has: lost ones, each (first, next), ascending. Where the log
        begins with such, the entry that says so may be gone: its first record says it."""
        gaps = list(self._gaps)
        first = self._base_offset(self._first) if len(self) else self.log_end_offset
        if first > self.log_start_offset and (not gaps or gaps[0][0] > self.log_start_offset):
            gaps.insert(0, (self.log_start_offset, first))
        return tuple((max(low, offset), high) for low, high in gaps if high > offset)

    def range(self, start_offset: int, end_offset: int, bytes_max: int, most: int = sys.maxsize) -> list[Published]:
        """The batches that hold `start_offset .. end_offset - 1`, whole: the first one, then as many as fit `bytes_max`
        of payload, at most `most` in all.

        Ends before lost offsets. Empty if the range is. Raises `OffsetOutOfRange` as `find` does for `start_offset`.
        """
        if start_offset >= end_offset:
            return []
        records: list[Published] = []
        room = bytes_max
        next_offset = -1
        for n in range(self._position_of(start_offset), self._count):
            record = self._record(n)
            if record.base_offset >= end_offset or (
                records and (record.payload_bytes > room or record.base_offset != next_offset)
            ):
                break
            records.append(record)
            if len(records) == most:
                break
            room -= record.payload_bytes
            next_offset = record.base_offset + record.record_count
        return records

    def levels(self, start_offset: int, most: int) -> list[tuple[int, int, int]]:
        """Of the batches that hold offsets at or above `start_offset`, the first ones, at most `most`: where each
        begins and ends, and its priority."""
        first = self._first_from(start_offset)
        end = min(first + most, self._count)
        with memoryview(self._data) as data, data[first * _SIZE : end * _SIZE] as records:
            return [(each[0], each[0] + each[5], each[8]) for each in _RECORD.iter_unpack(records)]

    def expiries(self, start_offset: int, most: int) -> list[tuple[int, int, int]]:
        """Of the batches that hold offsets at or above `start_offset`, the first ones, at most `most`: where each
        begins and ends, and when it expires by itself, in microseconds since 1970; 0 for never."""
        first = self._first_from(start_offset)
        end = min(first + most, self._count)
        with memoryview(self._data) as data, data[first * _SIZE : end * _SIZE] as records:
            return [(each[0], each[0] + each[5], each[9]) for each in _RECORD.iter_unpack(records)]

    def find_time(self, timestamp_us: int) -> int:
        """The first offset of a batch of `timestamp_us` or later; `log_end_offset` if all are older."""
        return self._start_of(self._search(lambda n: self._newest(n) >= timestamp_us))

    def newest_us(self, offset: int) -> int | None:
        """The time by which `find_time` goes, of the first batch that holds offsets at or above `offset`; None if there
        is none."""
        n = self._first_from(offset)
        return self._newest(n) if n < self._count else None

    def next_bytes(self, offset: int) -> int:
        """Of the first batch that holds offsets at or above `offset`: its payload's bytes; 0 if there is none."""
        n = self._first_from(offset)
        return self._record(n).payload_bytes if n < self._count else 0

    def oldest_index(self, from_offset: int) -> int | None:
        """The lowest journal entry that holds offsets at or above `from_offset`; None if there are none. Published
        batches were staged earlier than others with lower offsets, so this looks at every record: 30 ms a million."""
        first = self._first_from(from_offset)
        if first == self._count:
            return None
        column = slice(first * _WORDS + _INDEX_WORD, self._count * _WORDS, _WORDS)
        with memoryview(self._data) as data, data.cast("Q") as words, words[column] as indexes:
            return min(indexes)

    def retention_offset(self, older_than_us: int, bytes_max: int) -> int:
        """The `log_start_offset` that retention allows, by whole batches.

        By time, batches older than `older_than_us` may go, all of them if all are. By size, batches may go for as long
        as `bytes_max` remain, so that one that is larger than that stays; below 0 is no limit.
        """
        by_time = self.find_time(older_than_us)
        if bytes_max < 0 or not len(self):
            return by_time
        over = self._search(lambda n: self._before(n) > self._bytes_appended - bytes_max)
        by_size = self._start_of(over - 1) if over > self._first else self.log_start_offset
        return max(by_time, by_size)

    def batch_start(self, offset: int) -> int:
        """Where the batch that has this offset begins; the offset itself where none has it; beyond the log its end."""
        start = self._start_of(self._first_from(offset))
        return start if self.log_start_offset <= start < offset else offset

    def bytes_between(self, start_offset: int, end_offset: int) -> int:
        """Stored payload bytes of `start_offset .. end_offset - 1`; offsets outside the log count as its ends. A
        batch's bytes are shared out evenly among its records, so that neighbouring ranges add up."""
        start_offset = max(start_offset, self.log_start_offset)
        return max(0, self._bytes_before(end_offset) - self._bytes_before(start_offset))

    def freezing(self, bytes_at_once: int = sys.maxsize) -> Iterator[FrozenIndex | None]:
        """The index as it is now, last of all; before that None after so many bytes of records, so that whoever copies
        a large one lets others run in between. Ends without it if records were moved meanwhile."""
        frozen = FrozenIndex(
            self.log_start_offset,
            self.log_end_offset,
            self._bytes_appended,
            self._newest_us,
            tuple(self._gaps),
            self.has_priorities,
            self.has_expiries,
            b"",
        )
        moves, at, end = self._moves, self._first * _SIZE, self._count * _SIZE
        pieces: list[bytes] = []
        while at < end:
            if moves != self._moves:
                return
            piece = min(bytes_at_once, end - at)
            pieces.append(bytes(self._data[at : at + piece]))
            at += piece
            if at < end:
                yield None
        yield frozen._replace(records=b"".join(pieces))

    def close(self) -> None:
        """Give the file back. The index is empty afterwards."""
        self._moves += 1
        if isinstance(self._data, mmap.mmap):
            self._data.close()
        self._data = bytearray()
        self._first = self._count = 0
        self._gaps = []
        self._bytes_appended = 0
        self.log_end_offset = self.log_start_offset

    # -------------------------------------------------------------- searching

    def _position_of(self, offset: int) -> int:
        if not self.log_start_offset <= offset < self.log_end_offset:
            kept = f"{self.log_start_offset} to {self.log_end_offset - 1}" if len(self) else "which holds none"
            raise OffsetOutOfRange(
                f"offset {offset} is not within the log, {kept}; it starts at {self.log_start_offset}: read there",
                self.log_start_offset if offset < self.log_start_offset else -1,
            )
        for first, next_offset in self._gaps:
            if first <= offset < next_offset:
                raise OffsetOutOfRange(
                    f"offsets {first} to {next_offset - 1} were lost when the partition was recovered: go on at "
                    f"{next_offset}",
                    next_offset,
                )
        return self._first_from(offset)

    def _first_from(self, offset: int) -> int:
        """The first record that holds offsets at or above `offset`."""
        return self._search(lambda n: self._base_offset(n) + self._record_count(n) > offset)

    def _search(self, holds: Callable[[int], bool]) -> int:
        """The first record for which it holds, given that it then holds for all after it; the count if for none."""
        low, high = self._first, self._count
        while low < high:
            middle = (low + high) // 2
            if holds(middle):
                high = middle
            else:
                low = middle + 1
        return low

    def _start_of(self, n: int) -> int:
        """Where reading from record n on begins."""
        return max(self._base_offset(n), self.log_start_offset) if n < self._count else self.log_end_offset

    def _base_offset(self, n: int) -> int:
        return int(_U64.unpack_from(self._data, n * _SIZE)[0])

    def _newest(self, n: int) -> int:
        return int(_I64.unpack_from(self._data, n * _SIZE + _NEWEST_AT)[0])

    def _before(self, n: int) -> int:
        return int(_U64.unpack_from(self._data, n * _SIZE + _BYTES_BEFORE_AT)[0])

    def _record_count(self, n: int) -> int:
        return int(_U32.unpack_from(self._data, n * _SIZE + _RECORD_COUNT_AT)[0])

    def _record(self, n: int) -> Published:
        base_offset, index, timestamp_us, _, _, record_count, payload_bytes, decoded_bytes, priority, expires = (
            _RECORD.unpack_from(self._data, n * _SIZE)
        )
        return Published(
            base_offset, record_count, index, timestamp_us, payload_bytes, decoded_bytes, priority, expires
        )

    def _bytes_before(self, offset: int) -> int:
        """Of all batches ever appended, the bytes below `offset`; exact within the log."""
        n = self._first_from(offset)
        if n == self._count:
            return self._bytes_appended
        record = self._record(n)
        within = max(0, offset - record.base_offset)
        return self._before(n) + record.payload_bytes * within // record.record_count

    # -------------------------------------------------------------- growing, shrinking

    def _drop_dead(self) -> None:
        live = len(self)
        start, end = self._first * _SIZE, self._count * _SIZE
        self._moves += 1
        self._data[: end - start] = self._data[start:end]
        self._first, self._count = 0, live
        size = len(self._data)
        while size > _FIRST_BYTES and size >= 4 * live * _SIZE:
            size //= 2
        if size < len(self._data):
            self._resize(size)

    def _resize(self, size: int) -> None:
        used = self._count * _SIZE
        if self._path is not None and size > _MEMORY_BYTES_MAX:
            try:
                self._data = self._mapped(self._path, size, used)
                return
            except OSError:  # no room on that disk: in memory from here on
                self._path = None
        resized = bytearray(size)
        resized[:used] = self._data[:used]
        if isinstance(self._data, mmap.mmap):
            self._data.close()
        self._data = resized

    def _mapped(self, path: Path, size: int, used: int) -> mmap.mmap:
        first_time = not isinstance(self._data, mmap.mmap)
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | (os.O_TRUNC if first_time else 0), 0o640)
        try:
            os.posix_fallocate(fd, 0, size)
            mapped = mmap.mmap(fd, size)
            if isinstance(self._data, mmap.mmap):
                self._data.close()
                with contextlib.suppress(OSError):  # the file then stays larger than it need be
                    os.ftruncate(fd, size)
            else:
                mapped[:used] = bytes(self._data[:used])
        finally:
            os.close(fd)
        return mapped
