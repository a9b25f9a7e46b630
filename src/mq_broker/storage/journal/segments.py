"""A journal's files, as the writer thread sees them: segments, the flushed mark, `log.json`.

On disk, one directory per partition:

    00000000000000000001.log    segments, named by their first index; frames one after another, nothing else. Of a
                                broker with keys: sealed (sealed.py)
    snapshot                    what stands for all entries before the first segment (snapshot.py); not there while that
                                is entry 1
    log.json                    identity.py
    aside-1/                    what was damaged or given up (quarantine.py)
    flushed                     the mark: the index up to which the log was synced when it was last told
    checkpoint                  what was made of the entries up to one of them (checkpoints.py), if it was

The mark is what lets recovery tell a torn tail from damage: an entry at or below it was once safely on the disk, so if
it is bad or missing now, that is damage, wherever it lies. It is written after each sync, not synced itself (it may be
behind the truth, never ahead of it), and lowered, durably, before a truncation.

What is kept true here:
- a segment is synced before the next one is made, so only the last one can have a torn tail;
- a truncation is on the disk before anything is written after it;
- what a failed sync was to cover is never reported as flushed: the kernel has marked those pages clean (trap 16).

Nothing here knows the event loop; `writer.py` carries what happened back to it.
"""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, NamedTuple, Protocol, TypeAlias, assert_never

import google_crc32c

from mq_broker.measured import DISK_REFUSALS, FSYNC, FSYNC_FAILURES
from mq_broker.storage.codec.checkpoint import FILE_NAME as CHECKPOINT_FILE_NAME
from mq_broker.storage.codec.frame import Place
from mq_broker.storage.files import WRITE_PARTS_MAX, Files, rewrite
from mq_broker.storage.identity import LogIdentity
from mq_broker.storage.interface import Frame
from mq_broker.storage.reused_memory import SEALING_MEMORY
from mq_broker.storage.sealed import BLOCK_BYTES, OVERHEAD_BYTES, DataKey
from mq_protocol.wire.envelope import Buffer

MARK_FILE_NAME: Final = "flushed"
SEGMENT_SUFFIX: Final = ".log"

_MARK: Final = struct.Struct("<QI")
# Below this a part costs more as a buffer of its own than copied beside its neighbours
_JOIN_BYTES_MAX: Final = 16 << 10
_SEALED_AT_ONCE_BYTES: Final = 1 << 20
"""Sealed bytes that are written together: few enough that the processor has them at hand. A larger frame is written
alone."""


def segment_path(directory: Path, first_index: int) -> Path:
    return directory / f"{first_index:020d}{SEGMENT_SUFFIX}"


# ------------------------------------------------------------------ what the loop orders


@dataclass(slots=True)
class Append:
    """Frames of one segment, which begins at index `segment`. `key` seals it; None: it is plain."""

    generation: int
    segment: int
    frames: list[Frame]
    size: int
    key: DataKey | None = None


@dataclass(slots=True)
class Truncate:
    """Drop all above `last_index`: `segment` becomes the last one and its file keeps `segment_bytes` (0 and 0: nothing
    is left)."""

    generation: int
    last_index: int
    segment: int
    segment_bytes: int


@dataclass(slots=True)
class Renew:
    """Damage was read: the log needs a new id."""

    generation: int
    reason: str


@dataclass(slots=True)
class Adopt:
    """The log goes on under this recovery number (rule 15)."""

    generation: int
    recovery: int


@dataclass(slots=True)
class Close:
    generation: int


Order: TypeAlias = Append | Truncate | Renew | Adopt | Close


class Outcome(NamedTuple):
    """Where a journal stands after a round. `generation` is that of the last order carried out: truncations that the
    loop ordered since then are not in it. `written`: readable from the files up to here. `flushed`: durable, as the
    journal promises it. `adopted`: a recovery number, and why it could not be remembered, if it could not."""

    generation: int
    written: int
    flushed: int
    refused: tuple[int, str] | None
    replaced: tuple[str, str] | None
    adopted: tuple[int, str] | None
    closed: bool


class OutcomeListener(Protocol):
    """A journal, as the writer sees it from afar."""

    def settle(self, outcome: Outcome) -> None:
        """Called on the event loop."""


class Tail(NamedTuple):
    """Where recovery left a log's end: the last segment's first index (0: no segment), its size in bytes, the last
    index."""

    segment: int
    segment_bytes: int
    last_index: int


class _Apart(NamedTuple):
    """A sync that another thread makes: when it is done, and the index and the place in the segment that it covers."""

    done: Future[None]
    written: int
    end: int


class LogFiles:
    """Owns the files of one journal for writing. Used by one thread at a time, as writer.py says, once it is made.

    Another thread may be syncing the last segment meanwhile (`sync_apart`): until it is done, entries are written after
    what it covers, and everything else waits for it.

    - `_synced <= _written`; the files hold exactly the entries up to `_written`, except while `_tail_dirty` (garbage
      follows);
    - `_owed` is a truncation that failed: nothing is written or flushed before it has been made good;
    - `_refused` is set from a failed write until the loop truncates below it: whatever is appended meanwhile is gone
      too;
    - no checkpoint is of an entry above `checkpointed`.
    """

    def __init__(
        self, directory: Path, place: Place, identity: LogIdentity, boot: str, tail: Tail, files: Files
    ) -> None:
        self.directory = directory
        self.identity = identity
        self.sync_each_round = identity.durability == "fsync"
        self.closed = False
        self.checkpointed = 0
        self._boot = boot
        self._place = place
        self.files = files
        self._segment = tail.segment
        self._end = self._synced_end = tail.segment_bytes
        self._written = self._synced = tail.last_index
        self._generation = 0
        self._fd = -1
        self._mark_fd = -1
        self._writable = False
        self._tail_dirty = False
        self._owed: Truncate | None = None
        self._apart: _Apart | None = None
        self._dead = ""
        self._refused: tuple[int, str] | None = None
        self._replaced: tuple[str, str] | None = None
        self._adopted: tuple[int, str] | None = None

    # -------------------------------------------------------------- a round

    def carry_out(self, orders: Sequence[Order]) -> None:
        """Write, in order; neighbouring appends become one write. Nothing is reported as flushed before `sync`."""
        run: list[Append] = []
        for order in orders:
            if self.closed:  # what crossed the close on its way says nothing about the files any more
                return
            if run and not (isinstance(order, Append) and order.segment == run[-1].segment):
                self._append(run)
                run = []
            self._generation = order.generation
            match order:
                case Append():
                    run.append(order)
                case Truncate():
                    self._truncate(order)
                case Renew():
                    self._renew(order.reason)
                case Adopt():
                    self._adopt(order.recovery)
                case Close():
                    self._close()
                case _:
                    assert_never(order)
        if run:
            self._append(run)

    def takes_at_once(self, order: Append) -> bool:
        """Whether to carry it out is a write and no more: the file is open, nothing is to be put right before, and no
        sync follows."""
        ready = self._writable and self._fd >= 0 and not self.sync_each_round and not self.closed
        put_right = self._tail_dirty or self._owed is not None or self._refused is not None or self._dead
        return ready and not put_right and order.segment == self._segment

    def sync(self) -> bool:
        """All that is written onto the disk, an owed truncation first. False if that failed: `outcome` tells what came
        of it."""
        if not self.settle_sync():
            return False
        if not self.dirty:
            return True
        if self._owed is not None:
            try:
                self._make_good(self._owed)
            except OSError:
                return False
            return True
        try:
            with FSYNC.measuring("commit"):
                self.files.sync(self._fd)
        except OSError as error:
            self._sync_failed(error)
            return False
        self._is_synced(self._written, self._end)
        return True

    def sync_apart(self, ask: Callable[[int], Future[None]]) -> None:
        """Have another thread sync what is written, which is something and has no truncation owing. `ask` takes the
        descriptor."""
        assert self._apart is None, f"{self.directory} is being synced"
        assert not self.owing, f"{self.directory} owes a truncation"
        self._apart = _Apart(ask(self._fd), self._written, self._end)

    @property
    def synced_apart(self) -> bool:
        """No other thread is syncing it, or not any more."""
        return self._apart is None or self._apart.done.done()

    def settle_sync(self) -> bool:
        """Wait for the other thread's sync, if there is one. False if that failed: `outcome` tells what came of it."""
        apart, self._apart = self._apart, None
        if apart is None:
            return True
        try:
            apart.done.result()
        except OSError as error:
            self._sync_failed(error)
            return False
        self._is_synced(apart.written, apart.end)
        return True

    def _is_synced(self, written: int, end: int) -> None:
        self._synced, self._synced_end = written, end
        with contextlib.suppress(OSError):  # it stays behind the truth, which it may
            self._write_mark(written)

    def release(self) -> bool:
        """Give the descriptors back for as long as nothing is written. False where something is still to be done with
        them."""
        if not self.dirty and not self._tail_dirty and not self._dead:
            self._close_segment()
            self._close_mark()
            self._writable = False
        return self._fd < 0 and self._mark_fd < 0

    @property
    def synced(self) -> int:
        """Up to here the disk has all. For any thread: it may be behind the truth."""
        return self._synced

    @property
    def dirty(self) -> bool:
        """Something is to be synced, and there is a point in trying."""
        return not self._dead and (self.owing or self._synced != self._written)

    @property
    def owing(self) -> bool:
        """A truncation failed and has not been made good: nothing is flushed until then."""
        return self._owed is not None

    def outcome(self) -> Outcome:
        """Where the journal stands now. A new log id and a recovery are told once, a refusal until the loop has
        truncated."""
        flushed = 0 if self._dead or self.owing else self._synced if self.sync_each_round else self._written
        outcome = Outcome(
            self._generation, self._written, flushed, self._refused, self._replaced, self._adopted, self.closed
        )
        self._replaced = self._adopted = None
        return outcome

    # -------------------------------------------------------------- writing

    def _append(self, run: list[Append]) -> None:
        first_index = run[0].frames[0].entry.index
        if self._refused is not None:
            return
        if self._dead:
            self._refused = (first_index, self._dead)
            return
        assert first_index == self._written + 1, (
            f"entry {first_index} was ordered after {self._written} in {self.directory}"
        )
        frames = run[0].frames if len(run) == 1 else [frame for order in run for frame in order.frames]
        try:
            if self._owed is not None:
                self._make_good(self._owed)
            self._make_writable()
            if run[0].segment != self._segment and not self._roll(run[0].segment):
                self._refused = self._refused or (
                    first_index,
                    f"{self.directory} could not be synced before a new segment",
                )
                return
        except OSError as error:
            self._refuse(first_index, error)
            return
        start, key = self._end, run[0].key
        try:
            if key is None:
                self._write(_gather(frames))
            else:
                self._write_sealed(frames, key)
        except OSError as error:
            whole, end = 0, start
            overhead = 0 if key is None else OVERHEAD_BYTES
            block = BLOCK_BYTES if key is not None and start == 0 else 0
            while end + block + frames[whole].size + overhead <= self._end:
                end += block + frames[whole].size + overhead
                whole, block = whole + 1, 0
            self._end = end
            self._written += whole
            self._tail_dirty = True
            self._refuse(first_index + whole, error)
            # Tried again before the next write, and cut by recovery if there is none
            with contextlib.suppress(OSError):
                self._cut_tail()
        else:
            self._written = frames[-1].entry.index

    def _write_sealed(self, frames: list[Frame], key: DataKey) -> None:
        """The same frames sealed, behind the block that a segment begins with. Each round of the loop gives its memory
        back after the write has returned, so no byte of it changes on its way to the file."""
        at = 0
        while at < len(frames):
            size, end = frames[at].size + OVERHEAD_BYTES, at + 1
            while end < len(frames) and size + frames[end].size + OVERHEAD_BYTES <= _SEALED_AT_ONCE_BYTES:
                size += frames[end].size + OVERHEAD_BYTES
                end += 1
            with SEALING_MEMORY.lent(size) as units:
                done = 0
                for frame in frames[at:end]:
                    done += frame.size + OVERHEAD_BYTES
                    key.seal(self._segment, frame, units[done - frame.size - OVERHEAD_BYTES : done])
                self._write([units] if self._end else [key.block, units])
            at = end

    def _write(self, parts: list[Buffer]) -> None:
        """All of it at the end; `_end` moves with every byte taken, so that it is right whatever fails."""
        at = 0
        while at < len(parts):
            chunk = parts[at : at + WRITE_PARTS_MAX]
            taken = self.files.write(self._fd, chunk, self._end)
            self._end += taken
            while at < len(parts) and taken >= (nbytes := memoryview(parts[at]).nbytes):
                taken -= nbytes
                at += 1
            if taken:
                parts[at] = memoryview(parts[at])[taken:]

    def _make_writable(self) -> None:
        """Before the first write: no clean mark any more (durably), a mark to write to, no garbage at the end."""
        if not self._writable:
            if self.identity.clean or self.identity.boot_id != self._boot:
                identity = replace(self.identity, clean=False, boot_id=self._boot)
                identity.store(self.directory, self.files)
                self.identity = identity
            if self._mark_fd < 0:
                self._mark_fd = self.files.open(self.directory / MARK_FILE_NAME)
            if self._segment and self._fd < 0:
                self._fd = self.files.open(segment_path(self.directory, self._segment))
            self._writable = True
        if self._tail_dirty:
            self._cut_tail()

    def _cut_tail(self) -> None:
        self.files.truncate(self._fd, self._end)
        self._tail_dirty = False

    def _roll(self, segment: int) -> bool:
        """A new last segment. The one before is synced first: only the last one may have a torn tail."""
        if not self.sync():
            return False
        fd = self.files.open(segment_path(self.directory, segment))
        try:
            self.files.sync_directory(self.directory)
        except OSError:
            self.files.close(fd)
            with contextlib.suppress(OSError):
                self.files.remove(segment_path(self.directory, segment))
            raise
        self._close_segment()
        self._fd, self._segment = fd, segment
        self._end = self._synced_end = 0
        return True

    def _refuse(self, first_index: int, error: OSError) -> None:
        DISK_REFUSALS.add()
        self._refused = (
            first_index,
            f"{self.directory} takes no more ({error.strerror}): free space there, or make it writable again",
        )

    # -------------------------------------------------------------- truncating

    def _truncate(self, order: Truncate) -> None:
        self.settle_sync()
        if self._refused is not None:
            if order.last_index >= self._refused[0]:
                return
            self._refused = None
        kept = min(order.last_index, self._written)
        due = self._owed is not None or kept < self._written or order.segment != self._segment
        self._written, self._synced = kept, min(kept, self._synced)
        if not due or self._dead:
            return
        self._owed = order
        with contextlib.suppress(OSError):  # still owed: tried again before the next write and in the background
            self._make_good(order)

    def _make_good(self, order: Truncate) -> None:
        """Cut the files, durably. Can be repeated after a failure on the way."""
        self._make_writable()
        self._write_mark(min(self._synced, order.last_index))
        self.files.sync(self._mark_fd)
        if order.last_index < self.checkpointed:
            with contextlib.suppress(FileNotFoundError):
                self.files.remove(self.directory / CHECKPOINT_FILE_NAME)
                self.files.sync_directory(self.directory)
            self.checkpointed = order.last_index
        self._drop_segments_after(order.segment)
        if order.segment:
            self.files.truncate(self._fd, order.segment_bytes)
            self.files.sync(self._fd)
        self._end = self._synced_end = order.segment_bytes
        self._synced = self._written
        self._owed = None

    def _drop_segments_after(self, segment: int) -> None:
        """Remove later segments, the last first and each durably, so that a crash on the way leaves no hole."""
        firsts = sorted(int(path.stem) for path in self.directory.glob(f"*{SEGMENT_SUFFIX}"))
        for first in reversed(firsts):
            if first > segment:
                if first == self._segment:
                    self._close_segment()
                self.files.remove(segment_path(self.directory, first))
                self.files.sync_directory(self.directory)
        if segment != self._segment or self._fd < 0:
            self._close_segment()
            self._fd = self.files.open(segment_path(self.directory, segment)) if segment else -1
            self._segment = segment

    # -------------------------------------------------------------- failing

    def _sync_failed(self, error: OSError) -> None:
        """What was written since the last sync may or may not be on the disk, and asking again would answer "yes" (trap
        16)."""
        FSYNC_FAILURES.add()
        self._renew(
            f"a sync of {segment_path(self.directory, self._segment)} failed ({error.strerror}): check that disk"
        )
        if self._dead:
            return
        try:
            if self.sync_each_round:
                self.files.truncate(self._fd, self._synced_end)
            else:
                rewrite(self.files, self._fd, self._synced_end, self._end)
        except OSError as second:
            self._die(f"{self.directory} could not be put right after a failed sync ({second.strerror})")
            return
        if self.sync_each_round:
            self._refused = (
                self._synced + 1,
                f"{self.directory}: the sync that was to make it durable failed ({error.strerror})",
            )
            self._written, self._end = self._synced, self._synced_end

    def _renew(self, reason: str) -> None:
        """A new log id, on the disk before anything else happens."""
        identity = replace(self.identity.renewed(), boot_id=self._boot)
        try:
            identity.store(self.directory, self.files)
        except OSError as error:
            self._die(f"{self.directory}: no new log id could be written after a failure ({error.strerror})")
        self.identity = identity
        self._replaced = (identity.log_id, reason)

    def _adopt(self, recovery: int) -> None:
        identity = replace(self.identity, recovery=recovery)
        try:
            identity.store(self.directory, self.files)
        except OSError as error:
            self._adopted = (recovery, str(error))
        else:
            self.identity = identity
            self._adopted = (recovery, "")

    def _die(self, reason: str) -> None:
        """Nothing can be promised any more. Reads go on; every append from here on, and what was not synced, is
        refused."""
        self._dead = f"{reason}: replace the disk, then restart this broker"
        if self._refused is None and self._synced < self._written and self.sync_each_round:
            self._refused = (self._synced + 1, self._dead)
            self._written, self._end = self._synced, self._synced_end
            self._tail_dirty = True

    # -------------------------------------------------------------- closing

    def _close(self) -> None:
        """Sync, put the clean mark back, close. Without the mark if anything of it fails: the log is then recovered."""
        if self.sync() and not self._dead and not self.identity.clean:
            with contextlib.suppress(OSError):
                if self._owed is not None:
                    self._make_good(self._owed)
                self._make_writable()
                self._write_mark(self._synced)
                self.files.sync(self._mark_fd)
                identity = replace(self.identity, clean=True)
                identity.store(self.directory, self.files)
                self.identity = identity
        self._close_segment()
        self._close_mark()
        self.closed = True

    def _close_mark(self) -> None:
        if self._mark_fd >= 0:
            self.files.close(self._mark_fd)
            self._mark_fd = -1

    def _close_segment(self) -> None:
        assert self._apart is None, f"{self.directory}: its last segment is being synced"
        if self._fd >= 0:
            self.files.close(self._fd)
            self._fd = -1

    def _write_mark(self, index: int) -> None:
        self.files.write(self._mark_fd, (pack_mark(self._place, index),), 0)


# ------------------------------------------------------------------ bytes


def pack_mark(place: Place, index: int) -> bytes:
    """The content of the mark's file: 12 bytes, in one sector, so that it is never seen half written."""
    return _MARK.pack(index, google_crc32c.extend(place.seed, index.to_bytes(8, "little")))


def unpack_mark(place: Place, data: bytes) -> int | None:
    """The index marked as flushed; None if the mark cannot be believed."""
    if len(data) != _MARK.size:
        return None
    index, _ = _MARK.unpack(data)
    return index if pack_mark(place, index) == data else None


def _gather(frames: list[Frame]) -> list[Buffer]:
    """The frames' bytes as few buffers: small parts are joined, large ones stay as they are."""
    parts: list[Buffer] = []
    small: list[Buffer] = []
    for part in (part for frame in frames for part in frame.parts):
        if memoryview(part).nbytes <= _JOIN_BYTES_MAX:
            small.append(part)
        else:
            if small:
                parts.append(b"".join(small))
                small = []
            parts.append(part)
    if small:
        parts.append(b"".join(small))
    return parts
