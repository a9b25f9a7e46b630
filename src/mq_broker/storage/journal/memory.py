"""A partition's journal in RAM, for `durability=memory`: the same interface as on disk, a new log id at every start.

There is no disk to wait for, yet `flushed` comes from the loop and never from within `append`: callers meet one order
of things, whatever the durability.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from typing import Final

from mq_broker.core.machine.state import Snapshot
from mq_broker.core.machine.window import WindowBounds
from mq_broker.core.messages import RecoveredLog
from mq_broker.storage.codec.frame import Place, unpinned
from mq_broker.storage.codec.snapshot import encode_snapshot
from mq_broker.storage.identity import new_log_id
from mq_broker.storage.interface import NOTHING_UNSEALED, Frame, JournalListener, OpenJournal, Unsealed, not_kept
from mq_broker.storage.journal.shortening import summarize

CLOSE_DEADLINE_S: Final = 30.0


class MemoryJournal:
    """One partition's entries. See `interface.Journal` for what each method promises.

    Owns every frame: entry i is at place i - 1 - `_base`; the snapshot stands for those up to `_base`.
    """

    def __init__(self, listener: JournalListener, place: Place, snapshot: Snapshot | None = None) -> None:
        self.log_id = new_log_id()
        self.keeping = None
        self.snapshot_data = encode_snapshot(place, snapshot) if snapshot is not None else b""
        self._listener = listener
        self._place = place
        self._frames: list[Frame] = []
        self._base = snapshot.last_index if snapshot is not None else 0
        self._base_epoch = snapshot.last_epoch if snapshot is not None else 0
        self._floor = self._base
        self._bytes = 0
        self._reported = self._base
        self._report_due = False
        self._closed = False
        self._generation = 0
        self._shortening: asyncio.Task[int] | None = None
        self._stopping = threading.Event()

    @property
    def first_index(self) -> int:
        return self._base + 1

    @property
    def last_index(self) -> int:
        return self._base + len(self._frames)

    @property
    def bytes_stored(self) -> int:
        return self._bytes

    def append(self, frames: Sequence[Frame]) -> None:
        assert not self._closed, "appended to a closed journal"
        for frame in frames:
            index, epoch = frame.entry.index, frame.entry.leader_epoch
            assert index == self.last_index + 1, f"entry {index} after {self.last_index}"
            assert epoch >= self._last_epoch, f"epoch {epoch} falls at entry {index}"
            self._frames.append(unpinned(frame))
            self._bytes += frame.size
        if frames and not self._report_due:
            self._report_due = True
            asyncio.get_running_loop().call_soon(self._report)

    def truncate(self, last_index: int) -> None:
        assert last_index >= self._floor, f"cut to {last_index}, what is up to {self._floor} is applied"
        if last_index < self.last_index:
            self._bytes -= sum(frame.size for frame in self._frames[last_index - self._base :])
            del self._frames[last_index - self._base :]
            self._reported = min(self._reported, last_index)
            self._generation += 1

    async def shorten_to(self, first_index: int, window: WindowBounds) -> int:
        assert not self._closed, "shortened a closed journal"
        assert first_index <= self.last_index + 1, f"begin at {first_index}, the last entry is {self.last_index}"
        while self._shortening is not None and not self._shortening.done():
            await asyncio.wait({self._shortening})
        if self._closed or first_index <= self.first_index:
            return self.first_index
        self._floor = first_index - 1
        self._shortening = asyncio.get_running_loop().create_task(self._shorten(first_index, window))
        # Whoever asked may be gone
        self._shortening.add_done_callback(lambda task: task.cancelled() or task.exception())
        return await asyncio.shield(self._shortening)

    async def adopt(self, recovery: int) -> None:
        """There is nothing to remember it in, nor a later life to remember it for."""

    def read(self, first_index: int, last_index: int, bytes_max: int) -> list[Frame]:
        assert first_index >= 1, "indexes count from 1"
        self._require_kept(first_index)
        frames: list[Frame] = []
        room = bytes_max
        for index in range(first_index, min(last_index, self.last_index) + 1):
            frame = self._frames[index - 1 - self._base]
            if frames and frame.size > room:
                break
            frames.append(frame)
            room -= frame.size
        return frames

    @property
    def sealed(self) -> bool:
        return False

    @property
    def generation(self) -> int:
        return self._generation

    def is_dear(self, first_index: int, last_index: int) -> bool:
        return False

    async def read_apart(self, first_index: int, last_index: int) -> list[Frame]:
        return self.read(first_index, last_index, 1 << 62)

    def bytes_apart(self, first_index: int, last_index: int) -> int:
        return 0

    async def open_apart(self, first_index: int, last_index: int) -> Unsealed:
        return NOTHING_UNSEALED

    def payload(self, index: int, unsealed: Unsealed = NOTHING_UNSEALED) -> memoryview:
        assert 1 <= index <= self.last_index, f"entry {index} of {self.last_index}"
        self._require_kept(index)
        return self._frames[index - 1 - self._base].payload

    async def close(self) -> None:
        self._closed = True
        self._generation += 1
        self._stopping.set()
        if self._shortening is not None:
            await asyncio.wait({self._shortening}, timeout=CLOSE_DEADLINE_S)
        self._report()

    @property
    def _last_epoch(self) -> int:
        return self._frames[-1].entry.leader_epoch if self._frames else self._base_epoch

    def _require_kept(self, index: int) -> None:
        if index <= self._base:
            raise not_kept(index, self.first_index)

    async def _shorten(self, first_index: int, window: WindowBounds) -> int:
        count = first_index - 1 - self._base
        dropped = self._frames[:count]
        entries = [frame.entry for frame in dropped]
        data = await asyncio.to_thread(summarize, self._place, self.snapshot_data, entries, window, self._stopping)
        if data is not None:
            self.snapshot_data = data
            self._base, self._base_epoch = first_index - 1, entries[-1].leader_epoch
            self._bytes -= sum(frame.size for frame in dropped)
            del self._frames[:count]
        return self.first_index

    def _report(self) -> None:
        """What is here now is as durable as RAM is; entries cut since the call was asked for are not here."""
        self._report_due = False
        if self.last_index > self._reported:
            self._reported = self.last_index
            self._listener.flushed(self._reported, self._last_epoch)


def open_memory_journal(
    listener: JournalListener, place: Place, *, snapshot: Snapshot | None = None, recovery: int = 0
) -> OpenJournal:
    """An empty journal, or one that begins with `snapshot`: nothing survives the process, so there is nothing to
    recover."""
    return OpenJournal(MemoryJournal(listener, place, snapshot), RecoveredLog((), snapshot), recovery)
