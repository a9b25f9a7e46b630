"""Which records are worked on one after another. The journal knows no keys: a leader reads them of the payloads.

With an order, records of one key are lent, worked on and settled one after another. So an outcome of one record may
concern others of its key, which have the same holder.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from mq_broker.core.work.ranges import Range, Ranges, joined
from mq_broker.core.work.run_map import RunMap
from mq_broker.core.work.state import WorkState


class Order(Protocol):
    """What a leader knows of keys. Asked between two entries, about unsettled records. All ranges ascend."""

    def behind(self, ranges: Sequence[Range]) -> Ranges:
        """The records that come after one of these of the same key and that somebody may have."""
        ...

    def of_those_after(self, ranges: Sequence[Range], others: Sequence[Range]) -> Ranges:
        """Of `ranges` the records that come after one of `others` of the same key."""
        ...

    def overtaking(self, ranges: Sequence[Range], done: RunMap[bool]) -> Ranges:
        """Of `ranges` the records of which an earlier one of the same key is neither settled, nor in `done`, nor among
        them."""
        ...


class OneKey:
    """All records are one after another, as if they had one key."""

    def __init__(self, state: WorkState) -> None:
        self._state = state

    def behind(self, ranges: Sequence[Range]) -> Ranges:
        first, end = ranges[0][0] + 1, self._state.lent.end()
        return ((first, end),) if first < end else ()

    def of_those_after(self, ranges: Sequence[Range], others: Sequence[Range]) -> Ranges:
        return _from(ranges, others[0][0] + 1)

    def overtaking(self, ranges: Sequence[Range], done: RunMap[bool]) -> Ranges:
        state, theirs = self._state, in_runs(ranges)
        for missing in state.settled.missing(state.base, ranges[-1][1]):
            for low, high, known in done.pieces((missing,)):
                for first, _, mine in theirs.pieces(((low, high),)) if not known else ():
                    if not mine:
                        return _from(ranges, first)
        return ()


def in_runs(ranges: Iterable[Range]) -> RunMap[bool]:
    """To look up which records are among them."""
    return RunMap((first, end, True) for first, end in joined(ranges))


def without(ranges: Iterable[Range], others: Iterable[Range]) -> list[Range]:
    """What of these is not among the others."""
    return [(low, high) for low, high, known in in_runs(others).pieces(ranges) if not known]


def _from(ranges: Sequence[Range], offset: int) -> Ranges:
    return tuple((max(first, offset), end) for first, end in ranges if end > offset)
