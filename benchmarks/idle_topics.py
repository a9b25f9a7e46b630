"""How long many idle topics take to be led: after a first start, and again after all brokers were killed.

    python -m benchmarks.idle_topics [TOPICS] [--rest SECONDS]

Topics of one partition and three replicas are put into ZooKeeper while no broker runs, as `tritonmq topic create`
leaves them there: to make them through brokers would take much longer than what is to be measured. A hundred of them,
by chance, are asked for once a second; to ask for all would cost the brokers as much as to lead them. Processor time is
the three brokers' together. Last, what they take while all is idle. Ours alone; beside Kafka: `python -m
benchmarks.kafka --only growth`.
"""

from __future__ import annotations

import argparse
import itertools
import random
import sys
import tempfile
import time
import uuid
from collections.abc import Sequence
from pathlib import Path

from kazoo.client import KazooClient

from benchmarks.kafka.growth import SAMPLE, led, private_bytes, processor_seconds
from mq_broker.broker.metadata.topics import first_state
from mq_broker.coordination import documents
from mq_broker.coordination.interface import TopicSpec
from mq_dev.local_cluster import LocalCluster

BROKERS = 3
ASSIGNMENTS = ((1, 2, 3), (2, 3, 1), (3, 1, 2))
POLL_S = 1.0
LED_TIMEOUT_S = 900.0
IN_FLIGHT = 200
_ROOT = "/tritonmq"


def seed(hosts: str, count: int, assignments: Sequence[tuple[int, ...]] = ASSIGNMENTS) -> list[str]:
    """Make so many topics where no broker runs, on these brokers in turn; their names."""
    names = [f"idle-{number:05d}" for number in range(count)]
    client = KazooClient(hosts=hosts)
    client.start(timeout=30)
    try:
        replicas_of = itertools.cycle(assignments)
        for first in range(0, count, IN_FLIGHT):
            commits = []
            for name, replicas in zip(names[first : first + IN_FLIGHT], replicas_of, strict=False):
                topic = TopicSpec(name, uuid.uuid4().hex, (replicas,), settings={"durability": "os"})
                transaction = client.transaction()
                transaction.create(f"{_ROOT}/states/{topic.topic_id}")
                state = documents.dump(documents.state_to_json(first_state(replicas)))
                transaction.create(f"{_ROOT}/states/{topic.topic_id}/0", state)
                transaction.create(f"{_ROOT}/topics/{name}", documents.dump(documents.topic_to_json(topic)))
                commits.append(transaction.commit_async())
            for commit in commits:
                commit.get(timeout=30)
        client.set(f"{_ROOT}/topic_changes", b"")
    finally:
        client.stop()
        client.close()
    return names


def start_and_wait(cluster: LocalCluster, names: Sequence[str], what: str) -> None:
    """Start all brokers, and print when how many of the topics were led."""
    sample = random.sample(names, min(SAMPLE, len(names)))
    brokers = list(cluster.brokers.values())
    began = time.monotonic()
    for broker in brokers:
        broker.start()
    marks = [0.5, 0.9, 0.98, 1.0]
    while marks:
        found, seconds = led(random.choice(brokers).address, sample), time.monotonic() - began
        while marks and found >= marks[0]:
            spent = sum(processor_seconds(broker.pid) for broker in brokers)
            print(
                f"{what}: {marks.pop(0):4.0%} led after {seconds:6.1f} s, {spent:6.1f} s of processor time", flush=True
            )
        if seconds > LED_TIMEOUT_S:
            raise TimeoutError(
                f"{found:.0%} of the topics are led {LED_TIMEOUT_S:g} s after the start; {brokers[0].last_words()}"
            )
        time.sleep(POLL_S if marks else 0)


def rest(cluster: LocalCluster, seconds: float) -> None:
    """Print what the brokers take while nothing is asked of them."""
    pids = [broker.pid for broker in cluster.brokers.values()]
    time.sleep(seconds)
    before = sum(map(processor_seconds, pids))
    time.sleep(seconds)
    idle = (sum(map(processor_seconds, pids)) - before) / seconds / len(pids)
    memory = sum(map(private_bytes, pids)) / len(pids) / 1e6
    print(f"idle, {seconds:g} s later: {idle:.0%} of a processor and {memory:.0f} MB a broker")


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(
        prog="benchmarks.idle_topics", description="How long many idle topics take to be led."
    )
    parser.add_argument("topics", nargs="?", type=int, default=10_000, help="default 10,000")
    parser.add_argument(
        "--rest", type=float, default=30.0, metavar="SECONDS", help="before and while the idle ones are looked at"
    )
    given = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as directory:
        cluster = LocalCluster(Path(directory) / "cluster", BROKERS)
        with cluster:  # once, for what brokers make in ZooKeeper
            for broker in cluster.brokers.values():
                broker.terminate()
            if not all(broker.wait(60) for broker in cluster.brokers.values()):
                raise TimeoutError("a broker does not stop")
            names = seed(cluster.hosts, given.topics)
            start_and_wait(cluster, names, "first start")
            for broker in cluster.brokers.values():
                broker.kill()
            start_and_wait(cluster, names, "after kill -9")
            rest(cluster, given.rest)


if __name__ == "__main__":
    main(sys.argv[1:])
