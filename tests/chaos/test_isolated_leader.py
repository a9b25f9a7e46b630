"""A leader that nobody but the clients can reach: they find its successor, though it still says that it leads."""

from __future__ import annotations

from pathlib import Path

import pytest

from mq_client import Admin, Producer
from tests.chaos.cluster import FireCluster
from tests.chaos.network import ZOOKEEPER
from tests.cluster.harness import wait_until

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(240)]

AFTER_ELECTION_S = 60.0


def test_a_producer_leaves_a_leader_that_was_cut_off_from_all_but_clients(tmp_path: Path) -> None:
    cluster = FireCluster(tmp_path / "cluster", session_ms=2_000)
    try:
        cluster.start()
        cluster.admin.create_topic("t", partitions=1, replicas=3)
        former = cluster.leader("t")
        addresses = cluster.bootstrap.split(",")
        addresses.insert(0, addresses.pop(former - 1))  # it is asked first, and so has answered last
        with Producer(addresses, timeout_ms=90_000) as producer:
            producer.publish("t", b"before", partition=0).result(60)
            others = [str(number) for number in cluster.ids if number != former]
            for other in (*others, ZOOKEEPER):
                cluster.network.cut(str(former), other)
            with Admin(addresses[1:]) as admin:  # the isolated one would say itself
                wait_until(lambda: admin.describe_topic("t").partitions[0].leader not in (0, former), "a successor", 60)
            future = producer.publish("t", b"after", partition=0)
            try:
                future.result(AFTER_ELECTION_S)
            finally:
                cluster.network.mend_all()
    finally:
        cluster.stop()
