"""What partitions, topics and backlogs cost: memory of the brokers, and the time until all is led again after all were
killed.

Clusters of their own, new for each reading. Memory is what is resident and anonymous (the page cache is not counted),
processor time what they take while nothing is asked of them, in percent of one processor; both summed over the brokers,
some seconds after the last was made. The time is from the first process to when every partition has a leader.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from benchmarks.bench.measure import Contestant, Readings, Stopwatch
from benchmarks.bench.rows import batch_of
from benchmarks.bench.workbench import REPLICAS
from benchmarks.kafka.arena import MIN_INSYNC, Arena
from benchmarks.kafka.cluster import KafkaCluster
from benchmarks.kafka.compare import Compared, Comparison, compare
from mq_client import Admin, Producer
from mq_client.cluster.lines import call_unary
from mq_dev.local_cluster import LocalCluster
from mq_protocol import mq_pb2 as pb
from mq_protocol.errors import TritonMQError

GROUP: Final = "growth: three brokers, 3 replicas, os / Kafka as it ships"
_SETTLE_S: Final = 5.0
_TIMEOUT_MS: Final = 300_000
_LED_TIMEOUT_S: Final = 900.0
_ASK_TIMEOUT_S: Final = 60.0
_POLL_S: Final = 0.5
SAMPLE: Final = 100
"""So many topics are asked for until they are led, and only then all: that costs brokers as much as some of them do."""
_IDLE_S: Final = 10.0
_MAKERS: Final = 6
"""Threads that make topics: one would mostly wait."""

_METRICS: Final = {"memory": "MB", "idle processor time": "%", "all led again": "s"}
_TABLE_ROWS: Final = 8_000
_VALUE_BYTES: Final = 100


@dataclass(frozen=True, slots=True)
class Load:
    """What a cluster is given: topics of so many partitions each, and records of 100 B in all."""

    label: str
    topics: int
    partitions: int
    records: int = 0

    def names(self) -> list[str]:
        return [f"grown-{number}" for number in range(self.topics)]


def loads(arena: Arena) -> list[Load]:
    """By the scale, but for partitions, which are what they are called."""
    topics, records = arena.scale.of(10_000), arena.scale.of(10_000_000) // _TABLE_ROWS * _TABLE_ROWS
    return [
        Load("10 partitions", 1, 10),
        Load("1,000 partitions", 1, 1_000),
        Load(f"{topics:,} idle topics", topics, 1),
        Load(f"backlog of {records:,} records", 1, 10, records),
    ]


def measure(arena: Arena) -> list[Compared]:
    compared: list[Compared] = []
    few, many, *_rest = found = loads(arena)
    for load in found:
        theirs = f"Kafka, {load.label}"
        contestants = [
            Contestant(load.label, partial(_ours, arena, load)),
            Contestant(theirs, partial(_theirs, arena, load)),
        ]
        asked = [Comparison(GROUP, load.label, theirs, metric, unit, "lower") for metric, unit in _METRICS.items()]
        compared += arena.compare(contestants, asked, warm_ups=0)
        if load is many:  # half as good is twice the memory
            own = {each.label: arena.readings[f"{GROUP}: {each.label}"] for each in (few, many)}
            compared.append(compare(Comparison(GROUP, many.label, few.label, "memory", "MB", "lower", 0.5), own))
    return compared


def _ours(arena: Arena, load: Load) -> Readings:
    with LocalCluster(arena.scratch(), REPLICAS) as cluster, Admin(cluster.bootstrap, timeout_ms=_TIMEOUT_MS) as admin:
        settings = {"durability": "os", "min_insync_replicas": MIN_INSYNC}

        def make(name: str) -> None:
            admin.create_topic(name, partitions=load.partitions, replicas=REPLICAS, **settings)

        with ThreadPoolExecutor(_MAKERS) as makers:
            list(makers.map(make, load.names()))
        if load.records:
            with Producer(cluster.bootstrap) as producer:
                for at in range(load.records // _TABLE_ROWS):
                    producer.publish_batch(
                        load.names()[0], batch_of("value", _TABLE_ROWS), partition=at % load.partitions
                    )
        readings = _at_rest([broker.pid for broker in cluster.brokers.values()])
        for broker in cluster.brokers.values():
            broker.kill()
        with Stopwatch() as watch:
            for broker in cluster.brokers.values():
                broker.start()
            cluster.wait_until_serving()
            _wait_led([broker.address for broker in cluster.brokers.values()], load)
    return readings | {"all led again": watch.seconds}


def _theirs(arena: Arena, load: Load) -> Readings:
    with KafkaCluster(arena.scratch(), arena.fetched.classpath) as cluster:
        config = {"min.insync.replicas": str(MIN_INSYNC)}
        given = {"names": load.names(), "partitions": load.partitions, "replicas": REPLICAS, "config": config}
        _ask(arena, "create_topics", cluster, **given)
        if load.records:
            filling = {
                "topic": load.names()[0],
                "partitions": load.partitions,
                "rows": load.records,
                "values": _VALUE_BYTES,
            }
            _ask(arena, "fill", cluster, **filling)
        readings = _at_rest([broker.pid for broker in cluster.brokers.values()])
        for broker in cluster.brokers.values():
            broker.kill()
        with Stopwatch() as watch:
            for broker in cluster.brokers.values():
                broker.start()
            cluster.wait_until_serving()
            _ask(arena, "wait_led", cluster, names=load.names(), partitions=load.partitions)
    return readings | {"all led again": watch.seconds}


def _ask(arena: Arena, do: str, cluster: KafkaCluster, **given: Any) -> None:
    arena.client.tell(do, bootstrap=cluster.bootstrap, **given)
    arena.client.hear(_LED_TIMEOUT_S)


def _wait_led(addresses: Sequence[str], load: Load) -> None:
    deadline = time.monotonic() + _LED_TIMEOUT_S
    names = load.names()
    for asked in (random.sample(names, min(SAMPLE, len(names))), names):
        for address in addresses:
            while led(address, asked, load.partitions) < 1:
                if time.monotonic() > deadline:
                    raise TimeoutError(f"not every partition has a leader {_LED_TIMEOUT_S:g} s after the start")
                time.sleep(_POLL_S)


def led(address: str, names: Sequence[str], partitions: int = 1) -> float:
    """The part of these topics' partitions (so many each) that has a leader, as that broker knows; 0 while it does not
    answer."""
    try:
        answer = call_unary(address, "Metadata", pb.MetadataRequest(topics=names), pb.MetadataResponse, _ASK_TIMEOUT_S)
    except TritonMQError:
        return 0.0
    return sum(bool(partition.leader) for topic in answer.topics for partition in topic.partitions) / (
        partitions * len(names)
    )


def _at_rest(pids: Sequence[int | None]) -> Readings:
    """What the brokers take while nothing is asked of them."""
    time.sleep(_SETTLE_S)
    before = sum(map(processor_seconds, pids))
    with Stopwatch() as watch:
        time.sleep(_IDLE_S)
    idle = (sum(map(processor_seconds, pids)) - before) / watch.seconds
    return {"memory": sum(map(private_bytes, pids)) / 1e6, "idle processor time": 100 * idle}


def processor_seconds(pid: int | None) -> float:
    """That it has taken so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def private_bytes(pid: int | None) -> int:
    """Anonymous resident memory: files that are mapped belong to the page cache."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("RssAnon:"))
