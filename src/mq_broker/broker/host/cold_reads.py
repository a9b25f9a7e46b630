"""Reads of what lies sealed on the disk: what costs the event loop much is done in a thread, before the read. The next
chunk of a stream is opened while the last one is sent, so that a reader far behind waits for neither.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Final

from mq_broker.broker.host.partition import Partition
from mq_broker.broker.runtime.memory import Held
from mq_broker.core.messages import Published
from mq_broker.storage.interface import NOTHING_UNSEALED, Unsealed
from mq_protocol.errors import TritonMQError
from mq_protocol.limits import READ_BATCHES_MAX

_SPAN_MAX: Final = 2
"""Times its records a chunk may be in the journal to be opened ahead: other entries may lie between them."""


class ColdReads:
    """What one stream reads next. Owns what was opened ahead, which is at most one chunk, and its place in `held`.

    Nothing is opened ahead where there is no room at once: who has the room may be the one who waits here.
    """

    def __init__(self, held: Held, caller: str) -> None:
        self._held = held
        self._caller = caller
        self._ahead: _Ahead | None = None

    async def opened(self, partition: Partition, start: int, end: int, bytes_max: int) -> Unsealed:
        """For `Partition.read` of the same, within the room that is held for it. Raises nothing: who reads is told."""
        if not partition.journal.sealed:
            return NOTHING_UNSEALED
        ahead, self._ahead = self._ahead, None
        if ahead is not None:
            try:
                if (ahead.partition, ahead.start) == (partition, start):
                    return await ahead.opening
            finally:
                self._free(ahead)
        batches = _batches(partition, start, end, bytes_max)
        return await _opened(partition, batches) if batches else NOTHING_UNSEALED

    def open_ahead(self, partition: Partition, start: int, end: int, bytes_max: int) -> None:
        """Begins to open what is probably read next."""
        if self._ahead is not None or not partition.journal.sealed:
            return
        batches = _batches(partition, start, end, bytes_max)
        size = partition.journal.bytes_apart(batches[0].index, batches[-1].index) if batches else 0
        if not 0 < size <= _SPAN_MAX * max(bytes_max, batches[0].payload_bytes):
            return
        if self._held.add_at_once(self._caller, size):
            opening = asyncio.create_task(_opened(partition, batches), name=f"open {partition.name} ahead")
            self._ahead = _Ahead(partition, start, opening, size)

    def close(self) -> None:
        """The stream is over, or has nothing to read: what was opened ahead is let go of."""
        ahead, self._ahead = self._ahead, None
        if ahead is not None:
            self._free(ahead)

    def _free(self, ahead: _Ahead) -> None:
        ahead.opening.cancel()  # nothing, if it is done
        self._held.free(self._caller, ahead.bytes)


class _Ahead:
    """The chunk of a partition that begins at offset `start`."""

    __slots__ = ("bytes", "opening", "partition", "start")

    def __init__(self, partition: Partition, start: int, opening: asyncio.Task[Unsealed], size: int) -> None:
        self.partition = partition
        self.start = start
        self.opening = opening
        self.bytes = size


def _batches(partition: Partition, start: int, end: int, bytes_max: int) -> list[Published]:
    """What `Partition.read` of the same reads; nothing where it raises."""
    with contextlib.suppress(TritonMQError):
        return partition.index.range(start, end, bytes_max, READ_BATCHES_MAX)
    return []


async def _opened(partition: Partition, batches: list[Published]) -> Unsealed:
    return await partition.journal.open_apart(batches[0].index, batches[-1].index)
