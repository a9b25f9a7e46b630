"""Leaders are killed while dead letters are sent: each record that was rejected is one letter, and no other is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator

import pyarrow as pa
import pytest

from mq_client import Producer, Queue, Reader
from tests.cluster.harness import Cluster, wait_until

pytestmark = pytest.mark.cluster

QUICK = ("--session-timeout-ms", "2000")
RECORDS = 1_200
REJECTED = {b"%d" % number for number in range(0, RECORDS, 2)}


@pytest.mark.long
def test_each_dead_letter_is_there_once_though_leaders_are_killed_meanwhile(
    start_cluster: Callable[..., Cluster],
) -> None:
    cluster = start_cluster(3, arguments=QUICK)
    cluster.admin.create_topic("t", partitions=1, replicas=3, durability="os")
    cluster.admin.declare_queue("t", "g")
    with Producer(cluster.bootstrap) as producer:
        for number in range(RECORDS):
            producer.publish("t", b"%d" % number)
    kills = {RECORDS // 4: "t", RECORDS * 3 // 4: "t.dead"}
    seen: Counter[bytes] = Counter()
    with Queue(cluster.bootstrap, "t", "g", in_flight_max=100, idle_ms=15_000) as queue:
        for record in queue:
            assert record.value is not None
            seen[record.value] += 1
            if record.value in REJECTED:
                record.reject("it is even")
            else:
                record.ack()
            topic = kills.pop(len(seen), None)
            if topic is not None:
                killed = cluster.leader(topic)
                cluster.kill(killed)
                cluster.wait_for_leaders("t", other_than=killed)
                cluster.restart(killed)
            if len(seen) == RECORDS:
                break

    def settled() -> bool:
        found = cluster.admin.describe_queue("t", "g")
        return (found.ready, found.leased, found.doomed, found.parked) == (0, 0, 0, 0)

    wait_until(settled, "every record is settled")
    letters = wait_until(lambda: all_there(cluster), "every letter is there")
    assert set(letters) == REJECTED
    assert set(letters.values()) == {1}
    assert cluster.admin.describe_queue("t", "g").accepted == RECORDS - len(REJECTED)


def all_there(cluster: Cluster) -> Counter[bytes] | None:
    with Reader(cluster.bootstrap) as reader:
        letters = Counter(values(reader.read("t.dead", 0)))
    return letters if len(letters) >= len(REJECTED) else None


def values(batches: Iterator[pa.RecordBatch]) -> Iterator[bytes]:
    for batch in batches:
        yield from batch.column("value").to_pylist()
