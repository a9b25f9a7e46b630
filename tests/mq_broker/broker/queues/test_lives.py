"""What a leader knows of batches that expire by themselves is what a list of all of them says."""

from __future__ import annotations

import random

import pytest

from mq_broker.broker.queues import lives
from mq_broker.broker.queues.lives import Lives
from mq_broker.core.messages import Published
from mq_broker.core.work.offset_set import OffsetSet
from mq_broker.storage.offset_index import OffsetIndex


class Naive:
    """Every batch by itself: where it begins and ends, when it expires."""

    def __init__(self) -> None:
        self.batches: list[tuple[int, int, int]] = []
        self.found: set[tuple[int, int]] = set()

    def expired(self, now_us: int, settled: OffsetSet) -> set[tuple[int, int]]:
        unsettled = ((a, b) for a, b, at in self.batches if at and at <= now_us and settled.missing_count(a, b))
        return {each for each in unsettled if each not in self.found}


def appended(index: OffsetIndex, naive: Naive, count: int, at_us: int, expires_us: int) -> None:
    first = index.log_end_offset
    index.append(Published(first, count, len(index) + 1, at_us, count, count, 4, expires_us))
    naive.batches.append((first, first + count, expires_us))


@pytest.mark.parametrize("seed", range(40))
def test_every_batch_is_found_once_when_it_expires_and_none_before(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(seed)
    block, bound = rng.choice(((1, 10), (3, 10), (16, 40), (16, 10_000)))
    monkeypatch.setattr(lives, "_BLOCK", block)
    monkeypatch.setattr(lives, "READ_AT_ONCE", rng.choice((2, 7, 1_000)))
    monkeypatch.setattr(lives, "BATCHES_MAX", bound)
    index, naive, settled, now_us = OffsetIndex(), Naive(), OffsetSet(0), 1_000
    known = Lives(0)
    for _ in range(400):
        match rng.randrange(5):
            case 0 | 1:
                life = rng.choice((0, 0, 1, 5, 5, 50, rng.randrange(1, 500), 10_000))
                appended(index, naive, rng.randrange(1, 5), now_us, now_us + life if life else 0)
            case 2:
                now_us += rng.randrange(20)
            case 3 if index.log_end_offset:
                first = rng.randrange(index.log_end_offset)
                settled.add(((first, min(first + rng.choice((1, 3, 40)), index.log_end_offset)),))
            case _:
                most = rng.choice((1, 4, 1_000))
                all_read = known.read(index, settled)
                found = known.over(now_us, most)
                assert len(found) <= most
                for first, end in found:
                    assert (first, end) not in naive.found
                    naive.found.add((first, end))
                    batch = next(each for each in naive.batches if each[0] <= first and each[1] == end)
                    assert 0 < batch[2] <= now_us
                if len(found) < most and all_read:
                    left = {each for each in naive.expired(now_us, settled) if each[1] <= known.end}
                    assert {each for each in left if not covered(each, naive.found)} == set()
                assert len(known) <= bound
    catch_up(known, index, settled, naive, now_us + 20_000)


def covered(batch: tuple[int, int], found: set[tuple[int, int]]) -> bool:
    """Whether it was found but for what was settled before it was read."""
    return any(batch[0] <= first and end == batch[1] for first, end in found)


def catch_up(known: Lives, index: OffsetIndex, settled: OffsetSet, naive: Naive, now_us: int) -> None:
    for _ in range(2_000):
        known.read(index, settled)
        naive.found.update(known.over(now_us, 1_000))
    assert known.end == index.log_end_offset
    assert [each for each in naive.expired(now_us, settled) if not covered(each, naive.found)] == []
    assert (known.next_us(), len(known)) == (None, 0)
