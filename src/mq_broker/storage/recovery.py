"""Opening a journal's files after any stop: check every frame, cut what was torn, refuse what was damaged.

A **torn tail** is what a crash leaves of writes that were never synced. It is cut. **Damage** is anything else: it is never dropped
silently, the journal does not open (trap 15). Bytes that are not the next frame are a torn tail if all of this holds:

1. they are in the last segment (each segment is synced before the next one is made);
2. the log had not been stopped cleanly;
3. the entry that belongs there lies above the flushed mark (segments.py): it was never reported as flushed;
4. no valid frame of this partition with an index from there on lies anywhere after them: the mark may be behind the truth after a
   power loss, so a whole frame beyond says that what is bad here may have been flushed.

A whole frame whose index jumps or whose epoch falls breaks the order, not the bytes; it is cut if 1 to 3 hold and the mark can be
read. A log that ends below its mark has lost flushed entries: damage. In a log that has just been given a new id because a reboot
may have cost it what it acknowledged (`os`), rule 4 is waived: its unsynced pages reached the disk in any order.

Afterwards the last segment is synced before anything is served (trap 14). What lies above the mark is first written again in place
if the kernel has not been restarted since: had its sync failed, the kernel would take those pages for clean (trap 16).
"""

from __future__ import annotations

import logging
from array import array
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NoReturn

from mq_broker.core.entries import Entry
from mq_broker.storage.files import Files
from mq_broker.storage.frame import HEADER_BYTES, MAGIC, MAGIC_POSITION, Place, decode, unpack_header
from mq_broker.storage.segments import MARK_FILE_NAME, SEGMENT_SUFFIX, Tail, rewrite, segment_path, unpack_mark
from mq_protocol.errors import CorruptBatch, StorageFailed

_WINDOW_BYTES: Final = 4 << 20  # what is read at once: a segment may be larger than the memory to spare

_logger = logging.getLogger(__name__)


class LogDamaged(StorageFailed):
    """The log lacks, or may lack, entries that it acknowledged."""


@dataclass(slots=True)
class Recovered:
    """What was kept. `ends[i]` is where entry i ends in the journal as one stream of bytes, `ends[0]` is 0. `segments` are (first
    index, where it begins in that stream)."""

    entries: list[Entry] = field(default_factory=list)
    ends: array[int] = field(default_factory=lambda: array("Q", [0]))
    segments: list[tuple[int, int]] = field(default_factory=list)

    @property
    def tail(self) -> Tail:
        if not self.segments:
            return Tail(0, 0, 0)
        first, base = self.segments[-1]
        return Tail(first, self.ends[-1] - base, len(self.entries))


@dataclass(frozen=True, slots=True)
class _Bad:
    """Where a scan stopped. `whole`: the frame is intact, only out of order."""

    position: int
    reason: str
    whole: bool = False


def read_mark(directory: Path, place: Place) -> int | None:
    """The flushed mark; None if it is missing or cannot be believed."""
    try:
        return unpack_mark(place, (directory / MARK_FILE_NAME).read_bytes())
    except FileNotFoundError:
        return None


def segment_firsts(directory: Path) -> list[int]:
    """First indexes of the segments there, in order. Raises `StorageFailed` for a segment with a name that storage never gives."""
    firsts: list[int] = []
    for path in directory.glob(f"*{SEGMENT_SUFFIX}"):
        if not (path.stem.isdigit() and path == segment_path(directory, int(path.stem))):
            raise StorageFailed(f"{path} is not a segment's name: move the file out of {directory}")
        firsts.append(int(path.stem))
    return sorted(firsts)


def recover(directory: Path, place: Place, files: Files, *, clean: bool, lossy: bool, rebooted: bool) -> Recovered:
    """Scan, cut, sync. `clean`: the log was stopped cleanly; `lossy`: it has just got a new id because of a reboot.

    Raises `LogDamaged`, naming file and position, and `OSError` as it comes.
    """
    mark = read_mark(directory, place)
    firsts = segment_firsts(directory)
    kept = Recovered()
    for first in firsts:
        path = segment_path(directory, first)
        next_index = len(kept.entries) + 1
        if first != next_index:
            _damage(path, 0, f"it begins at entry {first}, the segments before it end at {next_index - 1}")
        fd = files.open(path)
        try:
            size = files.size(fd)
            kept.segments.append((first, kept.ends[-1]))
            bad = _scan(files, fd, size, place, kept)
            if bad is not None:
                if first != firsts[-1]:
                    _damage(path, bad.position, bad.reason)
                _require_torn(files, fd, path, place, bad, len(kept.entries) + 1, mark, clean=clean, lossy=lossy)
                files.truncate(fd, bad.position)
                _logger.warning("%s: cut a torn tail of %d bytes at %d (%s)", path, size - bad.position, bad.position, bad.reason)
            if first == firsts[-1]:
                if not clean and not rebooted:
                    synced = min(max(mark or 0, first - 1), len(kept.entries))
                    rewrite(files, fd, kept.ends[synced] - kept.segments[-1][1], kept.tail.segment_bytes)
                files.sync(fd)
        finally:
            files.close(fd)
    if mark is not None and mark > len(kept.entries):
        path = segment_path(directory, firsts[-1]) if firsts else directory
        _damage(path, kept.tail.segment_bytes, f"the log ends at entry {len(kept.entries)}, but had been flushed up to {mark}")
    files.sync_directory(directory)
    return kept


def _scan(files: Files, fd: int, size: int, place: Place, kept: Recovered) -> _Bad | None:
    """Take every good frame of a segment into `kept`; where and why it ended early, if it did."""
    base = kept.ends[-1]
    at = start = 0
    view = memoryview(b"")
    while at < size:
        try:
            if at + HEADER_BYTES > start + len(view):
                start, view = at, memoryview(files.read(fd, _WINDOW_BYTES, at))
            frame_bytes = unpack_header(view, at - start).frame_bytes
            if at + frame_bytes > start + len(view) and frame_bytes <= size - at:
                start, view = at, memoryview(files.read(fd, max(frame_bytes, _WINDOW_BYTES), at))
            entry, _, end = decode(place, view, at - start)
        except CorruptBatch as error:
            return _Bad(at, str(error))
        next_index = len(kept.entries) + 1
        if entry.index != next_index:
            return _Bad(at, f"entry {entry.index} lies where {next_index} belongs", whole=True)
        if kept.entries and entry.leader_epoch < kept.entries[-1].leader_epoch:
            before = kept.entries[-1].leader_epoch
            return _Bad(at, f"entry {entry.index} is of epoch {entry.leader_epoch}, after one of {before}", whole=True)
        kept.entries.append(entry)
        at = start + end
        kept.ends.append(base + at)
    return None


def _require_torn(
    files: Files, fd: int, path: Path, place: Place, bad: _Bad, next_index: int, mark: int | None, *, clean: bool, lossy: bool
) -> None:
    """Raise `StorageFailed` unless what is bad here is a torn tail: see the module's docstring for the rules."""
    if clean:
        _damage(path, bad.position, f"{bad.reason}, although the log was stopped cleanly")
    if mark is not None and next_index <= mark:
        _damage(path, bad.position, f"{bad.reason}, although entries up to {mark} had been flushed")
    if lossy:
        return
    if bad.whole:
        if mark is None:
            _damage(path, bad.position, bad.reason)
    elif (follower := _valid_after(files.read(fd, files.size(fd) - bad.position, bad.position), place, next_index)) is not None:
        _damage(path, bad.position, f"{bad.reason}; a good frame follows {follower} bytes further on")


def _valid_after(data: bytes, place: Place, next_index: int) -> int | None:
    """The position of a good frame after the bad bytes that `data` begins with, of an entry from `next_index` on."""
    view = memoryview(data)
    found = data.find(MAGIC, MAGIC_POSITION + 1)
    while found >= 0:
        at = found - MAGIC_POSITION
        try:
            header = unpack_header(view, at)
            if next_index <= header.entry_index <= next_index + len(data) // HEADER_BYTES and header.frame_bytes <= len(data) - at:
                decode(place, view, at)
                return at
        except CorruptBatch:
            pass
        found = data.find(MAGIC, found + 1)
    return None


def _damage(path: Path, position: int, reason: str) -> NoReturn:
    raise LogDamaged(
        f"{path} is damaged at byte {position}: {reason}. Nothing was cut. Check the disk; then move {path.parent} away and restart"
        " this broker, to have the partition copied from another replica"
    )
