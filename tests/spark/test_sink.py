"""The sink on a real broker: what streams and batch writes leave in a topic, and what is refused before anything is
written."""

from __future__ import annotations

from datetime import date, datetime
from decimal import Decimal

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as f

from mq_protocol.partitioner import partition_for_key
from tests.spark.harness import Sinks
from tests.spark.sink_driver import ENDS_S


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
