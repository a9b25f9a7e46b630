"""What brokers count is what a test counted itself, through the death of a leader."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from mq_client import Admin, Producer, Reader
from mq_dev.local_cluster import LocalCluster
from tests import switch
from tests.mq_broker.broker.metrics.test_exposition import Samples, of, read

pytestmark = pytest.mark.cluster

DEADLINE_S = 60.0


def scrape(cluster: LocalCluster, broker: int) -> Samples:
    with switch.opened(cluster.brokers[broker].http, "/metrics", 10) as answer:
        return read(answer.read())


def total(seen: dict[int, Samples], name: str, **labels: str) -> float:
    return sum(each.get(name, {}).get(of(**labels), 0) for each in seen.values())


def wait_for(
    cluster: LocalCluster, brokers: list[int], good: Callable[[dict[int, Samples]], bool]
) -> dict[int, Samples]:
    deadline = time.monotonic() + DEADLINE_S
    while True:
        seen = {broker: scrape(cluster, broker) for broker in brokers}
        if good(seen):
            return seen
        assert time.monotonic() < deadline, seen
        time.sleep(0.2)


def publish(cluster: LocalCluster, records: int) -> None:
    with Producer(cluster.bootstrap) as producer:
        futures = [producer.publish("t", value=b"x" * 100, key=str(n).encode()) for n in range(records)]
        for future in futures:
            future.result(60)


def test_counters_are_what_was_sent_and_read_through_a_kill(tmp_path: Path) -> None:
    records_in = "topic_records_in_total"
    with LocalCluster(tmp_path, 3, http=True) as cluster:
        admin = Admin(cluster.bootstrap, timeout_ms=60_000)
        admin.create_topic("t", partitions=3, replicas=3)
        publish(cluster, 3_000)
        before = wait_for(
            cluster,
            [1, 2, 3],
            lambda seen: (
                total(seen, records_in, topic="t") == total(seen, "topic_records", topic="t") == 3_000
                and total(seen, "partitions", role="leader") == 3
                and all(each["link_up"] and set(each["link_up"].values()) == {1} for each in seen.values())
            ),
        )

        dead = admin.describe_topic("t").partitions[0].leader
        led = total({dead: before[dead]}, records_in, topic="t")
        assert led > 0
        cluster.kill(dead)
        left = [broker for broker in (1, 2, 3) if broker != dead]
        publish(cluster, 2_000)
        after = wait_for(
            cluster,
            left,
            lambda seen: (
                total(seen, "topic_records", topic="t") == 5_000
                # Those who lead now have not counted again what the dead broker had
                and total(seen, records_in, topic="t") == 5_000 - led
            ),
        )
        for broker in left:
            one = {broker: before[broker]}, {broker: after[broker]}
            assert total(one[1], records_in, topic="t") >= total(one[0], records_in, topic="t")
        under = wait_for(
            cluster,
            left,
            lambda seen: (
                total(seen, "partitions_under_replicated") >= 3
                and all(each["brokers_live"][()] == 2 for each in seen.values())  # each of them hears of it by itself
            ),
        )
        assert total(under, "isr_changes_total", change="shrunk") >= 3
        assert total(after, "leaderships_total", event="taken") >= 3

        reader = Reader(cluster.bootstrap)
        offsets = admin.offsets("t")
        rows = sum(batch.num_rows for p, (start, end) in offsets.items() for batch in reader.read("t", p, start, end))
        assert rows == 5_000
        sent = lambda seen: total(seen, "topic_bytes_out_total", topic="t", to="fetch")  # noqa: E731
        wait_for(cluster, left, lambda seen: sent(seen) == total(seen, "topic_bytes", topic="t"))

        cluster.restart(dead)
        wait_for(  # leaders may change once it is back, and whoever leads tells the records
            cluster,
            [1, 2, 3],
            lambda seen: (
                total(seen, "partitions_under_replicated") == 0 and total(seen, "topic_records", topic="t") == 5_000
            ),
        )


@pytest.mark.long
def test_partitions_without_a_leader_are_told_by_the_brokers_that_live(tmp_path: Path) -> None:
    """What the rule PartitionWithoutLeader needs: a broker that can be scraped tells more than 0 while it is so."""
    unled = "partitions_without_leader"
    with LocalCluster(tmp_path, 3, http=True) as cluster:
        admin = Admin(cluster.bootstrap, timeout_ms=60_000)
        admin.create_topic("alone", partitions=3, replicas=1)  # one on each broker
        admin.create_topic("two", partitions=3, replicas=3, min_insync_replicas=2)  # and each leads one
        wait_for(cluster, [1, 2, 3], lambda seen: total(seen, "partitions", role="leader") == 6)
        wait_for(cluster, [1, 2, 3], lambda seen: [each[unled][()] for each in seen.values()] == [0, 0, 0])

        # Of the first topic one partition is on the dead broker only: both others say so
        cluster.kill(3)
        wait_for(cluster, [1, 2], lambda seen: [each[unled][()] for each in seen.values()] == [1, 1])

        # Of the other topic broker 1 is left, and must not serve the partition that broker 2 led: it knows no end of it
        cluster.kill(2)
        wait_for(cluster, [1], lambda seen: seen[1][unled][()] >= 3)
        cluster.restart(2, wait=False)
        cluster.restart(3, wait=False)
        cluster.wait_until_serving()
        wait_for(cluster, [1, 2, 3], lambda seen: [each[unled][()] for each in seen.values()] == [0, 0, 0])
