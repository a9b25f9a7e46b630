"""What `make bench-operations` counts: late ticks of the loop, and the start of the plugin as pytest tells it."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from benchmarks.operations import idle, plugin


def test_late_ticks_are_those_that_came_meanwhile() -> None:
    before = {0.0025: 10.0, 0.005: 12.0, 0.01: 12.0, float("inf"): 12.0}
    after = {0.0025: 30.0, 0.005: 40.0, 0.01: 43.0, float("inf"): 43.0}
    assert idle._late(before, after) == (3, 31, 0.01)


def test_the_first_brokers_start_is_what_pytest_says_of_the_setup(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    told = "0.00s call     test_uses.py::test_it\n1.25s setup    test_uses.py::test_it\n"
    ran: Any = subprocess.CompletedProcess([], 0, told, "")
    monkeypatch.setattr(plugin.subprocess, "run", lambda *_, **__: ran)
    assert plugin._started(tmp_path) == 1.25
