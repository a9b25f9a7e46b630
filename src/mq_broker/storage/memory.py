"""A partition's journal in RAM, for `durability=memory`: the same interface as on disk, a new log id at every start.

There is no disk to wait for, yet `flushed` comes from the loop and never from within `append`: callers meet one order of things,
whatever the durability.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from mq_broker.core.messages import RecoveredLog
from mq_broker.storage.frame import unpinned
from mq_broker.storage.identity import new_log_id
from mq_broker.storage.interface import Frame, JournalListener, OpenJournal


class MemoryJournal:
    """One partition's entries. See `interface.Journal` for what each method promises. Owns every frame, entry i at place i - 1."""

    def __init__(self, listener: JournalListener) -> None:
        self.log_id = new_log_id()
        self._listener = listener
        self._frames: list[Frame] = []
        self._bytes = 0
        self._reported = 0
        self._report_due = False
        self._closed = False

    @property
    def last_index(self) -> int:
        return len(self._frames)

    @property
    def bytes_stored(self) -> int:
        return self._bytes

    def append(self, frames: Sequence[Frame]) -> None:
        assert not self._closed, "appended to a closed journal"
        for frame in frames:
            index, epoch = frame.entry.index, frame.entry.leader_epoch
            assert index == len(self._frames) + 1, f"entry {index} after {self.last_index}"
            assert not self._frames or epoch >= self._frames[-1].entry.leader_epoch, f"epoch {epoch} falls at entry {index}"
            self._frames.append(unpinned(frame))
            self._bytes += frame.size
        if frames and not self._report_due:
            self._report_due = True
            asyncio.get_running_loop().call_soon(self._report)

    def truncate(self, last_index: int) -> None:
        assert last_index >= 0, "indexes count from 1"
        self._bytes -= sum(frame.size for frame in self._frames[last_index:])
        del self._frames[last_index:]
        self._reported = min(self._reported, last_index)

    def read(self, first_index: int, last_index: int, bytes_max: int) -> list[Frame]:
        assert first_index >= 1, "indexes count from 1"
        frames: list[Frame] = []
        room = bytes_max
        for at in range(first_index - 1, min(last_index, self.last_index)):
            frame = self._frames[at]
            if frames and frame.size > room:
                break
            frames.append(frame)
            room -= frame.size
        return frames

    def payload(self, index: int) -> memoryview:
        assert 1 <= index <= self.last_index, f"entry {index} of {self.last_index}"
        parts = self._frames[index - 1].payload_parts
        return memoryview(parts[0] if len(parts) == 1 else b"".join(parts))

    async def close(self) -> None:
        self._closed = True
        self._report()

    def _report(self) -> None:
        """What is here now is as durable as RAM is; entries cut since the call was asked for are not here."""
        self._report_due = False
        if self.last_index > self._reported:
            self._reported = self.last_index
            self._listener.flushed(self._reported, self._frames[-1].entry.leader_epoch)


def open_memory_journal(listener: JournalListener) -> OpenJournal:
    """An empty journal: nothing survives the process, so there is nothing to recover."""
    return OpenJournal(MemoryJournal(listener), RecoveredLog())
