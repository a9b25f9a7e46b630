"""A partition's journal on disk: the event loop's side of it, and how it is opened.

The loop owns the truth about which entries there are; the files follow, through orders to the writer thread (segments.py holds
the files, writer.py the thread). An entry can be read from the moment it is appended: from memory until it is written and for as
long as it fits the cache, from the files after that. In memory an entry that is not cached costs eight bytes: where it ends.

Orders and their outcomes cross on the way, so orders carry a generation, counted up by every truncation: an outcome of an older
generation says nothing about entries that were cut since (trap 24).
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from mq_broker.core.messages import RecoveredLog
from mq_broker.storage.frame import Place, decode_frame, unpinned
from mq_broker.storage.identity import FILE_NAME, LogIdentity, boot_id, load_identity, new_log_id
from mq_broker.storage.interface import Frame, JournalListener, OpenJournal
from mq_broker.storage.recovery import LogDamaged, Recovered, recover, segment_firsts
from mq_broker.storage.segments import MARK_FILE_NAME, Append, Close, LogFiles, Outcome, Renew, Truncate, pack_mark, segment_path
from mq_broker.storage.writer import Writer
from mq_protocol.errors import CorruptBatch, StorageFailed
from mq_protocol.limits import JOURNAL_CACHE_BYTES_MAX, SEGMENT_BYTES_MAX

CLOSE_DEADLINE_S: Final = 30.0

_FRAME_OVERHEAD_BYTES: Final = 512  # what a cached frame costs beside its bytes: an Entry, a tuple, its numbers


class DiskJournal:
    """One partition's entries. See `interface.Journal` for what each method promises.

    Owns the index of positions, the cache of recent frames and one descriptor to read with. Invariants:
    - `_ends[i]` is where entry i ends, counted over all segments; `_segments` are (first index, where it begins), ascending;
    - `_recent` holds the entries from `_recent_first` to the last one, and at least all above `_written`;
    - `_reported <= _written <= last_index`.
    """

    def __init__(
        self,
        files: LogFiles,
        place: Place,
        recovered: Recovered,
        listener: JournalListener,
        writer: Writer,
        *,
        segment_bytes_max: int = SEGMENT_BYTES_MAX,
        cache_bytes_max: int = JOURNAL_CACHE_BYTES_MAX,
    ) -> None:
        self.log_id = files.identity.log_id
        self._files = files
        self._place = place
        self._listener = listener
        self._writer = writer
        self._segment_bytes_max = segment_bytes_max
        self._cache_bytes_max = cache_bytes_max
        self._ends = recovered.ends
        self._segments = recovered.segments
        self._epochs: list[tuple[int, int]] = []  # (first index, epoch)
        for entry in recovered.entries:
            self._note_epoch(entry.index, entry.leader_epoch)
        self._written = self._reported = self.last_index
        self._generation = 0
        self._cuts: list[tuple[int, int]] = []  # (generation, last index kept) of truncations with no outcome yet
        self._recent: dict[int, Frame] = {}
        self._recent_first = self.last_index + 1
        self._recent_bytes = 0
        self._overflow_from: int | None = None
        self._damage_told = False
        self._reader: tuple[int, int] | None = None  # (segment, descriptor)
        self._closed: asyncio.Future[None] | None = None

    @property
    def last_index(self) -> int:
        return len(self._ends) - 1

    @property
    def bytes_stored(self) -> int:
        return self._ends[-1]

    def append(self, frames: Sequence[Frame]) -> None:
        assert self._closed is None, "appended to a closed journal"
        if not frames:
            return
        run: list[Frame] = []
        run_start = self._ends[-1]
        for frame in frames:
            entry = frame.entry
            end = self._ends[-1]
            assert entry.index == len(self._ends), f"entry {entry.index} after {self.last_index}"
            if self._needs_segment(frame.size):
                self._submit_append(run, end - run_start)
                run, run_start = [], end
                self._segments.append((entry.index, end))
            self._note_epoch(entry.index, entry.leader_epoch)
            self._ends.append(end + frame.size)
            frame = unpinned(frame)
            self._recent[entry.index] = frame
            self._recent_bytes += frame.size + _FRAME_OVERHEAD_BYTES
            run.append(frame)
        self._submit_append(run, self._ends[-1] - run_start)

    def truncate(self, last_index: int) -> None:
        assert self._closed is None, "truncated a closed journal"
        assert last_index >= 0, "indexes count from 1"
        if last_index < self.last_index:
            self._cut(last_index)

    def read(self, first_index: int, last_index: int, bytes_max: int) -> list[Frame]:
        assert first_index >= 1, "indexes count from 1"
        last_index = min(last_index, self.last_index)
        frames: list[Frame] = []
        room = bytes_max
        index = first_index
        while index <= last_index:
            if index >= self._recent_first:
                more = self._read_recent(index, last_index, room, first=not frames)
            else:
                more = self._read_files(index, min(last_index, self._recent_first - 1), room, first=not frames)
            if not more:
                break
            frames += more
            index += len(more)
            room = bytes_max - (self._ends[index - 1] - self._ends[first_index - 1])
        return frames

    def payload(self, index: int) -> memoryview:
        assert 1 <= index <= self.last_index, f"entry {index} of {self.last_index}"
        parts = self.read(index, index, 0)[0].payload_parts
        return memoryview(parts[0] if len(parts) == 1 else b"".join(parts))

    async def close(self) -> None:
        if self._closed is None:
            self._closed = self._writer.loop.create_future()
            self._generation += 1
            self._writer.submit(self._files, self, Close(self._generation))
        await asyncio.wait({self._closed, self._writer.died}, timeout=CLOSE_DEADLINE_S, return_when=asyncio.FIRST_COMPLETED)
        self._close_reader()
        if not self._closed.done():
            raise StorageFailed(
                f"{self._files.directory} did not close: its disk does not answer; the log is recovered at the next start"
            )

    # -------------------------------------------------------------- what the writer found

    def settle(self, outcome: Outcome) -> None:
        """Called by the writer on the loop: what became of the orders so far."""
        if outcome.replaced is not None:
            self.log_id, reason = outcome.replaced
            self._listener.replaced(self.log_id, reason)
        limit = min([last for generation, last in self._cuts if generation > outcome.generation], default=self.last_index)
        self._cuts = [cut for cut in self._cuts if cut[0] > outcome.generation]
        self._written = min(outcome.written, limit)
        self._evict()
        flushed = min(outcome.flushed, limit)
        if flushed > self._reported:
            self._reported = flushed
            self._listener.flushed(flushed, self._epoch_at(flushed))
        if outcome.refused is not None:
            first_index, reason = outcome.refused
            if first_index <= limit and first_index <= self.last_index:
                self._cut(first_index - 1)
                self._listener.refused(first_index, reason)
        if outcome.closed and self._closed is not None and not self._closed.done():
            self._closed.set_result(None)

    # -------------------------------------------------------------- the end of the log

    def _needs_segment(self, size: int) -> bool:
        if not self._segments:
            return True
        filled = self._ends[-1] - self._segments[-1][1]
        return filled > 0 and filled + size > self._segment_bytes_max

    def _submit_append(self, run: list[Frame], size: int) -> None:
        if not run:
            return
        if self._overflow_from is None and not self._writer.has_room:
            self._overflow_from = run[0].entry.index
            self._writer.loop.call_soon(self._refuse_overflow)
        if self._overflow_from is None:
            self._writer.submit(self._files, self, Append(self._generation, self._segments[-1][0], run, size), size)

    def _refuse_overflow(self) -> None:
        """What was appended while the writer's queue was full was never queued: take it back."""
        if self._overflow_from is None:
            return
        first_index = self._overflow_from
        self._cut(first_index - 1)
        self._listener.refused(
            first_index, f"the disk under {self._files.directory} does not keep up: send less, or spread the load"
        )

    def _cut(self, last_index: int) -> None:
        """Forget all above, and have the files follow."""
        self._generation += 1
        self._cuts.append((self._generation, last_index))
        del self._ends[last_index + 1 :]
        while self._segments and self._segments[-1][0] > last_index:
            self._segments.pop()
        while self._epochs and self._epochs[-1][0] > last_index:
            self._epochs.pop()
        for index in [index for index in self._recent if index > last_index]:
            self._recent_bytes -= self._recent.pop(index).size + _FRAME_OVERHEAD_BYTES
        self._recent_first = min(self._recent_first, last_index + 1)
        self._written = min(self._written, last_index)
        self._reported = min(self._reported, last_index)
        if self._overflow_from is not None and last_index < self._overflow_from:
            self._overflow_from = None
        self._close_reader()  # a segment may be made anew under the same name
        segment, base = self._segments[-1] if self._segments else (0, 0)
        self._writer.submit(self._files, self, Truncate(self._generation, last_index, segment, self._ends[-1] - base))

    def _note_epoch(self, index: int, epoch: int) -> None:
        if not self._epochs or self._epochs[-1][1] != epoch:
            assert not self._epochs or epoch > self._epochs[-1][1], f"epoch {epoch} after {self._epochs[-1][1]}"
            self._epochs.append((index, epoch))

    def _epoch_at(self, index: int) -> int:
        return self._epochs[bisect_right(self._epochs, index, key=lambda run: run[0]) - 1][1]

    # -------------------------------------------------------------- reading

    def _read_recent(self, first_index: int, last_index: int, room: int, *, first: bool) -> list[Frame]:
        last_index = self._last_that_fits(first_index, last_index, room, first=first)
        return [self._recent[index] for index in range(first_index, last_index + 1)]

    def _read_files(self, first_index: int, last_index: int, room: int, *, first: bool) -> list[Frame]:
        """Frames of one segment, read at once and each checked."""
        n = bisect_right(self._segments, first_index, key=lambda segment: segment[0]) - 1
        segment, base = self._segments[n]
        if n + 1 < len(self._segments):
            last_index = min(last_index, self._segments[n + 1][0] - 1)
        last_index = self._last_that_fits(first_index, last_index, room, first=first)
        start = self._ends[first_index - 1]
        try:
            data = memoryview(self._pread(segment, self._ends[last_index] - start, start - base))
        except OSError as error:
            if error.errno in (errno.EIO, errno.ENOENT):
                raise self._damaged(segment, start - base, str(error)) from error
            raise StorageFailed(
                f"{segment_path(self._files.directory, segment)} cannot be read ({error}): ask another replica"
            ) from error
        frames: list[Frame] = []
        for index in range(first_index, last_index + 1):
            try:
                frame = decode_frame(self._place, data[self._ends[index - 1] - start : self._ends[index] - start])
            except CorruptBatch as error:
                raise self._damaged(segment, self._ends[index - 1] - base, str(error)) from error
            if frame.entry.index != index:
                raise self._damaged(segment, self._ends[index - 1] - base, f"entry {frame.entry.index} lies where {index} belongs")
            frames.append(frame)
        return frames

    def _last_that_fits(self, first_index: int, last_index: int, room: int, *, first: bool) -> int:
        """The last entry of the range that ends within `room` bytes; `first`: at least the first one."""
        fits = bisect_right(self._ends, self._ends[first_index - 1] + max(room, 0), first_index, last_index + 1) - 1
        return max(fits, first_index) if first else fits

    def _pread(self, segment: int, size: int, position: int) -> bytes:
        if self._reader is None or self._reader[0] != segment:
            self._close_reader()
            self._reader = segment, os.open(segment_path(self._files.directory, segment), os.O_RDONLY | os.O_CLOEXEC)
        return self._writer.files.read(self._reader[1], size, position)

    def _close_reader(self) -> None:
        if self._reader is not None:
            os.close(self._reader[1])
            self._reader = None

    def _damaged(self, segment: int, position: int, reason: str) -> StorageFailed:
        """The error to raise; the first one also gives the log a new id, for it lacks what it acknowledged."""
        message = f"{segment_path(self._files.directory, segment)} is damaged at byte {position}: {reason}"
        if not self._damage_told and self._closed is None:
            self._damage_told = True
            self._writer.submit(self._files, self, Renew(self._generation, message))
        return StorageFailed(f"{message}. Read from another replica; check this broker's disk")

    def _evict(self) -> None:
        """Drop the oldest frames over the cache's bound, but none that is not in the files yet."""
        while self._recent_bytes > self._cache_bytes_max and self._recent_first <= self._written:
            self._recent_bytes -= self._recent.pop(self._recent_first).size + _FRAME_OVERHEAD_BYTES
            self._recent_first += 1


# ------------------------------------------------------------------ opening


def open_disk_journal(
    directory: Path,
    place: Place,
    durability: str,
    listener: JournalListener,
    writer: Writer,
    *,
    topic: str = "",
    segment_bytes_max: int = SEGMENT_BYTES_MAX,
    cache_bytes_max: int = JOURNAL_CACHE_BYTES_MAX,
    boot: str = "",
) -> OpenJournal:
    """The journal that lives in `directory`, recovered, or a new one. Blocks while it checks every frame: call it in a thread.

    `boot` is this boot of the kernel, asked for if not given. Raises `StorageFailed` for damage (recovery.py), after which the log
    already has a new id.
    """
    boot = boot or boot_id()
    try:
        identity, recovered = _open_files(directory, place, durability, writer, topic, boot)
    except OSError as error:
        raise StorageFailed(
            f"{directory} cannot be opened ({error}): check that disk and its rights, then restart this broker"
        ) from error
    files = LogFiles(directory, place, identity, boot, recovered.tail, writer.files)
    journal = DiskJournal(
        files, place, recovered, listener, writer, segment_bytes_max=segment_bytes_max, cache_bytes_max=cache_bytes_max
    )
    return OpenJournal(journal, RecoveredLog(tuple(recovered.entries)))


def _open_files(
    directory: Path, place: Place, durability: str, writer: Writer, topic: str, boot: str
) -> tuple[LogIdentity, Recovered]:
    files = writer.files
    identity = load_identity(directory, place)
    if identity is None:
        if directory.exists() and segment_firsts(directory):
            raise StorageFailed(
                f"{directory / FILE_NAME} is missing beside segments: put it back, or move {directory} away and restart"
            )
        identity = LogIdentity(new_log_id(), boot, False, durability, place.topic_id, place.partition, topic)
        directory.mkdir(parents=True, exist_ok=True)
        files.sync_directory(directory.parent)
        files.replace(directory / MARK_FILE_NAME, pack_mark(place, 0))
        identity.store(directory, files)
        return identity, Recovered()
    rebooted = identity.boot_id != boot
    lossy = identity.durability != "fsync" and rebooted and not identity.clean
    if lossy:
        identity = replace(identity.renewed(), boot_id=boot)
        identity.store(directory, files)
    try:
        recovered = recover(directory, place, files, clean=identity.clean, lossy=lossy, rebooted=rebooted)
    except (LogDamaged, OSError) as error:
        if isinstance(error, LogDamaged) or error.errno == errno.EIO:
            with contextlib.suppress(OSError):  # the disk takes nothing: the journal does not open all the same
                replace(identity.renewed(), boot_id=boot).store(directory, files)
        raise
    if identity.durability != durability or (topic and identity.topic != topic):
        # After the sync above: had the new promise been written before it, a power loss now would be held to it.
        identity = replace(identity, durability=durability, topic=topic or identity.topic, boot_id=boot)
        identity.store(directory, files)
    return identity, recovered
