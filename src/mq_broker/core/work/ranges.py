"""Offsets as ascending ranges `(first, end)`, end excluded. On disk and on the wire a range is two numbers: the gap
after the range before it, and its length."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Final, TypeAlias

Range: TypeAlias = tuple[int, int]
Ranges: TypeAlias = tuple[Range, ...]

RANGES_MAX: Final = 8_000
"""In one request, and in one entry: as many scattered returns hold a broker's loop for some 40 ms."""

OFFSET_END_MAX: Final = 1 << 62


def why_wrong(ranges: Sequence[Range], end: int = OFFSET_END_MAX) -> str:
    """Why these are no ranges of offsets below `end`; empty if they are. Two ranges may touch."""
    if len(ranges) > RANGES_MAX:
        return f"{len(ranges)} ranges are more than {RANGES_MAX}: name fewer at once"
    before = 0
    for first, following in ranges:
        if first < before:
            return f"the range from {first} does not come after {before}: ranges ascend and do not overlap"
        if following <= first:
            return f"the range from {first} to {following} is empty: it must have at least one offset"
        before = following
    return f"offset {before - 1} is beyond the end of the log, {end}" if before > end else ""


def to_gaps(ranges: Iterable[Range]) -> Iterator[int]:
    """Gap and length of each range, in turn."""
    before = 0
    for first, end in ranges:
        yield first - before
        yield end - first
        before = end


def from_gaps(gaps: Sequence[int]) -> Ranges:
    """What `to_gaps` was given. Raises `ValueError` if the numbers are no valid ranges."""
    if len(gaps) % 2:
        raise ValueError("a gap has no length after it")
    if len(gaps) > 2 * RANGES_MAX:
        raise ValueError(f"{len(gaps) // 2} ranges are more than {RANGES_MAX}")
    ranges: list[Range] = []
    at = 0
    numbers = iter(gaps)
    for gap, length in zip(numbers, numbers, strict=True):
        if gap < 0 or length < 1:
            raise ValueError("a range is empty, or begins before the one before it ends")
        first = at + gap
        at = first + length
        ranges.append((first, at))
    if at > OFFSET_END_MAX:
        raise ValueError(f"offset {at - 1} is out of range")
    return tuple(ranges)


def count(ranges: Iterable[Range]) -> int:
    """How many offsets they are."""
    return sum(end - first for first, end in ranges)


def joined(*several: Iterable[Range]) -> Ranges:
    """All of them, ascending, touching and overlapping ones as one."""
    made: list[Range] = []
    for first, end in sorted(chain(*several)):
        if made and first <= made[-1][1]:
            made[-1] = (made[-1][0], max(end, made[-1][1]))
        else:
            made.append((first, end))
    return tuple(made)
