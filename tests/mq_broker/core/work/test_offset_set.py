"""The set of settled offsets against a plain set, and what it costs."""

from __future__ import annotations

import random
import sys

import pytest

from mq_broker.core.work.offset_set import OffsetSet
from mq_broker.core.work.ranges import RANGES_MAX, Range, Ranges, from_gaps, joined, to_gaps, why_wrong


@pytest.mark.parametrize("seed", range(6))
def test_it_holds_what_a_plain_set_holds(seed: int) -> None:
    rng = random.Random(seed)
    size = 6 * 4096
    base = rng.choice([0, 1, 4095, 4096])
    held, plain = OffsetSet(base), set(range(base))
    for _ in range(60):
        lengths = [rng.choice([1, 2, 4095, 4096, 5000, rng.randrange(1, 300)]) for _ in range(rng.choice([1, 3]))]
        at, ranges = rng.choice([held.base, rng.randrange(size)]), []
        for length in lengths:
            ranges.append((at, at + length))
            plain |= set(range(at, at + length))
            at += length + rng.choice([0, 1, 4096, rng.randrange(9000)])
        held.add(ranges)
        first, end = sorted(rng.randrange(size) for _ in range(2))
        missing = [offset for offset in range(first, end) if offset not in plain]
        assert held.missing_count(first, end) == len(missing)
        assert [offset for low, high in held.missing(first, end) for offset in range(low, high)] == missing
        assert held.base == next(offset for offset in range(len(plain) + 1) if offset not in plain)
        probes = [rng.randrange(size) for _ in range(20)]
        assert [offset in held for offset in probes] == [offset in plain for offset in probes]
        assert OffsetSet.thawed(held.frozen()).frozen() == held.frozen()


def test_one_value_has_one_form_whatever_came_first() -> None:
    rng = random.Random(3)
    offsets = [offset for offset in range(1, 20_000) if offset % 5000]
    in_order, at_random = OffsetSet(), OffsetSet()
    in_order.add([(offset, offset + 1) for offset in offsets])
    rng.shuffle(offsets)
    for offset in offsets:
        at_random.add([(offset, offset + 1)])
    assert at_random.frozen() == in_order.frozen()
    for each in (in_order, at_random):
        each.add([(0, 1), (5000, 5001), (10_000, 10_001), (15_000, 15_001)])
        assert each.frozen() == (20_000, (), ())


def test_the_worst_pattern_takes_less_than_a_fifth_of_a_byte_for_each_offset() -> None:
    span = 1 << 20
    held = OffsetSet()
    held.add([(offset, offset + 1) for offset in range(1, span, 2)])
    chunks = held._chunks
    assert sys.getsizeof(chunks) + sum(sys.getsizeof(k) + sys.getsizeof(v) for k, v in chunks.items()) < span / 5


def test_a_purge_of_a_billion_records_and_the_jump_after_a_recovery_take_no_room() -> None:
    held = OffsetSet()
    held.add([(1, 10**9)])
    held.add([(10**9 + 5, 1 << 50)])
    assert held.missing_count(0, 1 << 50) == 6
    assert list(held.missing(0, 1 << 50)) == [(0, 1), (10**9, 10**9 + 5)]
    assert len(held._chunks) + len(held._full_firsts) <= 6
    held.add([(0, 1), (10**9, 10**9 + 5)])
    assert held.frozen() == (1 << 50, (), ())


@pytest.mark.parametrize(
    "frozen",
    [
        (5, (), ((0, 1 << 5),)),  # base is settled itself
        (5, (), ((0, 3 << 4),)),
        (5, (), ((0, 1),)),  # below base
        (4096, (), ((0, 6),)),
        (5, ((1, 1),), ()),
        (5, ((1, 3), (3, 4)), ()),  # two ranges that are one
        (5, ((1, 3),), ((2, 1),)),  # full and not full
        (5, (), ((2, 1), (1, 1))),
        (5, (), ((2, 0),)),
        (5, (), ((2, (1 << 4096) - 1),)),
        (9000, ((1, 2),), ()),
    ],
)
def test_a_value_that_contradicts_itself_is_refused(frozen: tuple[int, tuple[Range, ...], Ranges]) -> None:
    with pytest.raises(ValueError, match="contradicts itself"):
        OffsetSet.thawed(frozen)


def test_ranges_go_to_gaps_and_lengths_and_back() -> None:
    ranges = ((3, 4), (4, 9), (100, 1 << 62))
    assert list(to_gaps(ranges)) == [3, 1, 0, 5, 91, (1 << 62) - 100]
    assert from_gaps(list(to_gaps(ranges))) == ranges
    assert from_gaps([]) == ()
    assert joined(((5, 7),), ((1, 5), (6, 9)), ((20, 21),)) == ((1, 9), (20, 21))


@pytest.mark.parametrize("gaps", [[1], [1, 0], [-1, 3], [0, -2], [0, 1 << 62, 0, 1], [0, 1] * (RANGES_MAX + 1)])
def test_gaps_and_lengths_that_are_no_ranges_are_refused(gaps: list[int]) -> None:
    with pytest.raises(ValueError):
        from_gaps(gaps)


@pytest.mark.parametrize(
    ("ranges", "why"),
    [
        (((0, 3), (2, 4)), "overlap"),
        (((5, 6), (0, 1)), "ascend"),
        (((3, 3),), "empty"),
        (((4, 3),), "empty"),
        (((-1, 3),), "ascend"),
        (((0, 11),), "beyond the end of the log, 10"),
        (tuple((2 * i, 2 * i + 1) for i in range(RANGES_MAX + 1)), f"more than {RANGES_MAX}"),
    ],
)
def test_ranges_that_overlap_or_fall_or_pass_the_end_are_refused_with_the_reason(ranges: Ranges, why: str) -> None:
    assert why in why_wrong(ranges, 10)
    assert why_wrong(((0, 3), (3, 10)), 10) == ""


def test_settling_whole_chunks_leaves_those_beside_them_as_they_are() -> None:
    for partial in ((0, 7), (5 * 4096 + 7, 5 * 4096 + 9), (4 * 4096 + 7, 4 * 4096 + 9)):
        held = OffsetSet()
        held.add([(3, 5)])
        held.add([partial])
        held.add([(4096, 5 * 4096)])
        plain = {*range(3, 5), *range(*partial), *range(4096, 5 * 4096)}
        missing = [offset for low, high in held.missing(0, 6 * 4096) for offset in range(low, high)]
        assert missing == [offset for offset in range(6 * 4096) if offset not in plain]


def test_a_set_that_begins_later_knows_nothing_of_what_was_before() -> None:
    held = OffsetSet()
    held.add([(10, 12), (4096, 3 * 4096), (3 * 4096 + 5, 3 * 4096 + 9)])
    held.add([(0, 5)])
    assert held.frozen() == (5, ((1, 3),), ((0, 3 << 10), (3, 0b1111 << 5)))
    held.add([(0, 3)])
    assert held.base == 5
    held.add([(0, 10)])
    assert held.base == 12, "what follows is settled too"
    held.add([(0, 2 * 4096)])
    assert held.frozen() == (3 * 4096, (), ((3, 0b1111 << 5),))
    held.add([(0, 3 * 4096 + 7)])
    assert held.frozen() == (3 * 4096 + 9, (), ())
    assert [held.next_settled(offset, 1 << 40) for offset in (0, 3 * 4096 + 9)] == [0, 1 << 40]
    assert held.next_settled(7, 5) == 5


def test_nothing_is_settled_at_the_top_or_above() -> None:
    for seed in range(30):
        rng = random.Random(seed)
        known = OffsetSet(rng.randrange(10_000))
        highest = known.base
        for _ in range(5):
            first = rng.randrange(40_000)
            end = first + rng.choice((1, 7, 9_000))
            known.add([(first, end)])
            highest = max(highest, end)
            assert highest <= known.top() < highest + 2 * 4_096
