"""Records in: our Python producer beside Kafka's Java perf producer and its two common Python clients.

6 partitions, 3 replicas, acks=all, min.insync 2. Each run has a topic of its own and a warm producer; connecting is not
timed, the last acknowledgement is. Kafka's Java producer is measured as it ships and told to make batches as large as
ours.
"""

from __future__ import annotations

import re
import subprocess
from functools import partial
from typing import Any, Final

from benchmarks.bench.measure import Contestant, Readings, Stopwatch
from benchmarks.bench.produce import SIZES, connect, rows_per_table, tables
from benchmarks.bench.rows import binary_values
from benchmarks.kafka.arena import DURABILITIES, Arena
from benchmarks.kafka.compare import Compared, Comparison
from mq_client import Producer

BYTES: Final = {"100 B": 60_000_000, "1 KB": 200_000_000}
"""How much each contestant sends, in values; a slow one less, see `_SLOW`."""

_SLOW: Final = {("kafka-python", "os"): 0.1, ("kafka-python", "fsync"): 0.03, ("Java perf", "fsync"): 0.03}
_PERF_TIMEOUT_S: Final = 180.0
_JAVA: Final[dict[str, dict[str, str]]] = {
    "Java perf": {},
    "Java perf, 1 MB batches": {"batch.size": "1000000", "linger.ms": "5", "buffer.memory": "67108864"},
}
_PYTHON: Final[dict[str, tuple[str, dict[str, Any]]]] = {
    "confluent-kafka": ("produce", {}),
    "kafka-python": ("produce_kafka_python", {"linger_ms": 5, "batch_size": 262_144}),
}
_AIMED: Final = {
    ("Java perf, 1 MB batches", "os"): 4.0,
    ("Java perf, 1 MB batches", "fsync"): 3.5,
    ("confluent-kafka", "os"): 1.2,
    ("confluent-kafka", "fsync"): 1.2,
}
"""How many times as fast as whom, by durability; as fast as the others."""

_ONE: Final = "publish"
_TABLES: Final = "publish_batch"
_LAST_LINE: Final = re.compile(r"([\d.]+) records/sec")


def measure(arena: Arena) -> list[Compared]:
    arena.start_both()
    compared: list[Compared] = []
    for durability, together in DURABILITIES.items():
        for label, size in reversed(SIZES.items()):
            group = f"produce, {label}, {together}"
            contestants = [
                Contestant(_ONE, partial(publish, arena, label, size, durability)),
                Contestant(_TABLES, partial(publish_batch, arena, label, size, durability)),
            ]
            asked: list[Comparison] = []
            for name in _JAVA:
                contestants.append(Contestant(name, partial(run_perf, arena, label, size, durability, name)))
                aim = _AIMED.get((name, durability), 1.0)
                asked.append(Comparison(group, _TABLES, name, "MB/s", "MB/s", "higher", aim))
            for name in (*_JAVA, *_PYTHON):
                if name in _PYTHON:
                    contestants.append(Contestant(name, partial(run_python, arena, label, size, durability, name)))
                wanted = _AIMED.get((name, durability), 1.0) if name in _PYTHON else None
                asked.append(Comparison(group, _ONE, name, "records/s", "records/s", "higher", wanted))
            compared += arena.compare(contestants, asked)
    return compared


def _readings(records: int, size: int, seconds: float) -> Readings:
    return {"records/s": records / seconds, "MB/s": records * size / seconds / 1e6}


def publish(arena: Arena, label: str, size: int, durability: str) -> Readings:
    count = arena.scale.of(BYTES[label] // size)
    different: list[bytes] = binary_values(size, 1_000).to_pylist()
    topic = arena.our_topic(durability)
    with Producer(arena.cluster.bootstrap) as producer:
        connect(producer, topic, different[0])
        with Stopwatch() as watch:
            for at in range(count):
                producer.publish(topic, different[at % 1_000])
            producer.flush()
    arena.admin.delete_topic(topic)
    return _readings(count, size, watch.seconds)


def publish_batch(arena: Arena, label: str, size: int, durability: str) -> Readings:
    rows = rows_per_table(size)
    count, different = max(1, arena.scale.of(BYTES[label] // size) // rows), tables(size)
    topic = arena.our_topic(durability)
    with Producer(arena.cluster.bootstrap) as producer:
        connect(producer, topic, b"")
        with Stopwatch() as watch:
            for at in range(count):
                producer.publish_batch(topic, different[at % len(different)])
            producer.flush()
    arena.admin.delete_topic(topic)
    return _readings(count * rows, size, watch.seconds)


def _count(arena: Arena, label: str, size: int, name: str, durability: str) -> int:
    return max(1, round(arena.scale.of(BYTES[label] // size) * _SLOW.get((name, durability), 1.0)))


def run_perf(arena: Arena, label: str, size: int, durability: str, name: str) -> Readings:
    """Its own figure for what came after as many records again, with which the JVM has warmed up."""
    count = _count(arena, label, size, name, durability)
    topic = arena.their_topic(durability)
    properties = {"acks": "all", **_JAVA[name]}
    done = subprocess.run(
        [
            *("java", "-Xmx512M", "-cp", arena.fetched.classpath, "org.apache.kafka.tools.ProducerPerformance"),
            *(
                "--bootstrap-server",
                arena.kafka.bootstrap,
                "--topic",
                topic,
                "--record-size",
                str(size),
                "--throughput",
                "-1",
            ),
            *("--num-records", str(2 * count), "--warmup-records", str(count)),
            *("--command-property", *(f"{key}={value}" for key, value in properties.items())),
        ],
        capture_output=True,
        text=True,
        timeout=_PERF_TIMEOUT_S,
    )
    found = _LAST_LINE.findall(done.stdout)
    if done.returncode or not found:
        raise RuntimeError(f"Kafka's perf producer failed: {(done.stdout + done.stderr)[-2_000:]}")
    arena.drop_theirs(topic)
    per_second = float(found[-1])
    return {"records/s": per_second, "MB/s": per_second * size / 1e6}


def run_python(arena: Arena, label: str, size: int, durability: str, name: str) -> Readings:
    count = _count(arena, label, size, name, durability)
    topic = arena.their_topic(durability)
    function, settings = _PYTHON[name]
    given = {"topic": topic, "size": size, "count": count, "warming": 1_000, "settings": settings}
    seconds = arena.client.ask(function, bootstrap=arena.kafka.bootstrap, **given)
    arena.drop_theirs(topic)
    return _readings(count, size, seconds)
