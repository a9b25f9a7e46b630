"""How far behind a group is can be asked at any time: also in the seconds in which a partition has lost its leader."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from mq_client import Producer
from mq_client.cluster.connection import Connection
from mq_client.cluster.deadline import Deadline
from mq_client.cluster.lines import call_unary
from mq_client.cluster.requests import move_cursors
from mq_client.shown.descriptions import GroupCursor
from mq_protocol import mq_pb2 as pb
from tests import switch
from tests.cluster.harness import Cluster, wait_until
from tests.mq_cli.processes import tritonmq

pytestmark = pytest.mark.cluster


def test_lag_is_told_by_followers_until_there_is_a_leader_again(start_cluster: Callable[..., Cluster]) -> None:
    # One that can be away: as long as it is, they elect nobody
    cluster = start_cluster(3, zookeeper=True, arguments=("--session-timeout-ms", "2000"))
    cluster.admin.create_topic("t", partitions=1, replicas=3, durability="os")
    with Producer(cluster.bootstrap) as producer:
        for number in range(10):
            producer.publish("t", b"%d" % number)
    move_cursors(Connection(cluster.bootstrap), "q", {"t": {0: 4}}, Deadline(10_000), kind="spark")
    cluster.stop_zookeeper()
    (before,) = wait_until(lambda: told_by_a_leader(cluster), "its leader tells of the group")
    assert (before.offset, before.lag, before.kind) == (4, 6, "spark")
    for broker, process in cluster.brokers.items():
        wait_until(
            lambda at=process.address: places_of("q", at) == [(4, 10)],
            f"broker {broker} knows the group's place and the end",
        )

    leader = cluster.leader("t")
    cluster.kill(leader)
    silent = (cluster.brokers[leader].address,)
    wait_until(lambda: cluster.admin.describe_group("q").silent == silent, "the others answer")
    (cursor,) = cluster.admin.describe_group("q").cursors
    assert (cursor.offset, cursor.lag, cursor.lag_bytes, cursor.leads) == (4, 6, before.lag_bytes, False)
    listed = tritonmq("group", "list", "--json", "--bootstrap", cluster.bootstrap)
    assert listed.returncode == 0
    assert [(group["name"], group["lag"]) for group in json.loads(listed.stdout)] == [("q", 6)]

    cluster.start_zookeeper()
    (after,) = wait_until(lambda: told_by_a_leader(cluster), "a leader answers for the group")
    assert after.lag == 6


def told_by_a_leader(cluster: Cluster) -> tuple[GroupCursor, ...]:
    """The group's cursor, if so."""
    return tuple(cursor for cursor in cluster.admin.describe_group("q").cursors if cursor.leads)


def places_of(group: str, address: str) -> list[tuple[int, int]]:
    """As the broker there knows them, each with the end of its log."""
    answer = call_unary(address, "Groups", pb.GroupsRequest(group=group), pb.GroupsResponse, 5.0, switch.client())
    return [(cursor.offset, cursor.log_end_offset) for cursor in answer.cursors]
