"""Opening a journal's files after any stop: check every frame, cut what was torn, tell what was damaged.

A **torn tail** is what a crash leaves of writes that were never synced. It is cut. **Damage** is anything else: it is
never dropped silently (trap 15). It is raised as `LogDamaged` with nothing cut, and whoever opens the log (opening.py)
gives it a new name, puts aside what is bad and all after it, and goes on with what is good. Bytes that are not the next
frame are a torn tail if all of this holds:

1. they are in the last segment (each segment is synced before the next one is made);
2. the log had not been stopped cleanly;
3. the entry that belongs there lies above the flushed mark (segments.py): it was never reported as flushed;
4. no valid frame of this partition with an index from there on lies anywhere after them: the mark may be behind the
   truth after a power loss, so a whole frame beyond says that what is bad here may have been flushed.

A whole frame whose index jumps or whose epoch falls breaks the order, not the bytes; it is cut if 1 to 3 hold and the
mark can be read. A log that ends below its mark has lost flushed entries: damage. In a log that has just been given a
new id because a reboot may have cost it what it acknowledged (`os`), rule 4 is waived: its unsynced pages reached the
disk in any order. A place that the disk cannot read is damage.

A journal that a newer version wrote is neither torn nor damaged. It is not opened, and nothing of it is touched. Nor is
one that is sealed with a key that is not to be had, or that was altered (sealed.py): a checksum that holds says that
the disk is all right.

A snapshot stands for every entry up to its own; the order begins after it. Segments before are what a shortening that
was cut short left behind (shortening.py), and go. A snapshot that is damaged takes the whole log with it, unless the
journal still begins with entry 1 and does not need it.

With a checkpoint (checkpoints.py) only what follows its entry is read. If that is damaged all is read, as without one.

Afterwards the last segment is synced before anything is served (trap 14). What lies above the mark is first written
again in place if the kernel has not been restarted since: had its sync failed, the kernel would take those pages for
clean (trap 16).

A log whose last entry is at or below the mark is on the disk already. So is the name of its last segment, if that
segment holds an entry. If nothing is to be cut or removed either, nothing is synced. Most journals of a broker with
thousands of idle partitions open so, and two syncs for each would be most of its start.
"""

from __future__ import annotations

import errno
import logging
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from mq_broker.core.entries import Entry
from mq_broker.storage.codec.frame import HEADER_BYTES, MAGIC_POSITION, NewerFrame, Place, decode, unpack_header
from mq_broker.storage.codec.snapshot import FILE_NAME as SNAPSHOT_FILE_NAME
from mq_broker.storage.codec.snapshot import decode_snapshot, read_snapshot_file
from mq_broker.storage.files import Files, rewrite
from mq_broker.storage.journal.checkpoints import begin_with_checkpoint
from mq_broker.storage.journal.recovered import Recovered, newer_journal, read_mark, segment_key
from mq_broker.storage.journal.segments import SEGMENT_SUFFIX, segment_path
from mq_broker.storage.keyring import Keyring, opened_with
from mq_broker.storage.sealed import OVERHEAD_BYTES, DataKey, plain_snapshot, unit_start
from mq_protocol.errors import CorruptBatch, StorageFailed

_WINDOW_BYTES: Final = 4 << 20  # what is read at once: a segment may be larger than the memory to spare

_ANY_MAGIC: Final = re.compile(b"T[\x01-\xff]", re.DOTALL)
"""Of this format or a later one."""

_logger = logging.getLogger(__name__)


class LogDamaged(StorageFailed):
    """The log lacks, or may lack, entries that it acknowledged. Good is all up to entry `last_index`, which is all
    before byte `position` of segment `segment`; nothing at all, the snapshot neither, if that is 0."""

    def __init__(self, path: Path, segment: int, position: int, last_index: int, reason: str) -> None:
        super().__init__(f"{path} is damaged at byte {position}: {reason}")
        self.segment = segment
        self.position = position
        self.last_index = last_index
        self.reason = reason


@dataclass(frozen=True, slots=True)
class _Bad:
    """Where a scan stopped. `whole`: the frame is intact, only out of order. `unreadable`: the disk does not give its
    bytes."""

    position: int
    reason: str
    whole: bool = False
    unreadable: bool = False


def segment_firsts(directory: Path) -> list[int]:
    """First indexes of the segments there, in order. Raises `StorageFailed` for a segment with a name that storage
    never gives."""
    firsts: list[int] = []
    for path in directory.glob(f"*{SEGMENT_SUFFIX}"):
        if not (path.stem.isdigit() and path == segment_path(directory, int(path.stem))):
            raise StorageFailed(f"{path} is not a segment's name: move the file out of {directory}")
        firsts.append(int(path.stem))
    return sorted(firsts)


def holds_entries(directory: Path) -> bool:
    """Whether anything was ever written there that a log would lack. A later segment, though empty, follows
    something."""
    written = any(first > 1 or segment_path(directory, first).stat().st_size for first in segment_firsts(directory))
    return written or (directory / SNAPSHOT_FILE_NAME).exists()


def _unchanged() -> None:
    """Nothing is to be written before the journal is."""


def recover(
    directory: Path,
    place: Place,
    files: Files,
    *,
    clean: bool,
    lossy: bool,
    rebooted: bool,
    about_to_change: Callable[[], None] = _unchanged,
    keys: Keyring | None = None,
    log_id: str = "",
) -> Recovered:
    """Scan, then cut and sync. `clean`: the log was stopped cleanly. `lossy`: a reboot may have cost it what it
    acknowledged, so it is to get a new id. `about_to_change` is called after the scan and before the first change, and
    gives it that id. `keys` open what is sealed. With a `log_id` what a checkpoint of that log knows is not read.

    Raises `LogDamaged` or, for what a newer version wrote or what is sealed away, `StorageFailed`, both before anything
    is touched, and `OSError` as it comes.
    """
    mark = read_mark(directory, place)
    firsts = segment_firsts(directory)
    kept = _read_snapshot(directory, place, firsts, keys)
    outdated = [first for first in firsts if first <= kept.base_index]
    firsts = firsts[len(outdated) :]
    scan = _Scan(directory, place, files, firsts, mark, keys, clean=clean, lossy=lossy)
    begun = begin_with_checkpoint(directory, place, files, kept, firsts, mark, log_id, keys) if log_id else None
    try:
        torn = scan.run(begun or kept)
        kept = begun or kept
    except LogDamaged as damage:
        if begun is None:
            raise
        _logger.warning("%s: all of it is read, since it is damaged above its checkpoint: %s", directory, damage)
        torn = scan.run(kept)
    about_to_change()
    if firsts and not outdated and torn is None and mark is not None and firsts[-1] <= kept.last_index <= mark:
        return kept
    _drop_outdated(directory, files, outdated)
    if firsts:
        # What lies above the mark is written again, unless the kernel was restarted since or the log stopped cleanly.
        synced = kept.last_index if clean or rebooted else min(max(mark or 0, firsts[-1] - 1), kept.last_index)
        _settle_tail(files, segment_path(directory, firsts[-1]), kept, torn, synced)
    files.sync_directory(directory)
    return kept


@dataclass(frozen=True, slots=True)
class _Scan:
    """Reads the segments `firsts` of a log, and changes nothing."""

    directory: Path
    place: Place
    files: Files
    firsts: Sequence[int]
    mark: int | None
    keys: Keyring | None
    clean: bool
    lossy: bool

    def run(self, kept: Recovered) -> _Bad | None:
        """Add all entries that follow what `kept` has. Returns where the torn tail begins, if there is one."""
        torn: _Bad | None = None
        begun = kept.segments[-1][0] if kept.segments else 0
        for first in self.firsts:
            if first < begun:
                continue
            path = segment_path(self.directory, first)
            if first != begun and first != kept.last_index + 1:
                reason = f"it begins at entry {first}, what is before it ends at {kept.last_index}"
                raise LogDamaged(path, first, 0, kept.last_index, reason)
            torn = self._segment(path, first, kept, at=kept.end_in_last(kept.last_index) if first == begun else 0)
        if self.mark is not None and self.mark > kept.last_index:
            tail = kept.tail
            path = segment_path(self.directory, tail.segment) if tail.segment else self.directory
            reason = f"the log ends at entry {kept.last_index}, but had been flushed up to {self.mark}"
            # With no segment left the cut is at one that is not there: what remains is the snapshot, or nothing.
            raise LogDamaged(path, tail.segment or kept.last_index + 1, tail.segment_bytes, kept.last_index, reason)
        return torn

    def _segment(self, path: Path, first: int, kept: Recovered, at: int) -> _Bad | None:
        """Add the entries of the segment from byte `at` on. Returns where its torn tail begins, if it has one."""
        files, fd = self.files, self.files.open(path)
        try:
            size = files.size(fd)
            if not at:
                kept.segments.append((first, kept.ends[-1]))
                key = segment_key(files, fd, self.place, self.keys)
                if key is not None:
                    kept.keys[first] = key
            bad = _scan(files, fd, size, self.place, kept, kept.keys.get(first), at)
            if bad is not None:
                reason = _damage(
                    files,
                    fd,
                    self.place,
                    bad,
                    kept.last_index + 1,
                    self.mark,
                    last=first == self.firsts[-1],
                    clean=self.clean,
                    lossy=self.lossy,
                )
                if reason:
                    raise LogDamaged(path, first, bad.position, kept.last_index, reason)
            return bad
        finally:
            files.close(fd)


def _settle_tail(files: Files, path: Path, kept: Recovered, torn: _Bad | None, synced: int) -> None:
    """Cut a torn tail of the last segment, write what follows entry `synced` again, and sync it (traps 14 and 16)."""
    fd = files.open(path)
    try:
        if torn is not None:
            size = files.size(fd)
            files.truncate(fd, torn.position)
            _logger.warning(
                "%s: cut a torn tail of %d bytes at %d (%s)", path, size - torn.position, torn.position, torn.reason
            )
        rewrite(files, fd, kept.end_in_last(synced), kept.tail.segment_bytes)
        files.sync(fd)
    finally:
        files.close(fd)


def _read_snapshot(directory: Path, place: Place, firsts: list[int], keys: Keyring | None) -> Recovered:
    path = directory / SNAPSHOT_FILE_NAME
    try:
        data = read_snapshot_file(directory)
        if data is None:
            return Recovered()
        data = plain_snapshot(place, data, lambda slot: opened_with(keys, place, slot))
        return Recovered(decode_snapshot(place, data), data)
    except (CorruptBatch, OSError) as error:
        if isinstance(error, OSError) and error.errno != errno.EIO:
            raise
        if firsts[:1] == [1]:
            _logger.warning("%s is damaged (%s), and not needed: the journal is whole", path, error)
            return Recovered()
        raise LogDamaged(path, 0, 0, 0, str(error)) from error


def _drop_outdated(directory: Path, files: Files, outdated: Sequence[int]) -> None:
    """Remove the segments that the snapshot stands for. Segments are dropped whole, so one that begins at or before
    the snapshot's entry ends there too."""
    for first in outdated:
        files.remove(segment_path(directory, first))
        _logger.info("%s: removed, the snapshot stands for it", segment_path(directory, first))


def frames_in(
    files: Files, fd: int, size: int, place: Place, first: int = 0, key: DataKey | None = None, at: int = 0
) -> Iterator[tuple[Entry, int]]:
    """The entries of a segment of `size` bytes, in order, each with the position after its frame, every checksum
    verified; from the one at byte `at` on, if that is given. Of a sealed one `first`, its first index, and what opens
    it; each seal is verified too.

    Raises `CorruptBatch` where the first bad frame begins, `OSError` where the disk cannot be read, and `StorageFailed`
    for an entry that a newer version wrote, or that was altered.
    """
    begins = unit_start(0, 0, sealed=key is not None)
    at = start = at or begins
    if key is not None and size <= begins:
        raise CorruptBatch("a sealed segment has no entry")
    view = memoryview(b"")
    while at < size:
        if at + HEADER_BYTES > start + len(view):
            start, view = at, memoryview(files.read(fd, min(_WINDOW_BYTES, size - at), at))
        frame_bytes = unpack_header(view, at - start).frame_bytes
        if at + frame_bytes > start + len(view) and frame_bytes <= size - at:
            start, view = at, memoryview(files.read(fd, min(max(frame_bytes, _WINDOW_BYTES), size - at), at))
        try:
            if key is None:
                entry, _, end = decode(place, view, at - start)
            else:
                frame, end = key.open(first, view, at - start)
                entry = frame.entry
        except NewerFrame as error:
            raise newer_journal(place, error) from error
        at = start + end
        yield entry, at


def _scan(files: Files, fd: int, size: int, place: Place, kept: Recovered, key: DataKey | None, at: int) -> _Bad | None:
    """Take every good frame, from byte `at` on, of the segment that `kept` has last into it; where and why it ended
    early, if it did."""
    first, overhead = kept.segments[-1][0], OVERHEAD_BYTES if key is not None else 0
    # A block alone is as bad as what should follow it
    start = at or unit_start(0, 0, sealed=key is not None)
    try:
        for entry, end in frames_in(files, fd, size, place, first, key, at):
            next_index = kept.last_index + 1
            if entry.index != next_index:
                return _Bad(at, f"entry {entry.index} lies where {next_index} belongs", whole=True)
            if entry.leader_epoch < kept.last_epoch:
                return _Bad(
                    at,
                    f"entry {entry.index} is of epoch {entry.leader_epoch}, after one of {kept.last_epoch}",
                    whole=True,
                )
            kept.entries.append(entry)
            kept.ends.append(kept.ends[-1] + end - start - overhead)
            at = start = end
    except CorruptBatch as error:
        return _Bad(at, str(error))
    except OSError as error:
        if error.errno != errno.EIO:
            raise
        return _Bad(at, f"the disk cannot read it ({error.strerror})", unreadable=True)
    return None


def _damage(
    files: Files,
    fd: int,
    place: Place,
    bad: _Bad,
    next_index: int,
    mark: int | None,
    *,
    last: bool,
    clean: bool,
    lossy: bool,
) -> str:
    """Why what is bad here is damage, by the rules in the module's docstring; empty if it is a torn tail."""
    judged = damage_by_the_mark(
        bad.reason, next_index, mark, whole=bad.whole, known=last and not bad.unreadable, clean=clean, lossy=lossy
    )
    if judged is not None:
        return judged
    try:
        follower = _valid_after(files.read(fd, files.size(fd) - bad.position, bad.position), place, next_index)
    except OSError as error:
        if error.errno != errno.EIO:
            raise
        return f"{bad.reason}; the disk cannot read what follows ({error.strerror})"
    return f"{bad.reason}; a good frame follows {follower} bytes further on" if follower is not None else ""


def damage_by_the_mark(
    reason: str, next_index: int, mark: int | None, *, whole: bool, known: bool, clean: bool, lossy: bool
) -> str | None:
    """Rules 1 to 3 of the module's docstring: why bytes that are not entry `next_index` are damage, empty if they are a
    torn tail. None if that depends on what follows them (rule 4). `known`: they can be read, and lie in the last
    segment. `whole`: they are a frame, out of order."""
    if not known:
        return reason
    if clean:
        return f"{reason}, although the log was stopped cleanly"
    if mark is not None and next_index <= mark:
        return f"{reason}, although entries up to {mark} had been flushed"
    if lossy:
        return ""
    if whole:
        return reason if mark is None else ""
    return None


def _valid_after(data: bytes, place: Place, next_index: int) -> int | None:
    """The position of a good frame after the bad bytes that `data` begins with, of an entry from `next_index` on."""
    view = memoryview(data)
    for found in _ANY_MAGIC.finditer(data, MAGIC_POSITION + 1):
        at = found.start() - MAGIC_POSITION
        try:
            header = unpack_header(view, at)
            if (
                next_index <= header.entry_index <= next_index + len(data) // HEADER_BYTES
                and header.frame_bytes <= len(data) - at
            ):
                decode(place, view, at)
                return at
        except NewerFrame:
            return at
        except CorruptBatch:
            pass
    return None
