"""Offset arithmetic: exact limits, nobody starved, the same plan for the same offsets."""

from __future__ import annotations

import json
import random

import pytest

from mq_protocol.errors import InvalidRequest
from mq_protocol.limits import OFFSETS_OF_A_LIFE
from mq_spark.planning.offsets import (
    Mark,
    OffsetRange,
    Offsets,
    Size,
    byte_shares,
    cut_to_shares,
    from_json,
    limited,
    plan,
    ranges,
    to_json,
)


def total(start: Offsets, end: Offsets) -> int:
    return sum(map(len, ranges(start, end)))


def test_the_json_form_has_partitions_in_the_order_of_their_numbers() -> None:
    text = json.dumps(to_json(Mark({"b": {10: 5, 9: 4}, "a": {0: 1}})))
    assert text == '{"a": {"0": 1}, "b": {"9": 4, "10": 5}}'
    assert from_json(json.loads(text)) == Mark({"a": {0: 1}, "b": {9: 4, 10: 5}})


def test_what_is_not_kafkas_stands_beside_the_topics() -> None:
    mark = Mark({"a": {0: 7}}, {"a": "1f"}, {"a": {0: 3}})
    text = json.dumps(to_json(mark))
    assert text == '{"/": {"ids": {"a": "1f"}, "from": {"a": {"0": 3}}}, "a": {"0": 7}}'
    assert from_json(json.loads(text)) == mark


@pytest.mark.parametrize(
    "found",
    [
        3,
        {"t": 3},
        {"t": {"x": 1}},
        {"t": {"0": "1"}},
        {"t": {"0": -1}},
        {"t": {"0": None}},
        {"/": 3, "t": {"0": 1}},
        {"/": {"ids": 3}},
        {"/": {"ids": {"t": 3}}},
        {"/": {"from": {"t": 3}}},
    ],
)
def test_a_checkpoint_of_another_source_is_refused(found: object) -> None:
    with pytest.raises(InvalidRequest, match="offsets that are not of this source"):
        from_json(found)


def test_a_partition_begins_where_it_is_first_named_and_a_start_past_its_end_is_no_rows() -> None:
    assert ranges({"t": {0: 5, 1: 9}}, {"t": {2: 4, 1: 7, 0: 8}}) == [OffsetRange("t", 0, 5, 8)]


def test_every_limit_is_met_exactly_and_no_share_is_above_its_backlog() -> None:
    rng = random.Random(7)
    for _ in range(500):
        start = {"t": {p: rng.randrange(50) for p in range(rng.randint(1, 9))}}
        available = {"t": {p: offset + rng.choice((0, 0, 1, 5, 1000)) for p, offset in start["t"].items()}}
        limit = rng.randint(1, 200)
        end = limited(start, available, limit)
        assert total(start, end) == min(limit, total(start, available))
        assert all(start["t"][p] <= end["t"][p] <= available["t"][p] for p in start["t"])


def test_nobody_starves_when_the_limit_is_below_the_number_of_partitions() -> None:
    for limit in (1, 2, 3, 4):
        at: Offsets = {"t": dict.fromkeys(range(5), 0)}
        for _ in range(10):
            at = limited(at, {"t": {0: 10_000, 1: 10_000, 2: 1, 3: 10_000, 4: 10_000}}, limit)
        assert all(offset >= 1 for offset in at["t"].values()), limit


def test_a_plan_has_every_row_once_in_the_same_order_whatever_the_number_of_tasks() -> None:
    rng = random.Random(11)
    for _ in range(500):
        parts = [
            OffsetRange("t", p, at := rng.randrange(9), at + rng.choice((1, 3, 40, 5000)))
            for p in range(rng.randint(1, 12))
        ]
        rows = sum(map(len, parts))
        tasks = plan(parts, cores=rng.randint(1, 8), tasks_min=rng.choice((None, 1, 3, 50)))
        laid = [(each.partition, row) for task in tasks for each in task for row in range(each.start, each.end)]
        assert laid == [(each.partition, row) for each in parts for row in range(each.start, each.end)]
        assert all(tasks)
        assert len(tasks) <= rows


def test_many_small_ranges_share_one_task() -> None:
    assert len(plan([OffsetRange("t", p, 0, 10) for p in range(200)], cores=8)) == 1


def test_tasks_are_about_the_number_of_cores_and_a_large_range_is_cut() -> None:
    parts = [OffsetRange("t", 0, 0, 100_000), OffsetRange("t", 1, 0, 100_000)]
    assert plan(parts, cores=2) == [(parts[0],), (parts[1],)]
    assert [sum(map(len, task)) for task in plan(parts, cores=4)] == [50_000] * 4


def test_very_many_rows_become_more_tasks_than_cores_and_min_partitions_is_a_floor() -> None:
    assert len(plan([OffsetRange("t", 0, 0, 500_000)], cores=2)) == 2
    assert len(plan([OffsetRange("t", 0, 0, 2_500_000)], cores=2)) == 4
    assert len(plan([OffsetRange("t", 0, 0, 25_000_000)], cores=2)) == 26
    assert len(plan([OffsetRange("t", 0, 0, 10)], cores=2, tasks_min=4)) == 4
    assert len(plan([OffsetRange("t", 0, 0, 2)], cores=2, tasks_min=4)) == 2


def test_more_tasks_than_cores_are_whole_rounds_of_them_and_of_one_size() -> None:
    for rows in range(1_100_000, 9_000_000, 700_000):
        tasks = [sum(map(len, task)) for task in plan([OffsetRange("t", 0, 0, rows)], cores=4)]
        assert len(tasks) % 4 == 0
        assert max(tasks) - min(tasks) <= 1


def test_no_task_has_more_rows_than_it_may() -> None:
    parts = [OffsetRange("t", 0, 0, 52), OffsetRange("t", 1, 0, 49)]
    assert [sum(map(len, task)) for task in plan(parts, cores=1, rows_max=26)] == [25, 25, 25, 26]


def cut_by_bytes(start: Offsets, end: Offsets, row_bytes: dict[int, int], bytes_max: int) -> Offsets:
    """One topic whose rows have so many bytes each, by partition; what the leaders would answer is computed."""
    sizes = {("t", p): Size(row_bytes[p], row_bytes[p] * (end["t"][p] - start["t"][p])) for p in end["t"]}
    shares = byte_shares(start, end, sizes, bytes_max)
    if shares is None:
        return end
    reached = {place: start["t"][place[1]] + share // row_bytes[place[1]] for place, share in shares.items()}
    return cut_to_shares(start, end, sizes, shares, reached)


def test_bytes_are_shared_in_proportion_to_backlog_and_each_partition_gets_a_row() -> None:
    end = cut_by_bytes({"t": {0: 0, 1: 0, 2: 0}}, {"t": {0: 900, 1: 100, 2: 1}}, {0: 10, 1: 10, 2: 10}, 1_000)
    assert end == {"t": {0: 88, 1: 10, 2: 1}}


def test_a_limit_of_bytes_holds_and_everybody_gets_on_whatever_the_sizes() -> None:
    random_ = random.Random(3)
    for _ in range(200):
        partitions = random_.randint(1, 6)
        row_bytes = {p: random_.choice((1, 10, 500, 3_000)) for p in range(partitions)}
        end = {"t": {p: random_.randint(0, 40) for p in range(partitions)}}
        at: Offsets = {"t": dict.fromkeys(range(partitions), 0)}
        bytes_max = random_.randint(1, 2_000)
        for _ in range(500):
            if at == end:
                break
            to = cut_by_bytes(at, end, row_bytes, bytes_max)
            taken = [(to["t"][p] - at["t"][p], row_bytes[p]) for p in range(partitions)]
            rows, size = sum(n for n, _ in taken), sum(n * each for n, each in taken)
            assert rows > 0
            assert size <= bytes_max or rows == 1
            at = to
        assert at == end


def test_a_large_row_does_not_wait_for_ever_behind_small_ones_that_keep_coming() -> None:
    at: Offsets = {"t": {0: 0, 1: 0, 2: 0}}
    for _ in range(4):
        end = {"t": {0: at["t"][0] + 100, 1: 1, 2: at["t"][2] + 100}}
        at = cut_by_bytes(at, end, {0: 10, 1: 5_000, 2: 10}, 100)
    assert at["t"][1] == 1


def test_a_range_ends_where_offsets_went_on_after_a_loss_and_counts_as_little_whatever_it_spans() -> None:
    life = OFFSETS_OF_A_LIFE
    rest, after = OffsetRange("t", 0, 100, life + 7).lives()
    assert (rest, after) == (OffsetRange("t", 0, 100, life), OffsetRange("t", 0, life, life + 7))
    assert (rest.is_rest, len(rest), after.is_rest, len(after)) == (True, 1, False, 7)
    assert [part.end for part in OffsetRange("t", 0, 5, 2 * life).lives()] == [life, 2 * life]
    planned = plan([rest, OffsetRange("t", 1, 0, 60_000)], cores=4)
    assert [part for task in planned for part in task if part.partition == 0] == [rest], "nobody knows how to divide it"
    assert len(planned) == 4
    assert limited({"t": {0: 100, 1: 0}}, {"t": {0: life, 1: 50}}, 10) == {"t": {0: life, 1: 9}}
