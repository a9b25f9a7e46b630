"""Runs of many seeds, spread over processes.

What a worker process runs must stand in a module that can be imported. A spawned process does not load the `__main__`
of a package again, so a function of that file is not found there, and the pool makes new workers for ever.
"""

from __future__ import annotations

import functools
import multiprocessing
from collections.abc import Iterator

from tests.simulation.real.cluster import Report, simulate
from tests.simulation.real.plan import Plan


def one(short: bool, seed: int, *, verbose: bool = False) -> Report:
    return simulate(seed, Plan.short(seed) if short else Plan.of(seed), verbose=verbose)


def run(seeds: range, processes: int, *, short: bool = False) -> Iterator[Report]:
    """Reports in order of the seeds."""
    simulate_one = functools.partial(one, short)
    if processes == 1:
        yield from map(simulate_one, seeds)
        return
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        yield from pool.imap(simulate_one, seeds)
