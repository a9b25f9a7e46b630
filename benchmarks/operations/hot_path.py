"""Publishing to a broker with its instruments, which is scraped, and to one that counts nothing, in turn."""

from __future__ import annotations

import statistics
import time
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from benchmarks.security.ground import Row
from mq_client import Admin, Consumer, Producer
from mq_dev.local_cluster import LocalCluster

SCRAPE_S: Final = 5.0
PROMISED: Final = 0.01
RECORD: Final = bytes(1_000)
ONE_AT_A_TIME: Final = "one"
FLAT_OUT: Final = "many"


def measured(directory: Path, messages: int, rounds: int) -> list[Row]:
    """What is promised is of a broker that takes and pushes as much as it can: batches are large then. One record a
    batch, one behind the other, is the worst there is: what is counted is counted a batch."""
    with LocalCluster(directory / "on", 1, http=True) as on, _uninstrumented(directory / "off") as off:
        for cluster in (on, off):
            with Admin(cluster.bootstrap) as admin:
                admin.create_topic(ONE_AT_A_TIME, partitions=1, replicas=1, durability="os")
        scrape_s = _scrapes(on)
        return [
            _row("a record, published and pushed flat out", on, off, lambda each: _flat_out(each, 40 * messages),
                 rounds, scrape_s, promised=True),
            _row("a batch of one record, one behind the other", on, off, lambda each: _one_by_one(each, messages),
                 rounds, scrape_s, promised=False),
            Row("one scrape of that broker: processor time", f"{scrape_s * 1000:.1f} ms", "", None),
        ]  # fmt: skip


def _row(
    what: str,
    on: LocalCluster,
    off: LocalCluster,
    publish: Callable[[LocalCluster], float],
    rounds: int,
    scrape_s: float,
    *,
    promised: bool,
) -> Row:
    """A scrape every `SCRAPE_S` of a broker that has a processor for itself takes that share of it, too: it is added,
    since a round may be too short for one, or have one more."""
    for cluster in (on, off):
        publish(cluster)
    found: list[tuple[float, float]] = []
    for number in range(rounds):
        order = (on, off) if number % 2 else (off, on)
        took = {id(cluster): publish(cluster) for cluster in order}
        found.append((took[id(on)], took[id(off)]))
    shares = [with_it / without - 1 + scrape_s / SCRAPE_S for with_it, without in found]
    share, with_it = statistics.median(shares), statistics.median(each for each, _ in found)
    return Row(
        f"processor time of a broker for {what}, {rounds} rounds in turn, with instruments and a scrape every "
        f"{SCRAPE_S:g} s",
        f"{with_it * 1e6:.1f} µs, {share:+.1%} (rounds {min(shares):+.1%} to {max(shares):+.1%})",
        f"≤ +{PROMISED:.0%}" if promised else "",
        share <= PROMISED if promised else None,
    )


@contextmanager
def _uninstrumented(directory: Path) -> Iterator[LocalCluster]:
    cluster = LocalCluster(directory, 1)
    cluster.brokers[1].module = "benchmarks.operations.uninstrumented"
    with cluster:
        yield cluster


def processor_s(pid: int | None) -> float:
    """What the process has had of processors, of all its threads that live, in steps of nanoseconds: those of
    /proc/<pid>/stat are a hundredth of a second."""
    spent = 0
    for thread in Path(f"/proc/{pid}/task").iterdir():
        spent += int((thread / "schedstat").read_text().split()[0])
    return spent / 1e9


def _one_by_one(cluster: LocalCluster, messages: int) -> float:
    """Seconds of the broker's processor a batch."""
    pid = cluster.brokers[1].pid
    with Producer(cluster.bootstrap, linger_ms=0) as producer:
        producer.publish(ONE_AT_A_TIME, RECORD).result(60)
        before = processor_s(pid)
        for _ in range(messages):
            producer.publish(ONE_AT_A_TIME, RECORD).result(60)
        return (processor_s(pid) - before) / messages


def _flat_out(cluster: LocalCluster, messages: int) -> float:
    """Seconds of the broker's processor a record, which one client publishes and another is pushed. A topic of its own,
    which is deleted then: nothing is left for the next round."""
    pid = cluster.brokers[1].pid
    with Admin(cluster.bootstrap) as admin, Producer(cluster.bootstrap) as producer:
        admin.create_topic(FLAT_OUT, partitions=1, replicas=1, durability="os")
        with Consumer(cluster.bootstrap, start="earliest") as consumer, ThreadPoolExecutor(1) as beside:
            consumer.subscribe(FLAT_OUT)
            producer.publish(FLAT_OUT, RECORD).result(60)
            if consumer.take(timeout_ms=60_000) is None:
                raise TimeoutError("nothing is pushed")
            before = processor_s(pid)
            pushed = beside.submit(_take, consumer, messages)
            for _ in range(messages):
                producer.publish(FLAT_OUT, RECORD)
            pushed.result(300)
            took = processor_s(pid) - before
        admin.delete_topic(FLAT_OUT)
    return took / messages


def _take(consumer: Consumer, messages: int) -> None:
    for _ in range(messages):
        if consumer.take(timeout_ms=60_000) is None:
            raise TimeoutError("records are not pushed")


def _scrapes(cluster: LocalCluster) -> float:
    """Seconds of the broker's processor for one scrape, without what it takes anyway."""
    pid, found = cluster.brokers[1].pid, []
    for _ in range(5):
        idle = _while(pid, lambda: None)
        found.append(_while(pid, lambda: _scrape(cluster.brokers[1].http)) - idle)
    return max(0.0, statistics.median(found))


def _while(pid: int | None, do: Callable[[], object]) -> float:
    """Seconds of that process's processor in a second in which that is done."""
    before = processor_s(pid)
    do()
    time.sleep(1.0)
    return processor_s(pid) - before


def _scrape(address: str) -> None:
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=30) as answer:
        answer.read()
