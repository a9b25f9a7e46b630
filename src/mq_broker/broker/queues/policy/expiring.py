"""Which records of a queue group are too old to be lent. Pure.

A record expires when its batch does, or when it is older than the group's `ttl_ms`, whichever is first. Times of
batches never fall within a partition, so what is older than `ttl_ms` is what is before one offset. What expires by
itself is told by `BatchExpiries`.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator
from enum import Enum
from typing import Final

from mq_broker.broker.queues.policy.batch_expiries import BatchExpiries
from mq_broker.broker.queues.policy.dropping import Dropping
from mq_broker.core.work.ranges import Range, Ranges, joined
from mq_broker.core.work.state import WorkState
from mq_broker.core.work.steps import Park, Reason, Step
from mq_broker.storage.offset_index import OffsetIndex

FOUND_AT_ONCE: Final = 1_000
"""Batches that are found in one turn to have expired, some two milliseconds. Nothing is lent until all are."""

_COVERED: Final = 4_096
_PENDING_MAX: Final = 10_000
_READ_BY_INDEX: Final = 64

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
    """Owns which of a group's records have expired: those before `floor`, and some behind. That never goes back.

    `fate`: what becomes of them. `behind`: what has expired is not all known yet, so nothing may be lent in this turn.
    """

    reason = Reason.EXPIRED

    def __init__(self, state: WorkState, index: OffsetIndex, ttl_ms: int, fate: Fate, *, ordered: bool) -> None:
        """`ttl_ms`: the group's, 0 for none."""
        super().__init__(state, ordered=ordered)
        self.letters = fate is Fate.SENT
        self.ttl_ms = ttl_ms
        self.fate = fate
        self.floor = state.base
        self.behind = True
        self._index = index
        self._expiries = BatchExpiries(state.base)
        self._now_us = 0
        self._next_us = self._again_ms = 0  # nothing more expires by the group's `ttl_ms` before

    def look(self, now_us: int, now_ms: int) -> None:
        """By the time since 1970 that is believed, and the monotonic clock."""
        self._now_us = max(self._now_us, now_us)
        self._forget_settled()
        if self.ttl_ms and now_us >= self._next_us and self.floor < self._index.log_end_offset:
            self._raise_floor(now_us)
        read = self._expiries.read(self._index, self._state.settled)
        self._note(self._expiries.over(now_us, FOUND_AT_ONCE))
        next_us = self._expiries.next_us()
        self.behind = not read or (next_us is not None and next_us <= now_us)
        nexts = [each for each in (next_us, self._next_us if self.ttl_ms else None) if each is not None]
        wait_ms = -((now_us - min(nexts)) // 1_000) if nexts else LOOKED_MS_MAX
        self._again_ms = now_ms + min(max(wait_ms, LOOKED_MS_MIN), LOOKED_MS_MAX)

    def _raise_floor(self, now_us: int) -> None:
        ttl_us = self.ttl_ms * 1_000
        floor = self._index.find_time(now_us - ttl_us + 1)
        if floor > self.floor:
            heapq.heappush(self._pending, (self.floor, floor))
            self._out.add([(self.floor, floor)])
            self.floor = floor
        first_us = self._index.newest_us(floor)
        # The next batch may be too old already when it comes: it has the time at which it was written, not committed.
        self._next_us = 0 if first_us is None else first_us + ttl_us

    def _note(self, found: list[Range]) -> None:
        """These have expired by themselves. Many places to look at are made fewer that have others in between."""
        if not found:
            return
        found.sort()
        self._out.add(found)
        for each in joined(found):
            heapq.heappush(self._pending, each)
        if len(self._pending) > _PENDING_MAX:
            self._pending = covering(sorted(self._pending))

    @property
    def known_to(self) -> int:
        """What was never lent may be lent up to there, as far as it has not expired."""
        return max(self._expiries.end, self.floor)

    def due(self, now_ms: int) -> bool:
        """Whether it is to be looked again, though nobody asks for records."""
        return now_ms >= self._again_ms

    def fit(self, ranges: Iterable[Range]) -> Iterator[Range]:
        """What of these has not expired."""
        known_to = self.known_to
        for first, end in ranges:
            yield from self._out.missing(first, min(end, known_to))
            if end > known_to:
                yield from self._by_index(max(first, known_to), end)

    def _by_index(self, first: int, end: int) -> Iterator[Range]:
        """The same of records that were lent before, and whose batches are not known here yet."""
        while first < end:
            found = self._index.expiries(first, _READ_BY_INDEX)
            for low, high, expires_us in found:
                if max(low, first) < min(high, end) and not 0 < expires_us <= self._now_us:
                    yield max(low, first), min(high, end)
            first = found[-1][1] if found else end

    def held_back(self, limit: int) -> bool:
        return self.behind or super().held_back(limit)

    def upto(self, end: int) -> int:
        return min(end, self.known_to)

    def looked_to(self, end: int, limit: int) -> int:
        if self.behind:
            return self._state.base
        return end if self.fate is Fate.SENT or not self.held_back(limit) else self.floor

    def again(self) -> None:
        """Look through all of them anew: the limit above which a record is doomed is another one."""
        self._pending, self._taken = [(self._state.base, self.known_to)], []

    def _gone(self, ranges: Ranges) -> Step:
        return Park(ranges) if self.fate is Fate.PARKED else super()._gone(ranges)


def covering(ranges: Iterable[Range]) -> list[Range]:
    """Ranges, ascending, that have all of these in them, and others in between: one for those that begin in the same
    4,096 records."""
    found: list[Range] = []
    for first, end in ranges:
        if found and found[-1][0] // _COVERED == first // _COVERED:
            found[-1] = found[-1][0], max(end, found[-1][1])
        else:
            found.append((first, end))
    return found
