"""How far behind a group is can be asked at any time: also in the seconds in which a partition has lost its leader."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from mq_client import Producer
from mq_client.cluster.channels import call_unary
from mq_client.cluster.connection import Connection
from mq_client.cluster.deadline import Deadline
from mq_client.cluster.requests import move_cursors
from mq_protocol import mq_pb2 as pb
from tests import switch
from tests.cluster.harness import Cluster, wait_until
from tests.mq_cli.processes import tritonmq

pytestmark = pytest.mark.cluster


def test_lag_is_told_by_followers_until_there_is_a_leader_again(start_cluster: Callable[..., Cluster]) -> None:
    cluster = start_cluster(3, arguments=("--session-timeout-ms", "10000"))  # what is told before they elect another
    cluster.admin.create_topic("t", partitions=1, replicas=3, durability="os")
    with Producer(cluster.bootstrap) as producer:
        for number in range(10):
            producer.publish("t", b"%d" % number)
    move_cursors(Connection(cluster.bootstrap), "q", {"t": {0: 4}}, Deadline(10_000), kind="spark")
    leader = cluster.leader("t")
    (before,) = cluster.admin.describe_group("q").cursors
    assert (before.offset, before.lag, before.kind, before.leads) == (4, 6, "spark", True)
    for broker in set(cluster.brokers) - {leader}:
        address = cluster.brokers[broker].address
        wait_until(lambda: offsets_of("q", address) == [4], f"broker {broker} knows the group's place")  # noqa: B023

    cluster.kill(leader)
    described = cluster.admin.describe_group("q")
    (cursor,) = described.cursors
    assert (cursor.offset, cursor.lag, cursor.lag_bytes) == (4, 6, before.lag_bytes)
    assert (cursor.leads, described.silent) == (False, (cluster.brokers[leader].address,))
    listed = tritonmq("group", "list", "--json", "--bootstrap", cluster.bootstrap)
    assert listed.returncode == 0
    assert [(group["name"], group["lag"]) for group in json.loads(listed.stdout)] == [("q", 6)]

    wait_until(lambda: cluster.admin.describe_group("q").cursors[0].leads, "a leader answers for the group")
    assert cluster.admin.describe_group("q").lag == 6


def offsets_of(group: str, address: str) -> list[int]:
    """As the broker there knows them."""
    answer = call_unary(address, "Groups", pb.GroupsRequest(group=group), pb.GroupsResponse, 5.0, switch.client())
    return [cursor.offset for cursor in answer.cursors]
