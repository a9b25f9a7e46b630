"""Leases of a queue group and a leader that is killed: real processes, the methods spoken by hand."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from mq_client import Producer, TritonMQError
from mq_client.cluster.channels import call_unary
from mq_protocol import mq_pb2 as pb
from mq_protocol.methods import BROKER
from tests import switch
from tests.cluster.harness import Cluster, wait_until

pytestmark = pytest.mark.cluster

TOPIC, GROUP = "jobs", "workers"
RECORDS = 2_000


class Member:
    """One member, which asks whoever leads until it is answered. `settled`: the offsets whose acknowledgement was
    answered; `lent`: all that it was lent, in order; `again`: what was lent though its acknowledgement had been
    answered before."""

    def __init__(self, cluster: Cluster, name: str) -> None:
        self._cluster = cluster
        self._name = name
        self._leader = ""
        self.held: list[pb.LeaseId] = []
        self.settled: set[int] = set()
        self.lent: list[int] = []
        self.again: list[int] = []

    def _ask(self, method: str, request: Any) -> Any:
        def answered() -> Any:
            self._leader = self._leader or self._cluster.brokers[self._cluster.leader(TOPIC)].address
            try:
                return call_unary(self._leader, method, request, BROKER.methods[method].response, 5, switch.client())
            except TritonMQError:
                self._leader = ""
                raise

        return wait_until(answered, f"an answer to {method}")

    def lease(self, records_max: int) -> pb.LeaseResponse:
        request = pb.LeaseRequest(
            topic=TOPIC,
            group=GROUP,
            member=self._name,
            member_key=self._name.encode() * 16,
            records_max=records_max,
            wait_ms=200,
            held=self.held,
        )
        response: pb.LeaseResponse = self._ask("Lease", request)
        if response.HasField("lease"):
            self.held.append(response.lease)
        for offset in offsets_of(response.ranges):
            self.lent.append(offset)
            if offset in self.settled:
                self.again.append(offset)
        return response

    def ack(self, lease: pb.LeaseId, ranges: Sequence[int]) -> list[int]:
        """Which of them were lost."""
        request = pb.SettleRequest(
            topic=TOPIC,
            group=GROUP,
            member=self._name,
            settles=[pb.SettleOne(lease=lease, ranges=ranges)],
        )

        def done() -> Any:
            [answer] = self._ask("Settle", request).answers
            return None if answer.HasField("error") else answer

        answer = wait_until(done, "an acknowledgement")
        lost = offsets_of(answer.lost)
        self.settled.update(set(offsets_of(ranges)) - set(lost))
        return lost


def offsets_of(gaps: Sequence[int]) -> list[int]:
    at = 0
    offsets: list[int] = []
    for gap, length in zip(gaps[::2], gaps[1::2], strict=True):
        offsets += range(at + gap, at + gap + length)
        at += gap + length
    return offsets


def test_after_its_leader_is_killed_nothing_that_is_settled_comes_again_and_members_keep_their_leases(
    start_cluster: Callable[..., Cluster],
) -> None:
    cluster = start_cluster(arguments=("--session-timeout-ms", "1500"))
    cluster.admin.create_topic(TOPIC, partitions=1, replicas=3)
    with Producer(cluster.bootstrap) as producer:
        for future in [producer.publish(TOPIC, str(n), partition=0) for n in range(RECORDS)]:
            future.result(60)
    keeper, worker = Member(cluster, "a"), Member(cluster, "b")
    declare(cluster)
    kept = keeper.lease(50)
    assert len(offsets_of(kept.ranges)) == 50
    first = cluster.leader(TOPIC)
    killed = threading.Thread(target=kill_once, args=(cluster, first, worker))
    killed.start()
    while len(worker.settled) < RECORDS - 50:
        response = worker.lease(20)
        if response.HasField("lease"):
            assert worker.ack(response.lease, response.ranges) == []
            worker.held.remove(response.lease)
    killed.join(60)
    assert cluster.leader(TOPIC) != first
    assert worker.again == []
    assert set(worker.lent).isdisjoint(offsets_of(kept.ranges)), "they are still lent to the other one"
    assert keeper.lease(1).gone == []
    assert keeper.ack(kept.lease, kept.ranges) == []
    assert worker.settled | keeper.settled == set(range(RECORDS))


def kill_once(cluster: Cluster, leader: int, worker: Member) -> None:
    """In the middle of its work."""
    wait_until(lambda: len(worker.settled) > RECORDS // 4, "a quarter is settled")
    cluster.brokers[leader].kill()


def declare(cluster: Cluster) -> None:
    cluster.admin.declare_queue(TOPIC, GROUP, lease_ms="10m")
