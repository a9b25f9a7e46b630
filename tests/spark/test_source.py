"""The source on a real broker: where it begins, how much it takes, where it ends, and what a restart sees."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame

from tests.cluster.harness import wait_until
from tests.spark.harness import Collected, Streams

Run = Callable[[DataFrame], Collected]


def test_a_typed_topic_streams_its_own_columns_and_its_metadata_on_request(streams: Streams, run_stream: Run) -> None:
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), ("carrier", pa.string()), ("delay", pa.float64())])
    streams.create(1, schema=schema)
    table = pa.table({"id": [1, 2], "carrier": ["UA", None], "delay": [1.5, None]}, schema=schema)
    streams.producer.publish_batch(streams.topic, table).result(timeout=30)
    frame = streams.stream(startingOffsets="earliest", includeMetadata="true")
    assert frame.columns == ["id", "carrier", "delay", "_topic", "_partition", "_offset", "_timestamp"]
    rows = run_stream(frame).rows
    assert [(row["id"], row["carrier"], row["delay"], row["_offset"]) for row in rows] == [
        (1, "UA", 1.5, 0),
        (2, None, None, 1),
    ]


def test_records_of_several_producers_batches_are_merged_before_spark_sees_them(streams: Streams) -> None:
    streams.create(1)
    for number in range(50):
        streams.publish(str(number))  # flushed one by one: fifty stored batches
    batches = streams.read().toArrow().column("value").num_chunks
    assert batches == 1


def test_progress_is_seen_at_the_brokers_under_the_querys_id_or_the_name_that_was_given(
    streams: Streams, run_stream: Run
) -> None:
    streams.create(2)
    streams.publish("a", "b", "c", partition=1)
    run_stream(streams.stream(startingOffsets="earliest", groupIdPrefix="mine"))
    wait_until(lambda: lag(streams, "mine-") == [(1, 3, "spark", 0)], "progress under the query's id")
    run_stream(streams.stream(startingOffsets="earliest", **{"kafka.group.id": "named"}))
    wait_until(
        lambda: lag(streams, "named") == [(0, 0, "spark", 0), (1, 3, "spark", 0)], "progress under the name given"
    )


def lag(streams: Streams, prefix: str) -> list[tuple[int, int, str, int]]:
    """Partition, cursor, kind and lag of the one group whose name begins so, in the test's topic."""
    (group,) = [group for group in streams.admin.list_groups() if group.startswith(prefix)] or [""]
    cursors = streams.admin.describe_group(group).cursors if group else ()
    return [(each.partition, each.offset, each.kind, each.lag) for each in cursors]


def test_the_latest_offsets_are_in_sparks_progress(streams: Streams, tmp_path: Any) -> None:
    streams.create(1)
    streams.publish("a", "b")
    query = (
        streams.stream(startingOffsets="earliest")
        .writeStream.format("noop")
        .option("checkpointLocation", str(tmp_path / "noop"))
        .start()
    )
    try:
        query.processAllAvailable()
        progress = [each for each in query.recentProgress if each["numInputRows"]]
        assert progress[-1]["numInputRows"] == 2
        assert json.loads(progress[-1]["sources"][0]["latestOffset"]) == {streams.topic: {"0": 2}}
        assert json.loads(progress[-1]["sources"][0]["endOffset"])[streams.topic] == {"0": 2}
    finally:
        query.stop()


def test_a_task_has_no_more_rows_than_max_records_per_partition(streams: Streams) -> None:
    streams.create(2)
    streams.publish(*map(str, range(10)), partition=0)
    assert streams.read(maxRecordsPerPartition=3).rdd.getNumPartitions() == 4
    assert streams.read(minPartitions=2).rdd.getNumPartitions() == 2


FLIGHTS = "id long, delay double, carrier string"
FILTERS = (
    "not (delay <= 150) and carrier in ('UA', 'O''H')",
    "id >= 190 or carrier is null and delay != 5",
)


def test_a_filter_keeps_what_sparks_own_would_keep(streams: Streams) -> None:
    streams.create(1, schema=FLIGHTS)
    for first in (0, 100):  # two stored batches; `id` is the offset
        ids = range(first, first + 100)
        delays = [None if i % 7 == 0 else float("nan") if i % 11 == 0 else float(i) for i in ids]
        carriers = [None if i % 5 == 0 else ("UA", "AA", "O'H")[i % 3] for i in ids]
        table = pa.table({"id": ids, "delay": delays, "carrier": carriers})
        streams.producer.publish_batch(streams.topic, table).result(30)
    for text in FILTERS:
        expected = [row["id"] for row in streams.read().filter(text).collect()]
        assert 0 < len(expected) < 200
        assert [row["id"] for row in streams.read(filter=text).collect()] == expected
