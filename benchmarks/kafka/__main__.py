"""`make bench-kafka`: fetch Kafka, measure both in turn, print one table. `--save` keeps it in benchmarks/KAFKA.md."""

from __future__ import annotations

import importlib
import os
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import click
from rich.console import Console

from benchmarks.bench.machine import machine
from benchmarks.bench.report import TABLE_WIDTH
from benchmarks.bench.workbench import Scale
from benchmarks.kafka.arena import Arena
from benchmarks.kafka.fetch import fetch
from benchmarks.kafka.kept import Part, read, write
from benchmarks.kafka.report import markdown, print_parts

RESULTS: Final = Path(__file__).resolve().parents[1] / "KAFKA.md"
KEPT: Final = RESULTS.with_suffix(".json")
MODULES: Final = (
    "produce",
    "cost",
    "latency",
    "spark_source",
    "spark_sink",
    "trigger",
    "failover",
    "fan_out",
    "growth",
    "peers",
)
"""In the order of the table: each has `measure(arena)`."""

_NEED_SPARK: Final = ("spark_source", "spark_sink", "trigger")
FULL: Final = Scale(warm_ups=1, rounds=3, work=1.0, seconds=6.0)
QUICK: Final = Scale(warm_ups=0, rounds=1, work=0.2, seconds=2.0)


@click.command()
@click.option(
    "--quick", is_flag=True, help="One cold round and less of everything: to see that it works, not to quote."
)
@click.option("--only", multiple=True, type=click.Choice(MODULES), help="Only these rows; may be given more than once.")
@click.option("--rounds", type=click.IntRange(min=1), help="Rounds that count; by default 3, or 1 with --quick.")
@click.option(
    "--work", type=click.FloatRange(0.01, 10), help="How much of the records and bytes of a full run; 0.2 with --quick."
)
@click.option(
    "--save", is_flag=True, help=f"Put these rows into {RESULTS.parent.name}/{RESULTS.name}; others there stay."
)
@click.option(
    "--data",
    type=click.Path(file_okay=False, exists=True, path_type=Path),
    help="Where brokers keep their data during the run.",
)
def main(
    quick: bool, only: tuple[str, ...], rounds: int | None, work: float | None, save: bool, data: Path | None
) -> None:
    """Measure TritonMQ beside Apache Kafka, three brokers each, on this machine."""
    remarks = Console(stderr=True)
    console = Console(width=None if sys.stdout.isatty() else TABLE_WIDTH)
    started = time.monotonic()
    scale = QUICK if quick else FULL
    scale = replace(scale, rounds=rounds or scale.rounds, work=work or scale.work)
    run = f"{'Quick' if quick else 'Full'} run of {datetime.now(UTC):%Y-%m-%d}, {scale.work:.0%} of the work"

    def watch(what: str) -> None:
        remarks.print(f"{time.monotonic() - started:6.1f} s  {what}", highlight=False)

    fetched = fetch(watch)
    wanted = [name for name in MODULES if not only or name in only]
    parts: dict[str, Part] = {}
    with tempfile.TemporaryDirectory(prefix="tritonmq-kafka-", dir=data, ignore_cleanup_errors=True) as scratch:
        directory = Path(scratch)
        facts = machine(directory) | fetched.versions()
        with Arena(directory, scale, fetched, watch) as arena:
            if set(wanted) & set(_NEED_SPARK):
                assert arena.spark  # before anything speaks gRPC: see Workbench.spark
            for name in wanted:
                load = ", ".join(f"{each:.1f}" for each in os.getloadavg())
                parts[name] = Part(run, load, tuple(importlib.import_module(f"benchmarks.kafka.{name}").measure(arena)))
                if save:  # one by one: a run that is broken off keeps what it has
                    _save(parts, facts)
            watch("stopping")
    print_parts(console, list(parts.values()), facts)
    console.print(f"took {time.monotonic() - started:.0f} s")


def _save(measured: Mapping[str, Part], facts: Mapping[str, str]) -> None:
    kept = {**read(KEPT), **measured}
    parts: dict[str, Part] = {name: kept[name] for name in MODULES if name in kept}
    write(KEPT, parts)
    RESULTS.write_text(markdown(list(parts.values()), facts))


if __name__ == "__main__":
    main()
