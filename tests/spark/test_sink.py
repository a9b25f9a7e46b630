"""The sink on a real broker: what streams and batch writes leave in a topic, and what is refused before anything is
written."""

from __future__ import annotations

from collections.abc import Callable
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import Row, SparkSession
from pyspark.sql import functions as f

from mq_client import Admin, Producer
from mq_dev.local_cluster import LocalCluster
from mq_protocol.partitioner import partition_for_key
from tests.spark.harness import Sinks

Name = Callable[[str], str]


@pytest.fixture
def sinks(
    spark: SparkSession, cluster: LocalCluster, admin: Admin, producer: Producer, name: Name, tmp_path: Path
) -> Sinks:
    return Sinks(spark, cluster, admin, producer, name("t"), tmp_path)


def test_a_stream_copies_each_record_once_over_restarts(sinks: Sinks) -> None:
    sinks.admin.create_topic(sinks.source, partitions=2, replicas=1)
    sinks.admin.create_topic(sinks.topic, partitions=3, replicas=1)
    frame = sinks.source_stream().select("key", "value")
    expected: list[bytes] = []
    for run in range(2):
        values = [f"{run}-{number}".encode() for number in range(20)]
        for value in values:
            sinks.producer.publish(sinks.source, value, key=value[-1:])
        sinks.producer.flush()
        expected += values
        sinks.run_stream(frame)
        assert sinks.values() == sorted(expected)
    assert all(row["_partition"] == partition_for_key(row["key"], 3) for row in sinks.rows())


def test_complete_mode_appends_every_result_as_kafkas_sink_does(sinks: Sinks) -> None:
    sinks.admin.create_topic(sinks.source, partitions=1, replicas=1)
    sinks.admin.create_topic(sinks.topic, partitions=1, replicas=1)
    counts = sinks.source_stream().groupBy().count().select(f.col("count").cast("string").alias("value"))
    for _ in range(2):
        sinks.producer.publish(sinks.source, b"x")
        sinks.producer.flush()
        sinks.run_stream(counts, mode="complete")
    assert sinks.values()[-2:] == [b"1", b"2"]


def test_a_batch_write_puts_each_row_where_it_asks_to_be(sinks: Sinks) -> None:
    sinks.admin.create_topic(sinks.topic, partitions=4, replicas=1)
    rows = [("a", "to 3", 3), ("b", "by key", None), (None, "anywhere", None)]
    sinks.write(sinks.spark.createDataFrame(rows, "key string, value string, partition int"))
    found = {row["value"]: row["_partition"] for row in sinks.rows()}
    assert found[b"to 3"] == 3
    assert found[b"by key"] == partition_for_key(b"b", 4)
    assert len(found) == 3


def test_rows_may_name_their_topics(sinks: Sinks) -> None:
    other = sinks.topic + "2"
    for topic in (sinks.topic, other):
        sinks.admin.create_topic(topic, partitions=1, replicas=1)
    sinks.write(
        sinks.spark.createDataFrame(
            [(sinks.topic, "a"), (other, "b"), (sinks.topic, "c")], "topic string, value string"
        ),
        topic=None,
    )
    assert (sinks.values(), sinks.values(other)) == ([b"a", b"c"], [b"b"])


def test_a_batch_write_with_an_application_and_a_version_is_written_once(sinks: Sinks) -> None:
    sinks.admin.create_topic(sinks.topic, partitions=1, replicas=1)
    frame = sinks.spark.createDataFrame([("a",), ("b",)], "value string")
    for _ in range(2):
        sinks.write(frame, txnAppId="etl", txnVersion=7)
    assert sinks.values() == [b"a", b"b"]
    with pytest.raises(PySparkException, match="ReplayMismatch"):
        sinks.write(frame.limit(1), txnAppId="etl", txnVersion=7)
    with pytest.raises(PySparkException, match="StaleMicroBatch"):
        sinks.write(frame, txnAppId="etl", txnVersion=6)
    sinks.write(frame, txnAppId="etl", txnVersion=8)
    sinks.write(frame)
    sinks.write(frame)
    assert sinks.values() == sorted([b"a", b"b"] * 4)


def test_nothing_is_visible_of_a_write_that_fails_half_way(sinks: Sinks) -> None:
    sinks.admin.create_topic(sinks.topic, partitions=2, replicas=1)
    numbers = sinks.spark.range(0, 30_000, numPartitions=2)
    with pytest.raises(PySparkException, match="stop here"):
        sinks.write(
            numbers.select(
                f.when(f.col("id") == 29_999, f.raise_error("stop here"))
                .otherwise(f.col("id").cast("string"))
                .alias("value")
            )
        )
    assert sinks.values() == []


@pytest.mark.parametrize(
    ("select", "first_words"),
    [
        (["1 AS value"], "column 'value' is int"),
        (["'v' AS value", "9 AS partition"], "column 'partition' holds 9: topic"),
    ],
)
def test_rows_that_do_not_fit_are_refused_and_nothing_is_written(
    sinks: Sinks, select: list[str], first_words: str
) -> None:
    sinks.admin.create_topic(sinks.topic, partitions=1, replicas=1)
    with pytest.raises(PySparkException) as caught:
        sinks.write(sinks.spark.range(3).selectExpr(*select))
    assert first_words in str(caught.value)
    assert sinks.values() == []


EVERY_TYPE = (
    "a boolean, b byte, c short, d int, e long, f float, g double, h decimal(12,3), i string, j binary, k date, l "
    "timestamp, m timestamp_ntz, n array<string>, o map<string,double>, p struct<x: int, y: array<struct<z: binary>>>"
)


def test_every_type_survives_the_way_in_and_out_in_any_time_zone(sinks: Sinks) -> None:
    sinks.admin.create_topic(sinks.topic, partitions=1, replicas=1, schema=EVERY_TYPE)
    noon, when = date(2026, 3, 29), datetime(2026, 3, 29, 1, 30, 0, 123456)
    row = (
        *(True, 1, 2, 3, 1 << 40, 0.5, 0.25, Decimal("12.345"), "ü", bytearray(b"\0"), noon, when, when),
        *(["a", None], {"k": 1.5, "l": None}, (7, [(bytearray(b"z"),), None])),
    )
    frame = sinks.spark.createDataFrame([row, (None,) * 16], EVERY_TYPE.replace(": ", ":"))
    sinks.spark.conf.set("spark.sql.session.timeZone", "Europe/Berlin")
    try:
        sinks.write(frame)
        back = (
            sinks.spark.read.format("tritonmq")
            .option("bootstrap.servers", sinks.bootstrap)
            .option("subscribe", sinks.topic)
            .load()
        )
        assert back.schema == frame.schema
        assert sorted(map(str, back.collect())) == sorted(map(str, frame.collect()))
    finally:
        sinks.spark.conf.unset("spark.sql.session.timeZone")


def test_headers_survive_the_way_in_and_out(sinks: Sinks) -> None:
    sinks.admin.create_topic(sinks.topic, partitions=1, replicas=1)
    headers = [Row(key="trace", value=bytearray(b"1")), Row(key="trace", value=None)]
    sinks.write(
        sinks.spark.createDataFrame(
            [("v", headers), ("w", None)], "value string, headers array<struct<key: string, value: binary>>"
        )
    )
    back = (
        sinks.spark.read.format("tritonmq")
        .option("bootstrap.servers", sinks.bootstrap)
        .option("subscribe", sinks.topic)
    )
    found = {bytes(row["value"]): row["headers"] for row in back.option("includeHeaders", "true").load().collect()}
    assert found == {b"v": headers, b"w": None}
