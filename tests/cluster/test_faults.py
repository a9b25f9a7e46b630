"""Real processes, killed and paused: what was acknowledged is there, once, and in order. One fault a test, each in
seconds."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from mq_client import Reader
from tests.cluster.harness import Cluster, wait_until
from tests.cluster.traffic import Traffic

pytestmark = pytest.mark.cluster

SHORT_SESSIONS = ("--session-timeout-ms", "1500")
TOPIC = "numbers"

StartCluster = Callable[..., Cluster]


def expect_exactly_what_was_acknowledged(cluster: Cluster, load: Traffic) -> None:
    start, _ = cluster.admin.offsets(TOPIC)[0]
    with Reader(cluster.bootstrap) as reader:
        stored = [int(value) for batch in reader.read(TOPIC, 0, start) for value in batch.column("value").to_pylist()]
    assert stored == list(range(len(load.sent)))


def test_a_killed_leader_loses_nothing_and_doubles_nothing(start_cluster: StartCluster) -> None:
    """Not even what it had in memory alone. With logs on disks it is one of the faults of test_client_failover.py."""
    cluster = start_cluster(arguments=SHORT_SESSIONS)
    cluster.admin.create_topic(TOPIC, partitions=1, replicas=3, durability="memory")
    with Traffic(cluster.bootstrap, TOPIC) as load:
        load.until_acknowledged(200)
        leader = cluster.leader(TOPIC)
        cluster.kill(leader)
        load.until_acknowledged(200)
        cluster.wait_for_leaders(TOPIC, other_than=leader)
        cluster.restart(leader)
        cluster.wait_for_isr(TOPIC, 3)
        load.until_acknowledged(200)
    expect_exactly_what_was_acknowledged(cluster, load)


def test_all_brokers_killed_at_once_come_back_with_everything(start_cluster: StartCluster) -> None:
    cluster = start_cluster(arguments=SHORT_SESSIONS)
    cluster.admin.create_topic(TOPIC, partitions=1, replicas=3, durability="os")
    with Traffic(cluster.bootstrap, TOPIC) as load:
        load.until_acknowledged(400)
        cluster.kill_all()
        cluster.restart_all()
        load.until_acknowledged(200)
    cluster.wait_for_isr(TOPIC, 3)
    expect_exactly_what_was_acknowledged(cluster, load)


def test_brokers_serve_while_zookeeper_is_away_and_elect_when_it_is_back(start_cluster: StartCluster) -> None:
    cluster = start_cluster(arguments=SHORT_SESSIONS, zookeeper=True)
    cluster.admin.create_topic(TOPIC, partitions=1, replicas=3)
    with Traffic(cluster.bootstrap, TOPIC) as load:
        load.until_acknowledged(200)
        cluster.stop_zookeeper()
        wait_until(lambda: cluster.admin.describe_cluster().coordination == "suspended", "brokers that miss ZooKeeper")
        load.until_acknowledged(500)
        cluster.start_zookeeper()
        wait_until(
            lambda: cluster.admin.describe_cluster().coordination == "connected", "brokers that have ZooKeeper again"
        )
        leader = cluster.leader(TOPIC)  # another one, if sessions had ended meanwhile
        cluster.kill(leader)
        load.until_acknowledged(200)
        cluster.wait_for_leaders(TOPIC, other_than=leader)
    expect_exactly_what_was_acknowledged(cluster, load)
