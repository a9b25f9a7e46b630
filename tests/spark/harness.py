"""What the Spark tests share: topics filled and read without Spark, streams run to their end. Nothing here knows
pytest."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, Row, SparkSession

from mq_client import Admin, Producer, Reader
from mq_dev.local_cluster import LocalCluster
from tests.spark.sink_driver import ENDS_S


class Collected:
    """Owns what a stream gave to foreachBatch: rows by micro-batch, in order."""

    def __init__(self) -> None:
        self.batches: dict[int, list[Row]] = {}

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        self.batches[batch_id] = frame.collect()

    @property
    def rows(self) -> list[Row]:
        return [row for batch in self.batches.values() for row in batch]

    def sizes(self) -> list[int]:
        """Rows of the micro-batches that had any."""
        return [len(rows) for rows in self.batches.values() if rows]

    def values(self) -> list[str]:
        return sorted(bytes(row["value"]).decode() for row in self.rows)


class Streams:
    """Owns nothing: makes streams and topics of one test."""

    def __init__(self, spark: SparkSession, bootstrap: str, admin: Admin, producer: Producer, topic: str) -> None:
        self.spark, self.bootstrap, self.admin, self.producer, self.topic = spark, bootstrap, admin, producer, topic

    def create(self, partitions: int, **settings: Any) -> None:
        self.admin.create_topic(self.topic, partitions=partitions, replicas=1, **settings)

    def publish(self, *values: str, partition: int = 0) -> None:
        for value in values:
            self.producer.publish(self.topic, value.encode(), key=value[:1].encode(), partition=partition)
        self.producer.flush()

    def stream(self, schema: str | None = None, **options: Any) -> DataFrame:
        reader = (
            self.spark.readStream.format("tritonmq")
            .option("bootstrap.servers", self.bootstrap)
            .option("subscribe", self.topic)
        )
        for option, value in options.items():
            reader = reader.option(option, value)
        return (reader.schema(schema) if schema else reader).load()

    def read(self, **options: Any) -> DataFrame:
        reader = (
            self.spark.read.format("tritonmq")
            .option("bootstrap.servers", self.bootstrap)
            .option("subscribe", self.topic)
        )
        for option, value in options.items():
            reader = reader.option(option, value)
        return reader.load()


class Sinks:
    """Owns nothing: writes to one test's topics and reads them back without Spark."""

    def __init__(
        self, spark: SparkSession, cluster: LocalCluster, admin: Admin, producer: Producer, topic: str, scratch: Path
    ) -> None:
        self.spark, self.bootstrap, self.admin, self.producer, self.scratch = (
            spark,
            cluster.bootstrap,
            admin,
            producer,
            scratch,
        )
        self.source, self.topic = f"{topic}.in", f"{topic}.out"

    def rows(self, topic: str | None = None) -> list[dict[str, Any]]:
        """What a topic holds, partition by partition; `_partition` added."""
        found: list[dict[str, Any]] = []
        with Reader(self.bootstrap) as reader:
            for partition, (start, end) in sorted(self.admin.offsets(topic or self.topic).items()):
                for batch in reader.read(topic or self.topic, partition, start, end):
                    found += [{**row, "_partition": partition} for row in batch.to_pylist()]
        return found

    def values(self, topic: str | None = None) -> list[bytes]:
        return sorted(row["value"] for row in self.rows(topic))

    def write(self, frame: DataFrame, **options: Any) -> None:
        writer = frame.write.format("tritonmq").mode("append").option("bootstrap.servers", self.bootstrap)
        for option, value in {"topic": self.topic, **options}.items():
            writer = writer.option(option, value) if value is not None else writer
        writer.save()

    def source_stream(self) -> DataFrame:
        reader = (
            self.spark.readStream.format("tritonmq")
            .option("bootstrap.servers", self.bootstrap)
            .option("subscribe", self.source)
        )
        return reader.option("startingOffsets", "earliest").load()

    def run_stream(
        self, frame: DataFrame, mode: str = "append", checkpoint: str = "checkpoint", **options: Any
    ) -> None:
        writer = frame.writeStream.format("tritonmq").option("bootstrap.servers", self.bootstrap).outputMode(mode)
        for option, value in {"topic": self.topic, **options}.items():
            writer = writer.option(option, value) if value is not None else writer
        query = writer.option("checkpointLocation", str(self.scratch / checkpoint)).trigger(availableNow=True).start()
        assert query.awaitTermination(ENDS_S), "the stream did not end"
