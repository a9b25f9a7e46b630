"""Spark as a member of a queue: a query whose driver is killed on the way, and a batch read. Real Spark, real
processes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

from pyspark.sql import SparkSession

import tritonmq
from mq_client import Admin, Producer
from mq_dev.local_cluster import LocalCluster
from tests.spark.sink_driver import work_off
from tests.spark.test_crashes import contents, driver_killed_at

ROWS = 350  # micro-batches 0 to 3: 100, 100, 100 and 50


def test_a_queue_is_worked_off_once_although_the_driver_is_killed_and_poison_rows_are_dead_letters(
    spark: SparkSession,
    cluster: LocalCluster,
    admin: Admin,
    producer: Producer,
    name: Callable[[str], str],
    tmp_path: Path,
) -> None:
    source, sink = name("in"), name("out")
    for topic, partitions in ((source, 2), (sink, 3), (f"{sink}.dead", 1)):
        admin.create_topic(topic, partitions=partitions, replicas=1)
    for number in range(ROWS):
        value = f"rubbish {number}" if number % 70 == 7 else f'{{"n": {number}}}'
        producer.publish(source, value.encode(), key=f"{number % 17}".encode())
    producer.flush()
    job = [cluster.bootstrap, source, sink, str(tmp_path / "checkpoint")]

    with driver_killed_at("after_decide", [*job, "leases"], tmp_path):
        leased = [partition.leased for partition in admin.describe_queue(source, "spark").partitions]
        assert sum(leased) == 100, "micro-batch 2 is decided, and Spark does not know it"
    work_off(spark, *job)

    assert contents(cluster.bootstrap, admin, sink) == Counter(f"{n}".encode() for n in range(ROWS) if n % 70 != 7)
    dead = contents(cluster.bootstrap, admin, f"{sink}.dead")
    assert dead == Counter(f"rubbish {n}".encode() for n in range(7, ROWS, 70))
    queue = admin.describe_queue(source, "spark").partitions
    assert [(each.ready, each.leased, each.returned) for each in queue] == [(0, 0, 0)] * 2
    assert sum(each.accepted for each in queue) == ROWS


def test_a_batch_read_leases_its_rows_once_and_settle_is_what_settles_them(
    spark: SparkSession, cluster: LocalCluster, admin: Admin, producer: Producer, name: Callable[[str], str]
) -> None:
    topic = name("jobs")
    admin.create_topic(topic, partitions=2, replicas=1)
    for number in range(10):
        producer.publish(topic, f"{number}".encode(), key=f"{number}".encode())
    producer.flush()
    options = {"bootstrap.servers": cluster.bootstrap, "subscribe": topic, "lease.group": "batch"}

    def counts() -> tuple[int, int, int]:
        parts = admin.describe_queue(topic, "batch").partitions
        return sum(p.ready for p in parts), sum(p.leased for p in parts), sum(p.accepted for p in parts)

    jobs = spark.read.format("tritonmq").options(**options, **{"lease.rows": "6"}).load()
    assert counts() == (4, 6, 0), "one lease for one load"
    rows = {row.value for row in jobs.collect()}
    assert len(rows) == 6
    producer.publish(topic, b"later", key=b"later").result(30)
    odd = jobs.where("cast(cast(value as string) as int) % 2 = 1").select("value")
    assert {row.value for row in odd.collect()} == {value for value in rows if int(value) % 2}
    assert jobs.count() == 6
    assert counts() == (5, 6, 0), "reading settles nothing"
    assert tritonmq.settle(odd) == 6, "all that was lent, whatever was filtered out"
    assert counts() == (5, 0, 6)
    assert {row.value for row in jobs.collect()} == rows
    left = spark.read.format("tritonmq").options(**options).load()
    assert not {row.value for row in left.collect()} & rows
    assert tritonmq.settle(left) == 5
