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
GREEDY_KIB_S = 512
RECORD_BYTES = 20_000
LASTS_S = 4.0
AHEAD_MAX = 100
"""Records that the greedy one has published and not seen acknowledged."""


class Greedy:
    """Owns a producer at work in a thread, which publishes as fast as it may. `acknowledged`: numbers of records."""

    def __init__(self, cluster: Cluster, certs: Path) -> None:
        self.acknowledged: list[int] = []
        self._over = threading.Event()
        self._producer = Producer(cluster.bootstrap, security=Security(certs, "greedy"), publish_ms_max=60_000)
        self._thread = threading.Thread(target=self._write)
        self._thread.start()

    def _write(self) -> None:
        waiting: list[Future[RecordMetadata]] = []
        number = 0
        while not self._over.is_set():
            waiting.append(self._producer.publish(TOPIC, str(number).zfill(RECORD_BYTES)))
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


def waits_s(cluster: Cluster, certs: Path, seconds: float) -> list[float]:
    """Of somebody who publishes a small record now and then: how long each took to be acknowledged."""
    found = []
    with Producer(cluster.bootstrap, security=Security(certs, "modest"), linger_ms=0) as producer:
        producer.publish(TOPIC, "first").result(30)
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            began = time.monotonic()
            producer.publish(TOPIC, "modest").result(30)
            found.append(time.monotonic() - began)
            time.sleep(0.01)
    return sorted(found)


def test_a_greedy_producer_has_its_rate_and_a_modest_one_all_it_needs(
    start_cluster: Callable[..., Cluster], tmp_path: Path
) -> None:
    cluster = start_cluster(certs=tmp_path / "certs")
    authority = Authority.open(tmp_path / "certs", tmp_path / "certs.ca.key")
    for who in ("greedy", "modest"):
        write_client(authority, tmp_path / "certs", who)
    admin = cluster.admin
    admin.create_topic(TOPIC, partitions=3, replicas=3, durability="os")
    admin.alter_acls(
        [AclRule(f"User:{who}", what, "Topic", TOPIC) for who in ("greedy", "modest") for what in ("Read", "Write")]
    )
    assert admin.set_quotas("User:greedy", produce=f"{GREEDY_KIB_S}KiB/s") == ()
    greedy = Greedy(cluster, tmp_path / "certs")
    began = time.monotonic()
    try:
        waits = waits_s(cluster, tmp_path / "certs", LASTS_S)
    finally:
        greedy.end()
    took = time.monotonic() - began

    assert waits[len(waits) // 2] < 1, "the modest one goes on, also beside other load"
    assert waits[-1] < 5
    sent_kib = len(greedy.acknowledged) * RECORD_BYTES / 1024
    assert sent_kib < 3 * GREEDY_KIB_S * (took + 3), "three brokers, each with a second's worth and a batch ahead"
    assert sent_kib > 3 * GREEDY_KIB_S, "it is slowed down, not stopped"
    check_each_is_there_once(cluster, greedy.acknowledged, len(waits) + 1)


def check_each_is_there_once(cluster: Cluster, numbers: list[int], others: int) -> None:
    found: list[int] = []
    modest = 0
    with Reader(cluster.bootstrap, security=cluster.security) as reader:
        for partition, (start, end) in cluster.admin.offsets(TOPIC).items():
            for batch in reader.read(TOPIC, partition, start, end):
                for value in batch.column("value").to_pylist():
                    if len(value) == RECORD_BYTES:
                        found.append(int(value[-20:]))
                    else:
                        modest += 1
    assert sorted(found) == numbers == list(range(len(numbers)))
    assert modest == others
