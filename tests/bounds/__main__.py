"""`python -m tests.bounds [--table FILE]`: what members that mean harm make a leader keep, at full size."""

from __future__ import annotations

import argparse
import sys
from functools import partial
from pathlib import Path

from mq_broker.core.work.state import RUNS_MAX, SPAN_MAX
from tests.bounds.adversaries import Cost, acks_every_second, gives_everything_back

HEADER = (
    "| what is done | records, base to frontier | runs | leased | memory | snapshot | entries | journal |\n"
    "|---|---|---|---|---|---|---|---|"
)
HOUR_S = 3_600


def mebibytes(size: int) -> str:
    return f"{size / (1 << 20):.2f} MiB"


def row(what: str, cost: Cost) -> str:
    numbers = [f"{cost.records:,}", f"{cost.runs:,}", f"{cost.leased:,}"]
    sizes = [mebibytes(cost.memory_bytes), mebibytes(cost.snapshot_bytes), f"{cost.entries:,}"]
    return "| " + " | ".join([what, *numbers, *sizes, mebibytes(cost.journal_bytes)]) + " |"


def rows() -> list[str]:
    every_second, rest = acks_every_second(SPAN_MAX)
    given_back = partial(gives_everything_back, records=3 * RUNS_MAX)
    return [
        row(f"every second record of {SPAN_MAX:,} is acknowledged, the others are held", every_second),
        row("then the others, too", rest),
        row("1,000 records are given back each second, for an hour", given_back(HOUR_S, 1_000, reasons=False)),
        row(
            f"{RUNS_MAX:,} records are given back, every second one with a reason of 256 bytes",
            given_back(1, RUNS_MAX, reasons=True),
        ),
        row("twice as many are asked for, and given back", given_back(2, RUNS_MAX, reasons=True)),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bounds", description=__doc__)
    parser.add_argument("--table", type=Path, help="put the figures into this file, in the place of its table")
    arguments = parser.parse_args()
    table = "\n".join([HEADER, *rows()])
    print(table)
    if arguments.table is not None:
        before, _, after = arguments.table.read_text().partition(HEADER)
        left = [line for line in after.splitlines() if not line.startswith("|")]
        arguments.table.write_text(before + table + "\n".join(left).rstrip("\n") + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
