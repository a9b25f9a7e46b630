"""How many bytes a broker holds for its clients' streams, and when it takes no more.

Each stream has a bound of its own, but there may be thousands of them. Above the mark nothing more is read from the
streams of those who hold much: what they send waits in TCP, and goes on as soon as enough of what is held has been
answered or sent.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

from mq_protocol.limits import CONNECTIONS_MAX

COPIES_SENT: Final = 3
"""What is on its way out is in memory as it was read, as a message, and once more in gRPC's own buffers."""

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
    """Owns the counts, of all clients' streams together and of each caller's. Used on one loop.

    `high`: the mark. `callers_max`: how many callers there may be. Above the mark who holds less than an even share
    goes on: those who never read what they have asked for stop nobody but themselves. So at most twice `high` is held,
    and one message of each caller beside it.
    """

    def __init__(self, high: int, callers_max: int = CONNECTIONS_MAX) -> None:
        self.bytes = 0
        self._high = high
        self._share = high // callers_max
        self._of: dict[str, int] = {}
        self._freed = asyncio.Event()

    def gauges(self) -> dict[str, float]:
        """What is held, and the mark, by the names of metrics."""
        return {"client_memory_bytes": self.bytes, "client_memory_bytes_max": self._high}

    def add(self, caller: str, count: int) -> None:
        self.bytes += count
        self._of[caller] = self._of.get(caller, 0) + count

    def free(self, caller: str, count: int) -> None:
        self.bytes -= count
        self._of[caller] -= count
        if not self._of[caller]:
            del self._of[caller]
        self._freed.set()

    async def room(self, caller: str) -> None:
        """Returns once what is held is not above the mark, or what the caller holds is below its share."""
        while self.bytes > self._high and self._of.get(caller, 0) >= self._share:
            self._freed.clear()
            await self._freed.wait()

    @contextlib.asynccontextmanager
    async def holding(self, caller: str, count: int) -> AsyncIterator[None]:
        """While so many bytes are on their way out."""
        count *= COPIES_SENT
        self.add(caller, count)
        try:
            yield
        finally:
            self.free(caller, count)
