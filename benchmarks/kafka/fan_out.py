"""How late 1, 12 and 100 consumers of one topic have its records, each all of them: 200 records/s of 100 B, 3 replicas.

All consumers of a side are threads of one process, outside of any group; a hundred also of ten processes, as a hundred
applications are not one. The percentiles are over all of them.
"""

from __future__ import annotations

import threading
import time
from contextlib import ExitStack
from functools import partial
from multiprocessing.connection import Connection
from typing import Any, Final

from benchmarks.bench.ceilings import STAMP_BYTES
from benchmarks.bench.latency import RECORD_BYTES
from benchmarks.bench.measure import Contestant, Readings
from benchmarks.bench.processes import Helper
from benchmarks.bench.workbench import PARTITIONS
from benchmarks.kafka.arena import Arena
from benchmarks.kafka.compare import Compared, Comparison
from benchmarks.kafka.latency import WARMING, percentiles, send_ours
from mq_client import Consumer

RATE: Final = 200
CROWDS: Final = {
    (1, 1): "1 consumer",
    (1, 12): "12 consumers",
    (1, 100): "100 consumers",
    (10, 10): "100 consumers in 10 processes",
}
"""By processes and the consumers in each."""

_HEAR_S: Final = 180.0
_TAKE_S: Final = 150.0
_OURS: Final = "Consumer"
_THEIRS: Final = "confluent-kafka"


def measure(arena: Arena) -> list[Compared]:
    arena.start_both()
    compared: list[Compared] = []
    for (processes, consumers), name in CROWDS.items():
        group = f"fan-out, {name}, {RATE} records/s, os / Kafka as it ships"
        contestants = [
            Contestant(_OURS, partial(_ours, arena, processes, consumers)),
            Contestant(_THEIRS, partial(_theirs, arena, processes, consumers)),
        ]
        asked = [
            Comparison(group, _OURS, _THEIRS, metric, "ms", "lower", aim)
            for metric, aim in (("p50", 1.0), ("p99", None))
        ]
        short = processes * consumers == 100 and arena.scale.work < 1  # a hundred take a minute to get ready
        compared += arena.compare(contestants, asked, rounds=1 if short else None)
    return compared


def _ours(arena: Arena, processes: int, consumers: int) -> Readings:
    topic = arena.our_topic("os")
    count = round(RATE * arena.scale.seconds)
    given = (arena.cluster.bootstrap, topic, consumers, WARMING, count)
    with ExitStack() as opened:
        helpers = [opened.enter_context(Helper(consume_many, *given)) for _ in range(processes)]

        def all_say() -> list[Any]:
            return [helper.hear(_HEAR_S) for helper in helpers]

        all_say()
        send_ours(arena, topic, RATE, count, None, all_say)
        latencies = [latency for said in all_say() for latency in said]
    arena.admin.delete_topic(topic)
    return percentiles(latencies)


def consume_many(pipe: Connection, bootstrap: str, topic: str, consumers: int, warming: int, expected: int) -> None:
    """In a child: as many consumers, a thread each. Says "there", "warm", and each record's lateness, in ms."""
    found: list[list[float]] = [[] for _ in range(consumers)]
    there, warm = threading.Barrier(consumers + 1), threading.Barrier(consumers + 1)

    def run(number: int) -> None:
        with Consumer(bootstrap, start="earliest") as consumer:
            consumer.subscribe(topic)
            consumer.start()
            there.wait(_TAKE_S)
            arrivals = iter(consumer)
            for _ in range(warming):
                next(arrivals)
            warm.wait(_TAKE_S)
            for _ in range(expected):
                value = next(arrivals).value
                found[number].append((time.time_ns() - int.from_bytes(value[:STAMP_BYTES], "little")) / 1e6)

    threads = [threading.Thread(target=run, args=(number,), daemon=True) for number in range(consumers)]
    for thread in threads:
        thread.start()
    there.wait(_TAKE_S)
    pipe.send("there")
    warm.wait(_TAKE_S)
    pipe.send("warm")
    for thread in threads:
        thread.join(_TAKE_S)
    pipe.send([latency for each in found for latency in each])


def _theirs(arena: Arena, processes: int, consumers: int) -> Readings:
    topic = arena.their_topic("os")
    count = round(RATE * arena.scale.seconds)
    bootstrap = arena.kafka.bootstrap
    with ExitStack() as opened:
        taking = [opened.enter_context(arena.another_client()) for _ in range(processes)]
        given = {
            "topic": topic,
            "partitions": PARTITIONS,
            "consumers": consumers,
            "warming": WARMING,
            "expected": count,
        }
        for each in taking:
            each.tell("fan_out", bootstrap=bootstrap, **given, settings={})
        for each in taking:
            each.hear()
        giving = {"topic": topic, "per_second": RATE, "count": count, "size": RECORD_BYTES, "warming": WARMING}
        arena.client.ask("push", bootstrap=bootstrap, **giving, partitions=PARTITIONS, settings={})
        for each in taking:
            each.hear()
        arena.client.say("go")
        arena.client.hear()
        latencies = [latency for each in taking for latency in each.hear()]
    arena.drop_theirs(topic)
    return percentiles(latencies)
