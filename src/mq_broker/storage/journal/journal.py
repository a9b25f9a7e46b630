"""A partition's journal on disk: the event loop's side of it. See also opening.py and shortening.py.

The loop owns the truth about which entries there are; the files follow, through orders to the writer thread
(segments.py holds the files, writer.py the thread). An entry can be read from the moment it is appended: from memory
until it is written and for as long as it fits the cache, from the files after that. In memory an entry that is not
cached costs eight bytes: where it ends.

Orders and their outcomes cross on the way, so orders carry a generation, counted up by every truncation: an outcome of
an older generation says nothing about entries that were cut since (trap 24).
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import threading
from bisect import bisect_right
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from itertools import pairwise
from typing import Any, Final

from mq_broker.core.machine.window import WindowBounds
from mq_broker.measured import ALARMS
from mq_broker.storage.codec.frame import Place, decode_frame, unpinned
from mq_broker.storage.interface import NOTHING_UNSEALED, Frame, JournalListener, Unsealed, not_kept
from mq_broker.storage.journal import shortening
from mq_broker.storage.journal.checkpoints import Layout
from mq_broker.storage.journal.keeping import Damage, KeepingOfJournal
from mq_broker.storage.journal.key_ahead import KeyAhead
from mq_broker.storage.journal.recovered import Recovered
from mq_broker.storage.journal.recovery import LogDamaged
from mq_broker.storage.journal.segments import Adopt, Append, Close, LogFiles, Outcome, Renew, Truncate, segment_path
from mq_broker.storage.journal.shortening import WholeSegment, drop_segments
from mq_broker.storage.journal.unsealing import OPENED_AT_ONCE_MAX, OPENED_ON_THE_LOOP_MAX, Part
from mq_broker.storage.journal.writer import Writer
from mq_broker.storage.reused_memory import SEALING_MEMORY
from mq_broker.storage.sealed import Altered, DataKey, file_end, unit_start
from mq_protocol.errors import CorruptBatch, StorageFailed

CLOSE_DEADLINE_S: Final = 30.0
ADOPT_DEADLINE_S: Final = 30.0

_FRAME_OVERHEAD_BYTES: Final = 512  # what a cached frame costs beside its bytes: an Entry, a tuple, its numbers

_logger = logging.getLogger(__name__)


class DiskJournal:
    """One partition's entries. See `interface.Journal` for what each method promises.

    Owns the index of positions, the cache of recent frames and one descriptor to read with. Invariants:
    - `_base` is the last entry that the snapshot stands for, 0 without one; the others are `_base + 1 .. last_index`;
    - `_ends[i]` is where the frame of entry `_base + i` ends, counted over all segments there ever were; `_segments`
      are (first index, where it begins), ascending;
    - `_keys` has what opens those of them that are sealed. With a `KeyAhead` each segment that begins is, and none
      begins before there is a key;
    - no truncation goes below `_floor - 1`, and none removes the segment that begins at `_floor`: all before is being
      dropped;
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
        segment_bytes_max: int,
        cache_bytes_max: int,
        at_work: Callable[[], AbstractContextManager[None]],
        ahead: KeyAhead | None,
    ) -> None:
        self.log_id = files.identity.log_id
        self._files = files
        self._place = place
        self._listener = listener
        self._writer = writer
        self._segment_bytes_max = segment_bytes_max
        self._cache_bytes_max = cache_bytes_max
        self._at_work = at_work
        self.snapshot_data = recovered.snapshot_data
        self._base = self._floor = recovered.base_index
        self._ends = recovered.ends
        self._segments = recovered.segments
        self._keys = recovered.keys
        self._ahead = ahead
        self._begin_due = self._is_of_another_key()
        self._epochs: list[tuple[int, int]] = []  # (first index, epoch)
        if recovered.snapshot is not None:
            self._note_epoch(self._base, recovered.snapshot.last_epoch)
        for index, epoch in recovered.checkpoint.epochs if recovered.checkpoint is not None else ():
            self._note_epoch(index, epoch)
        for entry in recovered.entries:
            self._note_epoch(entry.index, entry.leader_epoch)
        self._written = self._reported = self.last_index
        self._generation = 0
        self._cuts: list[tuple[int, int]] = []  # (generation, last index kept) of truncations with no outcome yet
        self._recent: dict[int, Frame] = {}
        self._recent_first = self.last_index + 1
        self._recent_bytes = 0
        self._overflow_from: int | None = None
        self._damage_told = self._altered_told = False
        self._reader: tuple[int, int] | None = None  # (segment, descriptor)
        self._closed: asyncio.Future[None] | None = None
        self._adopting: list[tuple[int, asyncio.Future[str]]] = []
        self._shortening: asyncio.Task[int] | None = None
        self._stopping = threading.Event()
        self.keeping = KeepingOfJournal(files, place, recovered, self._layout, ahead, at_work, self._found)

    def _layout(self) -> Layout:
        return Layout(self._base, self._ends, self._segments, self._keys, self._epochs)

    @property
    def first_index(self) -> int:
        return self._base + 1

    @property
    def last_index(self) -> int:
        return self._base + len(self._ends) - 1

    @property
    def bytes_stored(self) -> int:
        return self._ends[-1] - self._ends[0]

    def append(self, frames: Sequence[Frame]) -> None:
        assert self._closed is None, "appended to a closed journal"
        if not frames:
            return
        run: list[Frame] = []
        run_start = before = self._ends[-1]
        for frame in frames:
            entry = frame.entry
            end = self._ends[-1]
            assert entry.index == self.last_index + 1, f"entry {entry.index} after {self.last_index}"
            if self._needs_segment(frame.size):
                self._submit_append(run, end - run_start)
                run, run_start = [], end
                self._segments.append((entry.index, end))
            if self._ahead is not None and self._segments[-1][1] == end:
                self._take_key(self._ahead)
            self._note_epoch(entry.index, entry.leader_epoch)
            self._ends.append(end + frame.size)
            frame = unpinned(frame)
            self._recent[entry.index] = frame
            run.append(frame)
        self._cached(self._ends[-1] - before + len(frames) * _FRAME_OVERHEAD_BYTES)
        self._submit_append(run, self._ends[-1] - run_start)

    def truncate(self, last_index: int) -> None:
        assert self._closed is None, "truncated a closed journal"
        assert last_index >= max(self._base, self._floor - 1), (
            f"cut to {last_index}, what is up to {self._floor - 1} is applied"
        )
        if last_index < self.last_index:
            self._cut(last_index)

    def read(self, first_index: int, last_index: int, bytes_max: int) -> list[Frame]:
        assert first_index >= 1, "indexes count from 1"
        if first_index <= self._base:
            raise not_kept(first_index, self.first_index)
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
            room = bytes_max - (self._end(index - 1) - self._end(first_index - 1))
        return frames

    def payload(self, index: int, unsealed: Unsealed = NOTHING_UNSEALED) -> memoryview:
        assert 1 <= index <= self.last_index, f"entry {index} of {self.last_index}"
        frame = unsealed.frames.get(index) if unsealed.generation == self._generation and index > self._base else None
        return (frame or self.read(index, index, 0)[0]).payload

    async def shorten_to(self, first_index: int, window: WindowBounds) -> int:
        assert self._closed is None, "shortened a closed journal"
        assert first_index <= self.last_index + 1, f"begin at {first_index}, the last entry is {self.last_index}"
        while self._shortening is not None and not self._shortening.done():
            await asyncio.wait({self._shortening})
        # A segment's start that is written: those before it are on the disk, synced, and never the last one.
        at = bisect_right(self._segments, min(first_index, self._written), key=lambda segment: segment[0]) - 1
        if self._closed is not None or at < 1:
            return self.first_index
        self._floor = self._segments[at][0]
        self._shortening = asyncio.get_running_loop().create_task(self._shorten(at, window))
        # Whoever asked may be gone
        self._shortening.add_done_callback(lambda task: task.cancelled() or task.exception())
        return await asyncio.shield(self._shortening)

    async def adopt(self, recovery: int) -> None:
        if self._closed is not None:  # whoever asked could not know yet
            return
        adopted: asyncio.Future[str] = self._writer.loop.create_future()
        self._adopting.append((recovery, adopted))
        self._writer.submit(self._files, self, Adopt(self._generation, recovery))
        either: set[asyncio.Future[Any]] = {adopted, self._writer.died}
        await asyncio.wait(either, timeout=ADOPT_DEADLINE_S, return_when=asyncio.FIRST_COMPLETED)
        failure = adopted.result() if adopted.done() else "its disk does not answer"
        if failure:
            _logger.warning(
                "%s did not take recovery %d (%s): check that disk", self._files.directory, recovery, failure
            )

    async def close(self) -> None:
        self._stopping.set()
        if self._closed is None:
            self._closed = self._writer.loop.create_future()
            self._generation += 1
            self._writer.submit(self._files, self, Close(self._generation))
        await asyncio.wait(
            {self._closed, self._writer.died}, timeout=CLOSE_DEADLINE_S, return_when=asyncio.FIRST_COMPLETED
        )
        await self.keeping.settled(CLOSE_DEADLINE_S)
        if self._shortening is not None:
            await asyncio.wait({self._shortening}, timeout=CLOSE_DEADLINE_S)
        self._close_reader()
        if self._ahead is not None:
            self._ahead.close()
        self._writer.caches.forget(self)  # last: a shortening gives back what it drops
        if not self._closed.done() or (self._shortening is not None and not self._shortening.done()):
            raise StorageFailed(
                f"{self._files.directory} did not close: its disk does not answer; the log is recovered at the next "
                "start"
            )

    # -------------------------------------------------------------- what the writer found

    def settle(self, outcome: Outcome) -> None:
        """Called by the writer on the loop: what became of the orders so far."""
        if outcome.replaced is not None:
            self.log_id, reason = outcome.replaced
            self.keeping.end()
            self._listener.replaced(self.log_id, reason)
        limit = min(
            [last for generation, last in self._cuts if generation > outcome.generation], default=self.last_index
        )
        self._cuts = [cut for cut in self._cuts if cut[0] > outcome.generation]
        self._written = min(outcome.written, limit)
        self._evict(self._cache_bytes_max)
        self._writer.caches.keep_within()
        flushed = min(outcome.flushed, limit)
        if flushed > self._reported:
            self._reported = flushed
            self._listener.flushed(flushed, self._epoch_at(flushed))
        if outcome.refused is not None:
            first_index, reason = outcome.refused
            if first_index <= limit and first_index <= self.last_index:
                self._cut(first_index - 1)
                self._listener.refused(first_index, reason)
        if outcome.adopted is not None or outcome.closed:
            recovery, failure = outcome.adopted or (0, "")
            for asked, adopted in self._adopting:
                if not adopted.done() and (asked <= recovery or outcome.closed):
                    adopted.set_result(failure if asked <= recovery else "the journal is closed")
            self._adopting = [adopting for adopting in self._adopting if not adopting[1].done()]
        if outcome.closed and self._closed is not None and not self._closed.done():
            self._closed.set_result(None)

    # -------------------------------------------------------------- the end of the log

    def _needs_segment(self, size: int) -> bool:
        if not self._segments:
            return True
        filled = self._ends[-1] - self._segments[-1][1]
        if self._ahead is None:
            return filled > 0 and filled + size > self._segment_bytes_max
        return filled > 0 and (self._begin_due or filled + size > self._segment_bytes_max) and self._ahead.ready

    def _is_of_another_key(self) -> bool:
        """Whether the last segment is plain or sealed with another key than what begins now: it is not gone on with."""
        if self._ahead is None or not self._segments:
            return False
        key = self._keys.get(self._segments[-1][0])
        return key is None or key.slot.key_id != self._ahead.latest.slot.key_id

    def _take_key(self, ahead: KeyAhead) -> None:
        """For the last segment, of which nothing is written yet."""
        self._begin_due = False
        first = self._segments[-1][0]
        if ahead.ready and (first not in self._keys or self._is_of_another_key()):
            self._keys[first] = ahead.take()
        assert first in self._keys, f"segment {first} begins without a key"

    def _submit_append(self, run: list[Frame], size: int) -> None:
        if not run:
            return
        if self._overflow_from is None and not self._writer.has_room:
            self._overflow_from = run[0].entry.index
            self._writer.loop.call_soon(self._refuse_overflow)
        if self._overflow_from is None:
            segment = self._segments[-1][0]
            order = Append(self._generation, segment, run, size, self._keys.get(segment))
            self._writer.submit(self._files, self, order, size)

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
        self.keeping.cut(last_index)
        del self._ends[last_index + 1 - self._base :]
        while self._segments and self._segments[-1][0] > max(last_index, self._floor):
            popped = self._keys.pop(self._segments.pop()[0], None)
            if popped is not None and self._ahead is not None:
                self._ahead.give_back(popped)
        while self._epochs and self._epochs[-1][0] > last_index:
            self._epochs.pop()
        for index in [index for index in self._recent if index > last_index]:
            self._cached(-self._recent.pop(index).size - _FRAME_OVERHEAD_BYTES)
        self._recent_first = min(self._recent_first, last_index + 1)
        self._written = min(self._written, last_index)
        self._reported = min(self._reported, last_index)
        if self._overflow_from is not None and last_index < self._overflow_from:
            self._overflow_from = None
        self._close_reader()  # a segment may be made anew under the same name
        segment = self._segments[-1][0] if self._segments else 0
        kept_bytes = self._file_end(last_index) if segment else 0
        self._writer.submit(self._files, self, Truncate(self._generation, last_index, segment, kept_bytes))

    def _note_epoch(self, index: int, epoch: int) -> None:
        if not self._epochs or self._epochs[-1][1] != epoch:
            assert not self._epochs or epoch > self._epochs[-1][1], f"epoch {epoch} after {self._epochs[-1][1]}"
            self._epochs.append((index, epoch))

    def _epoch_at(self, index: int) -> int:
        return self._epochs[bisect_right(self._epochs, index, key=lambda run: run[0]) - 1][1]

    # -------------------------------------------------------------- the start of the log

    async def _shorten(self, at: int, window: WindowBounds) -> int:
        """Begin with segment number `at`. See shortening.py for the order of things."""
        directory, first = self._files.directory, self._segments[at][0]
        starts = self._segments[: at + 1]
        dropped = [
            WholeSegment(
                index, file_end(end - start, following - index, sealed=index in self._keys), self._keys.get(index)
            )
            for (index, start), (following, end) in pairwise(starts)
        ]
        key = self._ahead.latest if self._ahead is not None else None
        files, before = self._writer.files, self.snapshot_data
        make = shortening.make_snapshot
        work = partial(make, directory, self._place, files, before, dropped, window, self._stopping, key)
        try:
            data = await asyncio.to_thread(self._working, work)
        except LogDamaged as damage:
            raise self._damaged(damage.segment, damage.position, damage.reason) from damage
        except OSError as error:
            raise StorageFailed(
                f"{directory} takes no snapshot ({error}): free space there; nothing was dropped"
            ) from error
        if data is None:  # closed meanwhile
            return self.first_index
        self._begin_after(first - 1, data)
        try:
            await asyncio.to_thread(self._working, partial(drop_segments, directory, first, files))
        except (OSError, StorageFailed) as error:
            _logger.warning("%s: segments before entry %d are not removed yet (%s)", directory, first, error)
        return first

    def _working(self, work: Callable[[], Any]) -> Any:
        """In a thread."""
        with self._at_work():
            return work()

    def _begin_after(self, base: int, data: bytes) -> None:
        """A durable snapshot stands for all up to `base` now: forget what it stands for."""
        self.snapshot_data = data
        del self._ends[: base - self._base]
        self._base = base
        gone = bisect_right(self._segments, base, key=lambda segment: segment[0])
        for first, _ in self._segments[:gone]:
            self._keys.pop(first, None)
        del self._segments[:gone]
        del self._epochs[: bisect_right(self._epochs, base, key=lambda run: run[0]) - 1]
        for index in range(self._recent_first, min(base, self.last_index) + 1):
            self._cached(-self._recent.pop(index).size - _FRAME_OVERHEAD_BYTES)
        self._recent_first = max(self._recent_first, base + 1)
        if self._reader is not None and self._reader[0] <= base:
            self._close_reader()

    # -------------------------------------------------------------- reading

    def _end(self, index: int) -> int:
        return self._ends[index - self._base]

    def _read_recent(self, first_index: int, last_index: int, room: int, *, first: bool) -> list[Frame]:
        last_index = self._last_that_fits(first_index, last_index, room, first=first)
        return [self._recent[index] for index in range(first_index, last_index + 1)]

    def _read_files(self, first_index: int, last_index: int, room: int, *, first: bool) -> list[Frame]:
        """Frames of one segment, read at once and each checked."""
        segment, base, last_index = self._within_segment(first_index, last_index)
        last_index = self._last_that_fits(first_index, last_index, room, first=first)
        start, key = self._end(first_index - 1), self._keys.get(segment)
        at, size = self._span(segment, base, first_index, last_index)
        try:
            fd = self._descriptor(segment)
            if key is not None:
                with SEALING_MEMORY.lent(size) as sealed:
                    filled = self._writer.files.read_into(fd, sealed, at)
                    return self._unsealed(segment, base, key, sealed[:filled], first_index)
            data = memoryview(self._writer.files.read(fd, size, at))
        except OSError as error:
            if error.errno in (errno.EIO, errno.ENOENT):
                raise self._damaged(segment, at, str(error)) from error
            raise StorageFailed(
                f"{segment_path(self._files.directory, segment)} cannot be read ({error}): ask another replica"
            ) from error
        frames: list[Frame] = []
        for index in range(first_index, last_index + 1):
            try:
                frame = decode_frame(self._place, data[self._end(index - 1) - start : self._end(index) - start])
            except CorruptBatch as error:
                raise self._damaged(segment, self._end(index - 1) - base, str(error)) from error
            if frame.entry.index != index:
                raise self._damaged(
                    segment, self._end(index - 1) - base, f"entry {frame.entry.index} lies where {index} belongs"
                )
            frames.append(frame)
        return frames

    def _within_segment(self, first_index: int, last_index: int) -> tuple[int, int, int]:
        """The segment that has the first entry: its first index, where it begins, and the last of the entries that it
        has as well."""
        n = bisect_right(self._segments, first_index, key=lambda segment: segment[0]) - 1
        if n + 1 < len(self._segments):
            last_index = min(last_index, self._segments[n + 1][0] - 1)
        return *self._segments[n], last_index

    def _span(self, segment: int, base: int, first_index: int, last_index: int) -> tuple[int, int]:
        """Where in the segment's file these entries begin, and how many bytes they are."""
        sealed = segment in self._keys
        start = unit_start(self._end(first_index - 1) - base, first_index - segment, sealed=sealed)
        return start, unit_start(self._end(last_index) - base, last_index + 1 - segment, sealed=sealed) - start

    def _file_end(self, index: int) -> int:
        """Where the file of the last segment ends, if `index` is its last entry."""
        segment, base = self._segments[-1]
        return file_end(self._end(index) - base, index + 1 - segment, sealed=segment in self._keys)

    def _unsealed(self, segment: int, base: int, key: DataKey, data: memoryview, index: int) -> list[Frame]:
        """The frames of the units that `data` is, from that of entry `index` on."""
        frames: list[Frame] = []
        at = 0
        while at < len(data):
            position, _ = self._span(segment, base, index, index)
            try:
                frame, at = key.open(segment, data, at)
            except CorruptBatch as error:
                raise self._damaged(segment, position, str(error)) from error
            except Altered as error:
                self._tell_altered(segment, position, error)
                raise
            if frame.entry.index != index:
                raise self._damaged(segment, position, f"entry {frame.entry.index} lies where {index} belongs")
            frames.append(frame)
            index += 1
        return frames

    @property
    def sealed(self) -> bool:
        return bool(self._keys)

    @property
    def generation(self) -> int:
        return self._generation

    def is_dear(self, first_index: int, last_index: int) -> bool:
        if not self._keys or first_index <= self._base or first_index >= self._recent_first:
            return False
        last_index = min(last_index, self._recent_first - 1, self.last_index)
        return self._end(last_index) - self._end(first_index - 1) > OPENED_ON_THE_LOOP_MAX

    def bytes_apart(self, first_index: int, last_index: int) -> int:
        return 0 if (part := self._part_apart(first_index, last_index)) is None else part.size

    async def open_apart(self, first_index: int, last_index: int) -> Unsealed:
        frames = await self._read_apart(first_index, last_index) or []
        return Unsealed(self._generation, {frame.entry.index: frame for frame in frames})

    async def read_apart(self, first_index: int, last_index: int) -> list[Frame]:
        generation = self._generation
        frames: list[Frame] = []
        index, last_index = first_index, min(last_index, self.last_index)
        while index <= last_index:
            more = await self._read_apart(index, last_index)
            if generation != self._generation:
                return []
            if more is None:
                end = last_index if index <= self._base else self._within_segment(index, last_index)[2]
                more = self.read(index, end, OPENED_ON_THE_LOOP_MAX)  # sealed or not: in steps that hold it little
                await asyncio.sleep(0)
            frames += more
            index += len(more)
        return frames

    def _part_apart(self, first_index: int, last_index: int) -> Part | None:
        """What one segment has of them, and one reader may have opened at once. None if it is little or not sealed."""
        if not self.is_dear(first_index, last_index):
            return None
        segment, base, last_index = self._within_segment(first_index, min(last_index, self._recent_first - 1))
        last_index = self._last_that_fits(first_index, last_index, OPENED_AT_ONCE_MAX, first=True)
        at, size = self._span(segment, base, first_index, last_index)
        key = self._keys.get(segment)
        if key is None or size <= OPENED_ON_THE_LOOP_MAX:
            return None
        return Part(segment, key, at, size, range(first_index, last_index + 1))

    async def _read_apart(self, first_index: int, last_index: int) -> list[Frame] | None:
        """That part. None if there is none, or if it does not open, which the read tells."""
        part = self._part_apart(first_index, last_index)
        if part is None:
            return None
        generation, path = self._generation, segment_path(self._files.directory, part.segment)
        try:
            frames = await self._writer.unsealing.opened(self._writer.files, path, part)
        except (OSError, CorruptBatch, StorageFailed):
            return None
        return frames if generation == self._generation and first_index > self._base else None

    def _last_that_fits(self, first_index: int, last_index: int, room: int, *, first: bool) -> int:
        """The last entry of the range that ends within `room` bytes; `first`: at least the first one."""
        limit = self._end(first_index - 1) + max(room, 0)
        fits = self._base + bisect_right(self._ends, limit, first_index - self._base, last_index - self._base + 1) - 1
        return max(fits, first_index) if first else fits

    def _descriptor(self, segment: int) -> int:
        """To read that segment with."""
        if self._reader is None or self._reader[0] != segment:
            self._close_reader()
            self._reader = segment, os.open(segment_path(self._files.directory, segment), os.O_RDONLY | os.O_CLOEXEC)
        return self._reader[1]

    def _close_reader(self) -> None:
        if self._reader is not None:
            os.close(self._reader[1])
            self._reader = None

    def _tell_altered(self, segment: int, position: int, error: Altered) -> None:
        self.keeping.end()
        if not self._altered_told:
            self._altered_told = True
            ALARMS.add("altered")
            _logger.error("%s, byte %d: %s", segment_path(self._files.directory, segment), position, error)
            self._writer.loop.call_soon(self._listener.altered, str(error))

    def _found(self, damage: Damage) -> None:
        if damage.altered is not None:
            self._tell_altered(damage.segment, damage.position, damage.altered)
        else:
            _logger.error("%s", self._damaged(damage.segment, damage.position, damage.reason))

    def _damaged(self, segment: int, position: int, reason: str) -> StorageFailed:
        """The error to raise; the first one also gives the log a new id, for it lacks what it acknowledged."""
        message = f"{segment_path(self._files.directory, segment)} is damaged at byte {position}: {reason}"
        self.keeping.end()
        if not self._damage_told and self._closed is None:
            self._damage_told = True
            self._writer.submit(self._files, self, Renew(self._generation, message))
        return StorageFailed(f"{message}. Read from another replica; check this broker's disk")

    def shed(self, bytes_wanted: int) -> None:
        """The broker's caches are too large together: see `FrameCache`."""
        self._evict(max(0, self._recent_bytes - bytes_wanted))

    def _evict(self, bytes_max: int) -> None:
        """Drop the oldest frames until the rest fits, but none that is not in the files yet."""
        while self._recent_bytes > bytes_max and self._recent_first <= self._written:
            self._cached(-self._recent.pop(self._recent_first).size - _FRAME_OVERHEAD_BYTES)
            self._recent_first += 1

    def _cached(self, delta: int) -> None:
        self._recent_bytes += delta
        self._writer.caches.changed(self, delta)
