"""Plant faults in the core, one at a time (planted.py, planted_elastic.py), and see that the simulator finds each.

A mutation that survives is a hole in the simulator. README.md says which fault is for which rule.

`python -m tests.simulation.mutations [--seeds N] [NAME ...]` prints in how many seeds each is found, and by which invariant first.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import inspect
import itertools
import sys
import textwrap
from collections.abc import Iterator
from typing import Any

from tests.simulation.cluster import Plan, Report, simulate
from tests.simulation.planted import REPLICATION, Mutation
from tests.simulation.planted_elastic import ELASTIC

MUTATIONS = (*REPLICATION, *ELASTIC)


@contextlib.contextmanager
def planted(mutation: Mutation) -> Iterator[None]:
    """The core with this fault in it."""
    module_name, _, path = mutation.where.partition(":")
    package = "tests" if module_name.startswith("simulation.") else "mq_broker.core"
    module = importlib.import_module(f"{package}.{module_name}")
    *owners, name = path.split(".")
    owner: Any = module
    for part in owners:
        owner = getattr(owner, part)
    original = inspect.getattr_static(owner, name)
    source = textwrap.dedent(inspect.getsource(original))
    if source.count(mutation.old) != 1:
        raise ValueError(
            f"{mutation.name!r}: {mutation.old!r} occurs {source.count(mutation.old)} times in {mutation.where}, not once"
        )
    names: dict[str, Any] = {}
    exec(compile(source.replace(mutation.old, mutation.new), f"<{mutation.name}>", "exec"), vars(module), names)
    setattr(owner, name, names[name])
    try:
        yield
    finally:
        setattr(owner, name, original)


def hunt(mutation: Mutation, first: int, seeds: int, *, stop_at_first: bool = False) -> list[Report]:
    """Run that many seeds that plan what it needs, with the fault in the core; the reports of those that found it."""
    found = []
    fit = (seed for seed in itertools.count(first) if set(mutation.needs) <= Plan.of(seed).kinds)
    with planted(mutation):
        for seed in itertools.islice(fit, seeds):
            report = simulate(seed)
            if report.violation is not None:
                found.append(report)
                if stop_at_first:
                    break
    return found


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.mutations", description=__doc__)
    parser.add_argument("names", nargs="*", help="those whose name contains one of these; all if none is given")
    parser.add_argument("--seeds", type=int, default=50)
    parser.add_argument("--first", type=int, default=1)
    parser.add_argument("--table", action="store_true", help="print a table in Markdown")
    parser.add_argument("--stop-at-first", action="store_true", help="enough to know that it is found")
    arguments = parser.parse_args()
    survived = 0
    if arguments.table:
        print("| planted fault | breaks | found in seeds |\n|---|---|---|")
    for mutation in MUTATIONS:
        if arguments.names and not any(name in mutation.name for name in arguments.names):
            continue
        found = hunt(mutation, arguments.first, arguments.seeds, stop_at_first=arguments.stop_at_first)
        survived += not found
        what = f"seed {found[0].seed}: {str(found[0].violation)[:110]}" if found else "SURVIVED"
        if arguments.table:
            print(f"| {mutation.name} | {mutation.breaks} | {len(found)} of {arguments.seeds} |", flush=True)
        else:
            print(f"{len(found):>4} of {arguments.seeds}  {mutation.name} ({mutation.breaks})  {what}", flush=True)
    return 1 if survived else 0


if __name__ == "__main__":
    sys.exit(main())
