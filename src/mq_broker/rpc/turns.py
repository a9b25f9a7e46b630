"""Long work on the event loop, in turns with others'."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final


class Spacing:
    """Owns when those may go on who rest, one after the other: as if one had asked for all of it. Used on one loop.

    Many connections, or many calls on one, then take no more of the loop than one does. Nobody rests longer than
    `longest_s` at once, whoever else does: beyond that, what many ask takes more.
    """

    def __init__(self, longest_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._longest_s = longest_s
        self._clock = clock
        self._until = 0.0

    def rest_s(self, seconds: float) -> float:
        """For how long to rest: so many seconds, after those who were given theirs before."""
        now = self._clock()
        self._until = min(max(now, self._until) + seconds, now + self._longest_s)
        return self._until - now


UNRESTED_TURNS: Final = 4
REST_S: Final = 0.002
"""A record comes in, is written and is acknowledged in three or four turns of the loop. They fit in here, and those of
the next record too."""

REST_S_MAX: Final = 0.128
"""One of the rests of one work, whoever rests besides."""

RESTS_MAX: Final = 125
"""The largest manifest of a transaction has a million elements, and must be decided in time."""

_of_clients: Final = Spacing(REST_S_MAX)


class Turns:
    """Of the work on one request. What is long rests between two turns from the fifth on: so whoever names thousands of
    things waits, and not whoever sends a record meanwhile. Works on what clients ask rest one after the other, and one
    that is `alone` does not wait for those."""

    def __init__(self, *, alone: bool = False) -> None:
        self._taken = 0
        self._rests = Spacing(REST_S_MAX) if alone else _of_clients

    async def others(self) -> None:
        """Others have theirs."""
        self._taken += 1
        rests = UNRESTED_TURNS < self._taken <= UNRESTED_TURNS + RESTS_MAX
        await asyncio.sleep(self._rests.rest_s(REST_S) if rests else 0)
