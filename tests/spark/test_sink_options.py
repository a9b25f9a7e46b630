"""Where the sink's rows go in a topic with columns of its own, and what is said about update mode."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from mq_client import Admin, Producer
from mq_dev.local_cluster import LocalCluster
from tests.spark.harness import Sinks
from tests.spark.sink_driver import ENDS_S

Name = Callable[[str], str]


@pytest.fixture
def sinks(
    spark: SparkSession, cluster: LocalCluster, admin: Admin, producer: Producer, name: Name, tmp_path: Path
) -> Sinks:
    return Sinks(spark, cluster, admin, producer, name("t"), tmp_path)


def test_typed_rows_go_where_the_producer_would_put_them_by_the_same_key_column(sinks: Sinks) -> None:
    carriers = [f"carrier {number % 17}" for number in range(60)]
    for topic in (sinks.topic, sinks.source):
        sinks.admin.create_topic(topic, partitions=4, replicas=1, schema="id long, carrier string")
    table = pa.table({"id": range(60), "carrier": carriers})
    sinks.producer.publish_batch(sinks.source, table, key_column="carrier").result(timeout=30)
    sinks.write(sinks.spark.createDataFrame(list(enumerate(carriers)), "id long, carrier string"), keyColumn="carrier")

    def places(topic: str) -> dict[int, int]:
        return {row["id"]: row["_partition"] for row in sinks.rows(topic)}

    assert places(sinks.topic) == places(sinks.source)
    assert len(set(places(sinks.topic).values())) == 4


def test_typed_rows_go_to_the_partition_that_they_name(sinks: Sinks) -> None:
    sinks.admin.create_topic(sinks.topic, partitions=4, replicas=1, schema="id long")
    sinks.write(sinks.spark.range(8).select("id", (f.col("id") % 4).cast("int").alias("partition")))
    assert {row["id"]: row["_partition"] for row in sinks.rows()} == {number: number % 4 for number in range(8)}
    with pytest.raises(PySparkException, match=r"keyColumn='idd' is no column of topic .*: did you mean 'id'\?"):
        sinks.write(sinks.spark.range(8), keyColumn="idd")


def test_update_mode_is_refused_by_spark_and_goes_by_for_each_batch_each_change_once(sinks: Sinks) -> None:
    sinks.admin.create_topic(sinks.source, partitions=1, replicas=1)
    sinks.admin.create_topic(sinks.topic, partitions=1, replicas=1)
    counts = sinks.source_stream().groupBy("value").count().selectExpr("value AS key", "CAST(count AS STRING) AS value")
    with pytest.raises(StreamingQueryException, match="tritonmq does not support Update mode"):
        sinks.run_stream(counts, mode="update", checkpoint="refused")

    def write(changes: DataFrame, batch_id: int) -> None:
        sinks.write(changes, txnAppId="counts", txnVersion=batch_id)

    writer = (
        counts.writeStream.outputMode("update")
        .foreachBatch(write)
        .option("checkpointLocation", str(sinks.scratch / "counts"))
    )
    for value in (b"a", b"b", b"a"):
        sinks.producer.publish(sinks.source, value)
        sinks.producer.flush()
        assert writer.trigger(availableNow=True).start().awaitTermination(ENDS_S)
    assert [(row["key"], row["value"]) for row in sinks.rows()] == [(b"a", b"1"), (b"b", b"1"), (b"a", b"2")]
