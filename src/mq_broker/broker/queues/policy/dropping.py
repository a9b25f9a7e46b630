"""What a leader drops of a queue group by itself, a piece at a time, and lends to nobody meanwhile: records that a
filter does not keep, that are too old, or too many. Pure."""

from __future__ import annotations

import heapq
from abc import ABC
from collections.abc import Collection, Iterable, Iterator
from typing import Final

from mq_broker.core.work.offset_set import OffsetSet
from mq_broker.core.work.ranges import Range, Ranges, joined
from mq_broker.core.work.state import NO_MARK, Mark, WorkState
from mq_broker.core.work.steps import Drop, Reason, Reject, Reset, Return, Step, why_not_one_entry

DROPPED_AT_ONCE: Final = 500
"""Ranges that one entry drops, some two milliseconds."""

LOOKED_AT_ONCE: Final = 1_000
"""Runs of marks that are looked at for them."""


class Dropping(ABC):
    """Owns which records nobody is lent for one reason (`_out`), and where those are that are to be dropped. That never
    goes back. A record that is leased, or doomed, is not dropped: it is when it comes back.

    `ordered`: nothing that comes after such a record is lent before that is gone. `_pending`: a heap; among these are
    some to drop. `_taken`: of those, what the last entry drops, by `_step`, or what letters are made of.
    """

    reason: Reason

    letters = False
    """Whether they become dead letters that somebody else sends."""

    def __init__(self, state: WorkState, *, ordered: bool) -> None:
        self._state = state
        self._ordered = ordered
        self._out = OffsetSet(state.base)
        self._pending: list[Range] = []
        self._taken: list[Range] = []
        self._step: Step | None = None
        self.unfinished = False
        """Whether there is more to look at, and nothing is on its way that it waits for."""

    # -- what is lent to nobody meanwhile; `limit`: the group's `delivery_limit`

    def _forget_settled(self) -> None:
        """Nothing there is asked for any more."""
        if self._out.base < self._state.base:
            self._out.add([(self._out.base, self._state.base)])

    def fit(self, ranges: Iterable[Range]) -> Iterator[Range]:
        """What of these records may be lent."""
        for first, end in ranges:
            yield from self._out.missing(first, end)

    def upto(self, end: int) -> int:
        """Where the records end that may be lent, of a log that ends at `end`."""
        return end

    def held_back(self, limit: int) -> bool:
        """Whether nothing may be lent for now: what comes before is not gone yet."""
        while self._ordered and self._taken and not self._any_droppable(*self._taken[-1], limit):
            self._taken.pop()
        return self._ordered and bool(self._pending or self._taken)

    def looked_to(self, end: int, limit: int) -> int:
        """Up to there everything that may be lent could have been; where letters wait, nothing may."""
        return end

    # -- what becomes dead letters

    @property
    def sends(self) -> bool:
        """Whether some are to be sent."""
        return self.letters and bool(self._pending)

    def take(self, most: int, limit: int) -> list[tuple[int, int, Mark]]:
        """Those that are to become dead letters; they are forgotten here until `give_back`."""
        if not self.letters:
            return []
        found = [(first, end, mark or NO_MARK) for first, end, mark in self._take(most, limit)]
        if not self._ordered:
            self._taken = []
        return found

    def give_back(self, runs: Iterable[tuple[int, int, Mark]]) -> None:
        """They were not sent, perhaps."""
        for first, end, _ in runs if self.letters else ():
            heapq.heappush(self._pending, (first, end))

    # -- what is dropped

    def _unwanted(self, first: int, end: int) -> Iterator[Range]:
        """Of these records those that are to go, whatever became of them before."""
        at = self._out.next_settled(first, end)
        while at < end:
            until = min(self._out.next_missing(at), end)
            yield at, until
            at = self._out.next_settled(until, end)

    def with_drop(self, steps: tuple[Step, ...], limit: int) -> tuple[Step, ...]:
        """These steps of an entry, and behind them what drops the next records, if it fits. `limit`: the group's
        `delivery_limit`."""
        if self.letters:
            return steps
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


class Masks:
    """Several of them, as one. Owns nothing."""

    def __init__(self, *masks: Dropping | None) -> None:
        self._all = [each for each in masks if each is not None]

    def fit(self, ranges: Iterable[Range]) -> Iterable[Range]:
        """What of these records may be lent."""
        for each in self._all:
            ranges = each.fit(ranges)
        return ranges

    def upto(self, end: int) -> int:
        """Where the records end that may be lent, of a log that ends at `end`."""
        return min((each.upto(end) for each in self._all), default=end)

    def held_back(self, limit: int) -> bool:
        """Whether nothing may be lent for now."""
        return any(each.held_back(limit) for each in self._all)

    def looked_to(self, end: int, limit: int) -> int:
        """Up to there everything that may be lent could have been."""
        for each in self._all:
            end = min(end, each.looked_to(end, limit))
        return end

    def with_drops(self, steps: tuple[Step, ...], limit: int) -> tuple[Step, ...]:
        """These steps of an entry, and behind them those that drop what this leader wants to be gone, if they fit."""
        for each in self._all:
            steps = each.with_drop(steps, limit)
        return steps

    def written(self, steps: Collection[Step]) -> None:
        """They are in the state from now on."""
        for each in self._all:
            each.written(steps)

    @property
    def unfinished(self) -> bool:
        """Whether there is more to look at that may be dropped."""
        return any(each.unfinished for each in self._all)

    @property
    def sends(self) -> bool:
        """Whether some are to become dead letters that go to a topic."""
        return any(each.sends for each in self._all)

    def take(self, most: int, limit: int, reason: Reason) -> list[tuple[int, int, Mark]]:
        """Those that are to become dead letters for that reason; they are forgotten here until `give_back`."""
        return [run for each in self._all if each.reason is reason for run in each.take(most, limit)]

    def give_back(self, runs: list[tuple[int, int, Mark]]) -> None:
        """They were not sent, perhaps."""
        for each in self._all:
            each.give_back(runs)


class Surplus(Dropping):
    """Records that are too many, and are to become dead letters: `overflow=drop_head`, `dropped=dead`. They are the
    oldest that nobody has. From the turn on in which they are found they are lent to nobody: else a member might be
    lent what a letter is being made of."""

    reason = Reason.LENGTH
    letters = True

    def add(self, ranges: Iterable[Range]) -> bool:
        """These are too many, ascending. Returns whether some are new."""
        self._forget_settled()
        new = joined(piece for first, end in ranges for piece in self._out.missing(first, end))
        self._out.add(new)
        for each in new:
            heapq.heappush(self._pending, each)
        return bool(new)
