"""The table for people, and the same as Markdown to keep."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Final

from rich import box
from rich.console import Console
from rich.table import Table

from benchmarks.bench.report import spread_text
from benchmarks.kafka.compare import Compared
from benchmarks.kafka.kept import Part
from benchmarks.kafka.seeds import SEEDS

COLUMNS: Final = (
    "TritonMQ",
    "unit",
    "median (min to max)",
    "beside",
    "its median (min to max)",
    "times as fast",
    "aim",
)
NOTES: Final = (
    "Contestants ran in turn, round after round, on one machine; “times as fast” is the median of the rounds' own "
    "ratios (their range in brackets): above 1 TritonMQ is faster, for rates and for times alike.",
    "The machine was shared with other work, so the ratios say more than the figures. Where its load before was above "
    "its number of cores, everything waits for its turn, and whoever needs more round trips or wake-ups for the same "
    "work is punished most: such rows say what a crowded machine does, and are to be measured again on an idle one "
    "before a figure is quoted.",
    "Both: three brokers with one coordinator process beside them (ZooKeeper, KRaft controller), 3 replicas, acks=all, "
    "at least 2 in sync, 6 partitions, records of random bytes. `os` is put beside Kafka as it ships (neither waits "
    "for the disk), `fsync` beside Kafka with flush.messages=1 (both do, on every replica).",
    "Kafka: JVM flags, heap and server.properties of its distribution. Spark's connector is the newest that can be "
    "had, one release behind the Spark that it runs in; of its token provider, which does nothing here, only 4.0.0 can "
    "be had.",
    "The other brokers come as Debian packages, three nodes each, six streams or queues, their asyncio clients. "
    "JetStream (R3) acknowledges what a majority has in its page cache, Redis (WAIT 2) what all three have in memory: "
    "beside `os`, where every replica in sync has it in its page cache. A quorum queue acknowledges what a majority "
    "has synced: beside `fsync`, where every replica in sync has. One that has no rows could not be had where this was "
    "run.",
)
_FOREIGN: Final = (
    "From other hardware, in other years, of other settings: to know the order of magnitude, not to be put in a ratio "
    "with those above."
)
_LEFT: Final = (0, 1, 3)


def name_of(row: Compared) -> str:
    asked = row.asked
    return asked.ours if asked.metric == asked.unit else f"{asked.ours}, {asked.metric}"


def times_text(row: Compared) -> str:
    found = row.times
    return f"{found.median:.2f} ({found.low:.2f} to {found.high:.2f})"


def aim_text(row: Compared) -> str:
    return "" if row.reached is None else f"{row.asked.aim:g}: {'reached' if row.reached else 'missed'}"


def cells(row: Compared) -> tuple[str, ...]:
    ours, theirs = spread_text(row.ours), spread_text(row.theirs)
    return (name_of(row), row.asked.unit, ours, row.asked.theirs, theirs, times_text(row), aim_text(row))


def print_parts(console: Console, parts: Sequence[Part], machine: Mapping[str, str]) -> None:
    table = Table(title="TritonMQ beside Kafka", title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for at, column in enumerate(COLUMNS):
        table.add_column(column, justify="left" if at in _LEFT else "right")
    for group, members in _groups(parts):
        table.add_section()
        table.add_row(f"[bold]{group}[/bold]")
        for row in members:
            what, *rest = cells(row)
            table.add_row(f"  {what}", *rest)
    console.print(table, highlight=False)
    for note in NOTES:
        console.print(note, style="dim", highlight=False)
    console.print("machine: " + "; ".join(f"{name} {value}" for name, value in machine.items()), highlight=False)


def markdown(parts: Sequence[Part], machine: Mapping[str, str]) -> str:
    lines = ["# TritonMQ beside Kafka", "", "Made by `make bench-kafka`.", ""]
    lines += [f"- {note}" for note in NOTES]
    for part in parts:
        for group, members in _groups([part]):
            lines += [
                "",
                f"## {group}",
                "",
                f"{part.run}, {_rounds(members)}; load of the machine before: {part.load}.",
                "",
            ]
            lines += [f"| {' | '.join(COLUMNS)} |", "|---|---|---:|---|---:|---:|---|"]
            lines += [f"| {' | '.join(cells(row))} |" for row in members]
    lines += ["", "## Figures that others have published", "", _FOREIGN, ""]
    lines += ["| system | what | figure | on what |", "|---|---|---|---|"]
    lines += [f"| {seed.system} | {seed.what} | {seed.figure} | {seed.hardware} |" for seed in SEEDS]
    lines += ["", "## Machine", "", "| | |", "|---|---|"]
    lines += [f"| {name} | {value} |" for name, value in machine.items()]
    return "\n".join(lines) + "\n"


def _groups(parts: Sequence[Part]) -> list[tuple[str, list[Compared]]]:
    rows = [row for part in parts for row in part.rows]
    return [(group, list(members)) for group, members in groupby(rows, key=lambda row: row.asked.group)]


def _rounds(rows: Sequence[Compared]) -> str:
    rounds = len(rows[0].times.samples)
    return f"{rounds} round{'s' if rounds > 1 else ''}"
