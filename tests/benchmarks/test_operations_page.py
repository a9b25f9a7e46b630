"""What `make bench-operations` counts: late ticks of the loop and why they were late, and the start of the plugin as
pytest tells it."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from benchmarks.operations import idle, plugin


def buckets(*counts: float) -> dict[float, float]:
    return dict(zip((0.0025, 0.005, 0.01, float("inf")), counts, strict=True))


def test_late_ticks_are_those_that_came_meanwhile() -> None:
    assert idle._longer(buckets(10, 12, 12, 12), buckets(30, 40, 43, 43)) == (3, 31, 0.01)


def test_a_loop_that_waited_is_not_one_that_was_held() -> None:
    before = {name: buckets(0, 0, 0, 0) for name in (idle.LATE, idle.HELD, idle.COLLECTED)}
    waited = {**before, idle.LATE: buckets(20, 27, 30, 30), idle.HELD: buckets(30, 30, 30, 30)}
    held, passes, otherwise = idle._loop(before, {**waited, idle.COLLECTED: buckets(5, 5, 5, 5)})
    assert (held.holds, passes.holds, otherwise.holds) == (True, True, None)
    assert otherwise.measured == "3 of 30, no tick later than 10 ms"
    worked = {**waited, idle.HELD: buckets(28, 29, 30, 30), idle.COLLECTED: buckets(5, 5, 6, 6)}
    held, passes, otherwise = idle._loop(before, worked)
    assert (held.holds, passes.holds) == (False, False)
    assert held.measured == "1 of 30, for 10 ms at most"
    assert otherwise.measured.startswith("2 of 30")


def test_the_first_brokers_start_is_what_pytest_says_of_the_setup(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    told = "0.00s call     test_uses.py::test_it\n1.25s setup    test_uses.py::test_it\n"
    ran: Any = subprocess.CompletedProcess([], 0, told, "")
    monkeypatch.setattr(plugin.subprocess, "run", lambda *_, **__: ran)
    assert plugin._started(tmp_path) == 1.25
