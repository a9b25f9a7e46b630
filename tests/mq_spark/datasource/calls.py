"""The readers' methods in the order in which Spark calls them, without Spark. Nothing here knows pytest."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
from pyspark.sql.types import BinaryType, LongType, StructType

from mq_client import Admin, Producer
from mq_spark.datasource.readers import BatchReader, StreamReader
from mq_spark.datasource.securing import with_environment
from mq_spark.planning.options import parse_source

VALUE = StructType().add("value", BinaryType())
NUMBERS = StructType().add("n", LongType()).add("_offset", LongType())


class Stream:
    """One run of a query: owns its reader, and the offsets that Spark would have written down."""

    def __init__(
        self, bootstrap: str, wanted: StructType, committed: dict[str, Any] | None = None, **options: Any
    ) -> None:
        given = {"bootstrap.servers": bootstrap, **{name: str(value) for name, value in options.items()}}
        self.reader = StreamReader(parse_source(with_environment(given), streaming=True), wanted)
        self.at = self.reader.initialOffset() if committed is None else committed

    def next(self) -> list[dict[str, Any]]:
        """The rows of the next micro-batch."""
        end = self.reader.latestOffset(self.at, self.reader.getDefaultReadLimit())
        parts = self.reader.partitions(self.at, end)
        self.at = json.loads(json.dumps(end))
        return [row for part in parts for batch in self.reader.read(part) for row in batch.to_pylist()]

    def available_now(self) -> list[list[dict[str, Any]]]:
        """The micro-batches until there is nothing more."""
        self.reader.prepareForTriggerAvailableNow()
        batches = []
        while True:
            before = self.at
            batches.append(self.next())
            if self.at == before and len(batches) > 1:
                self.reader.stop()
                return [rows for rows in batches if rows]


def publish(bootstrap: str, topic: str, *values: str, partition: int = 0) -> None:
    with Producer(bootstrap) as producer:
        for value in values:
            producer.publish(topic, value.encode(), partition=partition).result(20)


def numbers(bootstrap: str, topic: str, rows: int, batches: int = 1) -> None:
    with Producer(bootstrap) as producer:
        for batch in range(batches):
            table = pa.table({"n": range(batch * rows, (batch + 1) * rows), "text": ["x" * 100] * rows})
            producer.publish_batch(topic, table, partition=0).result(20)


def values(batches: list[list[dict[str, Any]]]) -> list[str]:
    return sorted(row["value"].decode() for rows in batches for row in rows)


def read(bootstrap: str, wanted: StructType, **options: Any) -> list[dict[str, Any]]:
    given = {"bootstrap.servers": bootstrap, **{name: str(value) for name, value in options.items()}}
    reader = BatchReader(parse_source(with_environment(given), streaming=False), wanted)
    return [row for part in reader.partitions() for batch in reader.read(part) for row in batch.to_pylist()]


def rows_of(stream: Stream, part: Any) -> list[bytes]:
    return [row["value"] for batch in stream.reader.read(part) for row in batch.to_pylist()]


def counts(admin: Admin, topic: str) -> tuple[int, int, int]:
    """Ready, leased and accepted records of group `g`."""
    parts = admin.describe_queue(topic, "g").partitions
    return sum(p.ready for p in parts), sum(p.leased for p in parts), sum(p.accepted for p in parts)
