"""How many bytes a broker holds for its clients' streams, and when it takes no more.

Each stream has a bound of its own, but there may be thousands of them. Above the mark nothing more is read from the
streams of those who hold much: what they send waits in TCP, and goes on as soon as enough of what is held has been
answered or sent. A large message counts before it is received (arrivals.py). What they
are sent is counted before it is read from the journal, and not read above the mark.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections import OrderedDict
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final, NamedTuple

from mq_protocol.limits import CONNECTIONS_MAX

COPIES_SENT: Final = 3
"""What is on its way out is in memory as it was read, as a message, and once more in gRPC's own buffers."""

PRESSED_BYTES: Final = 64 << 10
"""What one message has of records above the mark, for whoever goes on there: it holds little."""

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


class _Wish(NamedTuple):
    """What somebody waits for: room for `least` bytes."""

    caller: str
    least: int


class Held:
    """Owns the counts, of all clients' streams together and of each caller's. Used on one loop.

    `high`: the mark. `callers_max`: how many callers there may be. Above the mark who holds less than an even share
    goes on, with small messages: those who never read what they have asked for stop nobody but themselves. A batch that
    is larger than those goes on up to twice the mark. So at most twice `high` is held, and a small message of each
    caller beside it.
    """

    def __init__(self, high: int, callers_max: int = CONNECTIONS_MAX) -> None:
        self.bytes = 0
        self._high = high
        self._share = high // callers_max
        self._of: dict[str, int] = {}
        self._small = max(self._share // COPIES_SENT, PRESSED_BYTES)
        self._waiting: OrderedDict[asyncio.Future[None], _Wish] = OrderedDict()
        self._waiting_of: dict[str, OrderedDict[asyncio.Future[None], None]] = {}
        # Of those, whose callers hold little: they wait for what all hold to be less than twice the mark
        self._large: OrderedDict[asyncio.Future[None], None] = OrderedDict()

    @property
    def high(self) -> int:
        return self._high

    def gauges(self) -> dict[str, float]:
        """What is held, and the mark, by the names of metrics."""
        return {"client_memory_bytes": self.bytes, "client_memory_bytes_max": self._high}

    @property
    def is_half_full(self) -> bool:
        """Whether what could be read again is better not kept."""
        return self.bytes > self._high // 2

    def add(self, caller: str, count: int) -> None:
        self.bytes += count
        self._of[caller] = self._of.get(caller, 0) + count

    def add_at_once(self, caller: str, count: int) -> bool:
        """Counts them if that is not above the mark and nobody waits for room; else nothing. Never waits."""
        if self._waiting or self.bytes + count > self._high:
            return False
        self.add(caller, count)
        return True

    def free(self, caller: str, count: int) -> None:
        self.bytes -= count
        self._of[caller] -= count
        if not self._of[caller]:
            del self._of[caller]
        self._wake(caller)

    async def room(self, caller: str) -> None:
        """Returns once what is held is not above the mark, or what the caller holds is below its share."""
        await self._wait(_Wish(caller, 0))
        self._wake(caller)

    @contextlib.asynccontextmanager
    async def sending(
        self, caller: str, bytes_max: int, least: int = 0, over: asyncio.Event | None = None
    ) -> AsyncIterator[Sending]:
        """Around the reading of records and the sending of them: there is room for `bytes_max`, or for less of them
        (`Sending.bytes`), `least` at least, from before they are read until they are sent. Waits for it, but not once
        `over` is set."""
        await self._wait(_Wish(caller, least), over)
        if self.bytes > self._high:
            bytes_max = max(least, min(bytes_max, self._small))
        reserved = Sending(self, caller, bytes_max)
        self._wake(caller)
        try:
            yield reserved
        finally:
            reserved.took(0)

    # ------------------------------------------------------------------ private

    def _is_modest(self, wish: _Wish) -> bool:
        return self._of.get(wish.caller, 0) < self._share

    def _fits(self, wish: _Wish) -> bool:
        """Above the mark."""
        return wish.least <= self._small or self.bytes + wish.least * COPIES_SENT <= 2 * self._high

    def _has_room(self, wish: _Wish) -> bool:
        return self.bytes <= self._high or (self._is_modest(wish) and self._fits(wish))

    async def _wait(self, wish: _Wish, over: asyncio.Event | None = None) -> None:
        was_woken = False
        while not (self._has_room(wish) or (over is not None and over.is_set())):
            waiting: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._enter(waiting, wish, first=was_woken)  # if somebody who came just then was faster
            try:
                if over is None:
                    await waiting
                else:
                    await _either(waiting, over)
            except asyncio.CancelledError:
                self._leave(waiting)
                self._wake(wish.caller)  # it is another one's turn, or one's whose smaller wish waited behind this one
                raise
            finally:
                self._leave(waiting)
            was_woken = waiting.done()

    def _enter(self, waiting: asyncio.Future[None], wish: _Wish, *, first: bool) -> None:
        mine = self._waiting_of.setdefault(wish.caller, OrderedDict())
        self._waiting[waiting], mine[waiting] = wish, None
        if self._is_modest(wish):
            self._large[waiting] = None
        if first:
            self._waiting.move_to_end(waiting, last=False)
            mine.move_to_end(waiting, last=False)

    def _leave(self, waiting: asyncio.Future[None]) -> None:
        wish = self._waiting.pop(waiting, None)
        if wish is not None:
            self._large.pop(waiting, None)
            mine = self._waiting_of[wish.caller]
            del mine[waiting]
            if not mine:
                del self._waiting_of[wish.caller]

    def _wake(self, caller: str) -> None:
        """Whoever waits for the longest time, of all, of this caller, or of those whose batches are large. It wakes the
        next, if there is room still."""
        while (waiting := self._next(caller)) is not None:
            self._leave(waiting)
            if not waiting.done():  # else it is just being cancelled
                waiting.set_result(None)
                return

    def _next(self, caller: str) -> asyncio.Future[None] | None:
        if self.bytes <= self._high:
            return next(iter(self._waiting), None)
        if caller in self._waiting_of:
            waiting = next(iter(self._waiting_of[caller]))
            if self._is_modest(self._waiting[waiting]):
                if self._fits(self._waiting[waiting]):
                    return waiting
                self._large[waiting] = None
        while self._large:
            waiting = next(iter(self._large))
            if self._is_modest(self._waiting[waiting]):
                return waiting if self._fits(self._waiting[waiting]) else None
            del self._large[waiting]  # until its caller holds less
        return None


async def _either(waiting: asyncio.Future[None], over: asyncio.Event) -> None:
    ending = asyncio.create_task(over.wait())
    either: set[asyncio.Future[Any]] = {waiting, ending}
    try:
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
    finally:
        ending.cancel()


class Sending:
    """A reservation of `Held`. `bytes`: how many of records may be read for it."""

    def __init__(self, held: Held, caller: str, count: int) -> None:
        self.bytes = count
        self._held = held
        self._caller = caller
        self._reserved = count * COPIES_SENT
        held.add(caller, self._reserved)

    def took(self, count: int) -> None:
        """So many bytes have been read, and are on their way out."""
        count *= COPIES_SENT
        self._held.add(self._caller, count)
        self._held.free(self._caller, self._reserved)
        self._reserved = count
