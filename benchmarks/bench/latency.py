"""From when a record is due until a subscribed consumer in another process has it, at 1,000 records/s, 3 replicas.

Open loop: a record is due when the schedule says so, whatever became of those before, and carries that time; a producer
that falls behind is counted against itself. Both processes read the same machine's clock. The ceiling is a grpcio echo
to another process at the same rate, two messages of the at least four that a replicated push needs.
"""

from __future__ import annotations

import itertools
import time
from functools import partial
from multiprocessing.connection import Connection
from typing import Final, TypedDict

from benchmarks.bench.ceilings import STAMP_BYTES
from benchmarks.bench.measure import Contestant, Figure, Question, Readings, Schedule, paced, percentile
from benchmarks.bench.processes import Helper
from benchmarks.bench.workbench import PARTITIONS, Workbench
from mq_client import Consumer, Producer


class _Settings(TypedDict, total=False):
    linger_ms: float


PER_SECOND: Final = 1_000
RECORD_BYTES: Final = 100


GROUP: Final = f"push latency, {PER_SECOND:,} records/s"
LEAD_S: Final = 0.05
DURABILITIES: Final = ("fsync", "os")
LINGERS: Final[dict[str, _Settings]] = {"": {}, ", linger_ms=0": {"linger_ms": 0}}
"""The producer as it comes, and told not to wait for more records."""

PERCENTS: Final = {"p50": 50.0, "p99": 99.0}
_CEILING: Final = "grpcio echo"
_WARMING_RECORDS: Final = 300


def measure(bench: Workbench) -> list[Figure]:
    contestants = [Contestant(_CEILING, partial(_echo, bench))]
    questions: list[Question] = []
    for durability, (label, settings) in itertools.product(DURABILITIES, LINGERS.items()):
        name = f"{durability}{label}"
        contestants.append(Contestant(name, partial(_push, bench, durability, settings)))
        questions += [Question(GROUP, name, metric, "ms", "lower", _CEILING) for metric in PERCENTS]
    return bench.answer(contestants, questions)


def _readings(latencies_ms: list[float]) -> Readings:
    return {metric: percentile(latencies_ms, percent) for metric, percent in PERCENTS.items()}


def _schedule(bench: Workbench) -> Schedule:
    return Schedule(time.time_ns() + round(LEAD_S * 1e9), PER_SECOND, round(PER_SECOND * bench.scale.seconds))


def _echo(bench: Workbench) -> Readings:
    return _readings(bench.grpc.echo(_schedule(bench), RECORD_BYTES, time.time_ns))


def _push(bench: Workbench, durability: str, settings: _Settings) -> Readings:
    topic = bench.new_topic(durability)
    padding = bytes(RECORD_BYTES - STAMP_BYTES)
    expected = round(PER_SECOND * bench.scale.seconds)
    with (
        Producer(bench.cluster.bootstrap, **settings) as producer,
        Helper(consume, bench.cluster.bootstrap, topic, _WARMING_RECORDS, expected) as consumer,
    ):
        for number in range(_WARMING_RECORDS):
            producer.publish(topic, bytes(RECORD_BYTES), partition=number % PARTITIONS)
        consumer.hear()
        for due in paced(_schedule(bench)):
            producer.publish(topic, due.to_bytes(STAMP_BYTES, "little") + padding)
        latencies: list[float] = consumer.hear()
    bench.admin.delete_topic(topic)
    return _readings(latencies)


def consume(pipe: Connection, bootstrap: str, topic: str, warming: int, expected: int) -> None:
    """In a child: take `warming` records and say so, then `expected` and tell how late each was, in milliseconds."""
    consumer = Consumer(bootstrap, start="earliest")
    consumer.subscribe(topic)
    consumer.start()
    arrivals = iter(consumer)
    for _ in range(warming):
        next(arrivals)
    pipe.send("warm")
    latencies = []
    for _ in range(expected):
        value = next(arrivals).value
        latencies.append((time.time_ns() - int.from_bytes(value[:STAMP_BYTES], "little")) / 1e6)
    pipe.send(latencies)
    consumer.stop()
