"""Long work on the event loop, in turns with others'."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final

from mq_broker.rpc.callers import account

KNOWN_MIN: Final = 1_000
"""Accounts that are remembered, before those are looked for that rest no more."""


class Spacing:
    """Owns when those may go on who rest. What one account (callers.py) asks rests one after the other, as if it were
    one request, however many calls and connections it has; nobody waits for another account. Used on one loop.

    Nobody rests longer than `longest_s` at once. So an account that asks for more at once takes more of the loop, and
    its honest users, if it has some, are not held up for longer than they wait for an answer.
    """

    def __init__(self, longest_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._longest_s = longest_s
        self._clock = clock
        self._until: dict[str, float] = {}
        self._look_at = KNOWN_MIN

    def rest_s(self, seconds: float, whose: str) -> float:
        """For how long to rest: so many seconds, after what the account was given before."""
        now = self._clock()
        until = min(self._after_others(seconds, whose, now), now + self._longest_s)
        self._book(whose, until, now)
        return until - now

    def slot_s(self, seconds: float, whose: str) -> float:
        """The same of who rests again and again: only so many seconds where the account's others rest for the longest
        already. Those who all rested for that would go on together, and rest together again."""
        now = self._clock()
        until = self._after_others(seconds, whose, now)
        if until > now + self._longest_s:
            return seconds
        self._book(whose, until, now)
        return until - now

    def _after_others(self, seconds: float, whose: str, now: float) -> float:
        return max(now, self._until.get(whose, 0.0)) + seconds

    def _book(self, whose: str, until: float, now: float) -> None:
        self._until[whose] = until
        if len(self._until) >= self._look_at:
            self._until = {each: over for each, over in self._until.items() if over > now}
            self._look_at = max(KNOWN_MIN, 2 * len(self._until))


UNRESTED_TURNS: Final = 4
REST_S: Final = 0.002
"""A record comes in, is written and is acknowledged in three or four turns of the loop. They fit in here, and those of
the next record too."""

REST_S_MAX: Final = 0.016
"""One of the rests of one work, whatever its account asks besides. A request is read, judged and carried out, which are
three works of `RESTS_MAX` rests: all of them must fit into the ten seconds that a client waits for a decision."""

RESTS_MAX: Final = 125
"""The largest manifest of a transaction has a million elements, and must be decided in time."""

_of_clients: Final = Spacing(REST_S_MAX)


class Turns:
    """Of the work on one request. What is long rests between two turns from the fifth on: so whoever names thousands of
    things waits, and not whoever sends a record meanwhile. Works of one account rest one after the other, and one that
    is `alone` does not wait for those."""

    def __init__(self, *, alone: bool = False) -> None:
        self._taken = 0
        self._alone = alone

    async def others(self) -> None:
        """Others have theirs."""
        self._taken += 1
        if UNRESTED_TURNS < self._taken <= UNRESTED_TURNS + RESTS_MAX:
            await asyncio.sleep(REST_S if self._alone else _of_clients.slot_s(REST_S, account()))
        else:
            await asyncio.sleep(0)
