"""What a queue group's filter keeps away from its members. Pure.

Rows are read ahead of what is lent, by somebody else (`to_read`, `add`). What the filter does not keep is dropped by
entries, and not lent until then.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator
from typing import Final, Protocol

from mq_broker.core.work.offset_set import OffsetSet
from mq_broker.core.work.ranges import Range, joined
from mq_broker.core.work.state import SPAN_MAX, WorkState
from mq_broker.core.work.steps import Drop, Reason, Reject, Reset, Return, Step, why_not_one_entry

READ_AHEAD: Final = 50_000
"""So many records that may be lent are known, at most, past the last one that was lent."""

READ_AT_ONCE: Final = 10_000
"""Records by one look at the log."""

DROPPED_AT_ONCE: Final = 2_000
"""Ranges that one entry drops, some ten milliseconds."""

_PENDING_MAX: Final = 16
"""Looks at the log whose records are not dropped yet. Then no more is read."""


class Wanting(Protocol):
    """What wants rows to be compared with a filter."""

    text: str

    def to_read(self, end: int) -> Range | None: ...

    def knows(self, end: int) -> bool: ...

    def add(self, until: int, unfit: Iterable[Range]) -> None: ...


class Sieve:
    """Owns which unsettled records the filter does not keep, one bit each, and what of it is to be dropped.

    Below `read_to` all is known. A record that is leased, or doomed, is not dropped: it is when it comes back.
    """

    def __init__(self, state: WorkState, text: str, *, ordered: bool = False) -> None:
        """`ordered`: what comes after a record that is not kept is not lent before that is dropped."""
        self.text = text
        self._ordered = ordered
        self.read_to = state.base
        self._state = state
        self._unfit = OffsetSet(state.base)
        self._pending: list[Range] = []  # a heap: among these are some to drop
        self._taken: list[Range] = []  # of those, what the last entry drops

    # ------------------------------------------------------------------ reading ahead

    def to_read(self, end: int) -> Range | None:
        """The records that are to be looked at next. `end`: of the log."""
        return self._wanted(end, READ_AHEAD)

    def knows(self, end: int) -> bool:
        """Whether nothing is to be read now: half of what may be read ahead is known."""
        return self._wanted(end, READ_AHEAD // 2) is None

    def _wanted(self, end: int, ahead_max: int) -> Range | None:
        state = self._state
        self.read_to = max(self.read_to, min(state.settled.next_missing(self.read_to), end))
        until = min(end, state.base + SPAN_MAX, self.read_to + READ_AT_ONCE)
        if self.read_to >= until or len(self._pending) + len(self._taken) >= _PENDING_MAX:
            return None
        ahead = state.settled.missing_count(self._lent_to(), self.read_to)
        return (self.read_to, until) if ahead < ahead_max else None

    def add(self, until: int, unfit: Iterable[Range]) -> None:
        """The records up to `until` were read. `unfit`: those that the filter does not keep, ascending."""
        found = [(max(first, self.read_to), end) for first, end in unfit if end > self.read_to]
        self._unfit.add(found)
        if found:
            heapq.heappush(self._pending, (found[0][0], found[-1][1]))
        if self._unfit.base < self._state.base:
            self._unfit.add([(self._unfit.base, self._state.base)])  # nothing there is asked for any more
        self.read_to = max(self.read_to, until)

    def _lent_to(self) -> int:
        return max(self._state.frontier, self._state.marks.end())

    # ------------------------------------------------------------------ what may be lent

    @property
    def lendable_to(self) -> int:
        """What was never lent may be lent up to there, as far as it is kept."""
        if not self._ordered:
            return self.read_to
        return min((first for first, _ in (*self._pending[:1], *self._taken)), default=self.read_to)

    @property
    def held_back(self) -> bool:
        """Whether nothing may be lent: of what was lent before, not all is known to be kept."""
        return self.lendable_to < self._lent_to()

    def looked_to(self, end: int) -> int:
        """Up to there everything that may be lent could have been."""
        return end if not self._pending and not self._taken and self.knows(end) else self.lendable_to

    def fit(self, ranges: Iterable[Range]) -> Iterator[Range]:
        """What of these is kept."""
        for first, end in ranges:
            yield from self._unfit.missing(first, end)

    # ------------------------------------------------------------------ what is dropped

    def with_drop(self, steps: tuple[Step, ...], limit: int) -> tuple[Step, ...]:
        """These steps of an entry, and behind them what drops the next records, if it fits. `limit`: the group's
        `delivery_limit`. Only one entry is on its way at a time."""
        for each in self._taken:
            heapq.heappush(self._pending, each)  # what was taken before was not written
        self._taken = []
        found = self._take(limit)
        more = (*steps, Drop(joined(found), Reason.FILTERED))
        if not found:
            self._taken = []
        elif not why_not_one_entry(more):
            return more
        return steps

    def _take(self, limit: int) -> list[Range]:
        found: list[Range] = []
        while self._pending and len(found) < DROPPED_AT_ONCE:
            first, end = heapq.heappop(self._pending)
            for piece in self._droppable(first, end, limit):
                if len(found) == DROPPED_AT_ONCE:
                    heapq.heappush(self._pending, (piece[0], end))
                    end = piece[0]
                    break
                found.append(piece)
            self._taken.append((first, end))
        return found

    def _droppable(self, first: int, end: int, limit: int) -> Iterator[Range]:
        unfit = self._unfit
        for low, high, mark in self._state.unleased(first, end):
            if mark is not None and mark.doomed(limit):
                continue
            at = unfit.next_settled(low, high)
            while at < high:
                until = min(unfit.next_missing(at), high)
                yield at, until
                at = unfit.next_settled(until, high)

    def written(self, steps: Iterable[Step]) -> None:
        """They are committed."""
        for step in steps:
            if isinstance(step, Drop) and step.reason is Reason.FILTERED:
                self._taken = []
            elif isinstance(step, Return | Reject | Reset):
                for first, end in step.ranges:
                    end = min(end, self.read_to)
                    if first < end and self._unfit.next_settled(first, end) < end:
                        heapq.heappush(self._pending, (first, end))
