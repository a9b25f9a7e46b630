"""A job as it is written for Kafka's connector: another format, other servers, and it runs."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql import functions as f
from pyspark.sql.types import LongType, StringType, StructField, StructType

from mq_client import Admin, Producer
from mq_dev.local_cluster import LocalCluster
from tests.spark.sink_driver import ENDS_S

Name = Callable[[str], str]

ORDER = StructType([StructField("item", StringType()), StructField("count", LongType())])


def job(spark: SparkSession, connector: str, servers: str, orders: str, totals: str, checkpoint: str) -> None:
    """Nothing here is of TritonMQ's but the first two arguments' values."""
    read = (
        spark.readStream.format(connector)
        .option("kafka.bootstrap.servers", servers)
        .option("subscribe", orders)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", "3")
        .option("failOnDataLoss", "false")
        .option("kafka.group.id", "orders-to-totals")
        .load()
    )
    parsed = read.select(
        f.col("key").cast("string").alias("key"),
        f.from_json(f.col("value").cast("string"), ORDER).alias("order"),
        "topic",
        "partition",
        "offset",
        "timestamp",
    ).where("order.count > 0")
    written = (
        parsed.selectExpr("key", "to_json(struct(order.item AS item, order.count * 2 AS count)) AS value")
        .writeStream.format(connector)
        .option("kafka.bootstrap.servers", servers)
        .option("topic", totals)
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    assert written.awaitTermination(ENDS_S)


def test_a_kafka_job_runs_with_another_format_and_other_servers(
    spark: SparkSession, cluster: LocalCluster, admin: Admin, producer: Producer, name: Name, tmp_path: Path
) -> None:
    orders, totals = name("orders"), name("totals")
    for topic in (orders, totals):
        admin.create_topic(topic, partitions=2, replicas=1)
    for count in range(4):
        producer.publish(orders, json.dumps({"item": "an item", "count": count}), key=f"customer {count}")
    producer.flush()
    job(spark, "tritonmq", cluster.bootstrap, orders, totals, str(tmp_path / "checkpoint"))
    found = (
        spark.read.format("tritonmq")
        .option("kafka.bootstrap.servers", cluster.bootstrap)
        .option("subscribe", totals)
        .option("startingOffsets", "earliest")
        .option("endingOffsets", "latest")
        .load()
        .selectExpr("CAST(key AS STRING) AS key", "CAST(value AS STRING) AS value")
        .collect()
    )
    assert sorted((row.key, json.loads(row.value)["item"], json.loads(row.value)["count"]) for row in found) == sorted(
        (f"customer {count}", "an item", 2 * count) for count in range(1, 4)
    )
