"""`python -m tests.simulation.real --seeds N`: run that many seeds of whole brokers; a failure prints its story."""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter

from tests.simulation.real.cluster import Report
from tests.simulation.real.seeds import one, run

PROGRESS_SEEDS = 10


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.real", description=__doc__)
    parser.add_argument("--seeds", type=int, default=20, help="how many seeds to run")
    parser.add_argument("--first", type=int, default=1, help="the first of them")
    parser.add_argument("--seed", type=int, help="run this one alone")
    parser.add_argument("--short", action="store_true", help="a few seconds of each, as the tests run them")
    parser.add_argument("--story", action="store_true", help="with --seed: print all that happened")
    parser.add_argument(
        "--processes", type=int, default=1, choices=(1, 2), help="seeds are spread over so many processes"
    )
    parser.add_argument("--keep-going", action="store_true", help="do not stop at the first failure")
    parser.add_argument("--minutes", type=float, default=1e9, help="stop after so many minutes, whatever is left")
    arguments = parser.parse_args()
    if arguments.seed is not None:
        report = one(arguments.short, arguments.seed, verbose=arguments.story)
        if arguments.story:
            print(report.story)
        print(report.plan)
        print(f"trace {report.trace:08x}, {report.calls} callbacks, {report.virtual_s:.1f} s")
        print(f"{dict(sorted(report.done.items()))}\n{dict(sorted(report.faults.items()))}")
        return tell(report, story=not arguments.story)
    started = time.monotonic()
    total, faults, done = Counter[str](), Counter[str](), Counter[str]()
    virtual_s = 0.0
    for report in run(
        range(arguments.first, arguments.first + arguments.seeds), arguments.processes, short=arguments.short
    ):
        total.update(seeds=1, calls=report.calls)
        virtual_s += report.virtual_s
        faults.update(report.faults)
        done.update(report.done)
        if total["seeds"] % PROGRESS_SEEDS == 0:
            print(
                f"{total['seeds']} seeds, {total['failed']} failed, {time.monotonic() - started:.0f} s", file=sys.stderr
            )
        if tell(report):
            total["failed"] += 1
            if not arguments.keep_going:
                break
        if time.monotonic() - started > arguments.minutes * 60:
            break
    print(
        f"{total['seeds']} seeds, {total['failed']} failed: {virtual_s / 3600:.2f} cluster-hours, {total['calls']:,} "
        f"callbacks in {time.monotonic() - started:.0f} s"
    )
    for name, counts in (("faults", faults), ("done", done)):
        print(f"{name}: " + ", ".join(f"{kind} {count:,}" for kind, count in sorted(counts.items())))
    return 1 if total["failed"] else 0


def tell(report: Report, *, story: bool = True) -> int:
    if not report.violation:
        return 0
    print(f"\nseed {report.seed} FAILED: {report.violation}\n{report.plan}\n")
    if story:
        print(report.story)
    print(f"\nreplay it: python -m tests.simulation.real --seed {report.seed} --story\n", flush=True)
    return 1


if __name__ == "__main__":
    sys.exit(main())
