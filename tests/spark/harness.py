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
        reader = self.spark.readStream.format("tritonmq").options(**self._options(options))
        return (reader.schema(schema) if schema else reader).load()

    def read(self, **options: Any) -> DataFrame:
        return self.spark.read.format("tritonmq").options(**self._options(options)).load()

    def _options(self, more: dict[str, Any]) -> dict[str, Any]:
        return {"bootstrap.servers": self.bootstrap, "subscribe": self.topic, **more}


class Sinks:
    """Owns nothing: writes to one test's topics and reads them back without Spark."""

    def __init__(
        self, spark: SparkSession, cluster: LocalCluster, admin: Admin, producer: Producer, topic: str, scratch: Path
    ) -> None:
        self.spark, self.bootstrap, self.admin, self.producer = spark, cluster.bootstrap, admin, producer
        self.scratch = scratch
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
        frame.write.format("tritonmq").mode("append").options(**self._options(options)).save()

    def source_stream(self) -> DataFrame:
        source = {"bootstrap.servers": self.bootstrap, "subscribe": self.source, "startingOffsets": "earliest"}
        return self.spark.readStream.format("tritonmq").options(**source).load()

    def run_stream(
        self, frame: DataFrame, mode: str = "append", checkpoint: str = "checkpoint", **options: Any
    ) -> None:
        writer = frame.writeStream.format("tritonmq").options(**self._options(options)).outputMode(mode)
        query = writer.option("checkpointLocation", str(self.scratch / checkpoint)).trigger(availableNow=True).start()
        assert query.awaitTermination(ENDS_S), "the stream did not end"

    def _options(self, more: dict[str, Any]) -> dict[str, Any]:
        """`topic=None`: the rows name theirs."""
        given = {"bootstrap.servers": self.bootstrap, "topic": self.topic, **more}
        return {name: value for name, value in given.items() if value is not None}
