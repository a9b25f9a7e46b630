"""Every kind of client at work while leaders are killed and stopped: nothing lost, nothing twice, order kept, no
error."""

from __future__ import annotations

import functools
from collections.abc import Callable

import pytest

from mq_client import Consumer, ConsumerRecord, Producer, Reader
from mq_client.cluster.deadline import Deadline
from mq_client.cluster.offset_watch import OffsetWatch
from tests.cluster.harness import Cluster, wait_until
from tests.cluster.traffic import Taking, Traffic

pytestmark = pytest.mark.cluster

PARTITIONS = 3
QUICK = ("--session-timeout-ms", "2000")


def listening(consumer: Consumer) -> Taking:
    consumer.subscribe("t")
    consumer.start()
    return Taking(consumer, consumer.stop)


def by_partition(records: list[ConsumerRecord]) -> list[list[ConsumerRecord]]:
    return [[record for record in records if record.partition == partition] for partition in range(PARTITIONS)]


def read(cluster: Cluster, partition: int, start: int, end: int) -> list[int]:
    with Reader(cluster.bootstrap) as reader:
        batches = list(reader.read("t", partition, start, end))
    return [int(value) for batch in batches for value in batch.column("value").to_pylist()]


def kill(cluster: Cluster, topic: str) -> Callable[[], None]:
    leader = cluster.leader(topic)
    cluster.kill(leader)
    cluster.wait_for_leaders(topic, other_than=leader)
    return lambda: cluster.restart(leader)


def stop(cluster: Cluster, topic: str) -> Callable[[], None]:
    """SIGSTOP: its connections stay open, and it wakes believing that it still leads."""
    leader = cluster.leader(topic)
    cluster.pause(leader)
    cluster.wait_for_leaders(topic, other_than=leader)
    return lambda: cluster.resume(leader)


def test_clients_survive_the_death_and_the_sleep_of_leaders(start_cluster: Callable[..., Cluster]) -> None:
    cluster = start_cluster(3, arguments=QUICK)
    cluster.admin.create_topic("t", partitions=PARTITIONS, replicas=3, durability="os")
    watch = OffsetWatch(cluster.bootstrap, ["t"])
    watch.wait_first(Deadline(10_000))
    from_the_first = functools.partial(Consumer, cluster.bootstrap, start="earliest")
    alone = listening(from_the_first())
    beside = [listening(from_the_first()) for _ in range(2)]
    members = [listening(from_the_first(group="g", settle_ms=50)) for _ in range(2)]
    traffic = Traffic(cluster.bootstrap, "t", PARTITIONS)
    traffic.until_acknowledged()
    for hurt in (kill, stop):
        mend = hurt(cluster, "t")
        traffic.until_acknowledged()
        mend()
        traffic.until_acknowledged()
        cluster.wait_for_isr("t", 3)
    count, futures = traffic.end(), traffic.sent

    wait_until(lambda: len(alone.records) >= count, "the consumer has everything")
    wait_until(lambda: len({n for m in members for n in m.numbers}) == count, "the group has everything")
    # Each partition is pushed in order: what should not come would come before these
    with Producer(cluster.bootstrap) as producer:
        futures += [
            producer.publish("t", b"%d" % n, partition=n % PARTITIONS) for n in range(count, count + PARTITIONS)
        ]
    wait_until(lambda: set(alone.numbers) >= set(range(count, count + PARTITIONS)), "the last of each")
    count += PARTITIONS
    wait_until(lambda: len({n for m in members for n in m.numbers}) == count, "the group has these too")
    wait_until(lambda: all(len(other.records) >= count for other in beside), "those who are fed with it have them too")
    for each in (alone, *beside, *members):
        each.end()
    for other in beside:
        assert by_partition(other.records) == by_partition(alone.records), "the same records in the same order"
    by_place = {(record.partition, record.offset): record.value for record in alone.records}
    assert len(by_place) == len(alone.records) == count, "each record once"
    for number, future in enumerate(futures):
        placed = future.result(0)
        assert by_place[placed.partition, placed.offset] == b"%d" % number
    for partition, given in enumerate(by_partition(alone.records)):
        assert [int(record.value) for record in given] == list(range(partition, count, PARTITIONS)), "in order"
    seen = {number for member in members for number in member.numbers}
    assert seen == set(range(count)), "a group is given each record at least once"
    ends = cluster.admin.offsets("t")
    assert sum(end for _, end in ends.values()) == count
    wait_until(lambda: watch.latest()["t"] == ends, "the watch knows every end")
    watch.close()
    for partition, (start, end) in ends.items():
        assert read(cluster, partition, start, end) == list(range(partition, count, PARTITIONS))
