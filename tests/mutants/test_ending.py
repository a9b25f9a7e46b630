"""A run that is told to end leaves no fork behind."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
WAIT_S = 60.0

RUN = """
import contextlib
from tests.mutants import __main__ as tool
from tests.mutants.points import mutants_of

class Covered:
    def __init__(self, tests):
        self.tests = tests

    def tests_of(self, file, line):
        return [(1.0, test) for test in self.tests]

def hunt(arguments, packages):
    file = "src/mq_client/queueing/shares.py"
    mutants = mutants_of(file, (tool.ROOT / file).read_text())
    tool.Hunt(Covered(arguments.tests), arguments.folder, 1, ()).run(mutants)

tool.hunt = hunt
tool.one_zookeeper = contextlib.nullcontext
tool.main()
"""
"""The tool without what takes long before its first fork: a ZooKeeper and the coverage."""

TEST = """
import os
import threading
from pathlib import Path

def test_that_never_ends():
    Path({told!r}).write_text(f"{{os.getpid()}}\\n")
    threading.Event().wait()
"""


@pytest.mark.processes
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_run_that_is_told_to_end_ends_its_forks(number: signal.Signals, tmp_path: Path) -> None:
    told = tmp_path / "told"
    test = tmp_path / "test_slow.py"
    test.write_text(TEST.format(told=str(told)))
    command = [sys.executable, "-c", RUN, "--package", "src/mq_broker/core", "--folder", str(tmp_path)]
    with subprocess.Popen([*command, "--tests", str(test)], cwd=ROOT, stderr=subprocess.DEVNULL) as run:
        try:
            fork = _first_fork(told)
        except BaseException:
            run.kill()
            raise
        try:
            run.send_signal(number)
            assert run.wait(WAIT_S) != 0
            assert not _runs(fork)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.kill(fork, signal.SIGKILL)


def _first_fork(told: Path) -> int:
    deadline = time.monotonic() + WAIT_S
    while not (told.exists() and told.read_text().endswith("\n")):
        assert time.monotonic() < deadline, "no fork has begun its test"
        time.sleep(0.02)
    return int(told.read_text())


def _runs(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True
