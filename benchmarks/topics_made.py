"""What it costs to make topics, one after the other and together: three brokers, three replicas, `durability=os`.

    python -m benchmarks.topics_made [--single 50] [--together 1000] [--partitions 1]

Wall time, and processor time of all brokers: while topics are made and with the two seconds after that. "Beyond idle":
what they spend in those seconds less what they spend in as much time before anything is made.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import psutil

from benchmarks.pushes import spent
from mq_client import Admin
from mq_dev.local_cluster import LocalCluster

REST_S = 2.0


def measure(given: argparse.Namespace) -> None:
    settings = {"partitions": given.partitions, "replicas": 3, "durability": "os"}
    with tempfile.TemporaryDirectory() as directory, LocalCluster(Path(directory), 3) as cluster:
        brokers = [psutil.Process(broker.pid) for broker in cluster.brokers.values()]
        with Admin(cluster.bootstrap, timeout_ms=300_000) as admin:

            def single() -> None:
                for number in range(given.single):
                    admin.create_topic(f"single-{number}", **settings)

            def together() -> None:
                made = admin.create_topics([f"together-{number}" for number in range(given.together)], **settings)
                assert not any(each.error for each in made)

            admin.create_topics([f"warm-{number}" for number in range(10)], **settings)
            tell("one after the other", given.single, brokers, single)
            tell("together", given.together, brokers, together)


def tell(name: str, count: int, brokers: list[psutil.Process], make: Callable[[], None]) -> None:
    if not count:
        return
    time.sleep(REST_S)
    before = spent(brokers)
    time.sleep(REST_S)
    idle_per_s = (spent(brokers) - before) / REST_S
    began, before = time.perf_counter(), spent(brokers)
    make()
    took_s, made = time.perf_counter() - began, spent(brokers) - before
    time.sleep(REST_S)
    rest = spent(brokers) - before
    beyond = rest - idle_per_s * (took_s + REST_S)
    print(
        f"{name:20} {count:6} topics in {took_s:7.2f} s, {took_s / count * 1e3:7.1f} ms each; brokers "
        f"{made / count * 1e3:6.1f} ms each, {rest / count * 1e3:6.1f} with what follows within {REST_S:g} s, "
        f"{beyond / count * 1e3:6.1f} beyond idle"
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--single", type=int, default=50)
    parser.add_argument("--together", type=int, default=1_000)
    parser.add_argument("--partitions", type=int, default=1)
    measure(parser.parse_args())
