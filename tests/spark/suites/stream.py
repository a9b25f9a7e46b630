"""KafkaMicroBatchSourceSuite, and the streams of KafkaDontFailOnDataLossSuite: most by the calls that Spark makes."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.sql import functions as f

from mq_protocol.errors import Unreachable
from mq_spark.planning.options import parse_source
from tests.cluster.harness import wait_until
from tests.mq_spark.datasource.calls import Stream, rows_of
from tests.spark.suites.ground import Ground, case, each, numbers, refused
from tests.spark.suites.relation import LOSS, UNCOMMITTED, later

STREAM = "KafkaMicroBatchSourceSuite"
METRICS = "Spark asks no Python source for metrics of its own"
BRIEF = {"requestTimeoutMs": 1500}
"""So long a broker that has not heard of a topic's end is given."""


# ------------------------------------------------------------------ where streams begin, by name, pattern and partition


def subscribed(ground: Ground, by: str) -> tuple[str, dict[str, Any]]:
    topic = ground.topic(5, "suffix")
    by_pattern = {"subscribePattern": f"{ground.prefix}-suf.*"}
    by_partition = {"assign": f'{{"{topic}":[0,1,2,3,4]}}'}
    return topic, {"subscribe": {"subscribe": topic}, "pattern": by_pattern, "assign": by_partition}[by]


def goes_on(ground: Ground, topic: str, options: dict[str, Any], seen: list[int], at: Any, grows: bool) -> None:
    """A restart reads nothing twice; then what is added, and with `grows` what added partitions have, comes once."""
    ground.send(topic, [30, 31, 32], 1)
    again = ground.calls(at, **options)
    assert ground.rows(again) == [30, 31, 32], seen
    if grows:
        ground.admin.alter_topic(topic, partitions=7)
        with_more = ground.producer.__class__(ground.bootstrap)
        with with_more as producer:
            producer.publish(topic, b"40", partition=6).result(30)
        assert ground.rows(ground.calls(again.at, **options)) == [40]


def from_latest(ground: Ground, topic: str, options: dict[str, Any]) -> tuple[list[int], Stream]:
    ground.send(topic, [-1])
    stream = ground.calls(**options, startingOffsets="latest")
    ground.send(topic, [1, 2, 3], 2)
    seen = ground.rows(stream)
    assert seen == [1, 2, 3]
    return seen, stream


def from_earliest(ground: Ground, topic: str, options: dict[str, Any]) -> tuple[list[int], Stream]:
    ground.send(topic, [1, 2, 3])
    stream = ground.calls(**options, startingOffsets="earliest")
    ground.send(topic, [4, 5, 6], 4)
    seen = ground.rows(stream)
    assert seen == [1, 2, 3, 4, 5, 6]
    return seen, stream


def from_offsets(ground: Ground, topic: str, options: dict[str, Any]) -> tuple[list[int], Stream]:
    for partition, sent in enumerate(([-20, -21, -22], [-10, -11, -12], [0, 1, 2], [10, 11, 12], [20, 21, 22])):
        ground.send(topic, sent, partition)
    stream = ground.calls(**options, startingOffsets=each(topic, -2, -1, 0, 1, 2))
    seen = ground.rows(stream)
    assert seen == [-22, -21, -20, 0, 1, 2, 11, 12, 22]
    return seen, stream


def two_times(ground: Ground, topic: str) -> tuple[int, int]:
    first = later()
    for partition, sent in enumerate(([-20], [-10], [0, 1], [10, 11], [20, 21, 22])):
        ground.send(topic, sent, partition)
    second = later()
    for partition, sent in enumerate(([-21, -22], [-11, -12], [2], [12])):
        ground.send(topic, sent, partition)
    return first, second


def from_times(ground: Ground, topic: str, options: dict[str, Any]) -> tuple[list[int], Stream]:
    first, second = two_times(ground, topic)
    at = each(topic, second, second, second, second, first)
    stream = ground.calls(**options, startingOffsetsByTimestamp=at)
    seen = ground.rows(stream)
    assert seen == [-22, -21, -12, -11, 2, 12, 20, 21, 22]
    return seen, stream


def from_one_time(ground: Ground, topic: str, options: dict[str, Any]) -> tuple[list[int], Stream]:
    _, second = two_times(ground, topic)
    ground.send(topic, [23, 24], 4)
    stream = ground.calls(**options, startingTimestamp=second)
    seen = ground.rows(stream)
    assert seen == [-22, -21, -12, -11, 2, 12, 23, 24]
    return seen, stream


BEGINNINGS: dict[str, Callable[[Ground, str, dict[str, Any]], tuple[list[int], Stream]]] = {
    "latest offsets": from_latest,
    "earliest offsets": from_earliest,
    "specific offsets": from_offsets,
    "specific timestamps": from_times,
    "global timestamp per topic": from_one_time,
}
SUBSCRIBED = {"assign": "assign", "subscribing topic by name": "subscribe", "subscribing topic by pattern": "pattern"}


def list_beginnings(words: str, by: str, beginning: str, fail: str) -> None:
    grows = by != "assign" and beginning != "specific offsets"

    @case(STREAM, f"{words} from {beginning} (failOnDataLoss: {fail})")
    def begins(ground: Ground) -> None:
        topic, options = subscribed(ground, by)
        options["failOnDataLoss"] = fail
        seen, stream = BEGINNINGS[beginning](ground, topic, options)
        goes_on(ground, topic, options, seen, stream.at, grows)


for words, by in SUBSCRIBED.items():
    for beginning in BEGINNINGS:
        for fail in ("true", "false"):
            list_beginnings(words, by, beginning, fail)


@case(
    STREAM,
    "subscribing topic by name from specific timestamps with non-matching starting offset",
    "subscribing topic by name from global timestamp per topic with non-matching starting offset",
    "subscribing topic by pattern from specific timestamps with non-matching starting offset",
    "subscribing topic by pattern from global timestamp per topic with non-matching starting offset",
)
def nothing_is_as_new(ground: Ground) -> None:
    topic, by_name = subscribed(ground, "subscribe")
    _, second = two_times(ground, topic)
    everywhere = each(topic, *[second] * 5)
    for options in (by_name, {"subscribePattern": f"{ground.prefix}-suf.*"}):
        for at in ({"startingOffsetsByTimestamp": everywhere}, {"startingTimestamp": second}):
            for strategy in ({}, {"startingOffsetsByTimestampStrategy": "error"}):
                with refused("finds nothing in topic", "partition 4"):
                    ground.calls(**options, **at, **strategy)
            stream = ground.calls(**options, **at, startingOffsetsByTimestampStrategy="latest")
            assert ground.rows(stream) == [-22, -21, -12, -11, 2, 12]
            assert stream.at[topic]["4"] == 3, "the end: what comes there later is read"


@case(STREAM, "subscribing topics from topic-level offsets")
def whole_topics(ground: Ground) -> None:
    one, two = ground.topic(3, "one"), ground.topic(2, "two")
    ground.send(one, [1, 2, 3])
    ground.send(two, [11])
    options = {"subscribe": f"{one},{two}", "startingOffsets": f'{{"{one}":"earliest","{two}":"latest"}}'}
    stream = ground.calls(**options)
    ground.send(two, [12])
    ground.send(one, [4], 1)
    assert ground.rows(stream) == [1, 2, 3, 4, 12]
    assert ground.rows(ground.calls(stream.at, **options)) == []


@case(STREAM, "topic-level offsets tolerate a new topic matching subscribePattern after the start")
@case(STREAM, "stress test with multiple topics and partitions")
def new_topics(ground: Ground) -> None:
    one = ground.topic(1, "a")
    ground.send(one, [1])
    pattern = {"subscribePattern": f"{ground.prefix}-.*", "startingOffsets": f'{{"{one}":"earliest"}}'}
    stream = ground.calls(**pattern)
    assert ground.rows(stream) == [1]
    ground.send(ground.topic(2, "b"), [2], 1)
    ground.send(one, [3])
    assert ground.rows(ground.calls(stream.at, **pattern)) == [2, 3]


# ------------------------------------------------------------------ how much


@case(STREAM, "Trigger.AvailableNow")
@case(STREAM, "(de)serialization of initial offsets", "SPARK-27494: read kafka record containing null key/values.")
def available_now(ground: Ground) -> None:
    topic = ground.topic(5)
    ground.send(topic, range(15))
    frame = ground.stream(topic, maxOffsetsPerTrigger=5)
    assert ground.run(frame).sizes() == [5, 5, 5]
    for key, value in ((None, None), (b"1", None), (None, b"2")):
        ground.producer.publish(topic, value, key=key, partition=1).result(30)
    again = [(row.key and bytes(row.key), row.value and bytes(row.value)) for row in ground.run(frame).rows]
    assert sorted(again, key=str) == sorted([(None, None), (b"1", None), (None, b"2")], key=str)


@case(
    STREAM,
    "maxOffsetsPerTrigger",
    differs="What rounding leaves over goes to another partition each time, where Kafka's gives it to none",
)
def rows_max(ground: Ground) -> None:
    topic = ground.topic(3)
    for partition, sent in enumerate((range(100, 201), range(10, 21), range(1, 2))):
        ground.send(topic, sent, partition)
    stream = ground.calls(subscribe=topic, maxOffsetsPerTrigger=10)
    batches = [[row["value"] for row in rows] for rows in stream.available_now()]
    assert numbers(batches[0]) == [1, 10, 100, 101, 102, 103, 104, 105, 106, 107]
    assert {len(rows) for rows in batches[:-1]} == {10}
    assert numbers(value for rows in batches for value in rows) == [1, *range(10, 21), *range(100, 201)]
    frame = ground.stream(topic, maxOffsetsPerTrigger=10)
    assert ground.run(frame, once=True).sizes() == [113], "Trigger.Once takes all, in the first run too"


@case(STREAM, "SPARK-26718 Rate limit set to Long.Max should not overflow integer during end offset calculation")
def largest_limit(ground: Ground) -> None:
    topic = ground.topic()
    ground.send(topic, range(5))
    stream = ground.calls(subscribe=topic, startingOffsets=each(topic, 5), maxOffsetsPerTrigger=2**63 - 1)
    ground.send(topic, range(30, 35))
    assert ground.rows(stream) == [30, 31, 32, 33, 34]


def given(stream: Stream, end: dict[str, int], topic: str) -> list[int]:
    """The next micro-batch once the brokers have told of these ends, by partition; empty if it waits for more."""
    wait_until(lambda: stream.reader.reportLatestOffset()[topic].items() >= end.items(), "the ends")
    return numbers(row["value"] for row in stream.next())


@case(STREAM, "minOffsetsPerTrigger", "compositeReadLimit")
def rows_min(ground: Ground) -> None:
    """That the time is up is in tests/mq_spark/planning/test_positions.py, where the clock is given."""
    topic = ground.topic(2)
    ground.send(topic, range(100, 110), 0)
    ground.send(topic, range(10, 16), 1)
    limits = {"minOffsetsPerTrigger": 15, "maxTriggerDelay": "1h", "maxOffsetsPerTrigger": 20}
    stream = ground.calls(subscribe=topic, **limits)
    assert given(stream, {"0": 10, "1": 6}, topic) == [*range(10, 16), *range(100, 110)], "the first comes at once"
    ground.send(topic, range(16, 22), 1)
    assert given(stream, {"1": 12}, topic) == []
    ground.send(topic, range(110, 130), 0)
    assert len(given(stream, {"0": 30}, topic)) == 20, "enough, and no more than may be"
    frame = ground.stream(topic, **limits)
    assert ground.run(frame, once=True).sizes() == [42]


@case(STREAM, "SPARK-22956: currentPartitionOffsets should be set when no new data comes in")
def two_sources(ground: Ground) -> None:
    one, two = ground.topic(1, "one"), ground.topic(1, "two")
    ground.send(one, range(10))
    ground.send(two, range(100, 125))
    frame = ground.stream(one, maxOffsetsPerTrigger=5).union(ground.stream(two, maxOffsetsPerTrigger=5))
    assert ground.run(frame).sizes() == [10, 10, 5, 5, 5]


@case(STREAM, "SPARK-30656: minPartitions")
def tasks_min(ground: Ground) -> None:
    topic = ground.filled()
    stream = ground.calls(subscribe=topic, minPartitions=6)
    end = given_end(stream, topic, {"0": 10, "1": 10, "2": 1})
    parts = stream.reader.partitions(stream.at, end)
    assert len(parts) >= 6
    assert numbers(value for part in parts for value in rows_of(stream, part)) == [*range(21)]


def given_end(stream: Stream, topic: str, ends: dict[str, int]) -> dict[str, Any]:
    wait_until(lambda: stream.reader.reportLatestOffset()[topic].items() >= ends.items(), "the ends")
    return stream.reader.latestOffset(stream.at, stream.reader.getDefaultReadLimit())


# ------------------------------------------------------------------ what is lost


@case(
    STREAM,
    "Query with Trigger.AvailableNow should throw error when topic partitions got unavailable",
    "Query with Trigger.AvailableNow should throw error when offset(s) in planned topic partitions got unavailable",
    "subscribe topic by pattern with topic recreation between batches",
)
def made_again(ground: Ground) -> None:
    for suffix, partitions, rows in (("fewer-partitions", 3, 15), ("fewer-rows", 5, 10)):
        topic = ground.topic(5, suffix)
        ground.send(topic, range(15))
        options = {"subscribePattern": f"{ground.prefix}-{suffix}", "maxOffsetsPerTrigger": 5, **BRIEF}
        stream = ground.calls(**options)
        stream.reader.prepareForTriggerAvailableNow()
        assert len(stream.next()) == 5
        ground.delete(topic)
        ground.topic(partitions, suffix)
        ground.send(topic, range(rows))
        with refused("data was lost"):
            for _ in range(4):
                stream.next()
        with refused(f"topic {topic} was deleted and made again"):
            ground.rows(ground.calls(stream.at, **options))


@case(
    STREAM,
    "subscribing topic by pattern with topic deletions",
    "SPARK-41375: empty partitions should not record to latest offset",
)
def deleted_under_a_pattern(ground: Ground) -> None:
    topic = ground.topic(5, "seems")
    ground.send(topic, [1, 2, 3], 3)
    options = {"subscribePattern": f"{ground.prefix}-.*", "failOnDataLoss": "false", **BRIEF}
    stream = ground.calls(**options)
    assert ground.rows(stream) == [1, 2, 3]
    ground.delete(topic)
    again = ground.calls(stream.at, **options)
    assert ground.rows(again) == []
    ground.send(ground.topic(5, "bad"), [4, 5, 6], 2)
    last = ground.calls(again.at, **options)
    assert ground.rows(last) == [4, 5, 6]
    ground.topic(1, "seems")
    ground.send(topic, [7])
    assert ground.rows(ground.calls(last.at, **options)) == [7]


@case(STREAM, "delete a topic when a Spark job is running")
def deleted_while_read(ground: Ground) -> None:
    topic = ground.topic()
    ground.send(topic, range(1, 11))
    stream = ground.calls(subscribe=topic, failOnDataLoss="false", **BRIEF)
    end = given_end(stream, topic, {"0": 10})
    parts = stream.reader.partitions(stream.at, end)
    ground.delete(topic)
    ground.topic()
    ground.send(topic, range(101, 111))
    assert [value for part in parts for value in rows_of(stream, part)] == []
    stream.reader.commit(end)


@case(LOSS, "failOnDataLoss=false should not return duplicated records: microbatch v1", "… microbatch v2")
def retention(ground: Ground) -> None:
    topic = ground.topic()
    for number in range(10):
        ground.send(topic, [number])
    ground.admin.alter_topic(topic, retention_bytes=1)
    wait_until(lambda: ground.admin.offsets(topic)[0][0] > 0, "retention")
    start, end = ground.admin.offsets(topic)[0]
    stream = ground.calls(subscribe=topic, startingOffsets=each(topic, 0), failOnDataLoss="false", **BRIEF)
    assert ground.rows(stream) == [*range(start, end)]


def patiently(stream: Stream) -> list[dict[str, Any]]:
    """The next micro-batch. A broker may be busy for longer than `requestTimeoutMs`, which is short so that topics that
    are gone are not waited for: Spark starts such a query again."""
    while True:
        with contextlib.suppress(Unreachable):
            return stream.next()


@case(LOSS, "stress test for failOnDataLoss=false")
def churn(ground: Ground) -> None:
    """Topics come, go and come again while a query reads: it never fails, and reads no record of theirs twice."""
    chance, topics, gone, sent, seen = random.Random(7), [ground.topic(1, "x0")], [], 0, []
    options = {"subscribePattern": f"{ground.prefix}-x.*", "failOnDataLoss": "false", "requestTimeoutMs": 700}
    stream = ground.calls(**options)
    for step in range(1, 25):
        match chance.choice("cdrpppp"):
            case "c":
                topics.append(ground.topic(1, f"x{step}"))
            case "d" if len(topics) > 1:
                gone.append(topics.pop(chance.randrange(len(topics))))
                ground.delete(gone[-1])
            case "r" if gone:
                topics.append(ground.topic(1, gone.pop().removeprefix(f"{ground.prefix}-")))
            case _:
                for topic in topics:
                    ground.send(topic, [sent])
                    sent += 1
        seen += [int(row["value"]) for row in patiently(stream)]
    assert len(seen) == len(set(seen))
    seen += ground.rows(ground.calls(stream.at, **options))
    assert len(seen) == len(set(seen))
    assert seen


@case(STREAM, "SPARK-53560: no crash looping during uncommitted batch retry in AvailableNow trigger")
def retried(ground: Ground) -> None:
    topic = ground.topic()
    ground.send(topic, range(1, 8))
    stream = ground.calls(subscribe=topic)
    stream.reader.prepareForTriggerAvailableNow()
    end = stream.reader.latestOffset(stream.at, stream.reader.getDefaultReadLimit())
    ground.admin.alter_topic(topic, partitions=2)
    again = ground.calls(subscribe=topic)  # the micro-batch was not committed: Spark plans it again
    again.reader.prepareForTriggerAvailableNow()
    parts = again.reader.partitions(again.at, end)
    assert numbers(value for part in parts for value in rows_of(again, part)) == [*range(1, 8)]


# ------------------------------------------------------------------ transactions


@case(STREAM, "read Kafka transactional messages: read_committed")
@case(STREAM, "SPARK-25495: FetchedData.reset should reset all fields")
def committed(ground: Ground) -> None:
    transactions(ground, "read_committed")


@case(STREAM, "read Kafka transactional messages: read_uncommitted", differs=UNCOMMITTED)
def uncommitted(ground: Ground) -> None:
    transactions(ground, "read_uncommitted")


def transactions(ground: Ground, level: str) -> None:
    topic = ground.topic()
    options = {"subscribe": topic, "kafka.isolation.level": level, "maxOffsetsPerTrigger": 3}
    commit = ground.staged(topic, range(5))
    stream = ground.calls(**options)
    assert ground.rows(stream) == []
    commit()
    again = ground.calls(stream.at, **options)
    wait_until(lambda: ground.admin.offsets(topic)[0][1] == 5, "the commit")
    assert [len(rows) for rows in again.available_now()] == [3, 2], "a commit takes no offset"
    ground.staged(topic, range(6, 11))  # and never committed
    ground.staged(topic, range(12, 17))()
    wait_until(lambda: ground.admin.offsets(topic)[0][1] == 10, "the commit")
    assert ground.rows(ground.calls(again.at, **options)) == [*range(12, 17)]


# ------------------------------------------------------------------ what Spark itself does with it


@case(STREAM, "KafkaSource with watermark", "input row metrics", "cannot stop Kafka stream")
@case(STREAM, "test custom metrics - with rate limit", "test custom metrics - no rate limit", differs=METRICS)
def in_spark(ground: Ground) -> None:
    topic = ground.topic(5)
    ground.send(topic, [1, 2, 3], 2)
    windows = ground.stream(topic).withWatermark("timestamp", "10 seconds").groupBy(f.window("timestamp", "5 seconds"))
    writer = windows.count().writeStream.format("memory").outputMode("complete").queryName("suite_windows")
    query = writer.option("checkpointLocation", str(ground.scratch / "windows")).start()
    try:
        query.processAllAvailable()
        assert sum(row["count"] for row in ground.spark.table("suite_windows").collect()) == 3
        assert sum(each["numInputRows"] for each in query.recentProgress) == 3
        assert all(not source.metrics for progress in query.recentProgress for source in progress.sources)
    finally:
        query.stop()


@case(
    STREAM,
    "ensure stream-stream self-join generates only one offset in log and correct metrics",
    differs="each side of a source in Python is a source of its own",
)
def self_join(ground: Ground) -> None:
    topic = ground.topic(2)
    ground.send(topic, [1, 2], 0)
    ground.send(topic, [6, 3], 1)
    number = "CAST(CAST(value AS STRING) AS INT)"
    numbers_ = ground.stream(topic).selectExpr(f"{number} AS n", f"{number} % 5 AS key")
    found = ground.run(numbers_.join(numbers_, "key").toDF("key", "n", "m"))
    assert sorted(map(tuple, found.rows)) == [(1, 1, 1), (1, 1, 6), (1, 6, 1), (1, 6, 6), (2, 2, 2), (3, 3, 3)]
    log = Path(ground.scratch / "checkpoint" / "offsets" / "0").read_text().splitlines()
    assert [topic in line for line in log].count(True) == 2, "Kafka's has one"


@case(STREAM, "Kafka column types", differs="The column `timestampType`")
def columns(ground: Ground) -> None:
    topic = ground.topic()
    before_ms = later()
    pairs = [("a", b"b"), ("c", b"d")]
    ground.producer.publish(topic, b"1", headers=pairs).result(30)
    frame = ground.stream(topic, includeHeaders="true")
    assert "timestampType" not in frame.columns
    (row,) = ground.run(frame).rows
    assert (row.key, bytes(row.value), row.topic, row.partition, row.offset) == (None, b"1", topic, 0, 0)
    assert row.timestamp.timestamp() * 1000 >= before_ms
    assert [(header.key, bytes(header.value)) for header in row.headers] == pairs


@case(STREAM, "SPARK-56243: malformed record timestamp throws detailed error")
def nanoseconds(ground: Ground) -> None:
    topic = ground.topic()
    with refused("timestamp=1712345678123456789 is not in the years 1 to 9999"):
        ground.producer.publish(topic, b"value", timestamp=1_712_345_678_123_456_789)


@case(STREAM, "async progress tracking", differs="Asynchronous progress tracking is refused")
def asynchronous(ground: Ground) -> None:
    with refused("does not support async progress tracking"):
        ground.run_into(ground.stream(ground.topic()), ground.topic(1, "out"), asyncProgressTrackingEnabled="true")


@case(STREAM, "bad source options", "unsupported kafka configs")
def bad_options(ground: Ground) -> None:
    bad = [
        ({"subscribe": "t", "endingOffsets": "latest"}, "endingOffsets has no meaning in a stream"),
        ({"subscribe": "t", "endingOffsetsByTimestamp": each("t", 1000)}, "has no meaning in a stream"),
        ({}, "subscribe is missing"),
        ({"subscribe": "t", "subscribePattern": "t.*"}, "leave one out"),
        ({"subscribe": "t", "assign": '{"a":[0]}'}, "leave one out"),
        ({"assign": ""}, "assign is not understood"),
        ({"subscribe": ""}, "names no topic"),
        ({"subscribePattern": ""}, "subscribePattern is empty"),
        (
            {"subscribe": "t", "minOffsetsPerTrigger": "20", "maxOffsetsPerTrigger": "15"},
            "is above maxOffsetsPerTrigger",
        ),
    ]
    for name in ("auto.offset.reset", "enable.auto.commit", "interceptor.classes", "key.deserializer"):
        bad += [({"subscribe": "t", f"kafka.{name}": "earliest"}, f"option kafka.{name} cannot be used")]
    for options, words in bad:
        with refused(words):
            parse_source({"bootstrap.servers": "a:1", **options}, streaming=True)
