"""Spark where it reaches two brokers of three: a stream from topic to topic, while a leader and the broker that passes
on are killed. The brokers have names that mean nothing here, so no process of Spark reaches one past those two."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from mq_client import Admin, Producer, Reader
from mq_spark import LagListener, lag_of
from tests.cluster.harness import Cluster, wait_until
from tests.hidden import hide

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]

PARTITIONS = 3
ROWS = 2_000
WAIT_S = 180.0


@pytest.fixture
def hidden(tmp_path: Path, zookeeper: str) -> Iterator[Cluster]:
    root = f"{zookeeper}/{uuid.uuid4().hex}"
    cluster = hide(Cluster(tmp_path / "hidden", 3, zookeeper=root, arguments=("--session-timeout-ms", "2000")))
    with cluster:
        cluster._admin = Admin(reached(cluster), 60_000, forward=True)
        yield cluster


def reached(hidden: Cluster) -> str:
    """The addresses of two brokers, of which clients use the second one once the first one is gone."""
    return ",".join(hidden.brokers[number].address for number in (1, 2))


def test_each_row_is_written_once_while_a_leader_and_the_broker_that_passes_on_are_killed(
    spark: SparkSession, hidden: Cluster, tmp_path: Path
) -> None:
    bootstrap = reached(hidden)
    options = {"bootstrap.servers": bootstrap, "forward": "true"}
    for topic in ("from", "to"):
        hidden.admin.create_topic(topic, partitions=PARTITIONS, replicas=3, schema="n long")
    hidden.wait_for_leaders("to", deadline_s=WAIT_S)
    listener = LagListener(bootstrap, interval_s=1, forward=True)
    spark.streams.addListener(listener)
    rows = spark.readStream.format("tritonmq").options(**options).option("subscribe", "from")
    query = (
        rows.option("startingOffsets", "earliest")
        .load()
        .writeStream.format("tritonmq")
        .options(**options, topic="to")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .start()
    )
    try:
        sent = publish(hidden, bootstrap)
        query.processAllAvailable()
        wait_until(
            lambda: [lag.records for lag in listener.latest().values()] == [0],
            "the listener sees that nothing is left",
            WAIT_S,
        )
        assert lag_of(query, bootstrap, forward=True).records == 0
    finally:
        query.stop()
        spark.streams.removeListener(listener)
        listener.close()
    assert query.exception() is None
    assert written(bootstrap) == Counter(range(sent))
    batch = spark.read.format("tritonmq").options(**options).option("subscribe", "to").load()
    assert batch.count() == sent
    batch.write.format("tritonmq").options(**options).option("topic", "from").mode("append").save()
    assert spark.read.format("tritonmq").options(**options).option("subscribe", "from").load().count() == 2 * sent


def publish(hidden: Cluster, bootstrap: str) -> int:
    """Rows with numbers from 0 on, until they are acknowledged and written; how many. Meanwhile brokers are killed."""
    sent = 0
    with Producer(bootstrap, timeout_ms=120_000, forward=True) as producer:

        def more() -> None:
            nonlocal sent
            for number in range(sent, sent + ROWS):
                producer.publish("from", {"n": number}, partition=number % PARTITIONS)
            producer.flush()
            sent += ROWS

        more()
        wait_until(lambda: written(bootstrap), "a first row is through", WAIT_S)
        for killed in (3, 1):
            more()
            hidden.kill(killed)
            hidden.wait_for_leaders("to", other_than=killed, deadline_s=WAIT_S)
            more()
            hidden.restart(killed)
            hidden.wait_for_isr("to", 3, WAIT_S)
        wait_until(lambda: sum(written(bootstrap).values()) >= sent, "all rows are through", WAIT_S)
    return sent


def written(bootstrap: str) -> Counter[int]:
    """The numbers in the topic that is written to."""
    with Reader(bootstrap, 10_000, forward=True) as reader:
        batches = [batch for partition in range(PARTITIONS) for batch in reader.read("to", partition)]
    return Counter(number for batch in batches for number in batch.column("n").to_pylist())
