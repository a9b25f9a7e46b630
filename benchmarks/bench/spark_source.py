"""Rows out of a topic through Spark to `noop`, beside an Arrow batch in memory yielded by a Python source of the same
columns."""

from __future__ import annotations

from functools import partial
from typing import Final

from benchmarks.bench.arrow_source import ArrowSource
from benchmarks.bench.measure import Contestant, Figure, Question, Readings
from benchmarks.bench.rows import DDL, batch_of
from benchmarks.bench.spark_runs import in_memory, read_all, stream_all, topic
from benchmarks.bench.workbench import PARTITIONS, Workbench
from mq_client import Producer

GROUP: Final = "Spark source to noop"
ROWS: Final = 3_000_000
TABLE_ROWS: Final = 8_000
"""About 1 MiB of records: what a producer that is busy sends."""

MICRO_BATCHES: Final = 4
KINDS: Final = {"records": "records, 100 B", "typed": "typed, 4 columns"}
MODES: Final = {"records": ("batch", "stream"), "typed": ("batch",)}
_CEILING: Final = "Arrow in memory"


def measure(bench: Workbench) -> list[Figure]:
    """Batch reads of both kinds of topic, and a stream of records."""
    bench.spark.dataSource.register(ArrowSource)  # before anything else: see Workbench.spark
    rows = bench.scale.of(ROWS) // (PARTITIONS * TABLE_ROWS) * PARTITIONS * TABLE_ROWS
    contestants: list[Contestant] = []
    questions: list[Question] = []
    for kind, label in KINDS.items():
        name = _filled(bench, kind, rows)
        for mode in MODES[kind]:
            per_trigger = rows // MICRO_BATCHES if mode == "stream" else None
            ours, ceiling = f"{mode}, {label}", f"{_CEILING}, {mode}, {label}"
            contestants.append(Contestant(ceiling, partial(_in_memory, bench, kind, rows, per_trigger)))
            contestants.append(Contestant(ours, partial(_topic, bench, name, rows, per_trigger)))
            questions.append(Question(GROUP, ours, "rows/s", "rows/s", "higher", ceiling))
            if mode == "stream":
                leased = f"{mode}, {label}, as a member of a queue"
                contestants.append(Contestant(leased, partial(_leased, bench, name, rows, per_trigger)))
                questions.append(Question(GROUP, leased, "rows/s", "rows/s", "higher", ours))
    return bench.answer(contestants, questions)


def _filled(bench: Workbench, kind: str, rows: int) -> str:
    """A topic with those rows, evenly spread, one replica: it is read from its leaders."""
    bench.watch(f"filling a topic with {rows:,} rows, {KINDS[kind]}")
    name = bench.new_topic("os", schema=DDL["typed"] if kind == "typed" else None, replicas=1)
    table = batch_of("typed" if kind == "typed" else "value", TABLE_ROWS)
    with Producer(bench.cluster.bootstrap) as producer:
        for number in range(rows // TABLE_ROWS):
            producer.publish_batch(name, table, partition=number % PARTITIONS)
    return name


def _in_memory(bench: Workbench, kind: str, rows: int, per_trigger: int | None) -> Readings:
    frame = in_memory(bench, kind, rows, PARTITIONS, per_trigger)
    return read_all(frame, rows) if per_trigger is None else stream_all(bench, frame, rows, "noop", {})


def _leased(bench: Workbench, name: str, rows: int, per_trigger: int | None) -> Readings:
    """Each time by a group of its own, which begins with the topic's first record."""
    frame = topic(bench, name, per_trigger, group=bench.scratch().name)
    return stream_all(bench, frame, rows, "noop", {})


def _topic(bench: Workbench, name: str, rows: int, per_trigger: int | None) -> Readings:
    frame = topic(bench, name, per_trigger)
    return read_all(frame, rows) if per_trigger is None else stream_all(bench, frame, rows, "noop", {})
