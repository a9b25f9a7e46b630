"""Opening what lies sealed on the disk beside the event loop: in few threads, of a number of their own.

`cryptography` lets other threads run while it opens an entry. So a loop goes on serving while a reader far behind, or a
follower that lags, has megabytes opened.
"""

from __future__ import annotations

import asyncio
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, NamedTuple

from mq_broker.storage.files import Files
from mq_broker.storage.interface import Frame
from mq_broker.storage.reused_memory import SEALING_MEMORY
from mq_broker.storage.sealed import DataKey
from mq_protocol.errors import CorruptBatch, StorageFailed

OPENED_ON_THE_LOOP_MAX: Final = 64 << 10
"""Bytes that the event loop opens itself: more are opened in a thread, if whoever reads can wait."""

OPENED_AT_ONCE_MAX: Final = 16 << 20
"""Of one reader, beside the first entry."""

_THREADS: Final = 2
"""Each holds up to `OPENED_AT_ONCE_MAX`. Who reads waits for one: each request, and each broker of each partition, has
one read at a time."""


class Part(NamedTuple):
    """Sealed entries of one segment: `size` bytes from `at` on in its file."""

    segment: int
    key: DataKey
    at: int
    size: int
    indexes: range


class Unsealing:
    """Owns the threads of a broker. Used on the event loop."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(_THREADS, "unsealing")
        self._closed = False

    async def opened(self, files: Files, path: Path, part: Part) -> list[Frame]:
        """The frames of that part of a segment's file. Who is cancelled while it waits is not read for. Raises
        what reading and opening them does."""
        if self._closed:
            raise StorageFailed("this broker is stopping")
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, _opened, files, path, part)

    def close(self) -> None:
        """What is under way comes to its end."""
        self._closed = True
        self._threads.shutdown(wait=False)


def _opened(files: Files, path: Path, part: Part) -> list[Frame]:
    """In a thread. None of the frames views what was read."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        with SEALING_MEMORY.lent(part.size) as room:
            frames = _frames_of(part.key, part.segment, room[: files.read_into(fd, room, part.at)])
    finally:
        os.close(fd)
    if [frame.entry.index for frame in frames] != list(part.indexes):
        raise CorruptBatch("other entries lie there")
    return frames


def _frames_of(key: DataKey, segment: int, data: memoryview) -> list[Frame]:
    """The frames of the units that `data` is."""
    frames: list[Frame] = []
    position = 0
    while position < len(data):
        frame, position = key.open(segment, data, position)
        frames.append(frame)
    return frames
