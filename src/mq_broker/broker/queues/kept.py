"""How many bytes of records a partition keeps for a queue group beside those that members have. Pure.

A record has its share of its batch's bytes, as the offset index tells. What was never lent, and all that follows, is
one subtraction. What was is counted by chunks of 1,024 offsets: a chunk is counted again after its records were leased,
settled or given back, so much in a turn.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from mq_broker.core.work.ranges import Range
from mq_broker.core.work.state import WorkState
from mq_broker.core.work.steps import Step, ranges_of
from mq_broker.storage.offset_index import OffsetIndex

COUNTED_AT_ONCE: Final = 200
"""Runs that are counted in one turn, some three milliseconds, and a chunk at least."""

_CHUNK: Final = 1_024


class Kept:
    """Owns the bytes of each chunk from base to `_fresh`: nothing behind was ever lent or settled. A chunk that was not
    counted yet has all that is stored of it, and one that is to be counted again what it had."""

    def __init__(self, state: WorkState, index: OffsetIndex) -> None:
        self._state = state
        self._index = index
        self._base = self._fresh = state.base
        self._settled_to = min(state.settled.top(), index.log_end_offset)
        self._bytes: dict[int, int] = {}
        self._total = 0
        self._dirty: dict[int, None] = {}

    def bytes(self) -> int:
        """Of all records that are neither settled nor leased."""
        return self._total + self._index.bytes_between(self._fresh, self._index.log_end_offset)

    def written(self, steps: Iterable[Step]) -> None:
        """They are in the state from now on."""
        for step in steps:
            for first, end in ranges_of(step):
                self._settled_to = max(self._settled_to, min(end, self._index.log_end_offset))
                for chunk in _chunks(max(first, self._base), min(end, self._fresh)):
                    self._dirty[chunk] = None

    def count(self) -> bool:
        """Keep up with the state. Whether all is counted."""
        self._follow()
        counted = 0
        while self._dirty and counted < COUNTED_AT_ONCE:
            chunk = next(iter(self._dirty))
            del self._dirty[chunk]
            size = 0
            for first, end in self._unlent(chunk):
                size += self._index.bytes_between(first, end)
                counted += 1
            self._set(chunk, size)
        return not self._dirty

    def _follow(self) -> None:
        """What is settled from the beginning goes, and what was lent since comes."""
        state = self._state
        if self._base < state.base:
            for chunk in _chunks(self._base, min(state.base, self._fresh)):
                if (chunk + 1) * _CHUNK <= state.base:
                    self._total -= self._bytes.pop(chunk, 0)
                    self._dirty.pop(chunk, None)
                else:
                    self._dirty[chunk] = None
            self._base = state.base
        fresh = max(state.frontier, state.marks.end(), state.base, self._settled_to)
        for chunk in _chunks(max(self._fresh, state.base), fresh):
            first = max(chunk * _CHUNK, self._fresh, state.base)
            more = self._index.bytes_between(first, min((chunk + 1) * _CHUNK, fresh))
            self._set(chunk, self._bytes.get(chunk, 0) + more)
            self._dirty[chunk] = None
        self._fresh = max(self._fresh, fresh)

    def _set(self, chunk: int, size: int) -> None:
        self._total += size - self._bytes.get(chunk, 0)
        self._bytes[chunk] = size

    def _unlent(self, chunk: int) -> Iterator[Range]:
        """Of the chunk, without regard to marks."""
        low = max(chunk * _CHUNK, self._state.base)
        begun = until = low
        for first, end, _ in self._state.unleased(low, min((chunk + 1) * _CHUNK, self._fresh)):
            if first != until:
                yield begun, until
                begun = first
            until = end
        yield begun, until


def _chunks(first: int, end: int) -> range:
    return range(first // _CHUNK, -(-end // _CHUNK)) if first < end else range(0)
