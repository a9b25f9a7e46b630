"""What `make bench-kafka` makes of readings: one direction for all ratios, aims, and rows that outlive a run of
others."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.kafka.compare import Comparison, compare
from benchmarks.kafka.kept import Part, read, write
from benchmarks.kafka.report import cells, markdown

RATE = Comparison("in", "publish", "Kafka", "records/s", "records/s", "higher", aim=2.0)
WAIT = Comparison("out", "Consumer", "Kafka", "p50", "ms", "lower", aim=1.0)
READINGS = {
    "publish": [{"records/s": 300.0}, {"records/s": 400.0}],
    "Consumer": [{"p50": 8.0}, {"p50": 8.0}],
    "Kafka": [{"records/s": 100.0, "p50": 4.0}, {"records/s": 100.0, "p50": 2.0}],
}


def test_a_higher_rate_and_a_shorter_wait_are_both_times_as_fast() -> None:
    assert compare(RATE, READINGS).times.samples == (3.0, 4.0)
    assert compare(WAIT, READINGS).times.samples == (0.5, 0.25)


@pytest.mark.parametrize(("asked", "reached"), [(RATE, True), (WAIT, False), (replace(RATE, aim=None), None)])
def test_an_aim_is_reached_by_the_median(asked: Comparison, reached: bool | None) -> None:
    assert compare(asked, READINGS).reached is reached


def test_what_was_kept_is_read_back_as_it_was(tmp_path: Path) -> None:
    parts = {
        "produce": Part("Full run", "1.0", (compare(RATE, READINGS),)),
        "latency": Part("Quick run", "2.0", (compare(WAIT, READINGS),)),
    }
    write(tmp_path / "kept.json", parts)

    assert read(tmp_path / "kept.json") == parts
    assert read(tmp_path / "nothing.json") == {}


def test_the_table_has_a_line_for_each_row_and_says_which_run_it_is_from() -> None:
    rows = (compare(RATE, READINGS), compare(WAIT, READINGS))

    text = markdown([Part("Full run of some day", "1.0", rows)], {"cores": "2"})

    for row in rows:
        assert f"| {' | '.join(cells(row))} |" in text
    assert text.count("Full run of some day, 2 rounds") == 2
    assert "| cores | 2 |" in text
