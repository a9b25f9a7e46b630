"""What a push costs, and how late it is, where one topic has many consumers that each want everything.

    python -m benchmarks.pushes [--rounds 1] [--seconds 10] [--rate 200] [--linger 2] [--only 1x100] [--brokers 3]

Records of 100 bytes, three replicas, `durability=os`, 6 partitions. Consumers are threads of one process, or of ten.
Processor time is that of all brokers, and of all processes that consume, while records came.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Final, NamedTuple

import psutil

from benchmarks.bench.ceilings import STAMP_BYTES
from benchmarks.bench.latency import RECORD_BYTES
from benchmarks.bench.measure import Schedule, paced, percentile
from benchmarks.bench.processes import Helper
from benchmarks.bench.workbench import PARTITIONS
from benchmarks.kafka.fan_out import consume_many
from mq_client import Admin, Producer
from mq_dev.local_cluster import LocalCluster

CROWDS: Final = ((1, 1), (1, 10), (1, 100), (10, 10))
"""Processes, and the consumers in each."""

WARMING: Final = 300
HEAR_S: Final = 180.0
LEAD_S: Final = 0.05


class Reading(NamedTuple):
    """Milliseconds, and microseconds of the processor for each record that was published."""

    p50: float
    p99: float
    brokers: float
    consumers: float


def spent(processes: list[psutil.Process]) -> float:
    """Seconds of the processor."""
    return sum(sum(process.cpu_times()[:2]) for process in processes)


def push(cluster: LocalCluster, crowd: tuple[int, int], given: argparse.Namespace) -> Reading:
    count, topic = round(given.rate * given.seconds), f"pushes-{time.time_ns()}"
    padding = bytes(RECORD_BYTES - STAMP_BYTES)
    with ExitStack() as opened:
        admin = opened.enter_context(Admin(cluster.bootstrap))
        admin.create_topic(topic, partitions=PARTITIONS, replicas=given.brokers, durability="os")
        producer = opened.enter_context(Producer(cluster.bootstrap, linger_ms=given.linger))
        at_brokers = [psutil.Process(broker.pid) for broker in cluster.brokers.values()]
        before = {child.pid for child in psutil.Process().children()}
        helpers = [
            opened.enter_context(Helper(consume_many, cluster.bootstrap, topic, crowd[1], WARMING, count))
            for _ in range(crowd[0])
        ]
        consuming = [child for child in psutil.Process().children() if child.pid not in before]
        for helper in helpers:
            helper.hear(HEAR_S)
        for number in range(WARMING):
            producer.publish(topic, bytes(RECORD_BYTES), partition=number % PARTITIONS)
        producer.flush()
        for helper in helpers:
            helper.hear(HEAR_S)
        start = spent(at_brokers), spent(consuming)
        for due in paced(Schedule(time.time_ns() + round(LEAD_S * 1e9), given.rate, count)):
            producer.publish(topic, due.to_bytes(STAMP_BYTES, "little") + padding)
        latencies = [latency for helper in helpers for latency in helper.hear(HEAR_S)]
        end = spent(at_brokers), spent(consuming)
        admin.delete_topic(topic)
    brokers, consumers = ((after - earlier) * 1e6 / count for after, earlier in zip(end, start, strict=True))
    return Reading(percentile(latencies, 50.0), percentile(latencies, 99.0), brokers, consumers)


def measure(given: argparse.Namespace) -> None:
    found: dict[tuple[int, int], list[Reading]] = {}
    crowds = [crowd for crowd in CROWDS if given.only in ("", f"{crowd[0]}x{crowd[1]}")]
    with tempfile.TemporaryDirectory() as directory, LocalCluster(Path(directory), given.brokers) as cluster:
        for _ in range(given.rounds):
            for crowd in crowds:
                found.setdefault(crowd, []).append(push(cluster, crowd, given))
    for (processes, consumers), readings in found.items():
        p50, p99, brokers, consuming = (statistics.median(values) for values in zip(*readings, strict=True))
        print(
            f"{processes:3} x {consumers:3} consumers  p50 {p50:8.2f} ms  p99 {p99:8.2f} ms  "
            f"brokers {brokers:8.0f} us a record  consumers {consuming:8.0f} us a record"
        )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--rate", type=float, default=200.0)
    parser.add_argument("--linger", type=float, default=2.0)
    parser.add_argument("--only", default="")
    parser.add_argument("--brokers", type=int, default=3)
    measure(parser.parse_args())
