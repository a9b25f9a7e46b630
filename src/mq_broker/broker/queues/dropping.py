"""What a leader drops of a queue group by itself, a piece at a time: records that a filter does not keep, or that are
too old. Pure."""

from __future__ import annotations

import heapq
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from typing import Final

from mq_broker.core.work.offset_set import OffsetSet
from mq_broker.core.work.ranges import Range, Ranges, joined
from mq_broker.core.work.state import Mark, WorkState
from mq_broker.core.work.steps import Drop, Reason, Reject, Reset, Return, Step, why_not_one_entry

DROPPED_AT_ONCE: Final = 500
"""Ranges that one entry drops, some two milliseconds."""

LOOKED_AT_ONCE: Final = 1_000
"""Runs of marks that are looked at for them."""


class Dropping(ABC):
    """Owns where records are that are to be dropped for one reason. A record that is leased, or doomed, is not: it is
    when it comes back.

    `_pending`: a heap; among these are some to drop. `_taken`: of those, what the last entry drops, by `_step`.
    """

    reason: Reason

    def __init__(self, state: WorkState) -> None:
        self._state = state
        self._pending: list[Range] = []
        self._taken: list[Range] = []
        self._step: Step | None = None
        self.unfinished = False
        """Whether there is more to look at, and nothing is on its way that it waits for."""

    @abstractmethod
    def _unwanted(self, first: int, end: int) -> Iterator[Range]:
        """Of these records those that are to go, whatever became of them before."""

    def with_drop(self, steps: tuple[Step, ...], limit: int) -> tuple[Step, ...]:
        """These steps of an entry, and behind them what drops the next records, if it fits. `limit`: the group's
        `delivery_limit`. Only one entry is on its way at a time."""
        for each in self._taken:
            heapq.heappush(self._pending, each)  # what was taken before was not written
        self._taken = []
        found = [(first, end) for first, end, _ in self._take(DROPPED_AT_ONCE, limit)]
        self._step = self._gone(joined(found)) if found else None
        self.unfinished = bool(self._pending) and not found
        if self._step is None:
            self._taken = []
        elif not why_not_one_entry((*steps, self._step)):
            return (*steps, self._step)
        return steps

    def _gone(self, ranges: Ranges) -> Step:
        """What makes an end of these."""
        return Drop(ranges, self.reason)

    def _take(self, most: int, limit: int) -> list[tuple[int, int, Mark | None]]:
        """The next records that are to go, so many ranges of equal marks at most. So much is looked at for them."""
        found: list[tuple[int, int, Mark | None]] = []
        looked = 0
        while self._pending and len(found) < most and looked < LOOKED_AT_ONCE:
            first, end = heapq.heappop(self._pending)
            looked += 1
            for low, high, mark in self._droppable(first, end, limit):
                looked += 1
                if len(found) == most or looked > LOOKED_AT_ONCE:
                    if low < end:
                        heapq.heappush(self._pending, (low, end))
                    end = low
                    break
                if low < high:
                    found.append((low, high, mark))
            if first < end:
                self._taken.append((first, end))
        return found

    def _droppable(self, first: int, end: int, limit: int) -> Iterator[tuple[int, int, Mark | None]]:
        """Ranges of equal marks, and an empty one at the end of each run that was looked at."""
        for low, high, mark in self._state.unleased(first, end):
            if mark is None or not mark.doomed(limit):
                for begin, until in self._unwanted(low, high):
                    yield begin, until, mark
            yield high, high, mark

    def _any_droppable(self, first: int, end: int, limit: int) -> bool:
        return any(low < high for low, high, _ in self._droppable(first, end, limit))

    def written(self, steps: Iterable[Step]) -> None:
        """They are in the state from now on."""
        for step in steps:
            if step == self._step:
                self._taken = []
            elif isinstance(step, Return | Reject | Reset):
                for first, end in step.ranges:
                    if next(self._unwanted(first, end), None) is not None:
                        heapq.heappush(self._pending, (first, end))


def of_set(offsets: OffsetSet, first: int, end: int) -> Iterator[Range]:
    """Those of these records that are in the set."""
    at = offsets.next_settled(first, end)
    while at < end:
        until = min(offsets.next_missing(at), end)
        yield at, until
        at = offsets.next_settled(until, end)
