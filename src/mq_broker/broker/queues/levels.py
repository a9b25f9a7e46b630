"""Which priority each record of a partition has, by runs of batches that have the same. Pure.

It is read of the offset index, a piece at a time, from where a group's unsettled records begin. A run takes some 25
bytes, however many records it has.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterator
from typing import Final

from mq_broker.core.work.ranges import Range

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
    """Owns the runs. What is before `end` is known."""

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
