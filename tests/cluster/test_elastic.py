"""Replicas, leaders and brokers come and go by command while records are written: nothing lost, nothing twice, no request fails."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.cluster.harness import Cluster, wait_until
from tests.cluster.test_faults import TOPIC, Load, expect_exactly_what_was_acknowledged

pytestmark = pytest.mark.cluster

SHORT_SESSIONS = ("--session-timeout-ms", "2000")

StartCluster = Callable[..., Cluster]


def replicas(cluster: Cluster, topic: str = TOPIC) -> dict[int, tuple[int, ...]]:
    return {partition.partition: partition.replicas for partition in cluster.admin.describe_topic(topic).partitions}


def wait_until_moved(cluster: Cluster) -> None:
    wait_until(lambda: not cluster.admin.moves(), "every move is over")


def test_a_partition_moves_to_other_brokers_while_it_is_written(start_cluster: StartCluster) -> None:
    cluster = start_cluster(4, arguments=SHORT_SESSIONS)
    cluster.admin.create_topic(TOPIC, partitions=1, replicas=2)
    before = replicas(cluster)[0]
    target = tuple(sorted({1, 2, 3, 4} - set(before)))
    with Load(cluster.bootstrap) as load:
        load.more(200)
        cluster.admin.move_partition(TOPIC, 0, target)
        load.more(200)
        wait_until_moved(cluster)
        load.more(200)
        assert replicas(cluster)[0] == target
        assert cluster.leader(TOPIC) == target[0]
        for broker in before:
            wait_until(lambda broker=broker: cluster.admin.needed_by(broker) == 0, f"broker {broker} is needed no more")
            data = cluster.brokers[broker].data_dir
            wait_until(lambda data=data: not list(data.rglob("*.journal")), "its replica is deleted")
    expect_exactly_what_was_acknowledged(cluster, load)
