"""How the benchmark measures: turns, medians, ratios, schedules. No time is asserted here or anywhere."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from benchmarks.bench.measure import (
    Contestant,
    Question,
    Readings,
    Schedule,
    figure,
    interleave,
    paced,
    percentile,
    spread,
)


def recorded(name: str, log: list[str]) -> Contestant:
    def run() -> Readings:
        log.append(name)
        return {"runs": float(len(log))}

    return Contestant(name, run)


def test_the_median_of_an_even_number_lies_between_the_two_in_the_middle() -> None:
    found = spread([9.0, 1.0, 4.0, 2.0])
    assert (found.median, found.low, found.high) == (3.0, 1.0, 9.0)
    assert found.samples == (9.0, 1.0, 4.0, 2.0)
    assert spread([5.0]).median == 5.0


@pytest.mark.parametrize(("percent", "expected"), [(50, 50.0), (99, 99.0), (99.9, 100.0), (100, 100.0), (0.5, 1.0)])
def test_a_percentile_is_a_sample_that_was_seen(percent: float, expected: float) -> None:
    assert percentile([float(value) for value in range(100, 0, -1)], percent) == expected


def test_each_round_runs_all_in_turn_and_begins_one_further_on() -> None:
    log: list[str] = []
    readings = interleave([recorded(name, log) for name in "abc"], 3, warm_ups=0)
    assert "".join(log) == "abcbcacab"
    assert readings["a"] == [{"runs": 1.0}, {"runs": 6.0}, {"runs": 8.0}]


def test_ratios_are_taken_within_a_round() -> None:
    """A tenth, six tenths and all of the ceiling: the median is six tenths, though the medians' ratio is a half."""
    readings: Mapping[str, list[Readings]] = {
        "ours": [{"MB/s": 10.0}, {"MB/s": 60.0}, {"MB/s": 50.0}],
        "ceiling": [{"MB/s": 100.0}, {"MB/s": 100.0}, {"MB/s": 50.0}],
    }
    found = figure(Question("group", "ours", "MB/s", "MB/s", "higher", "ceiling"), readings)
    assert (found.ours.median, found.ceiling.median) == (50.0, 100.0)
    assert (found.ratio.low, found.ratio.median, found.ratio.high) == (0.1, 0.6, 1.0)


class Clock:
    """A clock that moves when somebody sleeps, or when it is moved."""

    def __init__(self) -> None:
        self.now_ns = 0
        self.slept: list[float] = []

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now_ns += round(seconds * 1e9)


def test_a_schedule_is_kept_however_slow_the_work_is() -> None:
    """Three records are due a second apart; the first takes 2.5 s. The second and the third are stamped with when they
    were due."""
    clock = Clock()
    stamps = []
    for due in paced(Schedule(1_000_000_000, 1, 4), clock_ns=lambda: clock.now_ns, sleep=clock.sleep):
        stamps.append((due / 1e9, clock.now_ns / 1e9))
        if len(stamps) == 1:
            clock.now_ns += 2_500_000_000
    assert stamps == [(1.0, 1.0), (2.0, 3.5), (3.0, 3.5), (4.0, 4.0)]
    assert clock.slept == [1.0, 0.5]
