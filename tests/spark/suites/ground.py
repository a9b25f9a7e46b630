"""The table of cases of Kafka's suites in Spark, and what each of them stands on. Nothing here knows pytest."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from mq_client import Admin, Producer
from mq_spark.datasource.securing import with_environment
from mq_spark.datasource.staging import MicroBatch, manifest_of, stage_rows
from mq_spark.datasource.writers import decide
from mq_spark.planning.options import parse_sink
from tests.mq_spark.datasource.calls import VALUE, Stream
from tests.spark.harness import Collected
from tests.spark.sink_driver import ENDS_S


@dataclass
class Ground:
    """Of one case. Spark is started when it is first asked for; what needs none makes Spark's calls (`calls`)."""

    start_spark: Callable[[], SparkSession]
    bootstrap: str
    admin: Admin
    producer: Producer
    prefix: str
    scratch: Path
    opened: list[Stream] = field(default_factory=list)

    # -------------------------------------------------------------- topics

    def topic(self, partitions: int = 1, suffix: str = "t", **settings: Any) -> str:
        self.admin.create_topic(f"{self.prefix}-{suffix}", partitions=partitions, replicas=1, **settings)
        return f"{self.prefix}-{suffix}"

    def send(self, topic: str, values: range | list[int], partition: int = 0) -> None:
        for value in values:
            self.producer.publish(topic, str(value).encode(), partition=partition)
        self.producer.flush()

    def filled(self, suffix: str = "t") -> str:
        """Three partitions: 0 to 9, 10 to 19, and 20."""
        topic = self.topic(3, suffix)
        self.send(topic, range(10), 0)
        self.send(topic, range(10, 20), 1)
        self.send(topic, [20], 2)
        return topic

    def delete(self, topic: str) -> None:
        self.admin.delete_topic(topic)

    def staged(self, topic: str, values: range) -> Callable[[], None]:
        """Rows written, and visible once what is returned has been called: a transaction."""
        import pyarrow as pa

        options = parse_sink(with_environment({"bootstrap.servers": self.bootstrap, "topic": topic}), streaming=True)
        rows = pa.RecordBatch.from_pylist([{"value": str(value).encode()} for value in values])
        batch = MicroBatch(f"{topic}-{values.start}", topic, 0, "run")
        message = stage_rows(options, VALUE, iter([rows]), batch, 0)
        return lambda: decide(options, *manifest_of([message]))

    # -------------------------------------------------------------- Spark

    @property
    def spark(self) -> SparkSession:
        return self.start_spark()

    def read(self, topic: str = "", **options: Any) -> DataFrame:
        """A batch read; the column `value` as a number, all others as they are."""
        reader = self.spark.read.format("tritonmq").option("kafka.bootstrap.servers", self.bootstrap)
        return reader.options(**({"subscribe": topic} if topic else {}), **options).load()

    def stream(self, topic: str, **options: Any) -> DataFrame:
        reader = self.spark.readStream.format("tritonmq").option("kafka.bootstrap.servers", self.bootstrap)
        return reader.options(**{"subscribe": topic, "startingOffsets": "earliest", **options}).load()

    def run(self, frame: DataFrame, checkpoint: str = "checkpoint", **trigger: Any) -> Collected:
        """A stream run to the end of what is there now; again: a restart."""
        collected = Collected()
        writer = frame.writeStream.foreachBatch(collected).option("checkpointLocation", str(self.scratch / checkpoint))
        query = writer.trigger(**(trigger or {"availableNow": True})).start()
        assert query.awaitTermination(ENDS_S), "the stream did not end"
        return collected

    def write(self, frame: DataFrame, topic: str | None, mode: str = "append", **options: Any) -> None:
        writer = frame.write.format("tritonmq").mode(mode).option("kafka.bootstrap.servers", self.bootstrap)
        writer.options(**({"topic": topic} if topic else {}), **options).save()

    def run_into(self, frame: DataFrame, topic: str | None, mode: str = "append", **options: Any) -> Any:
        """A stream into a topic, run to its end. Returns the query."""
        writer = frame.writeStream.format("tritonmq").outputMode(mode)
        writer = writer.option("kafka.bootstrap.servers", self.bootstrap)
        writer = writer.option("checkpointLocation", str(self.scratch / "into"))
        writer = writer.options(**({"topic": topic} if topic else {}), **options)
        query = writer.trigger(availableNow=True).start()
        assert query.awaitTermination(ENDS_S), "the stream did not end"
        return query

    # -------------------------------------------------------------- Spark's calls, without Spark

    def calls(self, at: dict[str, Any] | None = None, **options: Any) -> Stream:
        """A running query's reader."""
        self.opened.append(Stream(self.bootstrap, VALUE, at, **{"startingOffsets": "earliest", **options}))
        return self.opened[-1]

    def rows(self, stream: Stream) -> list[int]:
        """All that is there now, as AvailableNow takes it."""
        return numbers(row["value"] for rows in stream.available_now() for row in rows)


def numbers(values: Any) -> list[int]:
    return sorted(int(bytes(value)) for value in values)


def values(frame: DataFrame) -> list[int]:
    return numbers(row["value"] for row in frame.select("value").collect())


def each(topic: str, *offsets: int | str) -> str:
    """Offsets, or times, of a topic's partitions as JSON."""
    return json.dumps({topic: dict(enumerate(offsets))})


@contextmanager
def refused(*words: str) -> Iterator[None]:
    """An error of Spark, or of a reader, which has all these words, and a hint for the user."""
    try:
        yield
    except Exception as error:
        text = str(error)
        if isinstance(error, AssertionError) or not all(word in text for word in words):
            raise
    else:
        raise AssertionError(f"no error with {words}")


Shows: TypeAlias = Callable[[Ground], None]


@dataclass(frozen=True, slots=True)
class Case:
    """One test of a suite of Kafka's connector, by its words there. `differs`: the sentence of docs/kafka-options.md
    that says what is different; empty: it is the same here."""

    suite: str
    name: str
    shows: Shows
    differs: str = ""

    def __str__(self) -> str:
        return f"{self.suite}: {self.name}"


CASES: list[Case] = []


def case(suite: str, *names: str, differs: str = "") -> Callable[[Shows], Shows]:
    """The function shows that the case holds here, or what holds in its place."""

    def listed(shows: Shows) -> Shows:
        CASES.extend(Case(suite, name, shows, differs) for name in names)
        return shows

    return listed


__all__ = ["CASES", "Case", "Ground", "PySparkException", "case", "each", "numbers", "refused", "values"]
