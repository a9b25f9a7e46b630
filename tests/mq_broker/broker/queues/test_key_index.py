"""Which key each record has: random records and settles, against a plain list of blocks."""

from __future__ import annotations

import random
from collections.abc import Iterable

import pytest

from mq_broker.broker.queues import ordering as key_index
from mq_broker.broker.queues.ordering import KeyIndex
from mq_broker.core.work.offset_set import OffsetSet
from mq_broker.core.work.ranges import Range

BLOCK = 4
"""Records of a block in these tests."""

EVERYTHING: tuple[Range, ...] = ((0, 1_000_000),)


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_index, "_BLOCK_RECORDS", BLOCK)


class Model:
    """The same as plain lists: of each block its records, and how many settles it has seen since it last shrank."""

    def __init__(self) -> None:
        self.blocks: list[list[tuple[int, int]]] = []
        self.settles: list[int] = []

    def add(self, records: Iterable[tuple[int, int]]) -> None:
        for record in records:
            if not self.blocks or len(self.blocks[-1]) >= BLOCK:
                self.blocks.append([])
                self.settles.append(0)
            self.blocks[-1].append(record)

    def settle(self, ranges: Iterable[Range], settled: set[int]) -> None:
        kept: list[list[tuple[int, int]]] = []
        counts: list[int] = []
        for block, before in zip(self.blocks, self.settles, strict=True):
            named = sum(first <= offset < end for offset, _ in block for first, end in ranges)
            seen = before + named
            left = block
            if named and 2 * seen >= len(block):
                left, seen = [record for record in block if record[0] not in settled], 0
            if left:
                kept.append(left)
                counts.append(seen)
        self.blocks, self.settles = kept, counts

    def of(self, ranges: Iterable[Range]) -> list[tuple[int, int]]:
        records = [record for block in self.blocks for record in block]
        return [record for first, end in ranges for record in records if first <= record[0] < end]


def some_ranges(rng: random.Random, end: int) -> list[Range]:
    """A few, ascending, some of them empty of records."""
    cuts = sorted(rng.randrange(end + 8) for _ in range(2 * rng.randint(1, 3)))
    return [(first, until) for first, until in zip(cuts[::2], cuts[1::2], strict=True) if first < until]


@pytest.mark.parametrize("seed", range(8))
def test_the_index_has_the_records_that_a_plain_list_of_blocks_has(seed: int) -> None:
    rng = random.Random(seed)
    settled = OffsetSet()
    index, model, end = KeyIndex(settled), Model(), 0
    gone: set[int] = set()
    for _ in range(60):
        if rng.random() < 0.4:
            offsets = sorted(rng.sample(range(end, end + 20), rng.randrange(11)))
            keys = [rng.randrange(1 << 64) for _ in offsets]
            index.add(offsets, keys)
            model.add(zip(offsets, keys, strict=True))
            end += 20
        else:
            ranges = some_ranges(rng, end)
            settled.add(ranges)
            gone.update(offset for first, until in ranges for offset in range(first, until))
            index.settle(ranges)
            model.settle(ranges, gone)
        assert list(index.of(EVERYTHING)) == model.of(EVERYTHING)
        assert len(index) == index.count(EVERYTHING) == len(model.of(EVERYTHING))
        asked = some_ranges(rng, end)
        assert list(index.of(asked)) == model.of(asked)
        assert index.count(asked) == len(model.of(asked))
        one = rng.randrange(end + 1)
        assert index.key(one) == dict(model.of(EVERYTHING)).get(one)
