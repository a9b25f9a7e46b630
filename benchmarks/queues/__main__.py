"""`make bench-queues`: work queues beside other brokers'. `--save` keeps the rows in benchmarks/QUEUES.md."""

from __future__ import annotations

import os
import tempfile
import time
from contextlib import ExitStack, closing
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Final

import click
from rich.console import Console

from benchmarks.bench.machine import machine
from benchmarks.bench.measure import Contestant, interleave
from benchmarks.queues.ground import Ground
from benchmarks.queues.peers import Others
from benchmarks.queues.report import OURS, Measured, lines_of, markdown, read, title, write
from benchmarks.queues.table import ROWS

RESULTS: Final = Path(__file__).resolve().parents[1] / "QUEUES.md"
KEPT: Final = RESULTS.with_suffix(".json")


def measure(
    ground: Ground, others: Others | None, wanted: tuple[str, ...], rounds: int, save: bool, run: str, console: Console
) -> None:
    facts = machine(ground.directory)
    for name in wanted:
        before = _load()
        contestants = [Contestant(OURS, partial(ROWS[name], ground))]
        beside = others.beside(name) if others is not None else {}
        contestants += [Contestant(who, run) for who, run in beside.items()]
        found = interleave(contestants, rounds, warm_ups=0, watch=lambda what, row=name: ground.watch(f"{row}: {what}"))
        readings = {who: [dict(each) for each in every] for who, every in found.items()}
        missing = others.missing if others is not None else {}
        measured = Measured(name, run, f"{before} before, {_load()} after", readings, missing)
        console.print(f"{title(name)}; load {measured.load}", style="bold", highlight=False)
        for cells in lines_of(measured):
            console.print("  " + "  ".join(filter(None, cells)), highlight=False)
        if save:
            kept = {**read(KEPT), name: measured}
            write(KEPT, (kept[row] for row in ROWS if row in kept), facts)
            RESULTS.write_text(markdown(kept, facts))


def _load() -> str:
    return f"{os.getloadavg()[0]:.1f}"


@click.command()
@click.option("--rows", help=f"Only these, with commas between: {', '.join(ROWS)}.")
@click.option("--rounds", type=click.IntRange(min=1), default=3, show_default=True)
@click.option("--work", type=click.FloatRange(0.01, 100), default=1.0, show_default=True, help="How many records.")
@click.option("--alone", is_flag=True, help="Without other brokers, which are fetched (pip, apt).")
@click.option("--save", is_flag=True, help=f"Put these rows into {RESULTS.parent.name}/{RESULTS.name}.")
def main(rows: str | None, rounds: int, work: float, alone: bool, save: bool) -> None:
    """Measure TritonMQ's work queues, three brokers, on this machine. Every record is counted."""
    wanted = tuple(ROWS) if rows is None else tuple(rows.split(","))
    if unknown := [name for name in wanted if name not in ROWS]:
        raise click.BadParameter(f"{', '.join(unknown)}: give names of {', '.join(ROWS)}", param_hint="--rows")
    remarks, console = Console(stderr=True), Console(width=120)
    started = time.monotonic()

    def watch(what: str) -> None:
        remarks.print(f"{time.monotonic() - started:6.1f} s  {what}", highlight=False)

    run = f"{rounds} round{'s' if rounds > 1 else ''}, {work:.0%} of the records, {datetime.now(UTC):%Y-%m-%d}"
    with (
        tempfile.TemporaryDirectory(prefix="tritonmq-queues-", ignore_cleanup_errors=True) as scratch,
        Ground(Path(scratch), work, watch) as ground,
        ExitStack() as opened,
    ):
        others = None if alone else opened.enter_context(closing(Others(ground)))
        measure(ground, others, wanted, rounds, save, run, console)
    console.print(f"took {time.monotonic() - started:.0f} s")


if __name__ == "__main__":
    main()
