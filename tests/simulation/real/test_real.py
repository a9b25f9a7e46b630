"""A few seeds of whole brokers. `make simulate-brokers SEEDS=1000` is a large run."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from pathlib import Path
from types import CoroutineType
from typing import Any

import pytest

from tests.simulation.real.cluster import Report, simulate
from tests.simulation.real.fault import Fault
from tests.simulation.real.faults import planted
from tests.simulation.real.plan import Plan
from tests.simulation.real.planted import FAULTS

ROOT = Path(__file__).parents[3]
SIMULATED = ("/mq_broker/", "/tests/simulation/")


def failure(report: Report) -> str:
    return (
        f"{report.violation}\n{report.story}\nreplay it: python -m tests.simulation.real --short --seed {report.seed}"
    )


@pytest.mark.parametrize("seed", [1, 2, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(3, 7))])
def test_nothing_is_lost_or_doubled_by_real_brokers_under_faults(seed: int) -> None:
    report = simulate(seed, Plan.short(seed))
    assert not report.violation, failure(report)
    assert report.done["batches acknowledged"] > 0


@pytest.mark.long
def test_a_seed_leaves_nothing_behind() -> None:
    """What never ran of it would be an error in whatever test comes when it is thrown away."""

    def coroutines() -> list[CoroutineType[Any, Any, Any]]:
        gc.collect()
        found = [each for each in gc.get_objects() if isinstance(each, CoroutineType)]
        # Clients of other tests may have threads that go on
        return [each for each in found if any(part in each.cr_code.co_filename for part in SIMULATED)]

    before = coroutines()
    simulate(2, Plan.short(2))
    assert [each for each in coroutines() if not any(each is other for other in before)] == []


@pytest.mark.long
def test_the_same_seed_gives_the_same_trace_of_real_brokers_however_strings_are_hashed() -> None:
    running = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.simulation.real", "--short", "--seed", "2"],
            cwd=ROOT,
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            stdout=subprocess.PIPE,
            text=True,
        )
        for hash_seed in ("1", "2")
    ]
    told = [process.communicate(timeout=170)[0] for process in running]
    assert "trace " in told[0]
    assert told[0] == told[1]


@pytest.mark.long
def test_seeds_are_spread_over_two_processes() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.simulation.real", "--short", "--seeds", "2", "--processes", "2"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=170,
        check=False,
    )
    assert (done.returncode, "2 seeds, 0 failed" in done.stdout) == (0, True), done.stdout + done.stderr


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name.replace(" ", "_"))
def test_every_fault_planted_around_the_core_still_fits(fault: Fault) -> None:
    with planted(fault):
        pass
