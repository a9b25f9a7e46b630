"""Values of ranges of offsets: sorted runs that do not overlap, each with one value."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Generic, TypeVar

from mq_broker.core.work.ranges import Range

V = TypeVar("V")


class RunMap(Generic[V]):
    """Owns the runs. Neighbours that touch and have equal values are one run."""

    __slots__ = ("_ends", "_firsts", "_values")

    def __init__(self, runs: Iterable[tuple[int, int, V]] = ()) -> None:
        """Raises `ValueError` if the runs do not ascend, overlap, or are not joined as they would be here."""
        self._firsts: list[int] = []
        self._ends: list[int] = []
        self._values: list[V] = []
        end_before = 0
        for first, end, value in runs:
            if first < end_before or end <= first or (self._values and self._touches(first, value)):
                raise ValueError("runs of offsets contradict each other")
            self._firsts.append(first)
            self._ends.append(end)
            self._values.append(value)
            end_before = end

    def copy(self) -> RunMap[V]:
        """Another one with the same runs."""
        made: RunMap[V] = RunMap()
        made._firsts, made._ends, made._values = self._firsts.copy(), self._ends.copy(), self._values.copy()
        return made

    def _touches(self, first: int, value: V) -> bool:
        return self._ends[-1] == first and self._values[-1] == value

    def __len__(self) -> int:
        return len(self._firsts)

    def __iter__(self) -> Iterator[tuple[int, int, V]]:
        return iter(zip(self._firsts, self._ends, self._values, strict=True))

    def at(self, offset: int) -> V | None:
        """The value there; None if there is none."""
        at = bisect_right(self._ends, offset)
        return self._values[at] if at < len(self._firsts) and self._firsts[at] <= offset else None

    def end(self) -> int:
        """One past the last offset that has a value; 0 if none has."""
        return self._ends[-1] if self._ends else 0

    def covered(self, ranges: Iterable[Range]) -> Iterator[tuple[int, int, V]]:
        """What of these ranges has values, piece by piece."""
        firsts, ends, values = self._firsts, self._ends, self._values
        at, size = 0, len(firsts)
        for first, end in ranges:
            if at < size and ends[at] <= first:
                at = bisect_right(ends, first, at + 1)
            i = at
            while i < size and firsts[i] < end:
                low, high = firsts[i], ends[i]
                yield (low if low > first else first), (high if high < end else end), values[i]
                i += 1

    def pieces(self, ranges: Iterable[Range]) -> Iterator[tuple[int, int, V | None]]:
        """These ranges, cut where the value changes; None where there is none."""
        for first, end in ranges:
            for low, high, value in self.covered(((first, end),)):
                if first < low:
                    yield first, low, None
                yield low, high, value
                first = high
            if first < end:
                yield first, end, None

    def assign(self, pieces: Sequence[tuple[int, int, V | None]]) -> None:
        """Give these pieces, ascending and disjoint, these values; None: no value any more. Costs the number of pieces
        and a copy of what lies between the first and the last."""
        if not pieces:
            return
        firsts, ends, values = self._firsts, self._ends, self._values
        low = at = max(bisect_right(ends, pieces[0][0] - 1), 0)  # a run that touches from the left is joined, too
        rest: tuple[int, int, V] | None = None  # what is left of a run that was cut, right of the cut
        made: RunMap[V] = RunMap()
        for first, end, value in pieces:
            while True:
                if rest is None and at < len(firsts) and firsts[at] < first:
                    until = bisect_right(ends, first, at)  # those that end before the piece stay as they are
                    if until > at:
                        made._append(firsts[at], ends[at], values[at])
                        made._firsts += firsts[at + 1 : until]
                        made._ends += ends[at + 1 : until]
                        made._values += values[at + 1 : until]
                        at = until
                        continue
                if rest is None:
                    if at >= len(firsts) or firsts[at] >= end:
                        break
                    rest = firsts[at], ends[at], values[at]
                    at += 1
                if rest[0] >= end:
                    break
                if rest[0] < first:
                    made._append(rest[0], min(rest[1], first), rest[2])
                if rest[1] <= end:
                    rest = None
                    continue
                rest = (end, rest[1], rest[2])
                break
            if value is not None:
                made._append(first, end, value)
        if rest is not None:
            made._append(*rest)
        if at < len(firsts) and made._ends and made._touches(firsts[at], values[at]):
            made._ends[-1] = ends[at]
            at += 1
        firsts[low:at], ends[low:at], values[low:at] = made._firsts, made._ends, made._values

    def _append(self, first: int, end: int, value: V) -> None:
        if self._values and self._touches(first, value):
            self._ends[-1] = end
        else:
            self._firsts.append(first)
            self._ends.append(end)
            self._values.append(value)

    def begin_at(self, ranges: Iterable[Range], next_offset: Callable[[int], int]) -> None:
        """Each run that these ranges touch begins at `next_offset` of its first offset from now on; one of which
        nothing is left goes."""
        firsts, ends = self._firsts, self._ends
        gone: list[int] = []
        at = checked = 0
        size = len(firsts)
        for first, end in ranges:
            if at < size and ends[at] <= first:
                at = bisect_right(ends, first, at + 1)
            i = max(at, checked)
            while i < size and firsts[i] < end:
                begin = next_offset(firsts[i])
                if begin >= ends[i]:
                    gone.append(i)
                else:
                    firsts[i] = begin
                i += 1
            checked = max(checked, i)
            if at >= size:
                break
        if len(gone) > 8:
            dropped = set(gone)
            kept = [i for i in range(gone[0], gone[-1]) if i not in dropped]
            part = slice(gone[0], gone[-1] + 1)
            firsts[part] = [firsts[i] for i in kept]
            ends[part] = [ends[i] for i in kept]
            self._values[part] = [self._values[i] for i in kept]
        else:
            for i in reversed(gone):
                del firsts[i], ends[i], self._values[i]
