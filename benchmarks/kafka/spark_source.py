"""Rows out of a topic through Spark to `noop`: our source beside Kafka's connector, as each is used for the same rows.

Typed rows are Arrow columns in ours; in Kafka they are JSON, as people have them there, parsed by `from_json` with the schema
given. Of 20 columns ours is told which one to read; Spark prunes `from_json` to it by itself. A first round is never counted, in
a quick run neither: in it the JVM compiles and Python workers start.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - Spark's custom

from benchmarks.bench.measure import Contestant
from benchmarks.bench.spark_runs import read_all
from benchmarks.bench.workbench import PARTITIONS
from benchmarks.kafka.arena import Arena
from benchmarks.kafka.compare import Compared, Comparison
from benchmarks.kafka.spark_runs import SCHEMAS, TABLE_ROWS, filled_ours, filled_theirs, read_ours, read_theirs

GROUP: Final = "Spark source to noop"
ROWS: Final = {"value": 3_000_000, "typed": 1_500_000, "wide": 600_000}
_ONE_COLUMN: Final = "c3"


def measure(arena: Arena) -> list[Compared]:
    assert arena.spark
    arena.start_both()
    compared: list[Compared] = []
    ours, theirs, rows = _both(arena, "value")
    compared += _row(
        arena,
        ("records, 100 B", lambda: read_ours(arena, ours).load()),
        ("Kafka, 100 B", lambda: read_theirs(arena, theirs)),
        rows,
        5.0,
    )
    ours, theirs, rows = _both(arena, "typed")
    compared += _row(
        arena,
        ("typed, 4 columns", lambda: read_ours(arena, ours).load()),
        ("Kafka JSON, from_json", lambda: _parsed(arena, theirs, "typed").select("row.*")),
        rows,
        10.0,
    )
    ours, theirs, rows = _both(arena, "wide")
    compared += _row(
        arena,
        ("1 of 20 columns", lambda: read_ours(arena, ours).schema(f"{_ONE_COLUMN} long").load()),
        ("Kafka JSON, from_json, 1 of 20", lambda: _parsed(arena, theirs, "wide").select(f"row.{_ONE_COLUMN}")),
        rows,
        30.0,
    )
    return compared


def _both(arena: Arena, kind: str) -> tuple[str, str, int]:
    rows = max(1, arena.scale.of(ROWS[kind]) // (PARTITIONS * TABLE_ROWS)) * PARTITIONS * TABLE_ROWS
    arena.watch(f"filling two topics with {rows:,} rows, {kind}")
    return filled_ours(arena, kind, rows), filled_theirs(arena, kind, rows), rows


def _row(
    arena: Arena,
    ours: tuple[str, Callable[[], DataFrame]],
    theirs: tuple[str, Callable[[], DataFrame]],
    rows: int,
    aim: float,
) -> list[Compared]:
    contestants = [Contestant(name, partial(_read, frame, rows)) for name, frame in (ours, theirs)]
    return arena.compare(contestants, [Comparison(GROUP, ours[0], theirs[0], "rows/s", "rows/s", "higher", aim)], warm_ups=1)


def _read(frame: Callable[[], DataFrame], rows: int) -> dict[str, float]:
    return dict(read_all(frame(), rows))


def _parsed(arena: Arena, topic: str, kind: str) -> DataFrame:
    return read_theirs(arena, topic).select(F.from_json(F.col("value").cast("string"), SCHEMAS[kind]).alias("row"))
