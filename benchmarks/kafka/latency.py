"""From when a record is due until a consumer in another process has it: 3 replicas, acks=all, 100 B.

Open loop, as in benchmarks/bench/latency.py: a record carries when it was due, so whoever falls behind is counted
against itself. Both sides are Python processes with the client that a Python user would take: ours, and
confluent-kafka, whose work is done in C. Each is measured as it comes (ours lingers 2 ms, and while a batch of its own
is unanswered; theirs 5) and told not to wait.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import Any, Final

from benchmarks.bench.ceilings import STAMP_BYTES
from benchmarks.bench.latency import LEAD_S, RECORD_BYTES, consume
from benchmarks.bench.measure import Contestant, Readings, Schedule, paced, percentile
from benchmarks.bench.processes import Helper
from benchmarks.bench.workbench import PARTITIONS
from benchmarks.kafka.arena import DURABILITIES, Arena
from benchmarks.kafka.compare import Compared, Comparison
from mq_client import Producer

LINGERS: Final[dict[int, dict[str, int | None]]] = {1_000: {"": None, ", linger 0": 0}, 10_000: {"": None}}
PERCENTS: Final = {"p50": 50.0, "p99": 99.0, "p99.9": 99.9}
AIMED: Final = {(1_000, None, "p50"): 2.0, (1_000, None, "p99"): 2.0, (1_000, 0, "p99"): 1.0}
"""By rate, linger and metric. With linger 0 the median is to be at most 1.5 ms, whatever Kafka's is."""
WARMING: Final = 600
_HEAR_S: Final = 120.0


def measure(arena: Arena) -> list[Compared]:
    arena.start_both()
    compared: list[Compared] = []
    for rate, durability in itertools.product(LINGERS, DURABILITIES):
        contestants: list[Contestant] = []
        asked: list[Comparison] = []
        for label, linger in LINGERS[rate].items():
            ours, theirs = (f"{who}{label}" for who in ("Consumer", "confluent-kafka"))
            contestants.append(Contestant(ours, partial(latency_of_ours, arena, durability, rate, linger)))
            contestants.append(Contestant(theirs, partial(_theirs, arena, durability, rate, linger)))
            group = f"push latency, {rate:,} records/s, {DURABILITIES[durability]}"
            asked += [
                Comparison(group, ours, theirs, metric, "ms", "lower", AIMED.get((rate, linger, metric)))
                for metric in PERCENTS
            ]
        compared += arena.compare(contestants, asked)
    return compared


def percentiles(latencies_ms: list[float]) -> Readings:
    return {metric: percentile(latencies_ms, percent) for metric, percent in PERCENTS.items()}


def latency_of_ours(arena: Arena, durability: str, rate: int, linger: int | None) -> Readings:
    topic = arena.our_topic(durability)
    count = round(rate * arena.scale.seconds)
    with Helper(consume, arena.cluster.bootstrap, topic, WARMING, count) as consumer:
        send_ours(arena, topic, rate, count, linger, partial(consumer.hear, _HEAR_S))
        latencies: list[float] = consumer.hear(_HEAR_S)
    arena.admin.delete_topic(topic)
    return percentiles(latencies)


def send_ours(
    arena: Arena, topic: str, rate: float, count: int, linger: int | None, warm: Callable[[], object] | None
) -> None:
    """Warming records until the consumer has them, which `warm` waits for, then `count` on schedule, acknowledged."""
    padding = bytes(RECORD_BYTES - STAMP_BYTES)
    settings: dict[str, Any] = {} if linger is None else {"linger_ms": linger}
    with Producer(arena.cluster.bootstrap, **settings) as producer:
        for number in range(WARMING):
            producer.publish(topic, bytes(RECORD_BYTES), partition=number % PARTITIONS)
        producer.flush()
        if warm is not None:
            warm()
        for due in paced(Schedule(time.time_ns() + round(LEAD_S * 1e9), rate, count)):
            producer.publish(topic, due.to_bytes(STAMP_BYTES, "little") + padding)


def _theirs(arena: Arena, durability: str, rate: int, linger: int | None) -> Readings:
    topic = arena.their_topic(durability)
    count = round(rate * arena.scale.seconds)
    settings = {} if linger is None else {"linger.ms": linger}
    bootstrap = arena.kafka.bootstrap
    with ExitStack() as opened:
        consumer = opened.enter_context(arena.another_client())
        taking = {"topic": topic, "partitions": PARTITIONS, "warming": WARMING, "expected": count, "settings": {}}
        consumer.ask("consume", bootstrap=bootstrap, **taking)
        giving = {"topic": topic, "per_second": rate, "count": count, "size": RECORD_BYTES, "warming": WARMING}
        arena.client.ask("push", bootstrap=bootstrap, **giving, partitions=PARTITIONS, settings=settings)
        consumer.hear()
        arena.client.say("go")
        arena.client.hear()
        latencies: list[float] = consumer.hear()
    arena.drop_theirs(topic)
    return percentiles(latencies)
