"""`python -m tests.simulation.sessions --seeds 100`: members of queue groups that are pushed their records."""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter

from tests.simulation.sessions.world import simulate


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.sessions", description=__doc__)
    parser.add_argument("--first", type=int, default=1)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--seed", type=int, help="one seed, with its plan and what went wrong in it")
    arguments = parser.parse_args()
    seeds = (
        [arguments.seed] if arguments.seed is not None else range(arguments.first, arguments.first + arguments.seeds)
    )
    began, failed, done = time.monotonic(), [], Counter[str]()
    for seed in seeds:
        report = simulate(seed)
        done.update(report.done)
        if report.violation:
            failed.append(seed)
            print(report.violation, flush=True)
        if arguments.seed is not None:
            print(report.plan, *report.story, sep="\n")
    print(f"{len(seeds)} seeds, {len(failed)} failed {failed}, {time.monotonic() - began:.1f} s")
    print(", ".join(f"{what} {count:,}" for what, count in sorted(done.items())))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
