"""When the batches of a partition expire that have a time to live of their own. Pure.

Batches are read of the offset index, a piece at a time, from where a group's unsettled records begin. 1,024 of them
that follow one another are put in the order in which they expire, as three arrays: 24 bytes a batch. So what expires
next is found by a heap that has one element for a thousand batches, however their times are mixed.
"""

from __future__ import annotations

import heapq
from array import array
from bisect import bisect_right
from collections import deque
from collections.abc import Iterable
from typing import Final

from mq_broker.core.work.offset_set import OffsetSet
from mq_broker.core.work.ranges import Range
from mq_broker.storage.offset_index import OffsetIndex

BATCHES_MAX: Final = 1_000_000
"""Batches whose ends are known at a time, 24 MB. What is behind them waits until some are settled or expire."""

READ_AT_ONCE: Final = 2_000
"""Batches that are read in one turn, some two milliseconds."""

_BLOCK: Final = 1_024


class _Block:
    """Batches in the order in which they expire. Those before `at` have. `until`: one past the last record of all."""

    __slots__ = ("at", "ends", "expire_us", "firsts", "until")

    def __init__(self, batches: Iterable[tuple[int, int, int]], until: int) -> None:
        self.until = until
        self._fill(sorted(batches))

    def __len__(self) -> int:
        return len(self.expire_us) - self.at

    def _fill(self, batches: list[tuple[int, int, int]]) -> None:
        self.at = 0
        self.expire_us = array("q", [each[0] for each in batches])
        self.firsts = array("q", [each[1] for each in batches])
        self.ends = array("q", [each[2] for each in batches])

    def clear(self) -> None:
        self._fill([])

    def prune(self, settled: OffsetSet) -> None:
        """Forget what expired and what is settled."""
        rest = zip(self.expire_us[self.at :], self.firsts[self.at :], self.ends[self.at :], strict=True)
        self._fill([each for each in rest if settled.next_missing(each[1]) < each[2]])


class BatchExpiries:
    """Owns which batches expire by themselves, and have not yet. Those of batches before `end` are known."""

    def __init__(self, start: int) -> None:
        self.end = start
        self._newest: list[tuple[int, int, int]] = []  # expires_us, first, end: a heap of less than a block
        self._blocks: deque[_Block] = deque()  # as their records follow one another
        self._next: list[tuple[int, int, _Block]] = []  # a heap: when the block's next batch expires
        self._made = 0
        self._known = 0
        self._pruned = 0  # the block that is to be pruned next

    def __len__(self) -> int:
        """How many batches."""
        return self._known

    def read(self, index: OffsetIndex, settled: OffsetSet) -> bool:
        """Of the next batches. Returns whether that is all for now; at the bound it is, too."""
        self.end = max(self.end, settled.base)
        self._prune(settled)
        if self.end >= index.log_end_offset or self._known >= BATCHES_MAX:
            return True
        if not index.has_expiries:
            self.end = index.log_end_offset
            return True
        found = index.expiries(self.end, min(READ_AT_ONCE, BATCHES_MAX - self._known))
        for first, end, expires_us in found:
            if expires_us:
                self._add(expires_us, max(first, self.end), end)
            self.end = end
        if not found:  # the last offsets were lost
            self.end = index.log_end_offset
        return self.end >= index.log_end_offset

    def next_us(self) -> int | None:
        """When the next batch expires; None if none does."""
        known = [heap[0][0] for heap in (self._newest, self._next) if heap]
        return min(known, default=None)

    def over(self, now_us: int, most: int) -> list[Range]:
        """The batches that expired by then, about so many at most; they are forgotten here."""
        found: list[Range] = []
        while self._newest and self._newest[0][0] <= now_us and len(found) < most:
            found.append(heapq.heappop(self._newest)[1:])
        while self._next and self._next[0][0] <= now_us and len(found) < most:
            _, made, block = heapq.heappop(self._next)
            until = min(bisect_right(block.expire_us, now_us, lo=block.at), block.at + most - len(found))
            found += zip(block.firsts[block.at : until], block.ends[block.at : until], strict=True)
            block.at = until
            self._push(block, made)
        self._known -= len(found)
        return found

    def _add(self, expires_us: int, first: int, end: int) -> None:
        heapq.heappush(self._newest, (expires_us, first, end))
        self._known += 1
        if len(self._newest) >= _BLOCK:
            self._made += 1
            block = _Block(self._newest, end)
            self._newest = []
            self._blocks.append(block)
            self._push(block, self._made)

    def _push(self, block: _Block, made: int) -> None:
        if block:
            heapq.heappush(self._next, (block.expire_us[block.at], made, block))

    def _prune(self, settled: OffsetSet) -> None:
        """Forget what is settled: the first blocks, or where there are too many, of one block after the other."""
        while self._blocks and self._blocks[0].until <= settled.base:
            block = self._blocks.popleft()
            self._known -= len(block)
            block.clear()
            self._pruned = max(self._pruned - 1, 0)
        if self._known >= BATCHES_MAX and self._blocks:
            self._pruned %= len(self._blocks)
            block = self._blocks[self._pruned]
            before = len(block)
            block.prune(settled)
            self._known += len(block) - before
            self._pruned += 1
