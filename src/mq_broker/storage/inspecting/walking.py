"""A partition's segments from the first byte to the last: every frame whose checksum holds, and every stretch of bytes
that is none. Nothing ends the walk early: behind bad bytes it goes on at the next good frame.

At most a frame and a window are in memory. A frame that claims to be larger than any that brokers exchange is not read.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, TypeAlias

from mq_broker.core.entries import Entry
from mq_broker.storage.codec.frame import HEADER_BYTES, MAGIC_POSITION, NewerFrame, Place, decode, unpack_header
from mq_broker.storage.inspecting.directory import Segment
from mq_broker.storage.inspecting.reading import opened, read_exactly
from mq_broker.storage.keyring import Keyring
from mq_broker.storage.sealed import (
    BLOCK_BYTES,
    OVERHEAD_BYTES,
    SLOT_BYTES,
    DataKey,
    Slot,
    read_block,
    slots_of,
    walk_unit,
)
from mq_broker.storage.sealed import FORMAT as SEALED_FORMAT
from mq_protocol.errors import CorruptBatch, StorageFailed
from mq_protocol.limits import BATCH_BYTES_CEILING, MANIFEST_BYTES_MAX

FRAME_BYTES_MAX: Final = HEADER_BYTES + BATCH_BYTES_CEILING + 2 * MANIFEST_BYTES_MAX + OVERHEAD_BYTES
"""The largest payload and the largest meta: 16 bytes for each of a million records, or a decision; sealed."""

_WINDOW_BYTES: Final = 4 << 20
_MAGIC: Final = re.compile(rb"T[\x01-\xff]", re.DOTALL)

_SEARCHED_TIMES_MAX: Final = 8
"""How often the bytes of a segment may be read again in search of a good frame: bytes that an enemy chose could make
each of them begin one."""


@dataclass(frozen=True, slots=True)
class Frame:
    """A frame that is whole and in its place: bytes `position .. end - 1` of the segment that begins with entry
    `segment`."""

    entry: Entry
    segment: int
    position: int
    end: int


@dataclass(frozen=True, slots=True)
class Sealed:
    """A sealed entry whose checksum holds, at bytes `position .. end - 1` of the segment that begins with entry
    `segment`. There is no key to look into it; `key_id` names the one that would do."""

    index: int
    segment: int
    position: int
    end: int
    key_id: str


@dataclass(frozen=True, slots=True)
class Bad:
    """Bytes `position .. end - 1`, where entry `next_index` belongs, are not that entry.

    `following`: the entry of the good frame behind them, 0 if there is none in this segment. `whole`: they are a frame,
    out of order. `unreadable`: the disk does not give them. `newer`: a newer version wrote them, and they are all
    right. `incomplete`: what is behind them was not searched to its end. `spare`: one of two copies of a sealed
    segment's key, of which the other one is good.
    """

    segment: int
    position: int
    end: int
    next_index: int
    reason: str
    following: int = 0
    whole: bool = False
    unreadable: bool = False
    newer: bool = False
    incomplete: bool = False
    spare: bool = False


Piece: TypeAlias = Frame | Sealed | Bad


def walk(segment: Segment, place: Place, epoch: int = 0, keys: Keyring | None = None) -> Iterator[Piece]:
    """What a segment consists of, in order, without a gap but the block of a sealed one. `epoch`: that of the entry
    before it. Without `keys` there is no `Frame` in a sealed segment, but `Sealed`. Raises `StorageFailed` if the file
    cannot be opened, `SealedAway` if the keys do not open it, and where an entry was altered."""
    try:
        with opened(segment.path) as fd:
            slot = _slot(fd, place)
            key = None if slot is None or keys is None else keys.open(place, slot)
            size = os.fstat(fd).st_size
            yield from _Walk(fd, size, segment.first_index, place, epoch, slot, key).pieces()
    except OSError as error:
        raise StorageFailed(f"{segment.path} cannot be read ({error}): check that disk and its rights") from error


def sealed_with(segment: Segment, place: Place) -> Slot | None:
    """What the segment is sealed with; None for a plain one. Raises `StorageFailed`."""
    try:
        with opened(segment.path) as fd:
            return _slot(fd, place)
    except OSError as error:
        raise StorageFailed(f"{segment.path} cannot be read ({error}): check that disk and its rights") from error


def _slot(fd: int, place: Place) -> Slot | None:
    try:
        return read_block(place, memoryview(read_exactly(fd, BLOCK_BYTES, 0)))
    except NewerFrame:
        return None  # the walk says so
    except OSError as error:
        if error.errno != errno.EIO:
            raise
        return None


class _Walk:
    """Owns where a walk through one segment is: the next byte, the next index, the window that is read."""

    def __init__(
        self, fd: int, size: int, first: int, place: Place, epoch: int, slot: Slot | None, key: DataKey | None
    ) -> None:
        self._fd = fd
        self._size = size
        self._segment = first
        self._place = place
        self._index = first
        self._epoch = epoch
        self._slot = slot
        self._key = key
        self._start = 0
        self._window = memoryview(b"")
        self._searchable = _SEARCHED_TIMES_MAX * size + _WINDOW_BYTES

    def pieces(self) -> Iterator[Piece]:
        at = 0
        if self._slot is not None:
            for position, slot in slots_of(self._place, self._at(0, BLOCK_BYTES)):
                if slot is None:
                    reason = "one of the two copies of its key is damaged"
                    yield Bad(self._segment, position, position + SLOT_BYTES, self._index, reason, spare=True)
            at = BLOCK_BYTES
        while at < self._size:
            piece = self._piece(at)
            if isinstance(piece, Frame):
                self._index, self._epoch = piece.entry.index + 1, piece.entry.leader_epoch
            elif isinstance(piece, Sealed):
                self._index = piece.index + 1
            elif piece.following:
                self._index = piece.following
            yield piece
            at = piece.end

    def _piece(self, at: int) -> Piece:
        try:
            found = self._decoded(at)
            if isinstance(found, Sealed):
                return self._in_order(found)
            entry, end = found
        except NewerFrame as error:
            header = unpack_header(self._at(at, HEADER_BYTES), 0)
            newer = Bad(self._segment, at, at + header.frame_bytes, self._index, str(error), newer=True)
            self._index = max(self._index, header.entry_index + 1)
            return newer
        except CorruptBatch as error:
            return self._searched(at, str(error))
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            reason = f"the disk cannot read it ({error.strerror})"
            return Bad(self._segment, at, self._size, self._index, reason, unreadable=True)
        wrong = ""
        if entry.index != self._index:
            wrong = f"entry {entry.index} lies where {self._index} belongs"
        elif entry.leader_epoch < self._epoch:
            wrong = f"entry {entry.index} is of epoch {entry.leader_epoch}, after one of {self._epoch}"
        if wrong:
            disordered = Bad(self._segment, at, end, self._index, wrong, whole=True)
            self._index = max(entry.index + 1, self._index)
            return disordered
        return Frame(entry, self._segment, at, end)

    def _in_order(self, found: Sealed) -> Sealed | Bad:
        if found.index == self._index:
            return found
        reason = f"entry {found.index} lies where {self._index} belongs"
        disordered = Bad(self._segment, found.position, found.end, self._index, reason, whole=True)
        self._index = max(found.index + 1, self._index)
        return disordered

    def _decoded(self, at: int) -> tuple[Entry, int] | Sealed:
        """The entry of the frame that begins at `at`, and where it ends. Raises `CorruptBatch`, `Altered` and
        `OSError`."""
        header = unpack_header(self._at(at, HEADER_BYTES), 0)
        if header.frame_bytes > self._size - at:
            raise CorruptBatch(f"a frame of {header.frame_bytes} bytes is cut off after {self._size - at}")
        if header.frame_bytes > FRAME_BYTES_MAX:
            raise CorruptBatch(f"a frame claims {header.frame_bytes} bytes, and brokers write up to {FRAME_BYTES_MAX}")
        data = self._at(at, header.frame_bytes)
        if self._slot is None or header.format > SEALED_FORMAT:
            entry, _, taken = decode(self._place, data, 0)
            return entry, at + taken
        if self._key is not None:
            frame, taken = self._key.open(self._segment, data)
            return frame.entry, at + taken
        index, taken = walk_unit(self._place, data)
        return Sealed(index, self._segment, at, at + taken, self._slot.key_id)

    def _at(self, at: int, size: int) -> memoryview:
        """`size` bytes from `at` on; fewer at the end of the file."""
        if not self._start <= at or at + size > self._start + len(self._window):
            self._window = memoryview(b"")  # let go before more is read
            self._start, self._window = at, memoryview(read_exactly(self._fd, max(size, _WINDOW_BYTES), at))
        return self._window[at - self._start : at - self._start + size]

    def _searched(self, at: int, reason: str) -> Bad:
        """Up to the next good frame of an entry from here on, or to the end."""
        position = at + MAGIC_POSITION + 1
        while position < self._size:
            try:
                chunk = read_exactly(self._fd, _WINDOW_BYTES, position)
            except OSError as error:
                if error.errno != errno.EIO:
                    raise
                return Bad(self._segment, at, self._size, self._index, f"{reason}; the disk cannot read what follows")
            if not chunk:  # the file has become shorter meanwhile
                break
            for found in _MAGIC.finditer(chunk):
                entry = self._good(position + found.start() - MAGIC_POSITION)
                if entry:
                    end = position + found.start() - MAGIC_POSITION
                    return Bad(self._segment, at, end, self._index, reason, entry)
                if self._searchable <= 0:
                    return Bad(self._segment, at, self._size, self._index, reason, incomplete=True)
            position += max(1, len(chunk) - 1)
            self._searchable -= len(chunk)
        return Bad(self._segment, at, self._size, self._index, reason)

    def _good(self, at: int) -> int:
        """The index of the good frame that begins at `at`; 0 if none does."""
        try:
            head = memoryview(read_exactly(self._fd, HEADER_BYTES, at)) if at >= 0 else memoryview(b"")
            header = unpack_header(head, 0)
            likely = self._index <= header.entry_index <= self._index + self._size // HEADER_BYTES
            if not likely or header.frame_bytes > min(self._size - at, FRAME_BYTES_MAX):
                return 0
            self._searchable -= header.frame_bytes
            decode(self._place, memoryview(read_exactly(self._fd, header.frame_bytes, at)), 0)
        except NewerFrame:
            return header.entry_index
        except (CorruptBatch, OSError):
            return 0
        return header.entry_index
