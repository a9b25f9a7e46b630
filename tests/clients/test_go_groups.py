"""A Go member and a Python member of one group, and of one work queue, at a real cluster. `make go` runs these."""

from __future__ import annotations

import os
import subprocess
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from mq_client import Consumer, LeasedRecord, Producer, Queue, Reader
from tests.clients.conftest import BUILD_S
from tests.cluster.harness import Cluster, wait_until

ASK_S = 120
RECORDS = 100_000
PARTITIONS = 4
JOBS = 2_000

pytestmark = [
    pytest.mark.go,
    pytest.mark.skipif(not os.environ.get("TRITONMQ_TEST_GO"), reason="needs Go: make go"),
    pytest.mark.timeout(BUILD_S + 300),
]


class Program:
    """Owns a running program of the Go client, and each line that it has printed."""

    def __init__(self, process: subprocess.Popen[str], heard: Callable[[str], object]) -> None:
        self.process = process
        self._heard = heard
        self._reading = threading.Thread(target=self._read, daemon=True)
        self._reading.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._heard(line.rstrip("\n"))

    def finish(self) -> str:
        """Have it end. What it said of errors."""
        assert self.process.stdin is not None
        assert self.process.stderr is not None
        self.process.stdin.close()
        errors = self.process.stderr.read()
        assert self.process.wait(ASK_S) == 0, errors
        self._reading.join(ASK_S)
        return errors


@contextmanager
def running(heard: Callable[[str], object], *command: str | Path) -> Iterator[Program]:
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            yield Program(process, heard)
        finally:
            process.kill()


class Deliveries:
    """Owns what the members of a group were given, and what the Go member knows to be written down."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.given: Counter[tuple[int, int]] = Counter()
        self.by_go: Counter[tuple[int, int]] = Counter()
        self.values: set[int] = set()
        self.committed: dict[int, int] = defaultdict(int)
        self.ready = threading.Event()

    def give(self, partition: int, offset: int, value: int) -> None:
        with self.lock:
            self.given[partition, offset] += 1
            self.values.add(value)

    def hear(self, line: str) -> None:
        words = line.split()
        if words == ["ready"]:
            self.ready.set()
        elif words[0] == "committed":
            with self.lock:
                self.committed[int(words[1])] = max(self.committed[int(words[1])], int(words[2]))
        else:
            partition, offset, value = map(int, words)
            assert offset >= self.committed[partition], "the Go member was given again what it had committed"
            self.by_go[partition, offset] += 1
            self.give(partition, offset, value)


def _cursors(cluster: Cluster) -> dict[int, int]:
    return {cursor.partition: cursor.offset for cursor in cluster.admin.describe_group("g").cursors}


def test_a_go_and_a_python_member_share_a_group_through_the_death_of_a_leader(cluster: Cluster, programs: Path) -> None:
    cluster.admin.create_topic("t", partitions=PARTITIONS, replicas=3)
    seen = Deliveries()
    consumer = Consumer(cluster.bootstrap, "g", "earliest", member_id="python")
    consumer.subscribe("t")
    with running(seen.hear, programs / "tritonmq-group", cluster.grpc, "t", "g") as program:
        assert seen.ready.wait(ASK_S)
        consumer.start()
        wait_until(lambda: _members(cluster) == [2] * PARTITIONS, "both members are there")

        def consume() -> None:
            for record in consumer:
                seen.give(record.partition, record.offset, int(record.value))

        consuming = threading.Thread(target=consume)
        consuming.start()
        with Producer(cluster.bootstrap) as producer:
            for number in range(RECORDS // 2):
                producer.publish("t", b"%d" % number, partition=number % PARTITIONS)
            wait_until(lambda: len(seen.values) > RECORDS // 4, "a part was delivered", ASK_S)
            floors = _cursors(cluster)
            cluster.kill(cluster.leader("t", 0))
            for number in range(RECORDS // 2, RECORDS):
                producer.publish("t", b"%d" % number, partition=number % PARTITIONS)
            producer.flush()
        wait_until(lambda: len(seen.values) == RECORDS, "every record was delivered", ASK_S)
        assert program.finish() == ""
        consumer.stop()
        consuming.join(ASK_S)
    assert set(seen.values) == set(range(RECORDS))  # nothing is lost
    assert set(seen.given) == {(p, offset) for p in range(PARTITIONS) for offset in range(RECORDS // PARTITIONS)}
    again = sorted(place for place, count in seen.given.items() if count > 1 and place[1] < floors[place[0]])
    assert not again, "what was written down as settled was delivered again"
    assert sum(seen.by_go.values()) > RECORDS // 10, "the Go member took its part"
    assert sum(seen.by_go.values()) < sum(seen.given.values()), "and so did the Python member"
    assert any(floors.values())
    assert _cursors(cluster) == dict.fromkeys(range(PARTITIONS), RECORDS // PARTITIONS)  # both have told all


def _members(cluster: Cluster) -> list[int]:
    return [len(cursor.members) for cursor in cluster.admin.describe_group("g").cursors]


KINDS = ("good", "bad", "again", "fails")


class Outcomes:
    """Owns the outcomes of jobs that are known to be written down, by outcome and value."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.all: Counter[tuple[str, str]] = Counter()
        self.of_go: Counter[str] = Counter()
        self.of_python: list[tuple[str, str, Any]] = []

    def hear(self, line: str) -> None:
        """What the Go worker prints."""
        what, _, value = line.partition(" ")
        with self._lock:
            self.of_go[what] += 1
            self.all[what, value] += 1

    def work(self, queue: Queue) -> None:
        """As tritonmq-work does."""
        for record in queue:
            what, future = _outcome_of(record)
            self.of_python.append((what, record.value.decode(), future))

    def finish(self) -> None:
        for what, value, future in self.of_python:
            future.result(ASK_S)
            self.all[what, value] += 1


def _outcome_of(record: LeasedRecord) -> tuple[str, Any]:
    if record.value.startswith(b"bad"):
        return "reject", record.reject("not understood")
    if record.value.startswith(b"again") and record.deliveries == 1:
        return "release", record.release()
    if record.value.startswith(b"fails") and record.failures == 0:
        return "fail", record.fail("it fails once", delay_ms=0)
    return "ack", record.ack()


@pytest.mark.parametrize("order", ["none", "key"])
def test_go_and_python_workers_share_a_queue_through_the_death_of_a_leader(
    cluster: Cluster, programs: Path, order: str
) -> None:
    topic = f"jobs-{order}"
    cluster.admin.create_topic(topic, partitions=3, replicas=3)
    cluster.admin.declare_queue(topic, "workers", retry_ms="10ms", order=order)
    count = JOBS if order == "none" else JOBS // 5
    jobs = [f"{KINDS[number % len(KINDS)]} {number}" for number in range(count)]
    bad = sum(job.startswith("bad") for job in jobs)
    outcomes = Outcomes()
    queue = Queue(cluster.bootstrap, topic, "workers", in_flight_max=50)
    working = threading.Thread(target=outcomes.work, args=(queue,))
    working.start()
    with running(outcomes.hear, programs / "tritonmq-work", cluster.grpc, topic, "workers") as program:
        with Producer(cluster.bootstrap) as producer:
            for number, job in enumerate(jobs):
                producer.publish(topic, job, key=b"%d" % (number // 12), partition=number % 3)
                if number == count // 2:
                    wait_until(lambda: min(outcomes.of_go["ack"], len(outcomes.of_python)) > 10, "both work", ASK_S)
                    cluster.kill(cluster.leader(topic, 0))
        wait_until(
            lambda: _done(cluster, topic) == (count - bad, bad), "every good job is done, every bad one a letter", ASK_S
        )
        assert program.finish() == ""
    queue.close()
    working.join(ASK_S)
    outcomes.finish()
    _check_outcomes(jobs, outcomes)
    if order == "none":  # in an order, what comes behind a record that goes back was lent before, too
        assert sum(count for (what, _), count in outcomes.all.items() if what == "release") > bad // 2
        assert min(outcomes.of_go[what] for what in ("ack", "reject", "release", "fail")) > 0
    letters = [job.encode() for job in jobs if job.startswith("bad")]
    assert sorted(_letters(cluster, topic)) == sorted(letters)
    found = cluster.admin.describe_queue(topic, "workers")
    assert (found.ready, found.leased) == (0, 0)


def _done(cluster: Cluster, topic: str) -> tuple[int, int]:
    found = cluster.admin.describe_queue(topic, "workers")
    return found.accepted, found.dead


def _check_outcomes(jobs: list[str], outcomes: Outcomes) -> None:
    """Each job has one last outcome, whoever worked on it."""
    for job in jobs:
        kind = job.split()[0]
        assert outcomes.all["ack", job] == (kind != "bad")
        assert outcomes.all["reject", job] == (kind == "bad")
        assert outcomes.all["fail", job] == (kind == "fails")
        assert outcomes.all["release", job] <= (kind == "again")  # one that a dying leader lent was lent before


def _letters(cluster: Cluster, topic: str) -> list[bytes]:
    with Reader(cluster.bootstrap) as reader:
        count = len(cluster.admin.describe_topic(f"{topic}.dead").partitions)
        return [
            value
            for partition in range(count)
            for batch in reader.read(f"{topic}.dead", partition)
            for value in batch.column("value").to_pylist()
        ]
