"""How late a record is behind a Spark query: produced at 1,000/s into one topic, through Spark as fast as it triggers,
out of another.

The same query for both, with the sinks that they have: ours exactly once, Kafka's at least once. A record carries when
it was due; what came before the query had found its pace is not counted.
"""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial
from typing import Final

from pyspark.sql.streaming.query import StreamingQuery

from benchmarks.bench.latency import RECORD_BYTES, consume
from benchmarks.bench.measure import Contestant, Readings, percentile
from benchmarks.bench.processes import Helper
from benchmarks.bench.workbench import PARTITIONS
from benchmarks.kafka.arena import Arena
from benchmarks.kafka.compare import Compared, Comparison
from benchmarks.kafka.latency import WARMING, send_ours

GROUP: Final = "Spark, topic to topic, 1,000 records/s, os / Kafka as it ships"
RATE: Final = 1_000
PERCENTS: Final = {"p50": 50.0, "p99": 99.0}
AIMED: Final = {"p50": 1.67, "p99": 1.0}
_NOT_COUNTED: Final = 0.4
"""Share of the records: a query's first micro-batches are slow, in both."""

_SECONDS: Final = 3.0
"""Times the scale's: micro-batches take long beside messages."""

_HEAR_S: Final = 120.0
_OURS: Final = "exactly once"
_THEIRS: Final = "Kafka, at least once"


def measure(arena: Arena) -> list[Compared]:
    assert arena.spark
    arena.start_both()
    contestants = [Contestant(_OURS, partial(_ours, arena)), Contestant(_THEIRS, partial(_theirs, arena))]
    return arena.compare(
        contestants, [Comparison(GROUP, _OURS, _THEIRS, metric, "ms", "lower", AIMED[metric]) for metric in PERCENTS]
    )


def _count(arena: Arena) -> int:
    return round(RATE * arena.scale.seconds * _SECONDS)


def _readings(latencies_ms: list[float]) -> Readings:
    counted = latencies_ms[round(len(latencies_ms) * _NOT_COUNTED) :]
    return {metric: percentile(counted, percent) for metric, percent in PERCENTS.items()}


def _query(arena: Arena, form: str, source: dict[str, str], sink: dict[str, str]) -> StreamingQuery:
    frame = arena.spark.readStream.format(form).options(**source).load().select("value")
    writer = frame.writeStream.format(form).options(**sink).option("checkpointLocation", str(arena.scratch()))
    return writer.outputMode("append").start()


def _ours(arena: Arena) -> Readings:
    into, out_of = arena.our_topic("os"), arena.our_topic("os")
    bootstrap = arena.cluster.bootstrap
    source = {"bootstrap.servers": bootstrap, "subscribe": into, "startingOffsets": "earliest"}
    query = _query(arena, "tritonmq", source, {"bootstrap.servers": bootstrap, "topic": out_of})
    try:
        with Helper(consume, bootstrap, out_of, WARMING, _count(arena)) as consumer:
            send_ours(arena, into, RATE, _count(arena), None, partial(consumer.hear, _HEAR_S))
            latencies: list[float] = consumer.hear(_HEAR_S)
    finally:
        query.stop()
    for name in (into, out_of):
        arena.admin.delete_topic(name)
    return _readings(latencies)


def _theirs(arena: Arena) -> Readings:
    into, out_of = arena.their_topic("os"), arena.their_topic("os")
    bootstrap = arena.kafka.bootstrap
    source = {"kafka.bootstrap.servers": bootstrap, "subscribe": into, "startingOffsets": "earliest"}
    query = _query(arena, "kafka", source, {"kafka.bootstrap.servers": bootstrap, "topic": out_of, "kafka.acks": "all"})
    try:
        with ExitStack() as opened:
            consumer = opened.enter_context(arena.another_client())
            taking = {
                "topic": out_of,
                "partitions": PARTITIONS,
                "warming": WARMING,
                "expected": _count(arena),
                "settings": {},
            }
            consumer.ask("consume", bootstrap=bootstrap, **taking)
            giving = {
                "topic": into,
                "per_second": RATE,
                "count": _count(arena),
                "size": RECORD_BYTES,
                "warming": WARMING,
            }
            arena.client.ask("push", bootstrap=bootstrap, **giving, partitions=PARTITIONS, settings={})
            consumer.hear()
            arena.client.say("go")
            arena.client.hear()
            latencies: list[float] = consumer.hear()
    finally:
        query.stop()
    for name in (into, out_of):
        arena.drop_theirs(name)
    return _readings(latencies)
