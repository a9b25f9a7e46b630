"""Which key each record has, of those that a leader has read. Pure.

A key is a number of 64 bits, a hash. Records that have no key are not in here.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence

from mq_broker.core.work.offset_set import OffsetSet
from mq_broker.core.work.ranges import Range

_BLOCK_RECORDS = 4_096


class _Block:
    __slots__ = ("keys", "offsets", "settled")

    def __init__(self) -> None:
        self.offsets = array("q")
        self.keys = array("Q")
        self.settled = 0  # about so many are by now


class KeyIndex:
    """Owns offsets and keys, 16 bytes a record, in blocks. Once half of a block's records are settled they go."""

    def __init__(self, settled: OffsetSet) -> None:
        self._settled = settled
        self._blocks: list[_Block] = []
        self._ends: list[int] = []
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, offsets: Sequence[int], keys: Sequence[int]) -> None:
        """They ascend, and come after all that is here."""
        self._count += len(offsets)
        at = 0
        while at < len(offsets):
            if not self._blocks or len(self._blocks[-1].offsets) >= _BLOCK_RECORDS:
                self._blocks.append(_Block())
                self._ends.append(0)
            block = self._blocks[-1]
            until = min(len(offsets), at + _BLOCK_RECORDS - len(block.offsets))
            block.offsets.extend(offsets[at:until])
            block.keys.extend(keys[at:until])
            self._ends[-1] = block.offsets[-1] + 1
            at = until

    def key(self, offset: int) -> int | None:
        """None if the record has none, or was not read."""
        return next((key for _, key in self.of(((offset, offset + 1),))), None)

    def of(self, ranges: Iterable[Range]) -> Iterator[tuple[int, int]]:
        """The records of these ranges that have a key, each with it."""
        for first, end in ranges:
            for at in range(bisect_right(self._ends, first), len(self._blocks)):
                block = self._blocks[at]
                low, high = bisect_left(block.offsets, first), bisect_left(block.offsets, end)
                yield from zip(block.offsets[low:high], block.keys[low:high], strict=True)
                if high < len(block.offsets):
                    break

    def count(self, ranges: Iterable[Range]) -> int:
        """How many those are."""
        count = 0
        for first, end in ranges:
            for at in range(bisect_right(self._ends, first), len(self._blocks)):
                offsets = self._blocks[at].offsets
                count += bisect_left(offsets, end) - bisect_left(offsets, first)
                if offsets[-1] >= end:
                    break
        return count

    def settle(self, ranges: Iterable[Range]) -> set[int]:
        """These are settled. The keys of records that go by that: also of others that are settled by now, of which
        this is not told any more."""
        touched: set[int] = set()
        for first, end in ranges:
            for at in range(bisect_right(self._ends, first), len(self._blocks)):
                block = self._blocks[at]
                low, high = bisect_left(block.offsets, first), bisect_left(block.offsets, end)
                block.settled += high - low
                touched.add(at)
                if high < len(block.offsets):
                    break
        gone: set[int] = set()
        for at in sorted(touched, reverse=True):
            if 2 * self._blocks[at].settled >= len(self._blocks[at].offsets):
                gone |= self._shrink(at)
        return gone

    def _shrink(self, at: int) -> set[int]:
        block, settled = self._blocks[at], self._settled
        gone = {key for offset, key in zip(block.offsets, block.keys, strict=True) if offset in settled}
        kept = [i for i, offset in enumerate(block.offsets) if offset not in settled]
        self._count -= len(block.offsets) - len(kept)
        if not kept:
            del self._blocks[at], self._ends[at]
            return gone
        block.offsets = array("q", [block.offsets[i] for i in kept])
        block.keys = array("Q", [block.keys[i] for i in kept])
        block.settled = 0
        self._ends[at] = block.offsets[-1] + 1
        return gone
