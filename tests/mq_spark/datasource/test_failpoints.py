"""Failpoints: nothing without the variable; with it, the process is held where it is until it is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from mq_spark.datasource.failpoints import VARIABLE, reached


def test_without_the_variable_or_in_another_micro_batch_nothing_happens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    reached("before_decide", 2)
    mark = tmp_path / "mark"
    monkeypatch.setenv(VARIABLE, f"before_decide@2:{mark}")
    reached("before_decide", 1)
    reached("after_decide", 2)
    assert not mark.exists()


def test_a_process_that_reaches_the_point_marks_it_and_waits_to_be_killed(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    code = "from mq_spark.datasource.failpoints import reached; reached('after_decide', 3)"
    process = subprocess.Popen([sys.executable, "-c", code], env={**os.environ, VARIABLE: f"after_decide@3:{mark}"})
    try:
        deadline = time.monotonic() + 20
        while not mark.exists():
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.01)
        assert process.poll() is None
    finally:
        process.kill()
    assert process.wait(10) == -signal.SIGKILL
