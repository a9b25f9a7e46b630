"""Rows from memory through Spark into a topic of 3 replicas: ours exactly once, Kafka's sink at least once.

The rows come from the same in-memory source for both. Typed rows go into Kafka as JSON, which is what its sink takes.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from benchmarks.bench.arrow_source import ArrowSource
from benchmarks.bench.measure import Contestant, Readings
from benchmarks.bench.rows import DDL
from benchmarks.bench.spark_runs import in_memory, stream_all
from benchmarks.kafka.arena import DURABILITIES, Arena
from benchmarks.kafka.compare import Compared, Comparison

ROWS: Final = 1_200_000
MICRO_BATCHES: Final = 3
TASKS: Final = 2
KINDS: Final = {"value": "records, 100 B", "typed": "typed, 4 columns"}
AIMED: Final = {"value": 5.0, "typed": 3.0}
DURABILITIES_OF: Final = {"value": ("os", "fsync"), "typed": ("os",)}


def measure(arena: Arena) -> list[Compared]:
    arena.spark.dataSource.register(ArrowSource)
    arena.start_both()
    rows = arena.scale.of(ROWS)
    compared: list[Compared] = []
    for kind, label in KINDS.items():
        for durability in DURABILITIES_OF[kind]:
            together = DURABILITIES[durability]
            group = f"Spark sink, {together}"
            ours, theirs = (
                f"{label}, exactly once",
                "Kafka, at least once" if kind == "value" else "Kafka, to_json, at least once",
            )
            contestants = [
                Contestant(ours, partial(_ours, arena, kind, durability, rows)),
                Contestant(theirs, partial(_theirs, arena, kind, durability, rows)),
            ]
            compared += arena.compare(
                contestants, [Comparison(group, ours, theirs, "rows/s", "rows/s", "higher", AIMED[kind])], warm_ups=1
            )
    return sorted(
        compared, key=lambda row: list(DURABILITIES.values()).index(row.asked.group.removeprefix("Spark sink, "))
    )


def _ours(arena: Arena, kind: str, durability: str, rows: int) -> Readings:
    name = arena.our_topic(durability, schema=DDL["typed"] if kind == "typed" else None)
    options = {"bootstrap.servers": arena.cluster.bootstrap, "topic": name}
    found = stream_all(arena, in_memory(arena, kind, rows, TASKS, rows // MICRO_BATCHES), rows, "tritonmq", options)
    arena.admin.delete_topic(name)
    return found


def _theirs(arena: Arena, kind: str, durability: str, rows: int) -> Readings:
    name = arena.their_topic(durability)
    frame = in_memory(arena, kind, rows, TASKS, rows // MICRO_BATCHES)
    if kind == "typed":
        frame = frame.selectExpr("to_json(struct(*)) AS value")
    options = {"kafka.bootstrap.servers": arena.kafka.bootstrap, "topic": name, "kafka.acks": "all"}
    found = stream_all(arena, frame, rows, "kafka", options)
    arena.drop_theirs(name)
    return found
