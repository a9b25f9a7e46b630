"""Plant faults in the broker around the core, one at a time (planted.py), and see that simulated brokers find each.

`python -m tests.simulation.real.faults [--seeds N] [NAME ...]` prints in which seed each is found first, and by what.
"""

from __future__ import annotations

import argparse
import contextlib
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

from tests.simulation.real.cluster import simulate
from tests.simulation.real.fault import Fault
from tests.simulation.real.plan import Plan
from tests.simulation.real.planted import FAULTS

HEADER = "| fault planted around the core | where | found by seed |\n|---|---|---|"


@contextlib.contextmanager
def planted(fault: Fault) -> Iterator[None]:
    """The broker with this fault in it."""
    with contextlib.ExitStack() as edits:
        for where, old, new in ((fault.where, fault.old, fault.new), *fault.also):
            edits.enter_context(_edited(fault.name, where, old, new))
        yield


@contextlib.contextmanager
def _edited(fault: str, where: str, old: str, new: str) -> Iterator[None]:
    module_name, _, path = where.partition(":")
    module = importlib.import_module(module_name if module_name.startswith("mq_") else f"mq_broker.{module_name}")
    *owners, name = path.split(".")
    owner: Any = module
    for part in owners:
        owner = getattr(owner, part)
    original = inspect.getattr_static(owner, name)
    source = textwrap.dedent(inspect.getsource(original.fget if isinstance(original, property) else original))
    if source.count(old) != 1:
        raise ValueError(f"{fault!r}: {old!r} occurs {source.count(old)} times in {where}, not once")
    names: dict[str, Any] = {}
    exec(compile(source.replace(old, new), f"<{fault}>", "exec"), vars(module), names)
    # Other modules may hold a function by its own name.
    holders = [owner] if owners else [held for held in sys.modules.values() if vars(held).get(name) is original]
    for holder in holders:
        setattr(holder, name, names[name])
    try:
        yield
    finally:
        for holder in holders:
            setattr(holder, name, original)


@dataclass(frozen=True)
class Found:
    """`seed` 0: it was not."""

    fault: Fault
    ran: int
    seed: int
    what: str

    @property
    def row(self) -> str:
        seed = f"{self.seed} ({self.ran} tried)" if self.seed else "none"
        return f"| {self.fault.name} | `{self.fault.file}` | {seed} |"


def plans(fault: Fault) -> Iterator[tuple[int, Plan]]:
    """Seeds, each with a plan in which what the fault needs happens often."""
    return ((seed, Plan.aimed(seed, fault.needs)) for seed in count(1))


def hunt(fault: Fault, seeds: int) -> Found:
    """Until it is found, or for so many seeds."""
    ran = 0
    for seed, plan in islice(plans(fault), seeds):
        ran += 1
        with planted(fault):
            report = simulate(seed, plan)
        if report.violation:
            return Found(fault, ran, seed, report.violation.splitlines()[0])
    return Found(fault, ran, 0, "SURVIVED")


def put_into(table: Path, found: list[Found]) -> None:
    """In the place of the table that the file has."""
    text = table.read_text()
    before, _, after = text.partition(HEADER)
    if not after:
        raise ValueError(f"{table} has no table that begins with {HEADER!r}")
    rest = after.lstrip("\n").split("\n\n", 1)[1:]
    table.write_text(
        "\n\n".join([before + HEADER + "\n" + "\n".join(each.row for each in found), *rest]).rstrip("\n") + "\n"
    )


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.real.faults", description=__doc__)
    parser.add_argument("names", nargs="*", help="those whose name contains one of these; all if none is given")
    parser.add_argument("--seeds", type=int, default=20, help="after so many a fault has survived")
    parser.add_argument("--processes", type=int, default=1, choices=(1, 2))
    parser.add_argument("--table", type=Path, help="put what was found into this file, in the place of its table")
    arguments = parser.parse_args()
    chosen = [each for each in FAULTS if not arguments.names or any(name in each.name for name in arguments.names)]
    found = []
    with multiprocessing.get_context("spawn").Pool(arguments.processes) as pool:
        for each in pool.imap(partial(hunt, seeds=arguments.seeds), chosen):
            found.append(each)
            print(f"seed {each.seed} ({each.ran} tried)  {each.fault.name}  {each.what[:150]}", flush=True)
    survived = [each.fault.name for each in found if not each.seed]
    print(f"{len(found)} faults, {len(survived)} not found" + "".join(f"\n  {name}" for name in survived))
    if arguments.table is not None:
        put_into(arguments.table, found)
    return 1 if survived else 0


if __name__ == "__main__":
    sys.exit(main())
