"""Runs of offsets with a value each, against a plain dict."""

from __future__ import annotations

import random

import pytest

from mq_broker.core.work.run_map import RunMap


def plain_runs(plain: dict[int, str]) -> list[tuple[int, int, str]]:
    runs: list[tuple[int, int, str]] = []
    for offset in sorted(plain):
        if runs and runs[-1][1] == offset and runs[-1][2] == plain[offset]:
            runs[-1] = (runs[-1][0], offset + 1, plain[offset])
        else:
            runs.append((offset, offset + 1, plain[offset]))
    return runs


@pytest.mark.parametrize("seed", range(8))
def test_it_holds_what_a_plain_dict_holds_and_joins_what_touches(seed: int) -> None:
    rng = random.Random(seed)
    runs, plain = RunMap[str](), dict[int, str]()
    for _ in range(150):
        at = rng.randrange(80)
        pieces: list[tuple[int, int, str | None]] = []
        for _ in range(rng.choice([1, 1, 3, 12])):
            end = at + rng.choice([1, 2, 10])
            pieces.append((at, end, rng.choice(["a", "b", None])))
            at = end + rng.choice([0, 0, 1, 7])
        runs.assign(pieces)
        for first, end, value in pieces:
            for offset in range(first, end):
                plain.pop(offset, None)
                if value is not None:
                    plain[offset] = value
        assert list(runs) == plain_runs(plain)
        asked = [(low, low + rng.choice([1, 5])) for low in range(0, 120, 6)]
        told = {offset: value for low, high, value in runs.pieces(asked) for offset in range(low, high)}
        assert told == {offset: plain.get(offset) for low, high in asked for offset in range(low, high)}
        covered = {offset: value for low, high, value in runs.covered(asked) for offset in range(low, high)}
        assert covered == {offset: value for offset, value in told.items() if value is not None}
        assert [runs.at(offset) for offset in range(130)] == [plain.get(offset) for offset in range(130)]
        assert runs.end() == max(plain, default=-1) + 1


@pytest.mark.parametrize("count", [3, 30])
def test_a_run_begins_later_where_it_is_told_to_and_goes_where_nothing_is_left(count: int) -> None:
    runs = RunMap((10 * i, 10 * i + 4, i) for i in range(count))
    # the first record of each odd run is gone, and of each fourth one everything
    runs.begin_at([(0, 10 * count)], lambda at: at + 9 if at % 40 == 0 else at + (at // 10) % 2)
    assert list(runs) == [(10 * i + i % 2, 10 * i + 4, i) for i in range(count) if i % 4]


@pytest.mark.parametrize(
    "runs", [[(3, 3, "a")], [(0, 5, "a"), (4, 6, "b")], [(0, 5, "a"), (5, 6, "a")], [(-1, 2, "a")]]
)
def test_runs_that_contradict_each_other_are_refused(runs: list[tuple[int, int, str]]) -> None:
    with pytest.raises(ValueError, match="contradict"):
        RunMap(runs)


def test_runs_that_only_touch_the_ranges_begin_where_they_began() -> None:
    for ranges in ([(5, 6)], [(0, 1), (5, 6)], [(5, 6), (20, 30)]):
        runs = RunMap([(0, 5, "a"), (6, 9, "b"), (30, 31, "c")])
        runs.begin_at(ranges, lambda at: at + 1)
        expected = (1, 5, "a") if (0, 1) in ranges else (0, 5, "a")
        assert list(runs) == [expected, (6, 9, "b"), (30, 31, "c")]


@pytest.mark.parametrize("many", [8, 9, 20])
def test_of_many_runs_those_go_of_which_nothing_is_left(many: int) -> None:
    runs = RunMap((10 * i, 10 * i + 4, i) for i in range(3 * many))
    runs.begin_at([(10 * i, 10 * i + 4) for i in range(1, many + 1)], lambda at: at + 4)
    assert [value for _, _, value in runs] == [0, *range(many + 1, 3 * many)]
    runs.begin_at([(0, 1 << 20)], lambda at: at + 4 if (at // 10) % 2 else at)
    assert [value for _, _, value in runs] == [value for value in (0, *range(many + 1, 3 * many)) if not value % 2]
