"""Columns added to the topics that a query reads and writes: it goes on with those that it knows, and a restart gives
it all.

How a run that is under way takes it is in tests/mq_spark/datasource/test_readers.py, without Spark.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from mq_client import Admin, Producer, Reader
from mq_dev.local_cluster import LocalCluster
from tests.spark.sink_driver import ENDS_S


@pytest.mark.long
def test_a_query_goes_on_with_the_columns_it_knows_and_has_all_of_them_once_it_is_restarted(
    spark: SparkSession,
    cluster: LocalCluster,
    admin: Admin,
    producer: Producer,
    name: Callable[[str], str],
    tmp_path: Path,
) -> None:
    source, sink = name("in"), name("out")
    asked = {"bootstrap.servers": cluster.bootstrap, "subscribe": source, "startingOffsets": "earliest"}
    for topic in (source, sink):
        admin.create_topic(topic, replicas=1, schema="n long, word string")

    def run(frame: DataFrame) -> None:
        writer = (
            frame.writeStream.format("tritonmq").option("bootstrap.servers", cluster.bootstrap).option("topic", sink)
        )
        query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True).start()
        assert query.awaitTermination(ENDS_S), "the stream did not end"

    producer.publish(source, {"n": 0, "word": "a"}).result(30)
    planned_before = spark.readStream.format("tritonmq").options(**asked).load()
    for topic in (source, sink):
        admin.alter_topic(topic, add_columns="more string, tags array<int>")
    producer.publish(source, {"n": 1, "word": "b", "more": "x", "tags": [1]}).result(30)
    run(planned_before)
    producer.publish(source, {"n": 2, "more": "y"}).result(30)
    run(spark.readStream.format("tritonmq").options(**asked).load())
    with Reader(cluster.bootstrap) as reader:
        written = [tuple(row.values()) for batch in reader.read(sink, 0) for row in batch.to_pylist()]
    assert sorted(written) == [(0, "a", None, None), (1, "b", None, None), (2, None, "y", None)]
    kept = (
        spark.read.format("tritonmq").options(**asked, filter="more IS NULL OR more = 'x'").load().sort("n").collect()
    )
    assert [tuple(row) for row in kept] == [(0, "a", None, None), (1, "b", "x", [1])]
