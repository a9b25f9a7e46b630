"""Which records of a queue group are too old to be lent. Pure.

Times of batches never fall within a partition, so what has expired by a group's `ttl_ms` is what is before one offset.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator
from enum import Enum
from typing import Final

from mq_broker.broker.queues.dropping import Dropping
from mq_broker.core.work.ranges import Range, Ranges
from mq_broker.core.work.state import NO_MARK, Mark, WorkState
from mq_broker.core.work.steps import Park, Reason, Step
from mq_broker.storage.offset_index import OffsetIndex

LOOKED_MS_MIN: Final = 1_000
LOOKED_MS_MAX: Final = 60_000
"""While nobody asks, what has expired is looked for between so often and so rarely."""


class Fate(Enum):
    """What becomes of records that have expired."""

    DROPPED = 1
    PARKED = 2
    SENT = 3
    """By somebody else, to a dead-letter topic."""


class Expiring(Dropping):
    """Owns how far a group's records have expired: what is before `floor`. It never goes back.

    `fate`: what becomes of them. `ordered`: nothing is lent until what has expired is gone.
    """

    reason = Reason.EXPIRED

    def __init__(self, state: WorkState, index: OffsetIndex, ttl_ms: int, fate: Fate, *, ordered: bool) -> None:
        super().__init__(state)
        self.ttl_ms = ttl_ms
        self.fate = fate
        self.floor = state.base
        self._index = index
        self._ordered = ordered
        self._next_us = self._again_ms = 0  # nothing more expires before

    def look(self, now_us: int, now_ms: int) -> None:
        """By the time since 1970 that is believed, and the monotonic clock."""
        if now_us >= self._next_us:
            ttl_us = self.ttl_ms * 1_000
            floor = self._index.find_time(now_us - ttl_us + 1)
            if floor > self.floor:
                heapq.heappush(self._pending, (self.floor, floor))
                self.floor = floor
            first_us = self._index.newest_us(floor)
            self._next_us = now_us + LOOKED_MS_MIN * 1_000 if first_us is None else first_us + ttl_us
        wait_ms = -((now_us - self._next_us) // 1_000)
        self._again_ms = now_ms + min(max(wait_ms, LOOKED_MS_MIN), LOOKED_MS_MAX)

    @property
    def sends(self) -> bool:
        """Whether some are to be sent."""
        return self.fate is Fate.SENT and bool(self._pending)

    def due(self, now_ms: int) -> bool:
        """Whether it is to be looked again, though nobody asks for records."""
        return now_ms >= self._again_ms

    def fit(self, ranges: Iterable[Range]) -> Iterator[Range]:
        """What of these has not expired."""
        return ((max(first, self.floor), end) for first, end in ranges if end > self.floor)

    def held_back(self, limit: int) -> bool:
        """Whether nothing may be lent: what comes before is not gone yet. `limit`: the group's `delivery_limit`."""
        if not self._ordered:
            return False
        while self._taken and next(self._droppable(*self._taken[-1], limit), None) is None:
            self._taken.pop()
        return bool(self._pending or self._taken)

    def looked_to(self, end: int, limit: int) -> int:
        """Up to there everything that may be lent could have been; where letters wait, nothing may."""
        return end if self.fate is Fate.SENT or not self.held_back(limit) else self.floor

    def again(self) -> None:
        """Look through all of them anew: the limit above which a record is doomed is another one."""
        self._pending, self._taken = [(self._state.base, self.floor)], []

    def take(self, most: int, limit: int) -> list[tuple[int, int, Mark]]:
        """Those that are to become dead letters; they are forgotten here until `give_back`."""
        if self.fate is not Fate.SENT:
            return []
        found = [(first, end, mark or NO_MARK) for first, end, mark in self._take(most, limit)]
        if not self._ordered:
            self._taken = []
        return found

    def give_back(self, runs: Iterable[tuple[int, int, Mark]]) -> None:
        """They were not sent, perhaps."""
        for first, end, _ in runs:
            heapq.heappush(self._pending, (first, end))

    def with_drop(self, steps: tuple[Step, ...], limit: int) -> tuple[Step, ...]:
        return steps if self.fate is Fate.SENT else super().with_drop(steps, limit)

    def _gone(self, ranges: Ranges) -> Step:
        return Park(ranges) if self.fate is Fate.PARKED else super()._gone(ranges)

    def _unwanted(self, first: int, end: int) -> Iterator[Range]:
        if first < self.floor:
            yield first, min(end, self.floor)
