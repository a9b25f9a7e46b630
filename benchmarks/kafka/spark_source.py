"""Rows out of a topic through Spark to `noop`: our source beside Kafka's connector, as each is used for the same rows.

Typed rows are Arrow columns in ours; in Kafka they are JSON, as people have them there, parsed by `from_json` with the
schema given. Of 20 columns ours is told which one to read; Spark prunes `from_json` to it by itself.

Both are measured warm. A first round is never counted, in a quick run neither: in it the JVM compiles. And each reading
follows one of a few rows that is not timed: Spark ends Python workers that were idle for a minute, and a round of the
other contestant may take longer than that.

There are as many rows as it takes for them, and not for a query's fixed cost, to decide the time of both.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final, TypeAlias

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - Spark's custom

from benchmarks.bench.measure import Contestant
from benchmarks.bench.spark_runs import read_all
from benchmarks.bench.workbench import PARTITIONS
from benchmarks.kafka.arena import Arena
from benchmarks.kafka.compare import Compared, Comparison
from benchmarks.kafka.spark_runs import SCHEMAS, TABLE_ROWS, filled_ours, filled_theirs, read_ours, read_theirs

GROUP: Final = "Spark source to noop"
ROWS: Final = {"value": 9_000_000, "typed": 4_500_000, "wide": 7_200_000}
FEW_ROWS: Final = PARTITIONS * TABLE_ROWS
"""Enough to be read by as many tasks as there are cores."""

_ONE_COLUMN: Final = "c3"

Frame: TypeAlias = Callable[[str], DataFrame]
"""How a topic of that name is read."""


def measure(arena: Arena) -> list[Compared]:
    assert arena.spark
    arena.start_both()
    return [
        *_row(
            arena,
            "value",
            ("records, 100 B", lambda topic: read_ours(arena, topic).load()),
            ("Kafka, 100 B", lambda topic: read_theirs(arena, topic)),
            5.0,
        ),
        *_row(
            arena,
            "typed",
            ("typed, 4 columns", lambda topic: read_ours(arena, topic).load()),
            ("Kafka JSON, from_json", lambda topic: _parsed(arena, topic, "typed").select("row.*")),
            20.0,
        ),
        *_row(
            arena,
            "wide",
            ("1 of 20 columns", lambda topic: read_ours(arena, topic).schema(f"{_ONE_COLUMN} long").load()),
            (
                "Kafka JSON, from_json, 1 of 20",
                lambda topic: _parsed(arena, topic, "wide").select(f"row.{_ONE_COLUMN}"),
            ),
            40.0,
        ),
    ]


def _row(arena: Arena, kind: str, ours: tuple[str, Frame], theirs: tuple[str, Frame], aim: float) -> list[Compared]:
    rows = max(1, arena.scale.of(ROWS[kind]) // FEW_ROWS) * FEW_ROWS
    arena.watch(f"filling two topics with {rows:,} rows, {kind}")
    contestants = []
    for (name, frame), filled in ((ours, filled_ours), (theirs, filled_theirs)):
        few, all_of_them = filled(arena, kind, FEW_ROWS), filled(arena, kind, rows)
        contestants.append(Contestant(name, partial(_read, frame, few, all_of_them, rows)))
    return arena.compare(
        contestants, [Comparison(GROUP, ours[0], theirs[0], "rows/s", "rows/s", "higher", aim)], warm_ups=1
    )


def _read(frame: Frame, few: str, topic: str, rows: int) -> dict[str, float]:
    read_all(frame(few), FEW_ROWS)
    return dict(read_all(frame(topic), rows))


def _parsed(arena: Arena, topic: str, kind: str) -> DataFrame:
    return read_theirs(arena, topic).select(F.from_json(F.col("value").cast("string"), SCHEMAS[kind]).alias("row"))
