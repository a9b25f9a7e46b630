"""`make bench`: measure, print one table, say what machine it was. `--save` keeps the table in
benchmarks/RESULTS.md."""

from __future__ import annotations

import importlib
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import click
from rich.console import Console

from benchmarks.bench.machine import machine
from benchmarks.bench.measure import Figure
from benchmarks.bench.report import TABLE_WIDTH, as_json, markdown, print_figures
from benchmarks.bench.workbench import FULL, QUICK, Workbench

RESULTS: Final = Path(__file__).resolve().parents[1] / "RESULTS.md"
MODULES: Final = ("spark_source", "spark_sink", "produce", "latency", "windows")
"""Each has `measure(bench)`. Imported when it is its turn. Spark's come first, because Spark has to be started
first."""


@click.command()
@click.option(
    "--quick", is_flag=True, help="Two cold rounds and less of everything: to see that it works, not to quote."
)
@click.option(
    "--only", multiple=True, type=click.Choice(MODULES), help="Only these figures; may be given more than once."
)
@click.option(
    "--json", "json_path", type=click.Path(dir_okay=False, path_type=Path), help="Write every reading to this file."
)
@click.option("--save", is_flag=True, help=f"Keep the table in {RESULTS.parent.name}/{RESULTS.name}.")
@click.option(
    "--data",
    type=click.Path(file_okay=False, exists=True, path_type=Path),
    help="Where brokers keep their data during the run.",
)
def main(quick: bool, only: tuple[str, ...], json_path: Path | None, save: bool, data: Path | None) -> None:
    """Measure TritonMQ beside its ceilings, on three brokers on this machine."""
    remarks = Console(stderr=True)
    console = Console(width=None if sys.stdout.isatty() else TABLE_WIDTH)
    started = time.monotonic()
    run = f"{'quick' if quick else 'full'} run of {datetime.now(UTC):%Y-%m-%d}"
    with tempfile.TemporaryDirectory(prefix="tritonmq-bench-", dir=data, ignore_cleanup_errors=True) as scratch:
        directory = Path(scratch)
        facts = machine(directory)
        with remarks.status("starting") as status:

            def watch(what: str) -> None:
                status.update(what)
                if not remarks.is_terminal:
                    remarks.print(f"{time.monotonic() - started:6.1f} s  {what}", highlight=False)

            with Workbench(directory, QUICK if quick else FULL, watch) as bench:
                figures: list[Figure] = []
                for name in MODULES:
                    if not only or name in only:
                        figures += importlib.import_module(f"benchmarks.bench.{name}").measure(bench)
                status.update("stopping")
            readings = bench.readings
    print_figures(console, figures, facts, run)
    console.print(f"took {time.monotonic() - started:.0f} s")
    if json_path is not None:
        json_path.write_text(as_json(figures, facts, run, readings))
    if save:
        RESULTS.write_text(markdown(figures, facts, run))


if __name__ == "__main__":
    main()
