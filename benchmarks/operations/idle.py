"""A broker with thousands of idle partitions, and what it costs to look at it."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

import psutil
from prometheus_client.parser import text_string_to_metric_families

from benchmarks.idle_topics import seed, start_and_wait
from benchmarks.kafka.growth import private_bytes, processor_seconds
from benchmarks.security.ground import Row
from mq_dev.embedded_zookeeper import free_port
from mq_dev.local_cluster import HOST, LocalCluster

SCRAPES: Final = 5
APART_S: Final = 3.0
"""Between scrapes: each is of another gathering."""

PAGES: Final = ("/", "/topics")
"""Of the console: the first one, and the one with most rows."""

MIB: Final = 1 << 20
HELD_S: Final = 0.005
READY_S: Final = 120.0
LATE: Final = "loop_lag_seconds"
HELD: Final = "loop_held_seconds"
COLLECTED: Final = "garbage_collection_seconds"


class Scraped(NamedTuple):
    """Medians of some scrapes: seconds of the broker's processor and on the clock, bytes, and lines."""

    processor_s: float
    seconds: float
    size: int
    series: int


def measured(directory: Path, partitions: int) -> list[Row]:
    """Of one broker that leads so many topics of one partition."""
    with _idle(directory, partitions) as cluster:
        broker = cluster.brokers[1]
        before = _histograms(broker.http)
        topics, whole = (_scraped(broker, f"/metrics{query}") for query in ("", "?detail=partition"))
        after = _histograms(broker.http)
        return [
            Row(f"/metrics of {partitions:,} idle partitions: processor time", f"{topics.processor_s * 1000:.0f} ms",
                "≤ 250 ms", topics.processor_s <= 0.25),
            Row("its size", f"{topics.size / 1e6:.2f} MB, {topics.series:,} series", "≤ 2 MB", topics.size <= 2e6),
            Row("with detail=partition: processor time", f"{whole.processor_s * 1000:.0f} ms", "≤ 500 ms",
                whole.processor_s <= 0.5),
            Row("its series", f"{whole.series:,}, {whole.size / 1e6:.2f} MB", "60,000", None),
            *_loop(before, after),
            *_status(cluster, partitions),
            *_console(cluster, partitions),
        ]  # fmt: skip


def memory_of_http(directory: Path, rounds: int) -> Row:
    """What a broker that serves metrics keeps more than one that does not, of memory that is its own alone."""
    grown = []
    for number in range(rounds):
        held = []
        for http in (False, True):
            with LocalCluster(directory / f"http-{number}-{http}", 1, http=http) as cluster:
                if http:
                    _histograms(cluster.brokers[1].http)
                held.append(private_bytes(cluster.brokers[1].pid) / MIB)
        grown.append(held[1] - held[0])
    more = statistics.median(grown)
    return Row("memory of a broker with `--http` that was scraped, more than without", f"{more:.1f} MiB", "≤ 8 MiB",
               more <= 8)  # fmt: skip


@contextmanager
def _idle(directory: Path, partitions: int) -> Iterator[LocalCluster]:
    cluster = LocalCluster(directory / "idle", 1, zookeeper=True, http=True)
    with cluster:  # once, for what brokers make in ZooKeeper
        cluster.brokers[1].terminate()
        if not cluster.brokers[1].wait(60):
            raise TimeoutError("the broker does not stop")
        start_and_wait(cluster, seed(cluster.hosts, partitions, ((1,),)), "idle topics")
        _rest(cluster.brokers[1].pid)
        yield cluster


def _rest(pid: int | None) -> None:
    """Wait until it takes next to no processor time."""
    deadline = time.monotonic() + READY_S
    while time.monotonic() < deadline:
        before = processor_seconds(pid)
        time.sleep(2)
        if processor_seconds(pid) - before < 0.2:
            return


def _scraped(broker: Any, path: str) -> Scraped:
    found = []
    for _ in range(SCRAPES):
        time.sleep(APART_S)
        processor_s, began = processor_seconds(broker.pid), time.perf_counter()
        with urllib.request.urlopen(f"http://{broker.http}{path}", timeout=60) as answer:
            text: bytes = answer.read()
        took_s = time.perf_counter() - began
        lines = sum(not line.startswith(b"#") for line in text.splitlines())
        found.append((processor_seconds(broker.pid) - processor_s, took_s, len(text), lines))
    return Scraped(*(statistics.median(each) for each in zip(*found, strict=True)))  # type: ignore[arg-type]


Buckets = dict[float, float]
"""How many lasted no longer than each bound."""


def _histograms(address: str) -> dict[str, Buckets]:
    """Since the broker started: how late ticks of the loop were, how much of that its thread was at work, and how long
    passes of the garbage collector took."""
    with urllib.request.urlopen(f"http://{address}/metrics?detail=broker", timeout=60) as answer:
        text = answer.read().decode()
    found: dict[str, Buckets] = {name: {} for name in (LATE, HELD, COLLECTED)}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            buckets = found.get(sample.name.removeprefix("tritonmq_").removesuffix("_bucket"))
            if buckets is not None and "le" in sample.labels:
                bound = float(sample.labels["le"])
                buckets[bound] = buckets.get(bound, 0) + sample.value
    return found


def _loop(before: dict[str, Buckets], after: dict[str, Buckets]) -> list[Row]:
    """Who held the loop. One tick that its thread made late counts for the promise; one that the machine made late
    does not. A pass of the collector in another thread holds the loop too."""
    late, ticks, latest_s = _longer(before[LATE], after[LATE])
    held, _, longest_s = _longer(before[HELD], after[HELD])
    passes, of_passes, slowest_s = _longer(before[COLLECTED], after[COLLECTED])
    ms = f"{HELD_S * 1000:g} ms"
    return [
        Row(f"ticks of the loop that it held up itself for more than {ms} during {2 * SCRAPES} scrapes",
            f"{held:,} of {ticks:,}, for {longest_s * 1000:g} ms at most", "none", held == 0),
        Row(f"passes of its garbage collector that took more than {ms} of processor time",
            f"{passes:,} of {of_passes:,}, {slowest_s * 1000:g} ms at most", "none", passes == 0),
        Row(f"ticks that came more than {ms} late otherwise: its thread waited for a processor, or for another thread",
            f"{late - held:,} of {ticks:,}, no tick later than {latest_s * 1000:g} ms", "", None),
    ]  # fmt: skip


def _longer(before: Buckets, after: Buckets) -> tuple[int, int, float]:
    """How many were longer than `HELD_S`, of how many, and the bound of the longest."""
    grown = {bound: after[bound] - before.get(bound, 0) for bound in after}
    total = grown[float("inf")]
    longest_s = min(bound for bound, count in grown.items() if count == total)
    return int(total - grown[HELD_S]), int(total), longest_s


def _status(cluster: LocalCluster, topics: int) -> list[Row]:
    command = [sys.executable, "-m", "mq_cli.main", "cluster", "status", "--json", "--timeout", "60"]
    took = []
    for _ in range(3):
        began = time.perf_counter()
        subprocess.run([*command, "--bootstrap", cluster.bootstrap], stdout=subprocess.DEVNULL, check=True, timeout=120)
        took.append(time.perf_counter() - began)
    seconds = statistics.median(took)
    return [Row(f"`tritonmq cluster status` of {topics:,} topics", f"{seconds:.1f} s", "≤ 3 s", seconds <= 3)]


def _console(cluster: LocalCluster, topics: int) -> list[Row]:
    address = f"{HOST}:{free_port(HOST)}"
    command = [sys.executable, "-m", "mq_cli.main", "console", "--bootstrap", cluster.bootstrap, "--listen", address]
    console = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        _answers(lambda: _page(address, "/api/v1/overview"))
        first = _answers(lambda: _knows(address, topics))
        pages = {path: statistics.median(_page(address, path)[0] for _ in range(5)) for path in PAGES}
        resident = psutil.Process(console.pid).memory_info().rss / MIB
    finally:
        console.terminate()
        console.wait(20)
    told = ", ".join(f"`{path}` {seconds * 1000:.0f} ms" for path, seconds in pages.items())
    return [
        Row(f"the console's pages with {topics:,} topics", told, "≤ 300 ms", max(pages.values()) <= 0.3),
        Row("the console knows all topics after its start", f"{first:.1f} s", "", None),
        Row("the console's memory", f"{resident:.0f} MiB", "≤ 120 MiB", resident <= 120),
    ]


def _page(address: str, path: str) -> tuple[float, bytes]:
    began = time.perf_counter()
    with urllib.request.urlopen(f"http://{address}{path}", timeout=60) as answer:
        text: bytes = answer.read()
    return time.perf_counter() - began, text


def _knows(address: str, topics: int) -> None:
    if f'"count":{topics}'.encode() not in _page(address, "/api/v1/topics")[1]:
        raise OSError("not all topics yet")


def _answers(ask: Callable[[], object]) -> float:
    """Seconds until it does."""
    began = time.monotonic()
    while True:
        try:
            ask()
        except OSError:
            if time.monotonic() - began > READY_S:
                raise
            time.sleep(0.2)
        else:
            return time.monotonic() - began
