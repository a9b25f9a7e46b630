"""KafkaRelationSuite, KafkaOffsetReaderSuite, and the batch reads of KafkaDontFailOnDataLossSuite."""

from __future__ import annotations

import json
import time
from itertools import chain

from mq_spark.datasource.readers import BatchReader
from mq_spark.datasource.reading import Ranges
from mq_spark.planning.options import parse_source
from tests.cluster.harness import wait_until
from tests.mq_spark.datasource.calls import VALUE
from tests.spark.suites.ground import Ground, case, each, refused, values

RELATION, OFFSETS, LOSS = "KafkaRelationSuite", "KafkaOffsetReaderSuite", "KafkaDontFailOnDataLossSuite"
UNCOMMITTED = "with `read_uncommitted` too, rows of a transaction that is not committed are never read"


@case(RELATION, "explicit earliest to latest offsets")
def late_end(ground: Ground) -> None:
    topic = ground.filled()
    frame = ground.read(topic, startingOffsets="earliest", endingOffsets="latest")
    assert values(frame) == [*range(21)]
    ground.send(topic, range(21, 30), 2)
    assert values(frame) == [*range(30)], "latest is bound when the DataFrame is used"


@case(RELATION, "default starting and ending offsets")
def defaults(ground: Ground) -> None:
    assert values(ground.read(ground.filled())) == [*range(21)]


@case(RELATION, "explicit offsets")
def explicit(ground: Ground) -> None:
    topic = ground.filled()
    frame = ground.read(topic, startingOffsets=each(topic, -2, -2, 0), endingOffsets=each(topic, -1, -1, 1))
    assert values(frame) == [*range(21)]
    ground.send(topic, range(31, 40), 2)
    assert values(frame) == [*range(21)], "partition 2 ends at an offset"
    ground.send(topic, range(21, 31), 1)
    assert values(frame) == [*range(31)], "partition 1 ends at latest"


@case(RELATION, "default starting and ending offsets with headers")
def headers(ground: Ground) -> None:
    topic = ground.topic(3)
    given: list[list[tuple[str, bytes | None]] | None] = [None, [("a", b"b"), ("c", b"d")], [("e", b"f"), ("e", b"g")]]
    for partition, pairs in enumerate(given):
        ground.producer.publish(topic, str(partition).encode(), headers=pairs, partition=partition).result(30)
    rows = ground.read(topic, includeHeaders="true").select("value", "headers").orderBy("value").collect()
    assert [row.headers and [(key, bytes(value)) for key, value in row.headers] for row in rows] == given


def thirds(ground: Ground) -> tuple[str, list[int]]:
    """0 to 9, 10 to 19 and 20 to 29, each dealt out to three partitions; and the times in milliseconds at which a
    broker had appended none of them, the first ten, and so on."""
    topic, times = ground.topic(3), []
    for first in (0, 10, 20):
        times.append(later())
        for partition in range(3):
            ground.send(topic, [n for n in range(first, first + 10) if n % 3 == partition], partition)
    return topic, [*times, later()]


def later() -> int:
    """A time in milliseconds after all that has been appended, and before all that will be."""
    now_ms = time.time_ns() // 1_000_000
    wait_until(lambda: time.time_ns() // 1_000_000 > now_ms + 2, "the clock")
    return now_ms + 2


@case(
    RELATION,
    "timestamp provided for starting and ending",
    "timestamp provided for starting, offset provided for ending",
    "timestamp provided for ending, offset provided for starting",
    "timestamp provided for starting, ending not provided",
    "timestamp provided for ending, starting not provided",
    "global timestamp provided for starting and ending",
    "no matched offset for timestamp - startingOffsets",
    "preferences on offset related options",
    "no matched offset for timestamp - endingOffsets",
)
def times(ground: Ground) -> None:
    topic, (first, second, third, _) = thirds(ground)
    never = 2**63 - 1
    starting, ending = "startingOffsetsByTimestamp", "endingOffsetsByTimestamp"
    at = {moment: each(topic, moment, moment, moment) for moment in (first, second, third)}
    some = [n for n in range(30) if n % 3 != 2]
    expected = [
        ({starting: at[second], ending: at[third]}, [*range(10, 20)]),
        ({starting: at[first], "endingOffsets": each(topic, -1, -1, 1)}, sorted([*some, 2])),
        ({"startingOffsets": each(topic, -2, -2, 0), ending: at[third]}, [*range(20)]),
        ({starting: at[second]}, [*range(10, 30)]),
        ({ending: at[third]}, [*range(20)]),
        ({"startingTimestamp": second, "endingTimestamp": third}, [*range(10, 20)]),
        ({"startingTimestamp": third, starting: at[second], "startingOffsets": "earliest"}, [*range(20, 30)]),
        ({starting: at[second], "startingOffsets": "earliest"}, [*range(10, 30)]),
        ({ending: each(topic, second, second, never)}, sorted([*range(10), *(n for n in range(10, 30) if n % 3 == 2)])),
    ]
    for options, wanted in expected:
        assert [int(value) for value in batch(ground, topic, **options)] == wanted, options
    with refused("startingOffsetsByTimestamp finds nothing in topic"):
        batch(ground, topic, **{starting: each(topic, second, second, never)})


def batch(ground: Ground, topic: str, **options: object) -> list[bytes]:
    """The values of a batch read, by the calls that Spark makes."""
    reader = planned(ground, topic, **options)
    rows = chain.from_iterable(rows.to_pylist() for part in reader.partitions() for rows in reader.read(part))
    return sorted((row["value"] for row in rows), key=int)


def planned(ground: Ground, topic: str, **options: object) -> BatchReader:
    given = {"bootstrap.servers": ground.bootstrap, "subscribe": topic, **{k: str(v) for k, v in options.items()}}
    return BatchReader(parse_source(given, streaming=False), VALUE)


@case(RELATION, "reuse same dataframe in query")
def reused(ground: Ground) -> None:
    topic = ground.topic()
    ground.send(topic, range(11))
    frame = ground.read(topic)
    assert values(frame.union(frame)) == sorted([*range(11)] * 2)
    assert values(frame.where("CAST(CAST(value AS STRING) AS INT) > 7").union(frame.where("offset < 2"))) == [
        0, 1, 8, 9, 10
    ], "each side has the rows of its own filter"  # fmt: skip


@case(RELATION, "test late binding start offsets")
@case(LOSS, "failOnDataLoss=false should not return duplicated records: batch v1", "… batch v2")
def late_start(ground: Ground) -> None:
    topic = ground.topic()
    ground.send(topic, range(10))
    frame = ground.read(topic, startingOffsets="earliest", endingOffsets="latest")
    assert values(frame) == [*range(10)]
    for number in range(10, 20):
        ground.send(topic, [number])
    ground.admin.alter_topic(topic, retention_bytes=1)
    wait_until(lambda: ground.admin.offsets(topic)[0][0] > 9, "retention")
    start, end = ground.admin.offsets(topic)[0]
    assert values(frame) == [*range(start, end)]
    lost = ground.read(topic, startingOffsets=each(topic, 0), failOnDataLoss="false")
    assert values(lost) == [*range(start, end)]


@case(RELATION, "bad batch query options")
def bad_options(ground: Ground) -> None:
    bad = [
        ({"subscribe": "t", "startingOffsets": "latest"}, "startingOffsets of a batch read cannot be latest"),
        ({"subscribe": "t", "startingOffsets": each("t", -1)}, "startingOffsets of a batch read cannot be latest"),
        ({"subscribe": "t", "endingOffsets": "earliest"}, "endingOffsets cannot be earliest"),
        ({"subscribe": "t", "endingOffsets": each("t", -2)}, "endingOffsets cannot be earliest"),
        ({}, "subscribe is missing"),
        ({"subscribe": "t", "subscribePattern": "t.*"}, "each says which topics to read, leave one out"),
        ({"subscribe": "t", "assign": '{"a":[0]}'}, "each says which topics to read, leave one out"),
        ({"assign": ""}, "assign is not understood"),
        ({"subscribe": ""}, "names no topic"),
        ({"subscribePattern": ""}, "subscribePattern is empty"),
    ]
    for options, words in bad:
        with refused(words):
            parse_source({"bootstrap.servers": "a:1", **options}, streaming=False)


@case(RELATION, "read Kafka transactional messages: read_committed")
def committed(ground: Ground) -> None:
    sees_what_is_committed(ground, "read_committed")


@case(RELATION, "read Kafka transactional messages: read_uncommitted", differs=UNCOMMITTED)
def uncommitted(ground: Ground) -> None:
    sees_what_is_committed(ground, "read_uncommitted")


def sees_what_is_committed(ground: Ground, level: str) -> None:
    topic = ground.topic()
    frame = ground.read(topic, **{"kafka.isolation.level": level})
    commit = ground.staged(topic, range(1, 6))
    assert frame.isEmpty()
    commit()
    wait_until(lambda: ground.admin.offsets(topic)[0][1] == 5, "the commit")
    assert values(frame) == [*range(1, 6)]
    ground.staged(topic, range(6, 11))  # and never committed
    ground.staged(topic, range(11, 16))()
    wait_until(lambda: ground.admin.offsets(topic)[0][1] == 10, "the commit")
    assert values(frame) == [*range(1, 6), *range(11, 16)]


@case(RELATION, "SPARK-30656: minPartitions")
def min_partitions(ground: Ground) -> None:
    topic = ground.filled()
    frame = ground.read(topic, minPartitions=6)
    rdd = frame.rdd
    assert rdd.getNumPartitions() >= 6
    assert sorted(int(bytes(row.value)) for row in rdd.collect()) == [*range(21)]
    ground.send(topic, range(21, 31))
    assert frame.rdd.count() == 31
    assert rdd.count() == 31


@case(RELATION, "topic-partition for start offset and end offset must match")
@case(OFFSETS, "SPARK-48383: START_OFFSET_DOES_NOT_MATCH_ASSIGNED error class")
@case(OFFSETS, "KAFKA_TIMESTAMP_OFFSET_DOES_NOT_MATCH_ASSIGNED error class - specified: 2", "… specified: 4")
def every_partition(ground: Ground) -> None:
    topic = ground.topic(3)
    with refused("endingOffsets names partitions 0, 1 of topic", "name every one, once"):
        batch(ground, topic, startingOffsets=each(topic, 0, 0, 0), endingOffsets=each(topic, 0, 0))
    with refused("startingOffsets names partitions 0, 1 of topic"):
        batch(ground, topic, startingOffsets=each(topic, -2, -2), endingOffsets=each(topic, -1, 3))
    for numbers in ((1, 1), (1, 1, 1, 1)):
        with refused("startingOffsetsByTimestamp names partitions 0, 1"):
            batch(ground, topic, startingOffsetsByTimestamp=each(topic, *numbers))


@case(
    RELATION,
    "unresolved start offset greater than end offset",
    "resolved start offset greater than end offset (without latest)",
    "resolved start offset greater than end offset (with latest)",
)
def backwards(ground: Ground) -> None:
    topic = ground.topic(3)
    with refused("startingOffsets has offset 1 for topic", "which keeps 0 to 0"):
        batch(ground, topic, startingOffsets=each(topic, 1, 1, 1))
    before = later()
    for partition in range(3):
        ground.send(topic, [0, 0], partition)
    with refused("the read begins at offset 1 of topic", "partition 0 and ends at 0"):
        batch(ground, topic, startingOffsets=each(topic, 1, 1, 1), endingOffsets=each(topic, 0, 0, 0))
    with refused("the read begins at offset 2 of topic", "partition 0 and ends at 0"):
        batch(ground, topic, startingOffsets=each(topic, 2, 2, 2), endingTimestamp=before)


# ------------------------------------------------------------------ KafkaOffsetReaderSuite


@case(
    OFFSETS, "isolationLevel must give back READ_COMMITTED when set", "isolationLevel must throw exception when invalid"
)
def isolation(ground: Ground) -> None:
    topic = ground.topic()
    assert batch(ground, topic, **{"kafka.isolation.level": "read_committed"}) == []
    with refused("kafka.isolation.level='intentionally_invalid' is not known"):
        batch(ground, topic, **{"kafka.isolation.level": "intentionally_invalid"})


@case(
    OFFSETS,
    "SPARK-30656: getOffsetRangesFromUnresolvedOffsets - using specific offsets",
    "SPARK-30656: getOffsetRangesFromUnresolvedOffsets - using special offsets",
)
def ranges(ground: Ground) -> None:
    topic = ground.topic()
    ground.send(topic, range(10))
    offsets = {"startingOffsets": each(topic, 1), "endingOffsets": each(topic, 4)}
    assert cut(ground, topic, minPartitions=3, **offsets) == [[(0, 1, 2)], [(0, 2, 3)], [(0, 3, 4)]]
    assert cut(ground, topic, minPartitions=3, endingOffsets=each(topic, 4)) == [[(0, 0, 1)], [(0, 1, 2)], [(0, 2, 4)]]


@case(
    OFFSETS,
    "SPARK-30656: getOffsetRangesFromUnresolvedOffsets - multiple topic partitions",
    "SPARK-30656: getOffsetRangesFromResolvedOffsets",
    differs="many small ranges share a task",
)
def shared_tasks(ground: Ground) -> None:
    topic = ground.topic(2)
    ground.send(topic, range(100), 0)
    ground.send(topic, range(4), 1)
    tasks = cut(ground, topic, minPartitions=4, endingOffsets=each(topic, -1, 3))
    assert len(tasks) == 4, "Kafka's has three of partition 0, and one of partition 1"
    assert sum(end - start for task in tasks for _, start, end in task) == 103
    assert [partition for partition, _, _ in tasks[-1]] == [0, 1]


def cut(ground: Ground, topic: str, **options: object) -> list[list[tuple[int, int, int]]]:
    """Each task's ranges: partition, start, end."""
    parts = planned(ground, topic, **options).partitions()
    assert all(isinstance(part, Ranges) for part in parts)
    return [[(r.partition, r.start, r.end) for r in part.ranges] for part in parts if isinstance(part, Ranges)]


@case("KafkaMicroBatchSourceSuite", "minPartitions is supported")
def tasks_of_a_stream(ground: Ground) -> None:
    topic = ground.topic()
    ground.send(topic, range(100))
    for given, tasks in ((None, 1), (1, 1), (4, 4)):
        stream = ground.calls(subscribe=topic, **({} if given is None else {"minPartitions": given}))
        assert len(stream.reader.partitions({topic: {"0": 0}}, {topic: {"0": 100}})) == tasks
    for text in ("a", "1.0", "0", "-1"):
        with refused(f"minPartitions={text if text[-1] == '1' or text == '0' else repr(text)} is"):
            parse_source({"bootstrap.servers": "a:1", "subscribe": "t", "minPartitions": text}, streaming=True)


@case("KafkaMicroBatchSourceSuite", "get offsets from case insensitive parameters")
def any_case(ground: Ground) -> None:
    given = {"bootstrap.servers": "a:1", "subscribe": "topic-A,topic-B"}
    word = json.dumps({"topic-A": "eArLiEst", "topic-B": {"0": 23}})
    assert parse_source({**given, "STARTINGoffsets": "earLiEst"}, streaming=True).starting == -2
    assert parse_source({**given, "endingOFFSETS": "laTest"}, streaming=False).ending == -1
    assert parse_source({**given, "startingOffsets": word}, streaming=True).starting == {
        "topic-A": -2,
        "topic-B": {0: 23},
    }
