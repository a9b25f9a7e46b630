"""Offsets as they go over the wire: ranges, each as the gap after the range before it and its length. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from mq_client.errors import InternalError

Offsets = NDArray[np.int64]


def to_gaps(offsets: Offsets) -> list[int]:
    """Gap and length of each run of these offsets, in turn. `offsets` ascend, each once."""
    if not len(offsets):
        return []
    breaks = np.flatnonzero(np.diff(offsets) != 1) + 1
    firsts = offsets[np.concatenate(([0], breaks))]
    ends = offsets[np.concatenate((breaks - 1, [len(offsets) - 1]))] + 1
    gaps = np.empty(2 * len(firsts), dtype=np.int64)
    gaps[0::2] = firsts - np.concatenate(([0], ends[:-1]))
    gaps[1::2] = ends - firsts
    numbers: list[int] = gaps.tolist()
    return numbers


def runs_count(offsets: Offsets) -> int:
    """How many ranges these are, at most one for each offset."""
    return int(np.count_nonzero(np.diff(offsets) != 1)) + 1 if len(offsets) else 0


def from_gaps(gaps: Sequence[int], records_max: int) -> list[tuple[int, int]]:
    """The ranges, as first offset and end. Raises `InternalError` if a broker sent what cannot be, or more than
    `records_max` records."""
    ranges: list[tuple[int, int]] = []
    at = records = 0
    if len(gaps) % 2:
        raise InternalError("the broker sent ranges of which one has no length: see its log")
    numbers = iter(gaps)
    for gap, length in zip(numbers, numbers, strict=True):
        first = at + gap
        at = first + length
        records += length
        if length < 1 or at > _END_MAX or records > records_max:
            raise InternalError(
                f"the broker lent {records} records up to offset {at}, where at most {records_max} were asked for: "
                "see its log"
            )
        ranges.append((first, at))
    return ranges


def spelled_out(ranges: Sequence[tuple[int, int]]) -> Offsets:
    """Each offset of the ranges."""
    if not ranges:
        return np.empty(0, dtype=np.int64)
    return np.concatenate([np.arange(first, end, dtype=np.int64) for first, end in ranges])


def spans(offsets: Offsets, gap_max: int) -> list[tuple[int, int]]:
    """First and end of what is read at once: gaps of at most `gap_max` offsets are read too, and left out later."""
    if not len(offsets):
        return []
    breaks = np.flatnonzero(np.diff(offsets) > gap_max + 1) + 1
    return [(int(part[0]), int(part[-1]) + 1) for part in np.split(offsets, breaks)]


_END_MAX = 1 << 62
