"""Brokers as processes: a producer that takes all it gets is held to its quota, and another one does not feel it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path

import pytest

from mq_client import AclRule, Producer, Reader, RecordMetadata, Security
from mq_dev.certificates import Authority, write_client
from tests.cluster.harness import Cluster

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(240)]

TOPIC = "t"
GREEDY_KIB_S_MAX = 512
"""Its quota at each broker; a third of what it writes without one, where a busy machine lets it write less."""

RECORD_BYTES = 20_000
LASTS_S = 3.0
FREE_S = 1.0
BROKERS = 3
MESSAGE_KIB_MAX = 1024 + 64
"""A batch of the producer, by default."""

AHEAD_MAX = 100
"""Records that the greedy one has published and not seen acknowledged."""


class Greedy:
    """Owns a producer at work in a thread, which publishes as fast as it may. `acknowledged`: numbers of records."""

    def __init__(self, cluster: Cluster, certs: Path, topic: str) -> None:
        self._topic = topic
        self.acknowledged: list[int] = []
        self._over = threading.Event()
        self._producer = Producer(cluster.bootstrap, security=Security(certs, "greedy"), publish_ms_max=60_000)
        self._thread = threading.Thread(target=self._write)
        self._thread.start()

    def _write(self) -> None:
        waiting: list[Future[RecordMetadata]] = []
        number = 0
        while not self._over.is_set():
            waiting.append(self._producer.publish(self._topic, str(number).zfill(RECORD_BYTES)))
            number += 1
            if len(waiting) >= AHEAD_MAX:
                waiting.pop(0).result(60)
                self.acknowledged.append(number - AHEAD_MAX)
        for place, future in enumerate(waiting):
            future.result(60)
            self.acknowledged.append(number - len(waiting) + place)

    def end(self) -> None:
        self._over.set()
        self._thread.join(90)
        assert not self._thread.is_alive()
        self._producer.close()


def waits_s(cluster: Cluster, certs: Path, topic: str, seconds: float) -> list[float]:
    """Of somebody who publishes a small record now and then: how long each took to be acknowledged."""
    found = []
    with Producer(cluster.bootstrap, security=Security(certs, "modest"), linger_ms=0) as producer:
        producer.publish(topic, "first").result(30)
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            began = time.monotonic()
            producer.publish(topic, "modest").result(30)
            found.append(time.monotonic() - began)
    return sorted(found)


def test_a_greedy_producer_has_its_rate_and_a_modest_one_all_it_needs(
    start_cluster: Callable[..., Cluster], tmp_path: Path
) -> None:
    cluster = start_cluster(certs=tmp_path / "certs")
    authority = Authority.open(tmp_path / "certs", tmp_path / "certs.ca.key")
    for who in ("greedy", "modest"):
        write_client(authority, tmp_path / "certs", who)
    admin = cluster.admin
    for topic in ("free", TOPIC):
        admin.create_topic(topic, partitions=3, replicas=3, durability="os")
        admin.alter_acls(
            [AclRule(f"User:{who}", what, "Topic", topic) for who in ("greedy", "modest") for what in ("Read", "Write")]
        )
    free_kib, free_s, _ = run(cluster, tmp_path / "certs", "free", FREE_S)
    quota_kib_s = min(GREEDY_KIB_S_MAX, int(free_kib / free_s / (3 * BROKERS)))
    assert quota_kib_s >= 16, "it writes too little without a quota: nothing would be shown"
    assert admin.set_quotas("User:greedy", produce=f"{quota_kib_s}KiB/s") == ()
    sent_kib, took_s, waits = run(cluster, tmp_path / "certs", TOPIC, LASTS_S)

    rate = BROKERS * quota_kib_s
    assert sent_kib < rate * (took_s + 1) + BROKERS * MESSAGE_KIB_MAX, "a second's worth, and a message ahead, at each"
    assert sent_kib > rate * took_s / 4, "it is slowed down, not stopped"
    assert waits[len(waits) // 2] < 1, "the modest one goes on, also beside other load"


def run(cluster: Cluster, certs: Path, topic: str, seconds: float) -> tuple[float, float, list[float]]:
    """Both at work for so long: KiB that the greedy one was acknowledged, how many seconds that took, and how long each
    record of the modest one took. All of it is there once."""
    greedy = Greedy(cluster, certs, topic)
    began = time.monotonic()
    try:
        waits = waits_s(cluster, certs, topic, seconds)
    finally:
        greedy.end()
    took_s = time.monotonic() - began
    check_each_is_there_once(cluster, topic, greedy.acknowledged, len(waits) + 1)
    return len(greedy.acknowledged) * RECORD_BYTES / 1024, took_s, waits


def check_each_is_there_once(cluster: Cluster, topic: str, numbers: list[int], others: int) -> None:
    found: list[int] = []
    modest = 0
    with Reader(cluster.bootstrap, security=cluster.security) as reader:
        for partition, (start, end) in cluster.admin.offsets(topic).items():
            for batch in reader.read(topic, partition, start, end):
                for value in batch.column("value").to_pylist():
                    if len(value) == RECORD_BYTES:
                        found.append(int(value[-20:]))
                    else:
                        modest += 1
    assert sorted(found) == numbers == list(range(len(numbers)))
    assert modest == others
