"""What the pytest plugin costs a suite that uses it, and one that does not."""

from __future__ import annotations

import statistics
import subprocess
import sys
from pathlib import Path
from typing import Final

from benchmarks.security.ground import Row

FIRST_BROKER_S: Final = 2.0
UNUSED_MS: Final = 10.0

_USES: Final = "def test_it(tritonmq):\n    assert tritonmq.bootstrap\n"


def measured(directory: Path, rounds: int) -> list[Row]:
    """`rounds` of each."""
    directory.mkdir()
    (directory / "test_uses.py").write_text(_USES)
    starts = [_started(directory) for _ in range(rounds)]
    unused = [_imported("import pytest, mq_pytest.plugin") - _imported("import pytest") for _ in range(rounds)]
    start, idle_ms = statistics.median(starts), statistics.median(unused) * 1000
    return [
        Row(
            "the pytest plugin's first broker, from asking for the fixture",
            f"{start:.2f} s",
            f"≤ {FIRST_BROKER_S:g} s",
            start <= FIRST_BROKER_S,
        ),
        Row("a suite that does not use the plugin pays", f"{idle_ms:.1f} ms", f"≤ {UNUSED_MS:g} ms",
            idle_ms <= UNUSED_MS),
    ]  # fmt: skip


def _started(directory: Path) -> float:
    """As pytest itself reports the setup of the fixture."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--durations=0", "--durations-min=0"]
    ran = subprocess.run(
        [*command, "test_uses.py"], cwd=directory, capture_output=True, text=True, check=True, timeout=120
    )
    line = next(line for line in ran.stdout.splitlines() if " setup " in line)
    return float(line.split("s ")[0])


def _imported(code: str) -> float:
    """Seconds of processor of a Python that runs it: what else the machine does counts less than in seconds on the
    clock."""
    timed = f"import time; began = time.process_time()\n{code}\nprint(time.process_time() - began)"
    ran = subprocess.run([sys.executable, "-c", timed], capture_output=True, text=True, check=True, timeout=60)
    return float(ran.stdout)
