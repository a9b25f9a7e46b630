"""A query that works off a queue, its driver killed on the way: real Spark, real processes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

from pyspark.sql import SparkSession

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
