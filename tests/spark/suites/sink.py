"""KafkaSinkSuite: micro-batches and batch writes. Continuous processing is below: no sink in Python has it."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from tests.spark.suites.ground import Ground, case, refused, values

SINK = "KafkaSinkSuite"


def source(ground: Ground) -> tuple[DataFrame, str]:
    """A stream with the column `value`, of 1 to 5 so far; and the topic that it is of."""
    topic = ground.topic(1, "in")
    ground.send(topic, range(1, 6))
    return ground.stream(topic).select(f.col("value").cast("string").alias("value")), topic


@case(
    SINK,
    "streaming - write to kafka with topic field",
    "streaming - write w/o topic field, with topic option",
    "streaming - topic field and topic option",
    "streaming - sink progress is produced",
)
def streams(ground: Ground) -> None:
    frame, sent = source(ground)
    out = ground.topic(1, "out")
    runs: list[tuple[DataFrame, str | None]] = [
        (frame.withColumn("topic", f.lit(out)), None),
        (frame, out),
        (frame.withColumn("topic", f.lit("foo")), out),
    ]
    expected = [*range(1, 6)]
    for run, (rows, topic) in enumerate(runs):
        query = ground.run_into(rows, topic)
        assert values(ground.read(out)) == sorted(expected), "the option counts before the column"
        assert [each.sink.numOutputRows for each in query.recentProgress if each.numInputRows] == [
            len(expected) - 5 * run
        ]
        more = range(10 * (run + 1), 10 * (run + 1) + 5)
        ground.send(sent, more)
        expected += more


@case(SINK, "streaming - write data with bad schema", "streaming - write data with valid schema but wrong types")
@case(SINK, "streaming - write to non-existing topic", "streaming - exception on config serializer")
def refused_streams(ground: Ground) -> None:
    """Streams and batch writes are checked alike before there is any task: what one says of a fault the other says too,
    and a batch write at less cost."""
    frame, sent = source(ground)
    out = ground.topic(1, "out")
    with refused("create it first"):
        ground.run_into(frame, f"{ground.prefix}-none")
    rows = ground.read(sent).select(f.col("value").cast("string").alias("value"))
    wrong: list[tuple[DataFrame, str | None, dict[str, str], str]] = [
        (rows.withColumn("key", f.col("value")), None, {}, "no topic is named"),
        (rows.withColumnRenamed("value", "key"), out, {}, "column 'value' is missing"),
        (rows.withColumn("topic", f.lit(1)), None, {}, "column 'topic' is int: make it a string"),
        (rows.select(f.col("value").cast("int").alias("value")), out, {}, "column 'value' is int"),
        (rows.withColumn("key", f.col("value").cast("int")), out, {}, "column 'key' is int"),
        (rows.withColumn("partition", f.col("value")), out, {}, "column 'partition' is string: make it an int"),
        (rows, out, {"kafka.key.serializer": "foo"}, "option kafka.key.serializer cannot be used"),
        (rows, out, {"kafka.value.serializer": "foo"}, "option kafka.value.serializer cannot be used"),
    ]
    for each, topic, options, words in wrong:
        with refused(words):
            ground.write(each, topic, **options)
    assert values(ground.read(out)) == []


@case(
    SINK, "streaming - sink progress is produced (its output mode, update)", differs="refused by Spark for every sink"
)
def update_mode(ground: Ground) -> None:
    frame, _ = source(ground)
    with refused("does not support Update mode"):
        ground.run_into(frame, ground.topic(1, "out"), mode="update")


@case(SINK, "batch - write to kafka", "SPARK-20496: batch - enforce analyzed plans", "batch - unsupported save modes")
@case(SINK, "batch - null topic field value, and no topic option")
def batches(ground: Ground) -> None:
    topic = ground.topic()
    pairs = [[("a", b"b")], [("c", b"d"), ("e", b"f")], [("g", b"h"), ("g", b"i")], None]
    data = [(topic, str(number), headers) for number, headers in enumerate(pairs)]
    schema = "topic string, value string, headers array<struct<key:string,value:binary>>"
    ground.write(ground.spark.createDataFrame(data, schema), topic)
    rows = ground.read(topic, includeHeaders="true").select("value", "headers").orderBy("value").collect()
    assert [row.headers and [(key, bytes(value)) for key, value in row.headers] for row in rows] == pairs
    ground.write(ground.spark.range(1, 1000).select(f.to_json(f.struct("*")).alias("value")), topic)
    assert ground.read(topic).count() == 4 + 999
    null = ground.spark.createDataFrame([(None, "1")], "topic string, value string")
    with refused("column 'topic' has nulls"):
        ground.write(null, None)
    with refused('mode("overwrite") is not possible'):
        ground.write(null, topic, mode="overwrite")
    with refused("Ignore"):
        ground.write(null, topic, mode="ignore")


@case(SINK, "batch - partition column and partitioner priorities")
@case(SINK, "… with a partitioner of its own", differs="`kafka.partitioner.class`, which it does not")
@case(SINK, "generic - write big data with small producer buffer")
def partitions(ground: Ground) -> None:
    by_key, by_column, by_null, large = (ground.topic(4, name) for name in ("key", "column", "null", "large"))
    rows = ground.spark.createDataFrame([(str(n), str(n)) for n in range(5)], "key string, value string")
    ground.write(rows, by_key)
    ground.write(rows.withColumn("partition", f.lit(2)), by_column)
    ground.write(rows.withColumn("partition", f.lit(None).cast("int")), by_null)
    found = {topic: partitions_of(ground, topic) for topic in (by_key, by_column, by_null)}
    assert len(found[by_key]) > 1
    assert found == {by_key: found[by_key], by_column: {2}, by_null: found[by_key]}
    with refused("kafka.partitioner.class cannot be used: give the rows a column partition"):
        ground.write(rows, by_key, **{"kafka.partitioner.class": "x.Y"})
    ground.write(ground.spark.range(100).select(f.rpad(f.lit("x"), 15_000, "y").alias("value")), large)
    assert ground.read(large).count() == 100


def partitions_of(ground: Ground, topic: str) -> set[int]:
    return {row.partition for row in ground.read(topic).select("partition").distinct().collect()}
