"""What partitions cost: memory of the three brokers, and the time to start all of them again, with 10 and with 1,000 partitions.

Clusters of their own, new for each reading. Memory is what is resident and not shared, summed over the brokers, some seconds after
the topic was made; the start is from the first process to the last broker that serves.
"""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path
from typing import Final

from benchmarks.bench.measure import Contestant, Readings, Stopwatch
from benchmarks.bench.workbench import REPLICAS
from benchmarks.kafka.arena import MIN_INSYNC, Arena
from benchmarks.kafka.cluster import KafkaCluster
from benchmarks.kafka.compare import Compared, Comparison
from mq_cli.local_cluster import LocalCluster
from mq_client import Admin

GROUP: Final = "growth: three brokers, 3 replicas, os / Kafka as it ships"
PARTITIONS: Final = (10, 1_000)
_SETTLE_S: Final = 5.0
_MADE_TIMEOUT_MS: Final = 120_000
_ROUNDS: Final = 2
_METRICS: Final = {"memory": "MB", "start again": "s"}


def measure(arena: Arena) -> list[Compared]:
    compared: list[Compared] = []
    for partitions in PARTITIONS:
        ours, theirs = f"{partitions:,} partitions", f"Kafka, {partitions:,} partitions"
        contestants = [Contestant(ours, partial(_ours, arena, partitions)), Contestant(theirs, partial(_theirs, arena, partitions))]
        asked = [Comparison(GROUP, ours, theirs, metric, unit, "lower") for metric, unit in _METRICS.items()]
        compared += arena.compare(contestants, asked, rounds=min(_ROUNDS, arena.scale.rounds), warm_ups=0)
    return compared


def _ours(arena: Arena, partitions: int) -> Readings:
    with LocalCluster(arena.scratch(), REPLICAS) as cluster:
        with Admin(cluster.bootstrap, timeout_ms=_MADE_TIMEOUT_MS) as admin:
            settings = {"durability": "os", "min_insync_replicas": MIN_INSYNC}
            admin.create_topic("many", partitions=partitions, replicas=REPLICAS, **settings)
        time.sleep(_SETTLE_S)
        memory = sum(_private_bytes(broker.pid) for broker in cluster.brokers.values())
        for broker in cluster.brokers.values():
            broker.kill()
        with Stopwatch() as watch:
            for broker in cluster.brokers.values():
                broker.start()
            cluster.wait_until_serving()
    return {"memory": memory / 1e6, "start again": watch.seconds}


def _theirs(arena: Arena, partitions: int) -> Readings:
    with KafkaCluster(arena.scratch(), arena.fetched.classpath) as cluster:
        config = {"min.insync.replicas": str(MIN_INSYNC)}
        given = {"name": "many", "partitions": partitions, "replicas": REPLICAS, "config": config}
        arena.client.ask("create_topic", bootstrap=cluster.bootstrap, **given)
        time.sleep(_SETTLE_S)
        memory = sum(_private_bytes(broker.pid) for broker in cluster.brokers.values())
        for broker in cluster.brokers.values():
            broker.kill()
        with Stopwatch() as watch:
            for broker in cluster.brokers.values():
                broker.start()
            cluster.wait_until_serving()
    return {"memory": memory / 1e6, "start again": watch.seconds}


def _private_bytes(pid: int | None) -> int:
    """Anonymous resident memory: files that are mapped belong to the page cache."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("RssAnon:"))
