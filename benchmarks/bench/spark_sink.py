"""Rows from an Arrow batch in memory through Spark into a topic, exactly once, beside the same rows into a sink that
drops them."""

from __future__ import annotations

from functools import partial
from typing import Final

from benchmarks.bench.arrow_source import FORMAT, ArrowSource
from benchmarks.bench.measure import Contestant, Figure, Question, Readings
from benchmarks.bench.rows import DDL
from benchmarks.bench.spark_runs import in_memory, stream_all
from benchmarks.bench.workbench import Workbench

GROUP: Final = "Spark sink, exactly once"
ROWS: Final = 2_400_000
MICRO_BATCHES: Final = 3
TASKS: Final = 2
KINDS: Final = {"value": "records, 100 B", "typed": "typed, 4 columns"}
DURABILITIES: Final = {"value": ("fsync", "os"), "typed": ("fsync",)}
_CEILING: Final = "Arrow sink that drops"


def measure(bench: Workbench) -> list[Figure]:
    bench.spark.dataSource.register(ArrowSource)  # before anything else: see Workbench.spark
    rows = bench.scale.of(ROWS)
    contestants: list[Contestant] = []
    questions: list[Question] = []
    for kind, label in KINDS.items():
        ceiling = f"{_CEILING}, {label}"
        contestants.append(Contestant(ceiling, partial(_dropped, bench, kind, rows)))
        for durability in DURABILITIES[kind]:
            ours = f"{label}, {durability}"
            contestants.append(Contestant(ours, partial(_written, bench, kind, durability, rows)))
            questions.append(Question(GROUP, ours, "rows/s", "rows/s", "higher", ceiling))
    return bench.answer(contestants, questions)


def _dropped(bench: Workbench, kind: str, rows: int) -> Readings:
    return stream_all(bench, in_memory(bench, kind, rows, TASKS, rows // MICRO_BATCHES), rows, FORMAT, {})


def _written(bench: Workbench, kind: str, durability: str, rows: int) -> Readings:
    name = bench.new_topic(durability, schema=DDL["typed"] if kind == "typed" else None)
    frame = in_memory(bench, kind, rows, TASKS, rows // MICRO_BATCHES)
    options = {"bootstrap.servers": bench.cluster.bootstrap, "topic": name}
    found = stream_all(bench, frame, rows, "tritonmq", options)
    ends = bench.admin.offsets(name)
    assert sum(end - start for start, end in ends.values()) == rows, f"{rows} rows went in, the topic holds {ends}"
    bench.admin.delete_topic(name)
    return found
