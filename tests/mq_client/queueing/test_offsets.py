"""Ranges on the wire, and what is read at once."""

from __future__ import annotations

import random

import numpy as np
import pytest

from mq_client.errors import InternalError
from mq_client.queueing.leases import from_gaps, runs_count, spans, spelled_out, to_gaps


def test_offsets_come_back_from_gaps_and_lengths() -> None:
    random_ = random.Random(1)
    for _ in range(200):
        offsets = np.array(sorted(random_.sample(range(60), random_.randint(0, 40))), dtype=np.int64)
        gaps = to_gaps(offsets)
        ranges = from_gaps(gaps, 60)
        assert spelled_out(ranges).tolist() == offsets.tolist()
        assert len(ranges) == runs_count(offsets)
    assert to_gaps(np.array([5, 6, 9])) == [5, 2, 2, 1]


def test_ranges_that_cannot_be_are_refused() -> None:
    for gaps in ([1], [0, 0], [0, 11], [1 << 62, 1]):
        with pytest.raises(InternalError, match="see its log"):
            from_gaps(gaps, 10)


def test_small_gaps_are_read_over_and_large_ones_are_not() -> None:
    offsets = np.array([1, 2, 5, 20, 21], dtype=np.int64)
    assert spans(offsets, 2) == [(1, 6), (20, 22)]
    assert spans(offsets, 14) == [(1, 22)]
    assert spans(offsets, 0) == [(1, 3), (5, 6), (20, 22)]
    assert spans(offsets[:0], 5) == []
