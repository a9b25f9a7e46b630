"""Records of a queue group that are too many, and are to become dead letters: `overflow=drop_head`, `dropped=dead`.
Pure.

They are the oldest that nobody has. From the turn on in which they are found they are lent to nobody, and that never
goes back: else a member might be lent what a letter is being made of.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator

from mq_broker.broker.queues.dropping import Dropping, of_set
from mq_broker.core.work.offset_set import OffsetSet
from mq_broker.core.work.ranges import Range, joined
from mq_broker.core.work.state import NO_MARK, Mark, WorkState
from mq_broker.core.work.steps import Reason, Step


class Surplus(Dropping):
    """Owns which records are too many. `ordered`: nothing is lent until they are gone."""

    reason = Reason.LENGTH

    def __init__(self, state: WorkState, *, ordered: bool) -> None:
        super().__init__(state)
        self._ordered = ordered
        self._found = OffsetSet(state.base)

    def add(self, ranges: Iterable[Range]) -> bool:
        """These are too many, ascending. Returns whether some are new."""
        if self._found.base < self._state.base:
            self._found.add([(self._found.base, self._state.base)])  # nothing there is asked for any more
        new = joined(piece for first, end in ranges for piece in self._found.missing(first, end))
        self._found.add(new)
        for each in new:
            heapq.heappush(self._pending, each)
        return bool(new)

    @property
    def sends(self) -> bool:
        """Whether some are to be sent."""
        return bool(self._pending)

    def fit(self, ranges: Iterable[Range]) -> Iterator[Range]:
        """What of these is not too much."""
        for first, end in ranges:
            yield from self._found.missing(first, end)

    def held_back(self, limit: int) -> bool:
        """Whether nothing may be lent: what comes before is not gone yet. `limit`: the group's `delivery_limit`."""
        while self._ordered and self._taken and not self._any_droppable(*self._taken[-1], limit):
            self._taken.pop()
        return self._ordered and bool(self._pending or self._taken)

    def take(self, most: int, limit: int) -> list[tuple[int, int, Mark]]:
        """Those that are to become dead letters; they are forgotten here until `give_back`."""
        found = [(first, end, mark or NO_MARK) for first, end, mark in self._take(most, limit)]
        if not self._ordered:
            self._taken = []
        return found

    def give_back(self, runs: Iterable[tuple[int, int, Mark]]) -> None:
        """They were not sent, perhaps."""
        for first, end, _ in runs:
            heapq.heappush(self._pending, (first, end))

    def with_drop(self, steps: tuple[Step, ...], limit: int) -> tuple[Step, ...]:
        return steps

    def _unwanted(self, first: int, end: int) -> Iterator[Range]:
        return of_set(self._found, first, end)
