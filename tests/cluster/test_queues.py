"""A queue is worked off while leaders are killed: what was settled stays settled, and nobody is charged."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future

import pytest

from mq_client import LeasedRecord, Producer, Queue
from tests.cluster.harness import Cluster, wait_until

pytestmark = pytest.mark.cluster

QUICK = ("--session-timeout-ms", "2000")
RECORDS = 2_000


def test_a_killed_leader_charges_nobody_and_what_was_settled_does_not_come_again(
    start_cluster: Callable[..., Cluster],
) -> None:
    cluster = start_cluster(3, arguments=QUICK)
    cluster.admin.create_topic("t", partitions=3, replicas=3, durability="os")
    cluster.admin.declare_queue("t", "g")
    with Producer(cluster.bootstrap) as producer:
        for number in range(RECORDS):
            producer.publish("t", b"%d" % number, partition=number % 3)
    given: Counter[bytes] = Counter()
    settled: set[bytes] = set()
    acks: list[Future[None]] = []
    dead = 0
    with Queue(cluster.bootstrap, "t", "g", in_flight_max=100) as queue:
        for record in queue:
            assert record.value not in settled, "its acknowledgement was committed"
            assert record.failures == 0
            given[record.value] += 1
            ack = record.ack()
            ack.add_done_callback(lambda future, value=record.value: future.exception() or settled.add(value))
            acks.append(ack)
            if len(acks) == RECORDS // 2:
                dead = cluster.leader("t")
                cluster.kill(dead)
            if len(given) == RECORDS:
                break
        for ack in acks:
            ack.result(60)
    assert set(given) == {b"%d" % number for number in range(RECORDS)}
    assert dead

    def counts() -> tuple[int, ...]:
        found = cluster.admin.describe_queue("t", "g")
        return found.accepted, found.charged, found.ready, found.leased

    wait_until(lambda: counts() == (RECORDS, 0, 0, 0), "every partition has a leader, and all is settled")


@pytest.mark.long
def test_a_member_that_lives_through_three_failovers_in_a_row_is_redelivered_nothing(
    start_cluster: Callable[..., Cluster],
) -> None:
    cluster = start_cluster(3, arguments=QUICK)
    cluster.admin.create_topic("t", partitions=1, replicas=3, durability="os")
    cluster.admin.declare_queue("t", "g")
    held: list[LeasedRecord] = []

    def publish(count: int) -> None:
        with Producer(cluster.bootstrap) as producer:
            for number in range(count):
                producer.publish("t", b"%d" % number)

    def take(count: int) -> None:
        while len(held) < count:
            record = queue.take(30_000)
            assert record is not None
            assert (record.deliveries, record.failures) == (1, 0)
            held.append(record)

    publish(400)
    with Queue(cluster.bootstrap, "t", "g", in_flight_max=1_000) as queue:
        take(400)
        for round_ in range(3):
            dead = cluster.leader("t")
            cluster.kill(dead)
            for ack in [record.ack() for record in held[:100]]:
                ack.result(60)
            del held[:100]
            publish(50)
            take(350 - 50 * round_)
            cluster.restart(dead)
            cluster.wait_for_isr("t", 3)
        for ack in [record.ack() for record in held]:
            ack.result(60)
        [found] = wait_until(lambda: cluster.admin.describe_queue("t", "g"), "it has a leader").partitions
        assert (found.accepted, found.returned, found.charged, found.leased) == (550, 0, 0, 0)
