"""Spark through a tunnel: a stream from topic to topic, while the tunnel and a broker are killed. The brokers have
names that mean something to the tunnel alone, so no process of Spark, and no client here, can reach them past it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from mq_client import Admin, Producer, Reader
from mq_dev.local_cluster import LocalCluster
from tests import switch
from tests.cluster.harness import wait_until
from tests.hidden import Proxy, hidden_bootstrap, hidden_cluster

pytestmark = [
    pytest.mark.long,
    pytest.mark.timeout(600),
    switch.plain_text(
        "its brokers have names that are in no certificate; tests/mq_client/test_one_address.py has some"
    ),
]

WAIT_S = 180.0
ROWS = 2_000


@pytest.fixture
def hidden(tmp_path: Path) -> Iterator[LocalCluster]:
    with hidden_cluster(tmp_path / "hidden", 3) as cluster:
        yield cluster


def test_each_row_is_written_once_while_the_tunnel_and_a_broker_are_killed(
    spark: SparkSession, hidden: LocalCluster, tmp_path: Path
) -> None:
    bootstrap = hidden_bootstrap(hidden)
    with Proxy(hidden.bootstrap) as proxy:
        options = {"bootstrap.servers": bootstrap, "via": proxy.via}
        with (
            Admin(bootstrap, via=proxy.via) as admin,
            Producer(bootstrap, timeout_ms=120_000, via=proxy.via) as producer,
        ):
            for topic in ("from", "to"):
                admin.create_topic(topic, partitions=3, replicas=3, schema="n long")
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
                sent = publish(producer, 0)
                wait_until(lambda: written(bootstrap, proxy.via), "a first row is through", WAIT_S)
                sent += publish(producer, sent)
                proxy.kill()
                sent += publish(producer, sent, wait=False)
                proxy.start()
                producer.flush()
                hidden.kill(admin.describe_topic("to").partitions[0].leader)
                sent += publish(producer, sent)
                proxy.kill()
                proxy.start()
                sent += publish(producer, sent)
                wait_until(lambda: sum(written(bootstrap, proxy.via).values()) >= sent, "all rows are through", WAIT_S)
                query.processAllAvailable()
            finally:
                query.stop()
            assert query.exception() is None
        assert written(bootstrap, proxy.via) == Counter(range(sent))
        batch = spark.read.format("tritonmq").options(**options).option("subscribe", "to").load()
        assert batch.count() == sent
        batch.write.format("tritonmq").options(**options).option("topic", "from").mode("append").save()
        assert spark.read.format("tritonmq").options(**options).option("subscribe", "from").load().count() == 2 * sent


def publish(producer: Producer, first: int, *, wait: bool = True) -> int:
    """Rows with numbers from `first` on; how many. `wait`: until they are acknowledged."""
    for number in range(first, first + ROWS):
        producer.publish("from", {"n": number}, partition=number % 3)
    if wait:
        producer.flush()
    return ROWS


def written(bootstrap: str, via: str) -> Counter[int]:
    """The numbers in the topic that is written to."""
    with Reader(bootstrap, 10_000, via=via) as reader:
        batches = [batch for partition in range(3) for batch in reader.read("to", partition)]
    return Counter(number for batch in batches for number in batch.column("n").to_pylist())
