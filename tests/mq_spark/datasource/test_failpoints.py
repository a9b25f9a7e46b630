"""Failpoints: nothing without the variable; with it, one process is held there until it is killed or let go, or fails
there."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from mq_protocol.errors import OutcomeUnknown
from mq_spark.datasource.failpoints import FAIL, VARIABLE, reached


@pytest.fixture
def held(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process held at `after_decide` of micro-batch 3."""
    (tmp_path / "after_decide@3").touch()
    code = "from mq_spark.datasource.failpoints import reached; reached('after_decide', 3)"
    process = subprocess.Popen([sys.executable, "-c", code], env={**os.environ, VARIABLE: str(tmp_path)})
    deadline = time.monotonic() + 30
    while not (tmp_path / "after_decide@3.reached").exists():
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.01)
    yield process
    process.kill()
    process.wait(30)


def test_without_the_variable_or_in_another_micro_batch_nothing_happens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    armed = tmp_path / "before_decide@2"
    armed.touch()
    monkeypatch.delenv(VARIABLE, raising=False)
    reached("before_decide", 2)
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    reached("before_decide", 1)
    reached("after_decide", 2)
    assert list(tmp_path.iterdir()) == [armed]


def test_a_process_that_reaches_the_point_says_so_and_waits_to_be_killed(
    held: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    assert (tmp_path / "after_decide@3.reached").read_text() == str(held.pid)
    assert held.poll() is None
    held.kill()
    assert held.wait(30) == -signal.SIGKILL


def test_a_point_stops_one_process_only(
    held: subprocess.Popen[bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    reached("after_decide", 3)
    assert held.poll() is None


def test_a_point_may_fail_instead_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "after_decide").write_text(FAIL)
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    with pytest.raises(OutcomeUnknown, match="ask again"):
        reached("after_decide", 7)
    reached("after_decide", 7)
