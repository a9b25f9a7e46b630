"""Queues for locks at a broker that stands alone: in memory, as they end with the process. What its tokens have come to
is kept."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Final, NoReturn

from mq_protocol.errors import LockLost, LockNotAcquired

TOKENS_AT_ONCE: Final = 1_000
"""Reserved by one write to the disk. What is left of them when the process ends is never given."""


class FileLocks:
    """Owns the queues, and the tokens that are reserved. `reserve(count)`: durably, the first of so many new ones."""

    def __init__(self, reserve: Callable[[int], Awaitable[int]]) -> None:
        self._reserve = reserve
        self._reserving = asyncio.Lock()
        self._queues: dict[str, deque[FileLockPlace]] = {}
        self._next = 1
        self._reserved = 0

    def queue(self, name: str) -> FileLockPlace:
        place = FileLockPlace(self, name)
        queue = self._queues.setdefault(name, deque())
        queue.append(place)
        if queue[0] is place:
            place.turn.set()
        return place

    async def token(self) -> int:
        async with self._reserving:
            if self._next > self._reserved:
                self._next = await self._reserve(TOKENS_AT_ONCE)
                self._reserved = self._next + TOKENS_AT_ONCE - 1
            self._next += 1
            return self._next - 1

    def leave(self, place: FileLockPlace) -> None:
        queue = self._queues.get(place.name, deque())
        if place not in queue:
            return
        queue.remove(place)
        if queue:
            queue[0].turn.set()
        else:
            del self._queues[place.name]

    def stop(self) -> None:
        """End all places."""
        queues, self._queues = self._queues, {}
        for place in (place for queue in queues.values() for place in queue):
            place.turn.set()
            place.over.set()


class FileLockPlace:
    """One place in one queue. `turn`: it is the first. `over`: the broker has stopped."""

    def __init__(self, locks: FileLocks, name: str) -> None:
        self.name = name
        self.turn = asyncio.Event()
        self.over = asyncio.Event()
        self._locks = locks

    async def first(self, wait_s: float) -> int:
        if not self.turn.is_set():
            try:
                async with asyncio.timeout(wait_s):
                    await self.turn.wait()
            except TimeoutError:
                raise LockNotAcquired(f"lock {self.name!r} was not free within {wait_s:g} s") from None
        if self.over.is_set():
            raise self._lost()
        return await self._locks.token()

    async def hold(self) -> NoReturn:
        await self.over.wait()
        raise self._lost()

    async def leave(self) -> None:
        self._locks.leave(self)

    def _lost(self) -> LockLost:
        return LockLost(f"lock {self.name!r} is lost: its broker has stopped; acquire it again")
