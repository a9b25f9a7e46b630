"""Plant faults in the core, one at a time (planted.py, planted_elastic.py, planted_lies.py), and see that the simulator
finds each.

A mutation that survives is a hole in the simulator. README.md says which fault is for which rule.

`python -m tests.simulation.mutations [--seeds N] [NAME ...]` prints in how many seeds each is found, and by which
invariant first. Seeds are those that plan what the fault needs, under the profile that it names, if it names one
(profiles.py).
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import importlib
import inspect
import multiprocessing
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import count, islice
from pathlib import Path
from typing import Any

from tests.simulation.cluster import Report, simulate
from tests.simulation.loop import YOUNG_OBJECTS
from tests.simulation.planted import REPLICATION, Mutation
from tests.simulation.planted_elastic import ELASTIC
from tests.simulation.planted_lies import LIES
from tests.simulation.profiles import plan_of

MUTATIONS = (*REPLICATION, *ELASTIC, *LIES)

HEADER = "| planted fault | breaks | seeds | found in |\n|---|---|---|---|"


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
            f"{mutation.name!r}: {mutation.old!r} occurs {source.count(mutation.old)} times in {mutation.where}, not "
            "once"
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
    return [report for report in islice(_runs(mutation, first, stop_at_first), seeds) if report.violation is not None]


def _runs(mutation: Mutation, first: int, stop_at_first: bool) -> Iterator[Report]:
    plans = ((seed, plan_of(seed, mutation.profile)) for seed in count(first))
    for seed, plan in plans:
        if set(mutation.needs) <= plan.kinds:
            with planted(mutation):
                report = simulate(seed, plan)
            yield report
            if stop_at_first and report.violation is not None:
                return


@dataclass(frozen=True)
class Count:
    """In how many seeds a planted fault was found."""

    mutation: Mutation
    seeds: int
    found: int
    what: str

    @property
    def row(self) -> str:
        where = f"`{self.mutation.profile}`" if self.mutation.profile else "any"
        return f"| {self.mutation.name} | {self.mutation.breaks} | {where} | {self.found} of {self.seeds} |"


def counted(mutation: Mutation, first: int, seeds: int, seeds_max: int, stop_at_first: bool) -> Count:
    """Over so many seeds, or as many more, up to the greater number, as are needed to find it once."""
    ran = found = 0
    what = "SURVIVED"
    for report in islice(_runs(mutation, first, stop_at_first), seeds_max):
        ran += 1
        if report.violation is not None:
            found += 1
            what = f"seed {report.seed}: {str(report.violation)[:110]}" if found == 1 else what
        if found and ran >= seeds:
            break
    return Count(mutation, ran, found, what)


def put_into(table: Path, counts: list[Count]) -> None:
    """In the place of the table of counts that the file has."""
    text = table.read_text()
    if HEADER not in text:
        raise ValueError(f"{table} has no table that begins with {HEADER!r}")
    before, _, after = text.partition(HEADER)
    rest = after.lstrip("\n").split("\n\n", 1)[1:]
    table.write_text(
        "\n\n".join([before + HEADER + "\n" + "\n".join(each.row for each in counts), *rest]).rstrip("\n") + "\n"
    )


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.mutations", description=__doc__)
    parser.add_argument("names", nargs="*", help="those whose name contains one of these; all if none is given")
    parser.add_argument("--seeds", type=int, default=10, help="how many each is counted over")
    parser.add_argument("--seeds-max", type=int, default=60, help="go on to so many until it is found once")
    parser.add_argument("--first", type=int, default=1)
    parser.add_argument(
        "--processes", type=int, default=1, choices=(1, 2), help="planted faults are spread over so many processes"
    )
    parser.add_argument("--table", type=Path, help="put the counts into this file, in the place of its table of them")
    parser.add_argument("--stop-at-first", action="store_true", help="enough to know that it is found")
    arguments = parser.parse_args()
    chosen = [each for each in MUTATIONS if not arguments.names or any(name in each.name for name in arguments.names)]
    one = partial(
        counted,
        first=arguments.first,
        seeds=arguments.seeds,
        seeds_max=max(arguments.seeds, arguments.seeds_max),
        stop_at_first=arguments.stop_at_first,
    )
    counts = []
    with multiprocessing.get_context("spawn").Pool(arguments.processes, gc.set_threshold, (YOUNG_OBJECTS,)) as pool:
        for each in pool.imap(one, chosen):
            counts.append(each)
            print(
                f"{each.found:>4} of {each.seeds}  {each.mutation.name} ({each.mutation.breaks})  {each.what}",
                flush=True,
            )
    survived = [each.mutation.name for each in counts if not each.found]
    print(f"{len(counts)} planted faults, {len(survived)} not found" + "".join(f"\n  {name}" for name in survived))
    if arguments.table is not None:
        put_into(arguments.table, counts)
    return 1 if survived else 0


if __name__ == "__main__":
    sys.exit(main())
