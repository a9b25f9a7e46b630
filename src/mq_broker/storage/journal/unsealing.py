"""Opening what lies sealed on the disk beside the event loop: in few threads, of a number of their own.

`cryptography` lets other threads run while it opens an entry. So a loop goes on serving while a reader far behind, or a
follower that lags, has megabytes opened.
"""

from __future__ import annotations

import asyncio
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from mq_broker.storage.files import Files
from mq_broker.storage.interface import Frame
from mq_broker.storage.reused_memory import SEALING_MEMORY
from mq_broker.storage.sealed import DataKey
from mq_protocol.errors import StorageFailed

OPENED_ON_THE_LOOP_MAX: Final = 64 << 10
"""Bytes that the event loop opens itself: more are opened in a thread, if whoever reads can wait."""

OPENED_AT_ONCE_MAX: Final = 16 << 20
"""Of one reader, beside the first entry."""

OPENED_KEPT_S: Final = 2.0
OPENED_KEPT_BYTES_MAX: Final = 32 << 20

_THREADS: Final = 2
"""Each holds up to `OPENED_AT_ONCE_MAX`. Who reads waits for one: each request, and each broker of each partition, has
one read at a time."""


class Unsealing:
    """Owns the threads of a broker. Used on the event loop."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(_THREADS, "unsealing")
        self._closed = False

    async def opened(self, files: Files, path: Path, segment: int, key: DataKey, at: int, size: int) -> list[Frame]:
        """The frames of these sealed bytes of a segment's file. Who is cancelled while it waits is not read for. Raises
        what reading and opening them does."""
        if self._closed:
            raise StorageFailed("this broker is stopping")
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, _opened, files, path, segment, key, at, size)

    def close(self) -> None:
        """What is under way comes to its end."""
        self._closed = True
        self._threads.shutdown(wait=False)


class Kept:
    """Frames that were opened for reads which follow at once, each for as many readers as had it opened. Owned by a
    journal."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._frames: dict[int, tuple[Frame, int]] = {}
        self._bytes = 0

    def keep(self, frames: list[Frame]) -> None:
        for frame in frames:
            index = frame.entry.index
            _, readers = self._frames.get(index, (frame, 0))
            if not readers:
                if self._bytes and self._bytes + frame.size > OPENED_KEPT_BYTES_MAX:
                    break  # whoever reads the others opens them on the loop
                self._bytes += frame.size
            self._frames[index] = frame, readers + 1
        self._loop.call_later(OPENED_KEPT_S, self._drop, frames)  # whoever asked may be gone

    def take(self, index: int) -> Frame | None:
        """For one of those who had it opened."""
        found = self._frames.get(index)
        if found is None:
            return None
        frame, readers = found
        if readers > 1:
            self._frames[index] = frame, readers - 1
        else:
            del self._frames[index]
            self._bytes -= frame.size
        return frame

    def forget(self) -> None:
        self._frames = {}
        self._bytes = 0

    def _drop(self, frames: list[Frame]) -> None:
        for frame in frames:
            found = self._frames.get(frame.entry.index)
            if found is not None and found[0] is frame:
                del self._frames[frame.entry.index]
                self._bytes -= frame.size


def _opened(files: Files, path: Path, segment: int, key: DataKey, at: int, size: int) -> list[Frame]:
    """In a thread. None of the frames views what was read."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        with SEALING_MEMORY.lent(size) as room:
            return _frames_of(key, segment, room[: files.read_into(fd, room, at)])
    finally:
        os.close(fd)


def _frames_of(key: DataKey, segment: int, data: memoryview) -> list[Frame]:
    """The frames of the units that `data` is."""
    frames: list[Frame] = []
    position = 0
    while position < len(data):
        frame, position = key.open(segment, data, position)
        frames.append(frame)
    return frames
