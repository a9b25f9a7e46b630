"""The options by which a source is told what to read, in Spark on a real broker.

Here is what Spark's side of the calls could get wrong; tests/mq_spark/datasource/test_readers.py has the rest, without
Spark.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from mq_client import Admin, Producer
from mq_client.cluster.connection import Connection
from mq_client.cluster.deadline import Deadline
from mq_client.cluster.requests import ask_offsets
from mq_dev.local_cluster import LocalCluster
from tests.cluster.harness import wait_until
from tests.spark.harness import Collected

Run = Callable[[DataFrame], Collected]
Name = Callable[[str], str]

FLIGHTS = "id long, delay double, carrier string, note string"


class Topics:
    """Owns nothing: makes one test's topics and reads them by any options."""

    def __init__(self, spark: SparkSession, bootstrap: str, admin: Admin, producer: Producer, name: Name) -> None:
        self.spark, self.bootstrap, self.admin, self.producer, self.name = spark, bootstrap, admin, producer, name

    def create(self, suffix: str, partitions: int = 1, schema: str | None = None) -> str:
        self.admin.create_topic(self.name(suffix), partitions=partitions, replicas=1, schema=schema)
        return self.name(suffix)

    def publish(self, topic: str, *values: str, partition: int = 0) -> None:
        for value in values:
            self.producer.publish(topic, value.encode(), partition=partition)
        self.producer.flush()

    def stream(self, schema: str | None = None, **options: Any) -> DataFrame:
        reader = self.spark.readStream.format("tritonmq").option("bootstrap.servers", self.bootstrap).options(**options)
        return (reader.schema(schema) if schema else reader).load()

    def read(self, schema: str | None = None, **options: Any) -> DataFrame:
        reader = self.spark.read.format("tritonmq").option("bootstrap.servers", self.bootstrap).options(**options)
        return (reader.schema(schema) if schema else reader).load()

    def values(self, **options: Any) -> list[str]:
        return sorted(bytes(row["value"]).decode() for row in self.read(**options).select("value").collect())

    def flights(self, suffix: str = "flights") -> str:
        """200 of them, in two stored batches; `id` is the offset."""
        topic = self.create(suffix, schema=FLIGHTS)
        for first in (0, 100):
            ids = range(first, first + 100)
            table = pa.table(
                {
                    "id": ids,
                    "delay": [None if i % 7 == 0 else float("nan") if i % 11 == 0 else float(i) for i in ids],
                    "carrier": [None if i % 5 == 0 else ("UA", "AA", "O'H")[i % 3] for i in ids],
                    "note": [f"{i:01000}" for i in ids],
                }
            )
            self.producer.publish_batch(topic, table).result(30)
        return topic


@pytest.fixture
def topics(spark: SparkSession, cluster: LocalCluster, admin: Admin, producer: Producer, name: Name) -> Topics:
    return Topics(spark, cluster.bootstrap, admin, producer, name)


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Callable[[DataFrame], Collected]]:
    """Starts a stream that goes on until the test is over."""
    queries = []

    def start(frame: DataFrame) -> Collected:
        collected = Collected()
        writer = frame.writeStream.foreachBatch(collected).option("checkpointLocation", str(tmp_path / "running"))
        queries.append(writer.start())
        return collected

    yield start
    for query in queries:
        query.stop()


# ------------------------------------------------------------------ which topics


def test_a_pattern_finds_topics_while_the_query_runs_and_between_its_runs(
    topics: Topics, run_stream: Run, running: Callable[[DataFrame], Collected]
) -> None:
    pattern = topics.name("orders") + r"-\d+"
    topics.publish(topics.create("orders-1"), "one")
    topics.publish(topics.create("orders-x"), "of no concern")
    frame = topics.stream(subscribePattern=pattern, startingOffsets="earliest")
    on = running(frame)
    wait_until(lambda: on.values() == ["one"], "the topic that is there")
    topics.publish(topics.create("orders-2", partitions=2), "two", partition=1)
    wait_until(lambda: on.values() == ["one", "two"], "the topic that came while the query ran")
    assert run_stream(frame).values() == ["one", "two"]
    topics.publish(topics.create("orders-3"), "three")
    topics.publish(topics.name("orders-1"), "more")
    assert run_stream(frame).values() == ["more", "three"]
    assert run_stream(frame).values() == []


def test_rows_that_retention_has_removed_are_a_loss_and_may_be_passed_over(topics: Topics, run_stream: Run) -> None:
    topic = topics.create("t")
    topics.publish(topic, "0")
    options = {"subscribe": topic, "startingOffsets": "earliest"}
    assert run_stream(topics.stream(**options)).values() == ["0"]
    for number in range(1, 6):
        topics.publish(topic, str(number))
    topics.admin.alter_topic(topic, retention_bytes=1)
    wait_until(lambda: topics.admin.offsets(topic)[0][0] > 1, "retention")
    start, end = topics.admin.offsets(topic)[0]
    with pytest.raises(
        StreamingQueryException, match=f"offset 1 of topic .* only {start} to 6 is kept: retention has removed"
    ):
        run_stream(topics.stream(**options))
    assert run_stream(topics.stream(failOnDataLoss="false", **options)).values() == [str(n) for n in range(start, end)]
    zero = json.dumps({topic: {"0": 0}})
    with pytest.raises(PySparkException, match=f"startingOffsets has offset 0 for topic .*, which keeps {start} to 6"):
        topics.values(subscribe=topic, startingOffsets=zero)
    assert len(topics.values(subscribe=topic, startingOffsets=zero, failOnDataLoss="false")) == end - start


def test_partitions_that_are_added_are_read_while_the_query_runs_and_between_its_runs(
    topics: Topics, run_stream: Run, running: Callable[[DataFrame], Collected]
) -> None:
    topic = topics.create("t")
    topics.publish(topic, "a")
    frame = topics.stream(subscribe=topic, startingOffsets="earliest")
    on = running(frame)
    wait_until(lambda: on.values() == ["a"], "the partition that is there")
    assert run_stream(frame).values() == ["a"]
    topics.admin.alter_topic(topic, partitions=3)
    with Producer(topics.bootstrap) as another:
        another.publish(topic, b"c", partition=2).result(30)
    assert run_stream(frame).values() == ["c"]
    wait_until(lambda: on.values() == ["a", "c"], "the partition that came while the query ran")


def test_assigned_partitions_are_read_and_no_others(topics: Topics, run_stream: Run) -> None:
    a, b = topics.create("a", partitions=3), topics.create("b")
    for partition in range(3):
        topics.publish(a, f"a{partition}", f"A{partition}", partition=partition)
    topics.publish(b, "b0")
    assign = json.dumps({a: [2, 0], b: [0]})
    frame = topics.stream(assign=assign, startingOffsets=json.dumps({a: {"0": 1, "2": -2}, b: {"0": -2}}))
    assert run_stream(frame).values() == ["A0", "A2", "a2", "b0"]
    topics.publish(a, "x1", partition=1)
    topics.publish(a, "x2", partition=2)
    assert run_stream(frame).values() == ["x2"]
    assert topics.values(assign=assign) == ["A0", "A2", "a0", "a2", "b0", "x2"]


# ------------------------------------------------------------------ where to begin and end


# ------------------------------------------------------------------ how much


def test_a_micro_batch_has_no_more_bytes_and_no_more_rows_than_it_may(topics: Topics, run_stream: Run) -> None:
    topic = topics.create("t", schema="n long, text string")
    table = pa.table({"n": range(20), "text": ["x" * 1_000] * 20})
    topics.producer.publish_batch(topic, table).result(30)
    row_bytes = ask_offsets(Connection(topics.bootstrap), topic, Deadline(10_000))[0].bytes // 20
    start = {"subscribe": topic, "startingOffsets": json.dumps({topic: {"0": 0}})}
    by_bytes = topics.stream(**start, maxBytesPerTrigger=f"{8 * row_bytes + row_bytes // 2}b", maxOffsetsPerTrigger=100)
    assert run_stream(by_bytes).sizes() == [8, 8, 4]
    topics.producer.publish_batch(topic, table).result(30)
    by_rows = topics.stream(subscribe=topic, maxBytesPerTrigger="1g", maxOffsetsPerTrigger=12, minOffsetsPerTrigger=12)
    assert run_stream(by_rows).sizes() == [12, 8]


# ------------------------------------------------------------------ what is carried out on the broker


FILTERS = (
    "not (delay <= 150) and carrier in ('UA', 'O''H')",
    "id >= 190 or carrier is null and delay != 5",
)


@pytest.mark.parametrize("text", FILTERS)
def test_a_filter_keeps_what_sparks_own_would_keep(topics: Topics, text: str) -> None:
    topic = topics.flights()
    expected = [row["id"] for row in topics.read(subscribe=topic).filter(text).collect()]
    assert 0 < len(expected) < 200
    found = topics.read("id long, _offset long", subscribe=topic, filter=text).collect()
    assert [row["id"] for row in found] == expected
    assert [row["_offset"] for row in found] == expected


# ------------------------------------------------------------------ what is wrong is said in first words


@pytest.mark.parametrize(
    ("options", "first_words"),
    [
        ({"subscribePattern": "("}, "subscribePattern='(' is no regular expression"),
        (
            {"subscribe": "t", "startingTimestamp": "now"},
            "startingTimestamp='now' is not a time: write milliseconds since 1970",
        ),
    ],
)
def test_a_bad_value_is_refused_by_name_before_anything_is_opened(
    spark: SparkSession, options: dict[str, str], first_words: str
) -> None:
    """As Spark's user sees it; tests/mq_spark/planning/test_options.py has the others."""
    with pytest.raises(PySparkException) as caught:
        spark.readStream.format("tritonmq").option("bootstrap.servers", "127.0.0.1:1").options(**options).load()
    assert first_words in str(caught.value)


def test_what_only_the_brokers_can_know_is_said_too(topics: Topics, run_stream: Run) -> None:
    records, flights = topics.create("records", partitions=2), topics.flights()
    cases: list[tuple[dict[str, str], str]] = [
        ({"assign": json.dumps({records: [2]})}, f"assign names partition 2 of topic {records}, which has 0 to 1"),
        (
            {"subscribe": records, "filter": "key is null"},
            f"filter needs a topic with columns of its own, and {records} holds",
        ),
        ({"subscribe": f"{records},{flights}"}, "have different schemas: read each by a stream of its own"),
    ]
    for options, words in cases:
        with pytest.raises(PySparkException) as caught:
            topics.read(**options)
        assert words in str(caught.value)
    with pytest.raises(StreamingQueryException, match="filter names column 'dealy'"):
        run_stream(topics.stream("id long", subscribe=flights, filter="dealy > 5"))
