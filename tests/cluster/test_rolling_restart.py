"""Brokers are restarted one after another as Kubernetes would do it, under load.

Nobody is refused anything, no partition has too few replicas in sync, and every record is there once. Then all of them
are killed and started again.

`make rolling` runs it with a Spark query beside the others.
"""

from __future__ import annotations

import os
import threading
import urllib.error
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from mq_cli.machines.broker import broker
from mq_client import (
    Consumer,
    NotLeader,
    OutcomeUnknown,
    OutOfOrder,
    Producer,
    Queue,
    Reader,
    TritonMQError,
    Unreachable,
)
from mq_client.producing.futures import RecordFuture
from mq_protocol import mq_pb2 as pb
from tests import switch
from tests.chaos.clients import ClientProcess, finish_all
from tests.chaos.cluster import FireCluster
from tests.cluster.harness import Cluster, wait_until
from tests.cluster.kubelet import Kubelet, arguments, container, stateful_set
from tests.mq_broker.broker.metrics.test_exposition import Samples, read

pytestmark = [pytest.mark.long, pytest.mark.cluster, pytest.mark.timeout(600)]

WITH_SPARK = bool(os.environ.get("TRITONMQ_ROLL"))
TOPIC, GROUP, COPY = "rolled", "workers", "copy"
PARTITIONS = 6
PAUSE_S = 0.01
UNANSWERED_MAX = 400
PATIENT_MS = 180_000
LOOK_S = 0.2

FOLLOWED = (NotLeader, OutOfOrder, Unreachable, OutcomeUnknown)
"""What clients mend by themselves when a leadership is handed over, and so is no refusal: they are told who leads now,
a batch that was sent behind another one comes too early, or the broker that they asked has ended."""

FOLLOWED_CODES = {pb.ErrorCode.Name(pb.NOT_LEADER), pb.ErrorCode.Name(pb.OUT_OF_ORDER)}

HUNG_UP = "WatchOffsets CANCELLED"
"""A client ends its watch when it hears that a partition is led elsewhere (`mq_client/cluster/offset_watch.py`)."""


class Load:
    """Owns a producer, a consumer and a member of a queue group, each with a thread, and what each saw."""

    def __init__(self, bootstrap: str) -> None:
        self.sent: list[RecordFuture] = []
        self.heard: Counter[bytes] = Counter()
        self.worked: Counter[bytes] = Counter()
        self._producer = Producer(bootstrap, timeout_ms=PATIENT_MS, linger_ms=2)
        self._consumer = Consumer(bootstrap, group="readers", start="earliest", timeout_ms=PATIENT_MS)
        self._consumer.subscribe(TOPIC)
        self._queue = Queue(bootstrap, TOPIC, GROUP, timeout_ms=PATIENT_MS)
        self._acks: list[Future[None]] = []
        self._stopping = threading.Event()
        self._threads = ThreadPoolExecutor(3, "load")
        self._works = [self._threads.submit(work) for work in (self._produce, self._consume, self._work)]

    @property
    def _failed(self) -> list[BaseException]:
        return [error for work in self._works if work.done() and (error := work.exception()) is not None]

    def _produce(self) -> None:
        while not self._stopping.wait(PAUSE_S):
            if len(self.sent) > UNANSWERED_MAX:
                self.sent[-UNANSWERED_MAX].result(PATIENT_MS / 1000)
            self.sent.append(self._producer.publish(TOPIC, b"%d" % len(self.sent)))

    def _consume(self) -> None:
        while not self._stopping.is_set() or self._behind(self.heard):
            record = self._consumer.take(timeout_ms=200)
            if record is not None:
                self.heard[record.value] += 1

    def _work(self) -> None:
        while not self._stopping.is_set() or self._behind(self.worked):
            record = self._queue.take(timeout_ms=200)
            if record is not None:
                self._acks.append(record.ack())
                self.worked[record.value] += 1

    def _behind(self, seen: Counter[bytes]) -> bool:
        return len(seen) < len(self.sent) and not self._failed

    def until_acknowledged(self, more: int = 100) -> None:
        """Until so many records are acknowledged that were sent from now on."""
        last = len(self.sent) + more
        wait_until(lambda: self._failed or len(self.sent) > last, "records are sent", PATIENT_MS / 1000)
        assert not self._failed, self._failed
        self.sent[last].result(PATIENT_MS / 1000)

    def stop(self) -> Counter[bytes]:
        """What was sent, all of it acknowledged, read and worked on."""
        self._stopping.set()
        for work in self._works:
            work.result(PATIENT_MS / 1000)
        self._threads.shutdown()
        for future in (*self.sent, *self._acks):
            future.result(PATIENT_MS / 1000)
        self._producer.close()
        self._consumer.stop()
        self._queue.close()
        return Counter(b"%d" % number for number in range(len(self.sent)))


class Seen:
    """Owns the threads that ask each broker for its metrics again and again. `looks`: how often each was looked at in
    each of its lives. `under`: when partitions had too few replicas in sync. `refused`: what brokers refused from the
    first look at each life on, by method and code."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._ending = threading.Event()
        self.under: list[str] = []
        self.refused: Counter[str] = Counter()
        self.looks: Counter[tuple[int, int]] = Counter()
        self._before: dict[tuple[int, int], Counter[str]] = {}
        self._codes: dict[tuple[int, int], Counter[str]] = {}
        self._threads = [threading.Thread(target=self._look, args=(number,)) for number in cluster.brokers]
        for thread in self._threads:
            thread.start()

    def _look(self, number: int) -> None:
        process = self._cluster.brokers[number]
        while not self._ending.wait(LOOK_S):
            pid = process.pid
            if pid is None:
                continue
            try:
                with switch.opened(process.http, "/metrics?detail=broker", 10) as answer:
                    samples = read(answer.read())
            except OSError:  # it starts, or it ends
                continue
            self.looks[number, pid] += 1
            if under := samples["partitions_under_min_isr"][()]:
                self.under.append(f"broker {number}: {under:.0f} partitions")
            codes = _refusals(samples)
            before = self._before.setdefault((number, pid), codes)
            self._codes[number, pid] = codes - before

    def end(self) -> None:
        self._ending.set()
        for thread in self._threads:
            thread.join(60)
        self.refused = sum(self._codes.values(), Counter())


def _refusals(samples: Samples) -> Counter[str]:
    """What this broker refused in this life, by method and code."""
    found: Counter[str] = Counter()
    for name in ("requests_total", "produce_batches_total"):
        for labels, count in samples.get(name, {}).items():
            said = dict(labels)
            what = f"{said.get('method', 'a batch')} {said['code']}"
            if said["code"] not in {"OK", "DUPLICATE", *FOLLOWED_CODES} and what != HUNG_UP and count:
                found[what] += int(count)
    return found


@pytest.fixture
def met(monkeypatch: pytest.MonkeyPatch) -> Counter[type[TritonMQError]]:
    """Every error of TritonMQ in this process, also those that a client mends by itself."""
    found: Counter[type[TritonMQError]] = Counter()
    before = TritonMQError.__init__

    def made(error: TritonMQError, *arguments: object) -> None:
        found[type(error)] += 1
        before(error, *arguments)

    monkeypatch.setattr(TritonMQError, "__init__", made)
    return found


def test_restarted_one_after_another_nobody_is_refused_and_every_record_is_there_once(
    start_cluster: Callable[..., Cluster], met: Counter[type[TritonMQError]], tmp_path: Path
) -> None:
    cluster = start_cluster(prepare=Kubelet, http=True)
    kubelet = Kubelet(cluster)
    assert all(kubelet.probe("livenessProbe", number) for number in cluster.brokers)
    for topic in (TOPIC, COPY):
        cluster.admin.create_topic(topic, partitions=PARTITIONS, replicas=3, min_insync_replicas=2)
        cluster.wait_for_isr(topic, 3)
    with spark_query(cluster, tmp_path) as query:
        load = Load(cluster.bootstrap)
        load.until_acknowledged()
        met.clear()
        with seen_meanwhile(cluster) as seen:
            for _ in kubelet.roll():
                load.until_acknowledged()
        assert seen.under == [], "a partition had too few replicas in sync"
        assert {number for number, _ in seen.looks} == set(cluster.brokers), "each broker was looked at"
        refused = {kind.__name__: count for kind, count in met.items() if not issubclass(kind, FOLLOWED)}
        assert (refused, seen.refused) == ({}, {}), "somebody was refused something"

        cluster.kill_all()
        for process in cluster.brokers.values():
            process.start()
        for number in cluster.brokers:
            assert kubelet.until_ready(number)
        load.until_acknowledged()
        sent = load.stop()
    assert set(load.heard) == set(load.worked) == set(sent)
    assert whole(cluster, TOPIC) == sent, "nothing is lost, and nothing is there twice"
    if query is not None:
        assert whole(cluster, COPY) == sent, "the query copied every record once"
        assert "failed" not in query.read_text(), "the query failed and was started again"


@contextmanager
def seen_meanwhile(cluster: Cluster) -> Iterator[Seen]:
    seen = Seen(cluster)
    try:
        yield seen
    finally:
        seen.end()


@contextmanager
def spark_query(cluster: Cluster, directory: Path) -> Iterator[Path | None]:
    """It copies the topic until the end, and then what is left: its log. None: it is not asked for."""
    if not WITH_SPARK:
        yield None
        return
    log = directory / "spark.log"
    words = ["--bootstrap", cluster.bootstrap, "--state", str(directory / "checkpoint"), "--source", TOPIC]
    query = ClientProcess("spark", "spark", log, lambda _life: ["tests.chaos.spark_job", *words, "--sink", COPY])
    query.start()
    try:
        yield log
        assert finish_all([query], PATIENT_MS / 1000) == []
    finally:
        query.kill()


def whole(cluster: Cluster, topic: str) -> Counter[bytes]:
    """Every value of the topic, and how often it is there."""
    there: Counter[bytes] = Counter()
    with Reader(cluster.bootstrap) as reader:
        for number, (start, end) in cluster.admin.offsets(topic).items():
            for batch in reader.read(topic, number, start, end):
                there.update(batch.column("value").to_pylist())
    return there


@pytest.fixture
def apart(tmp_path: Path) -> Iterator[FireCluster]:
    """Three brokers whose links can be cut."""
    cluster = FireCluster(tmp_path / "apart", http=True)
    try:
        cluster.start()
        cluster.admin.create_topic(TOPIC, partitions=PARTITIONS, replicas=3, min_insync_replicas=2)
        cluster.wait_for_isr(TOPIC, 3)
        yield cluster
    finally:
        cluster.stop()


def without_links(cluster: FireCluster, kubelet: Kubelet, number: int) -> None:
    """It is restarted, and reaches clients and ZooKeeper, but no broker: it cannot catch up."""
    kubelet.end(number)
    for other in cluster.ids:
        if other != number:
            cluster.network.cut(str(number), str(other))
    cluster.brokers[number].start()
    wait_until(lambda: kubelet.probe("livenessProbe", number), f"broker {number} lives", 60)


def test_nobody_is_restarted_before_the_one_before_has_caught_up(apart: FireCluster) -> None:
    kubelet = Kubelet(apart)
    without_links(apart, kubelet, 3)
    address = apart.brokers[3].http
    wait_until(lambda: "not in sync yet" in answer_of(address, "/readyz"), "broker 3 says that it is not in sync", 60)
    assert not kubelet.probe("readinessProbe", 3)
    apart.network.mend_all()
    assert kubelet.until_ready(3)
    with seen_meanwhile(apart) as seen:
        kubelet.end(2)
        apart.brokers[2].start()
        assert kubelet.until_ready(2)
    assert seen.under == []


def answer_of(address: str, path: str) -> str:
    try:
        with switch.opened(address, path, 10) as answer:
            text: str = answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            text = error.read().decode()
    return text


def test_the_manifest_gives_a_broker_what_a_broker_knows() -> None:
    known = {name for option in broker.params for name in option.opts}
    assert {each.partition("=")[0] for each in container()["args"]} <= known
    stop_s = next(int(each.partition("=")[2]) for each in arguments() if each.startswith("--stop-timeout-ms")) / 1000
    assert stop_s < stateful_set()["template"]["spec"]["terminationGracePeriodSeconds"]
    assert stateful_set()["podManagementPolicy"] == "Parallel"
