"""What a piece of work costs this process: how long it holds the loop, and how much its memory grows."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

_STATUS = Path("/proc/self/status")
_CLEAR = Path("/proc/self/clear_refs")
_CLEAR_PEAK = "5"


@dataclass
class Cost:
    """`longest_hold_s`: the most processor time that the loop's thread took before something else on the loop had a
    turn. Time in which it waited for a processor does not count: tests share their machine. `grown_bytes`: how far
    memory rose above what it was at the beginning; 0 where the system does not tell."""

    longest_hold_s: float = 0.0
    grown_bytes: int = 0


@contextlib.asynccontextmanager
async def measured() -> AsyncIterator[Cost]:
    """The cost of what is done meanwhile. Work of the test itself on this loop counts too: prepare requests before."""
    cost = Cost()
    before = _begin()
    watching = asyncio.create_task(_watch(cost))
    await asyncio.sleep(0)
    try:
        yield cost
    finally:
        await asyncio.sleep(0)
        watching.cancel()
        cost.grown_bytes = max(0, _resident("VmHWM") - before)


async def _watch(cost: Cost) -> None:
    last = time.thread_time()
    while True:
        await asyncio.sleep(0.001)
        now = time.thread_time()
        cost.longest_hold_s = max(cost.longest_hold_s, now - last)
        last = now


def _begin() -> int:
    """Forget the highest memory so far; what it is now."""
    if _CLEAR.exists():
        _CLEAR.write_text(_CLEAR_PEAK)
    return _resident("VmRSS")


def _resident(field: str) -> int:
    if not _STATUS.exists():
        return 0
    [line] = [line for line in _STATUS.read_text().splitlines() if line.startswith(field + ":")]
    return int(line.split()[1]) << 10
