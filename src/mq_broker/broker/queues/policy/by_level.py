"""Who is lent what where records have priorities: those of the highest level that has something ready. Pure.

Within a level the lowest offsets go first, and a lease has records of one level. Only what came back is kept record by
record; where the others of a level are is told by the offset index, over the whole backlog.
"""

from __future__ import annotations

import heapq
from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Final

from mq_broker.broker.queues.policy.dropping import Masks
from mq_broker.broker.queues.policy.ready_records import LOOKED_AT_MAX, Choice, ReadyRecords, Wish
from mq_broker.core.work.ranges import Range
from mq_broker.core.work.state import Mark, WorkState
from mq_broker.storage.offset_index import OffsetIndex
from mq_protocol.queues.settings import Priority

_PRUNE_ABOVE: Final = 1_024


class _Line:
    """The records of one level that were never looked at, ascending."""

    __slots__ = ("_at", "_ends", "_starts")

    def __init__(self) -> None:
        self._starts = array("q")
        self._ends = array("q")
        self._at = 0

    def push(self, first: int, end: int) -> None:
        if len(self._ends) > self._at and self._ends[-1] == first:
            self._ends[-1] = end
        else:
            self._starts.append(first)
            self._ends.append(end)

    def head(self, base: int) -> Range | None:
        """The first run, without what is below `base`."""
        while self._at < len(self._ends) and self._ends[self._at] <= base:
            self._at += 1
        if self._at == len(self._ends):
            return None
        return max(self._starts[self._at], base), self._ends[self._at]

    def pass_to(self, offset: int) -> None:
        """Of the first run, what is before was looked at."""
        self._starts[self._at] = offset
        self._at += offset >= self._ends[self._at]
        if self._at > _PRUNE_ABOVE and 2 * self._at > len(self._ends):
            del self._starts[: self._at], self._ends[: self._at]
            self._at = 0


class Levels:
    """Owns which priority each record has, by runs of batches that have the same. It is read of the offset index, a
    piece at a time, from where a group's unsettled records begin; what is before `end` is known. A run takes some 25
    bytes, however many records it has."""

    def __init__(self, start: int) -> None:
        self.end = start
        self._starts = array("q")
        self._levels = bytearray()
        self._lines: dict[int, _Line] = {}

    def __len__(self) -> int:
        """How many runs."""
        return len(self._starts)

    def add(self, first: int, end: int, level: int) -> None:
        """The next records."""
        if not self._levels or self._levels[-1] != level:
            self._starts.append(first)
            self._levels.append(level)
        line = self._lines.get(level)
        if line is None:
            line = self._lines[level] = _Line()
        line.push(first, end)
        self.end = end

    def pieces(self, first: int, end: int) -> Iterator[tuple[int, int, int]]:
        """These records by levels, as far as they are known: from, to, level."""
        end = min(end, self.end)
        at = max(bisect_right(self._starts, first) - 1, 0)
        while first < end:
            until = self._starts[at + 1] if at + 1 < len(self._starts) else self.end
            until = min(until, end)
            if first < until:
                yield first, until, self._levels[at]
                first = until
            at += 1

    def drop_below(self, offset: int) -> None:
        """Nothing there is asked for any more."""
        dead = bisect_right(self._starts, offset) - 1
        if dead > _PRUNE_ABOVE and 2 * dead > len(self._starts):
            del self._starts[:dead], self._levels[:dead]

    def levels(self) -> set[int]:
        """Those that there are."""
        return set(self._lines)

    def head(self, level: int, base: int) -> Range | None:
        """The first records of this level that were never looked at."""
        line = self._lines.get(level)
        return line.head(base) if line is not None else None

    def pass_to(self, level: int, offset: int) -> None:
        """Of what `head` told, what is before was looked at."""
        self._lines[level].pass_to(offset)


RUNS_MAX: Final = 250_000
"""Runs of batches of one level past base that are known at a time. What is behind them waits until base moves."""

READ_AT_ONCE: Final = 10_000
"""Batches that are taken in in one turn, some five milliseconds."""

HIGH: Final = 5
"""With `weighted`: two records of this level or above are lent for one below."""

OWED_MAX: Final = 10_000

_SLACK: Final = 10_000


class ByLevel(ReadyRecords):
    """Owns what came back, by levels, and what is known of levels."""

    def __init__(
        self, state: WorkState, limit: int, index: OffsetIndex, priority: Priority, masks: Masks | None = None
    ) -> None:
        self.priority = priority
        self._index = index
        self._owed = 0  # with `weighted`: half records of the lower levels
        self._scanning = False
        super().__init__(state, limit, masks)

    def begin(self) -> None:
        super().begin()
        self._fresh = -1  # what was never lent is where `_levels` says
        self._levels = Levels(self._state.base)
        self._heaps: dict[int, list[Range]] = {}
        self._unsplit: list[Range] = []

    # ------------------------------------------------------------------ what is where

    def scan(self, most: int) -> bool:
        self._levels.drop_below(self._state.base)
        if not self._read():
            return False
        self._scanning = True
        done = super().scan(most)
        self._scanning = False
        return self._split(LOOKED_AT_MAX) and done

    def _read(self) -> bool:
        """The levels of the next batches. Whether that is all for now."""
        levels, room = self._levels, RUNS_MAX - len(self._levels)
        if room <= 0 or levels.end >= self._index.log_end_offset:
            return True
        found = self._index.levels(levels.end, min(READ_AT_ONCE, room))
        for first, end, level in found:
            levels.add(max(first, levels.end), end, level)
        if not found:  # the last offsets were lost
            levels.end = self._index.log_end_offset
        return levels.end >= self._index.log_end_offset

    def _sort(self, first: int, end: int, mark: Mark | None) -> None:
        if mark is not None or not self._scanning:  # else it is found by its level
            super()._sort(first, end, mark)

    def _push(self, first: int, end: int) -> None:
        heapq.heappush(self._unsplit, (first, end))

    def _split(self, most: int) -> bool:
        """Put what came back to its level, so many pieces at most. Whether that is all."""
        while self._unsplit and self._unsplit[0][0] < self._levels.end:
            if most <= 0:
                return False
            first, end = heapq.heappop(self._unsplit)
            at = first
            for low, high, level in self._levels.pieces(first, end):
                heapq.heappush(self._heaps.setdefault(level, []), (low, high))
                at, most = high, most - 1
                if most <= 0:
                    break
            if at < end:
                heapq.heappush(self._unsplit, (at, end))
        return True

    def overgrown(self) -> bool:
        kept = len(self._unsplit) + len(self._alone) + len(self._delayed) + len(self._doomed)
        kept += sum(map(len, self._heaps.values()))
        return kept > 2 * (self._state.runs + len(self._levels)) + _SLACK

    # ------------------------------------------------------------------ choosing

    def is_ready(self, wish: Wish, now_us: int, end: int) -> bool | None:
        owed = self._owed
        ready = super().is_ready(wish, now_us, end)
        self._owed = owed
        return ready

    def _fill(self, choice: Choice, fresh_end: int) -> None:
        if not self._split(LOOKED_AT_MAX):
            choice.looked = LOOKED_AT_MAX
            return
        levels = sorted(self._levels.levels() | self._heaps.keys(), reverse=True)
        if self.priority is Priority.WEIGHTED and self._owed > 1:
            wish = choice.wish
            choice.wish = replace(wish, records_max=min(wish.records_max, self._owed // 2))
            self._fill_from((level for level in levels if level < HIGH), choice, fresh_end)
            choice.wish = wish
            if choice.runs or choice.over:
                self._owed -= 2 * choice.records
                return
            self._owed = 0
        level = self._fill_from(levels, choice, fresh_end)
        if level >= HIGH:
            self._owed = min(self._owed + choice.records, OWED_MAX)

    def _fill_from(self, levels: Iterable[int], choice: Choice, fresh_end: int) -> int:
        """Choose of the first of these levels that has something. Which one that is; -1 if none."""
        for level in levels:
            self._fill_of(level, choice, fresh_end)
            if choice.runs:
                return level
            if choice.over:
                break
        return -1

    def _fill_of(self, level: int, choice: Choice, fresh_end: int) -> None:
        heap = self._heaps.get(level, [])
        given_up: list[Range] = []
        while not choice.over:
            head = self._levels.head(level, self._state.base)
            # Of what came back, members with filters may have had some from beyond what was looked at here.
            if heap and (head is None or head[0] >= fresh_end or heap[0][0] < head[0]):
                first, end = heapq.heappop(heap)
                if (fresh := self._fresh_of(first, end, fresh_end)) is not None:
                    given_up.append(fresh)
                    choice.looked += 1
                    if fresh[1] < end:
                        heapq.heappush(heap, (fresh[1], end))
                    end = fresh[0]
                first = max(first, choice.end)  # what was sent back twice is here twice
                rest = self._choose_of((first, end), choice) if first < end else end
                if rest < end:
                    heapq.heappush(heap, (rest, end))
                continue
            if head is None or max(head[0], choice.end) >= fresh_end:
                break
            first, end = max(head[0], choice.end), min(head[1], fresh_end)
            self._levels.pass_to(level, self._choose_of((first, end), choice) if first < end else end)
        for each in given_up:
            heapq.heappush(heap, each)

    def _fresh_of(self, first: int, end: int, fresh_end: int) -> Range | None:
        """Of a candidate the first records that were never lent and are beyond that. What was chosen and not lent is
        among what came back, too, and waits for the state's bounds."""
        pieces = self._state.marks.pieces(((max(first, fresh_end), end),)) if end > fresh_end else ()
        return next(((low, high) for low, high, mark in pieces if mark is None), None)
