"""Every kind of client at work while leaders are killed and stopped: nothing lost, nothing twice, order kept, no
error."""

from __future__ import annotations

import functools
import threading
from collections import Counter
from collections.abc import Callable

import pytest

from mq_client import Consumer, ConsumerRecord, Producer, Reader
from mq_client.cluster.deadline import Deadline
from mq_client.cluster.offset_watch import OffsetWatch
from mq_client.producing.futures import RecordFuture
from tests.cluster.harness import Cluster, wait_until

pytestmark = pytest.mark.cluster

PARTITIONS = 3
QUICK = ("--session-timeout-ms", "2000")


class Traffic:
    """Owns a producer that publishes numbers, to the partitions in turn, until told to stop."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self.sent: list[RecordFuture] = []
        self._producer = Producer(bootstrap, timeout_ms=60_000, linger_ms=2)
        self._topic = topic
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stopping.wait(0.0005):
            number = len(self.sent)
            self.sent.append(self._producer.publish(self._topic, b"%d" % number, partition=number % PARTITIONS))

    def until_acknowledged(self, more: int = 300) -> None:
        """Until that many records published from now on are acknowledged."""
        last = len(self.sent) + more
        wait_until(lambda: len(self.sent) > last, "records are published")
        self.sent[last].result(60)

    def end(self) -> list[RecordFuture]:
        """Stop, and wait for every answer. Raises if any record failed."""
        self._stopping.set()
        self._thread.join()
        self._producer.flush(60_000)
        self._producer.close()
        return self.sent


class Listening:
    """Owns a consumer and the records it was given."""

    def __init__(self, consumer: Consumer, topic: str) -> None:
        self.records: list[ConsumerRecord] = []
        self._consumer = consumer
        consumer.subscribe(topic)
        consumer.start()
        self._thread = threading.Thread(target=lambda: self.records.extend(consumer), daemon=True)
        self._thread.start()

    def end(self) -> None:
        self._consumer.stop()
        self._thread.join(10)


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
    alone = Listening(from_the_first(), "t")
    beside = [Listening(from_the_first(), "t") for _ in range(2)]
    members = [Listening(from_the_first(group="g", settle_ms=50), "t") for _ in range(2)]
    traffic = Traffic(cluster.bootstrap, "t")
    traffic.until_acknowledged()
    for hurt in (kill, stop):
        mend = hurt(cluster, "t")
        traffic.until_acknowledged()
        mend()
        traffic.until_acknowledged()
        cluster.wait_for_isr("t", 3)
    futures = traffic.end()
    count = len(futures)

    wait_until(lambda: len(alone.records) >= count, "the consumer has everything")
    wait_until(
        lambda: len({int(r.value) for m in members for r in list(m.records)}) == count, "the group has everything"
    )
    # Each partition is pushed in order: what should not come would come before these
    with Producer(cluster.bootstrap) as producer:
        futures += [
            producer.publish("t", b"%d" % n, partition=n % PARTITIONS) for n in range(count, count + PARTITIONS)
        ]
    wait_until(
        lambda: {int(r.value) for r in list(alone.records)} >= set(range(count, count + PARTITIONS)), "the last of each"
    )
    count += PARTITIONS
    wait_until(
        lambda: len({int(r.value) for m in members for r in list(m.records)}) == count, "the group has these too"
    )
    wait_until(lambda: all(len(other.records) >= count for other in beside), "those who are fed with it have them too")
    for listening in (alone, *beside, *members):
        listening.end()
    for other in beside:
        assert by_partition(other.records) == by_partition(alone.records), "the same records in the same order"
    by_place = {(record.partition, record.offset): record.value for record in alone.records}
    assert len(by_place) == len(alone.records) == count, "each record once"
    for number, future in enumerate(futures):
        placed = future.result(0)
        assert by_place[placed.partition, placed.offset] == b"%d" % number
    for partition, given in enumerate(by_partition(alone.records)):
        assert [int(record.value) for record in given] == list(range(partition, count, PARTITIONS)), "in order"
    seen = Counter(int(record.value) for member in members for record in member.records)
    assert set(seen) == set(range(count)), "a group is given each record at least once"
    ends = cluster.admin.offsets("t")
    assert sum(end for _, end in ends.values()) == count
    wait_until(lambda: watch.latest()["t"] == ends, "the watch knows every end")
    watch.close()
    for partition, (start, end) in ends.items():
        assert read(cluster, partition, start, end) == list(range(partition, count, PARTITIONS))
