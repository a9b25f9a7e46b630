"""What a leader drops of a queue group by itself, a piece at a time: records that a filter does not keep, or that are
too old. Pure."""

from __future__ import annotations

import heapq
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from typing import Final

from mq_broker.core.work.ranges import Range, Ranges, joined
from mq_broker.core.work.state import Mark, WorkState
from mq_broker.core.work.steps import Drop, Reason, Reject, Reset, Return, Step, why_not_one_entry

DROPPED_AT_ONCE: Final = 2_000
"""Ranges that one entry drops, some ten milliseconds."""


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
        if self._step is None:
            self._taken = []
        elif not why_not_one_entry((*steps, self._step)):
            return (*steps, self._step)
        return steps

    def _gone(self, ranges: Ranges) -> Step:
        """What makes an end of these."""
        return Drop(ranges, self.reason)

    def _take(self, most: int, limit: int) -> list[tuple[int, int, Mark | None]]:
        """The next records that are to go, so many ranges of equal marks at most."""
        found: list[tuple[int, int, Mark | None]] = []
        while self._pending and len(found) < most:
            first, end = heapq.heappop(self._pending)
            for low, high, mark in self._droppable(first, end, limit):
                if len(found) == most:
                    heapq.heappush(self._pending, (low, end))
                    end = low
                    break
                found.append((low, high, mark))
            self._taken.append((first, end))
        return found

    def _droppable(self, first: int, end: int, limit: int) -> Iterator[tuple[int, int, Mark | None]]:
        for low, high, mark in self._state.unleased(first, end):
            if mark is None or not mark.doomed(limit):
                for begin, until in self._unwanted(low, high):
                    yield begin, until, mark

    def written(self, steps: Iterable[Step]) -> None:
        """They are committed."""
        for step in steps:
            if step == self._step:
                self._taken = []
            elif isinstance(step, Return | Reject | Reset):
                for first, end in step.ranges:
                    if next(self._unwanted(first, end), None) is not None:
                        heapq.heappush(self._pending, (first, end))
