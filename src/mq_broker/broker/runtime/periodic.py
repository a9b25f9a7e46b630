"""What a broker does again and again: the loop, the pauses and the turns of all of it. What is done then is a plain
method, and where it is listed says how often."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, Protocol, TypeAlias, TypeVar

from mq_protocol.errors import CoordinationUnavailable

log = logging.getLogger(__name__)

T = TypeVar("T", contravariant=True)

Again: TypeAlias = Awaitable[float | None] | float | None
"""In how many seconds there is to be another look; None: as often as is usual."""

AGAIN_S: Final = 0.5
"""After the coordination service could not be asked."""

ASKED_AT_ONCE: Final = 100
"""Partitions, between two turns of others: what is asked of each takes up to some microseconds."""


class Periodic:
    """Owns when `look` is called next: `every_s` after it has returned, or after as many seconds as it returned.

    `at_once`: the first time when it begins. `hint`: also when this is set, and only then where the seconds are
    `math.inf`; without a hint that is the end. `unread`: what the log says before a `CoordinationUnavailable` of
    `look`, once for each in a row; then it is called again soon. Whatever else it raises ends the broker.
    """

    def __init__(
        self,
        name: str,
        every_s: float,
        look: Callable[[], Again],
        *,
        at_once: bool = False,
        hint: asyncio.Event | None = None,
        unread: str = "",
    ) -> None:
        self.name = name
        self.every_s = every_s
        self._look = look
        self._at_once = at_once
        self._hint = hint
        self._unread = unread

    async def run(self) -> None:
        """Until it is cancelled, or at its end."""
        wait_s, told = 0.0 if self._at_once else self.every_s, ""
        while self._hint is not None or math.isfinite(wait_s):
            await self._pause(wait_s)
            try:
                again = await _result(self._look())
                wait_s, told = self.every_s if again is None else again, ""
            except CoordinationUnavailable as error:
                if not self._unread:
                    raise
                if str(error) != told:
                    log.warning("%s: %s", self._unread, error)
                await asyncio.sleep(AGAIN_S)
                wait_s, told = 0.0, str(error)

    async def _pause(self, seconds: float) -> None:
        if self._hint is None:
            await asyncio.sleep(seconds)
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds if math.isfinite(seconds) else None):
                await self._hint.wait()
        self._hint.clear()


class Swept(Protocol[T]):
    """What looks at few of the broker's partitions: at those that `which`, which costs little, says."""

    def which(self, partition: T, /) -> object: ...
    def look(self, partitions: Sequence[T], /) -> Again: ...


class Sweep(Periodic):
    """The same for what looks at partitions. They are found in turns: to ask thousands takes milliseconds."""

    def __init__(self, name: str, every_s: float, partitions: Callable[[], Sequence[T]], of: Swept[T]) -> None:
        async def find() -> float | None:
            every, found = partitions(), list[T]()
            for first in range(0, len(every), ASKED_AT_ONCE):
                found += filter(of.which, every[first : first + ASKED_AT_ONCE])
                await asyncio.sleep(0)
            return await _result(of.look(found))

        super().__init__(name, every_s, find)


async def _result(again: Again) -> float | None:
    return await again if isinstance(again, Awaitable) else again
