"""Publishing to a broker with its instruments, which is scraped, and to one that counts nothing, in turn."""

from __future__ import annotations

import statistics
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from benchmarks.kafka.growth import processor_seconds
from benchmarks.security.ground import Row
from mq_client import Admin, Producer
from mq_dev.local_cluster import LocalCluster

SCRAPE_S: Final = 5.0
PROMISED: Final = 0.01
RECORD: Final = bytes(1_000)


def measured(directory: Path, messages: int, rounds: int) -> list[Row]:
    """Small batches one behind the other: what is counted is counted a batch."""
    with LocalCluster(directory / "on", 1, http=True) as on, _uninstrumented(directory / "off") as off:
        for cluster in (on, off):
            with Admin(cluster.bootstrap) as admin:
                admin.create_topic("t", partitions=1, replicas=1, durability="os")
            _publish(cluster, messages // 10)
        with _scraped(on.brokers[1].http):
            found = [(_publish(on, messages), _publish(off, messages)) for _ in range(rounds)]
    shares = [with_it / without - 1 for with_it, without in found]
    share, with_it = statistics.median(shares), statistics.median(each for each, _ in found)
    return [
        Row(
            f"processor time of a broker for a batch of one record, {rounds} rounds in turn, with instruments and a "
            f"scrape every {SCRAPE_S:g} s",
            f"{with_it * 1e6:.0f} µs, {share:+.1%} (rounds {min(shares):+.1%} to {max(shares):+.1%})",
            f"≤ +{PROMISED:.0%}",
            share <= PROMISED,
        )
    ]


@contextmanager
def _uninstrumented(directory: Path) -> Iterator[LocalCluster]:
    cluster = LocalCluster(directory, 1)
    cluster.brokers[1].module = "benchmarks.operations.uninstrumented"
    with cluster:
        yield cluster


def _publish(cluster: LocalCluster, messages: int) -> float:
    """Seconds of the broker's processor a batch."""
    pid = cluster.brokers[1].pid
    with Producer(cluster.bootstrap, linger_ms=0) as producer:
        before = processor_seconds(pid)
        for _ in range(messages):
            producer.publish("t", RECORD).result(60)
        return (processor_seconds(pid) - before) / messages


@contextmanager
def _scraped(address: str) -> Iterator[None]:
    ending = threading.Event()

    def scrape() -> None:
        while not ending.wait(SCRAPE_S):
            with urllib.request.urlopen(f"http://{address}/metrics", timeout=30) as answer:
                answer.read()

    thread = threading.Thread(target=scrape, name="scrape")
    thread.start()
    try:
        yield
    finally:
        ending.set()
        thread.join()
