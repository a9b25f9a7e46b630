"""How many bytes a broker holds for its clients' streams, and when it takes no more.

Each stream has a bound of its own, but there may be thousands of them. Above the mark nothing more is read from any stream: what
clients send waits in TCP, and goes on as soon as enough of what is held has been answered or sent.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

_CGROUP: Final = Path("/sys/fs/cgroup/memory.max")


def memory_high_by_default() -> int:
    """Half of what this machine, or this container, has."""
    return _memory() // 2


def _memory() -> int:
    machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    try:
        return min(machine, int(_CGROUP.read_text()))
    except (OSError, ValueError):  # no such file, or "max"
        return machine


class Held:
    """Owns the count. Used on one loop."""

    def __init__(self, high: int) -> None:
        self.bytes = 0
        self._high = high
        self._freed = asyncio.Event()

    def add(self, count: int) -> None:
        self.bytes += count

    def free(self, count: int) -> None:
        self.bytes -= count
        self._freed.set()

    async def room(self) -> None:
        """Returns once what is held is not above the mark."""
        while self.bytes > self._high:
            self._freed.clear()
            await self._freed.wait()

    @contextlib.asynccontextmanager
    async def holding(self, count: int) -> AsyncIterator[None]:
        """While something is on its way out."""
        self.add(count)
        try:
            yield
        finally:
            self.free(count)
