"""What a queue group's filter keeps away from its members. Pure.

Rows are read ahead of what is lent, by somebody else (`to_read`, `add`). What the filter does not keep is dropped by
entries, and not lent until then.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator
from typing import Final, Protocol

from mq_broker.broker.queues.policy.dropping import Dropping
from mq_broker.core.work.ranges import Range
from mq_broker.core.work.state import SPAN_MAX, WorkState
from mq_broker.core.work.steps import Reason

READ_AHEAD: Final = 50_000
"""So many records that may be lent are known, at most, past the last one that was lent."""

READ_AT_ONCE: Final = 10_000
"""Records by one look at the log."""

_PENDING_MAX: Final = 16
"""Looks at the log whose records are not dropped yet. Then no more is read."""


class Wanting(Protocol):
    """What wants rows to be compared with a filter."""

    text: str

    def to_read(self, end: int) -> Range | None: ...

    def knows(self, end: int) -> bool: ...

    def add(self, until: int, unfit: Iterable[Range]) -> None: ...


class GroupFilter(Dropping):
    """Owns which unsettled records the filter does not keep, one bit each, and what of it is to be dropped.

    Below `read_to` all is known.
    """

    reason = Reason.FILTERED

    def __init__(self, state: WorkState, text: str, *, ordered: bool = False) -> None:
        super().__init__(state, ordered=ordered)
        self.text = text
        self.read_to = state.base

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
        self._out.add(found)
        if found:
            heapq.heappush(self._pending, (found[0][0], found[-1][1]))
        self._forget_settled()
        self.read_to = max(self.read_to, until)

    def _lent_to(self) -> int:
        return max(self._state.frontier, self._state.marks.end())

    # ------------------------------------------------------------------ what may be lent

    @property
    def _lendable_to(self) -> int:
        """What was never lent may be lent up to there, as far as it is kept."""
        if not self._ordered:
            return self.read_to
        return min((first for first, _ in (*self._pending[:1], *self._taken)), default=self.read_to)

    def upto(self, end: int) -> int:
        return min(end, self._lendable_to)

    def held_back(self, limit: int) -> bool:
        """Whether nothing may be lent: of what was lent before, not all is known to be kept."""
        return self._lendable_to < self._lent_to()

    def looked_to(self, end: int, limit: int) -> int:
        return end if not self._pending and not self._taken and self.knows(end) else self._lendable_to

    # ------------------------------------------------------------------ what is dropped

    def _unwanted(self, first: int, end: int) -> Iterator[Range]:
        return super()._unwanted(first, min(end, self.read_to))
