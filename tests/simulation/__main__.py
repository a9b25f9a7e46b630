"""`python -m tests.simulation --seeds N`: run that many seeds; a failure prints its story and the command that replays
it."""

from __future__ import annotations

import argparse
import functools
import gc
import multiprocessing
import sys
import time
from collections import Counter
from collections.abc import Iterator

from tests.simulation.cluster import Report
from tests.simulation.loop import YOUNG_OBJECTS
from tests.simulation.profiles import PROFILES, simulate_under

PROGRESS_SEEDS = 500


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seeds", type=int, default=100, help="how many seeds to run")
    parser.add_argument("--first", type=int, default=1, help="the first of them")
    parser.add_argument("--seed", type=int, help="run this one alone")
    parser.add_argument(
        "--profile", default="", choices=("", *PROFILES), help="narrower plans than the seeds' own (profiles.py)"
    )
    parser.add_argument(
        "--story", action="store_true", help="with --seed: print the last events even if nothing was wrong"
    )
    parser.add_argument(
        "--processes", type=int, default=1, choices=(1, 2), help="seeds are spread over so many processes"
    )
    parser.add_argument("--keep-going", action="store_true", help="do not stop at the first failure")
    parser.add_argument("--minutes", type=float, default=1e9, help="stop after so many minutes, whatever is left")
    arguments = parser.parse_args()
    gc.set_threshold(YOUNG_OBJECTS)
    if arguments.seed is not None:
        report = simulate_under(arguments.profile, arguments.seed)
        print(report.plan)
        print(f"trace {report.trace:08x}, {report.calls} events, {report.simulated_ms / 1000:.1f} s")
        print(f"{dict(report.done)}\n{dict(report.faults)}")
        return tell(report)
    started = time.monotonic()
    seeds = range(arguments.first, arguments.first + arguments.seeds)
    total = Counter[str]()
    faults, done = Counter[str](), Counter[str]()
    failed = 0
    for report in run(seeds, arguments.processes, arguments.profile):
        total.update(
            seeds=1, events=report.calls, broker_ms=report.simulated_ms * report.plan.brokers, ms=report.simulated_ms
        )
        faults.update(report.faults)
        done.update(report.done)
        if total["seeds"] % PROGRESS_SEEDS == 0:
            print(f"{total['seeds']} seeds, {failed} failed, {time.monotonic() - started:.0f} s", file=sys.stderr)
        if tell(report):
            failed += 1
            if not arguments.keep_going:
                break
        if time.monotonic() - started > arguments.minutes * 60:
            break
    print(
        f"{total['seeds']} seeds, {failed} failed: {total['ms'] / 3_600_000:.2f} cluster-hours, {total['events']:,} "
        f"events in {time.monotonic() - started:.0f} s; the last seed was {report.seed}"
    )
    for name, counts in (("faults", faults), ("done", done)):
        print(f"{name}: " + ", ".join(f"{kind} {count:,}" for kind, count in sorted(counts.items())))
    return 1 if failed else 0


def run(seeds: range, processes: int, profile: str = "") -> Iterator[Report]:
    """Reports in order of the seeds."""
    one = functools.partial(simulate_under, profile)
    if processes == 1:
        yield from map(one, seeds)
        return
    with multiprocessing.get_context("spawn").Pool(processes, gc.set_threshold, (YOUNG_OBJECTS,)) as pool:
        yield from pool.imap(one, seeds, chunksize=4)


def tell(report: Report) -> int:
    if report.violation is None:
        return 0
    print(f"\nseed {report.seed} FAILED: {report.violation}\n{report.plan}\n")
    print(report.violation.story)
    profile = f" --profile {report.plan.profile}" if report.plan.profile else ""
    print(f"\nreplay it: python -m tests.simulation --seed {report.seed}{profile}\n", flush=True)
    return 1


if __name__ == "__main__":
    sys.exit(main())
