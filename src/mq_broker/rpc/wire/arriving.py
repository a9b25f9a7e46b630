"""What is in memory of the messages that one connection sends, from their first byte until somebody reads them.

A large message is counted whole before more of it is received, for the user whose it is, or the host where nobody has
a name. Where there is no room it waits in TCP, for a bounded time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, Protocol

from mq_protocol.errors import Overloaded, TritonMQError

ROOM_S: Final = 10.0
"""How long a large message waits for room. Then its client is told to try again."""

WHOLE_S: Final = 60.0
"""From the first byte of a message to its last, while this end receives: 1.1 MB/s for the largest there can be."""


class Memory(Protocol):
    """Owns how much may be on its way from clients (broker/runtime/arrivals.py). `caller`: for whom."""

    def add_at_once(self, caller: str, count: int) -> bool: ...
    async def receive(self, caller: str, count: int) -> None: ...
    def free(self, caller: str, count: int) -> None: ...


class Arriving:
    """Owns what is counted."""

    def __init__(self, memory: Memory) -> None:
        self.account = ""
        self._memory = memory
        self._loop = asyncio.get_running_loop()
        self._bytes = 0  # of the large message that is on its way
        self._waiting: asyncio.Task[None] | None = None
        self.began_at = 0.0
        """When the message that is on its way, or awaited, began to be received, or awaited."""

    @property
    def is_waiting(self) -> bool:
        """For room: nothing is to be received."""
        return self._waiting is not None

    def begins(self) -> None:
        """What comes from now on is another message, or goes on after a pause of this end's."""
        self.began_at = self._loop.time()

    def expect(self, count: int, go_on: Callable[[], None], fail: Callable[[TritonMQError], None]) -> None:
        """So much more of a large message is to come. Told again while it comes, and then nothing is done. `go_on` is
        called once there is room, if there is none now; `fail` with why there was none."""
        if self._bytes or self._waiting is not None:
            return
        if self._memory.add_at_once(self.account, count):
            self._bytes = count
        else:
            self._waiting = self._loop.create_task(self._wait(count, go_on, fail), name="wait for room for a message")

    def whole(self) -> int:
        """A message is there: how much is counted of it, which is to be freed once it is read."""
        counted, self._bytes = self._bytes, 0
        return counted

    def free(self, count: int) -> None:
        if count:
            self._memory.free(self.account, count)

    def drop(self) -> None:
        """What was on its way will not come."""
        if self._waiting is not None:
            self._waiting.cancel()
        self.free(self.whole())

    async def _wait(self, count: int, go_on: Callable[[], None], fail: Callable[[TritonMQError], None]) -> None:
        try:
            async with asyncio.timeout(ROOM_S):
                await self._memory.receive(self.account, count)
        except TimeoutError:
            self._waiting = None
            fail(
                Overloaded(
                    f"this broker holds as much for its clients as --memory-high allows, and had no room for a message "
                    f"of {count:,} bytes for {ROOM_S:.0f} s: send it again later, or smaller batches on fewer "
                    "connections"
                )
            )
            return
        self._waiting, self._bytes = None, count
        go_on()
