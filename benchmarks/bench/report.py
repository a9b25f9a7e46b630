"""One table for people, the same as Markdown to keep, and everything as JSON."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any, Final

from rich import box
from rich.console import Console
from rich.table import Table

from benchmarks.bench.measure import Figure, Readings, Spread

COLUMNS: Final = ("what", "unit", "ours: median (min to max)", "ceiling: median (min to max)", "ours / ceiling")
NOTES: Final = (
    "Contestants ran in turn, round after round; the ratio to the ceiling is the median of the rounds' own ratios.",
    "Produce: MB/s are of the records' values. A write to three replicas moves its bytes three times, through four "
    "processes, the ceiling once, through two; “grpcio, 3 copies” has the shape of the write and nothing of ours.",
    "Latency: publish to a subscribed Consumer in another process, 3 replicas. A ratio below 1 would beat the ceiling, "
    "an echo of two messages; a replicated push needs at least four.",
    "Window: a full one of one partition, in a process of its own; the longest hold is of its event loop, while a "
    "snapshot is taken, written and read. The ceiling keeps the bare UUIDs, and its loop has nothing to do.",
    "Spark: the ceiling is the same rows yielded from memory by a Python source, or dropped by a Python sink.",
)
TABLE_WIDTH: Final = 132
"""Where no terminal says how wide it is."""


def number(value: float) -> str:
    """Three digits that count: 0.123, 12.3, 280 k, 5.32 M."""
    for size, suffix in ((1e9, " G"), (1e6, " M"), (1e3, " k"), (1.0, "")):
        # What would round up to the next unit is written in it: 999,700 is 1.00 M.
        if abs(value) >= size * 0.9995:
            scaled = value / size
            whole = len(str(int(abs(float(f"{scaled:.3g}")))))
            return f"{scaled:.{max(0, 3 - whole)}f}{suffix}"
    return f"{value:.3f}"


def spread_text(found: Spread) -> str:
    return f"{number(found.median)} ({number(found.low)} to {number(found.high)})"


def ratio_text(figure: Figure) -> str:
    """A share for throughput, a multiple for latency."""
    found = figure.ratio
    if figure.better == "higher":
        return f"{found.median:.0%} ({found.low:.0%} to {found.high:.0%})"
    return f"{found.median:.2f}x ({found.low:.2f} to {found.high:.2f})"


def cells(figure: Figure) -> tuple[str, ...]:
    name = figure.name if figure.metric == figure.unit else f"{figure.name}, {figure.metric}"
    return (name, figure.unit, spread_text(figure.ours), spread_text(figure.ceiling), ratio_text(figure))


def print_figures(console: Console, figures: Sequence[Figure], machine: Mapping[str, str], run: str) -> None:
    table = Table(
        title=f"TritonMQ beside its ceilings, {run}", title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False
    )
    for at, column in enumerate(COLUMNS):
        table.add_column(column, justify="left" if at < 2 else "right")
    for group, members in groupby(figures, key=lambda figure: figure.group):
        table.add_section()
        table.add_row(f"[bold]{group}[/bold]")
        for figure in members:
            what, *rest = cells(figure)
            table.add_row(f"  {what}", *rest)
    console.print(table, highlight=False)
    for note in NOTES:
        console.print(note, style="dim", highlight=False)
    console.print("machine: " + "; ".join(f"{name} {value}" for name, value in machine.items()), highlight=False)


def markdown(figures: Sequence[Figure], machine: Mapping[str, str], run: str) -> str:
    lines = ["# Figures", "", f"Made by `make bench`: {run}.", ""]
    lines += [f"- {note}" for note in NOTES]
    for group, members in groupby(figures, key=lambda figure: figure.group):
        lines += ["", f"## {group}", "", f"| {' | '.join(COLUMNS)} |", "|---|---|---:|---:|---:|"]
        lines += [f"| {' | '.join(cells(figure))} |" for figure in members]
    lines += ["", "## Machine", "", "| | |", "|---|---|"]
    lines += [f"| {name} | {value} |" for name, value in machine.items()]
    return "\n".join(lines) + "\n"


def as_json(
    figures: Sequence[Figure], machine: Mapping[str, str], run: str, readings: Mapping[str, Sequence[Readings]]
) -> str:
    document: dict[str, Any] = {
        "run": run,
        "machine": dict(machine),
        "figures": [dataclasses.asdict(figure) for figure in figures],
        "readings": {name: [dict(each) for each in found] for name, found in readings.items()},
    }
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"
