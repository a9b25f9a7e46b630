"""A Spark driver whose writes cannot work, and whose reads end early: what it prints on standard error is looked at.

python failing_writes.py BOOTSTRAP CHECKPOINT        topics: `flights` (records), `typed` (id long)

Prints on standard output one JSON list: [case, the error's class, its text] of each write.
"""

from __future__ import annotations

import json
import sys

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from tests.spark.sink_driver import short_session

NOWHERE = "late_flights"


def mark(text: str) -> None:
    print(f"##### {text}", file=sys.stderr, flush=True)


def batch(frame: DataFrame, bootstrap: str, topic: str) -> None:
    frame.write.format("tritonmq").mode("append").option("bootstrap.servers", bootstrap).option("topic", topic).save()


def stream(spark: SparkSession, bootstrap: str, checkpoint: str) -> None:
    """From `latest`, so that there is no row: the writer is made nevertheless."""
    source = (
        spark.readStream.format("tritonmq").option("bootstrap.servers", bootstrap).option("subscribe", "flights").load()
    )
    sink = (
        source.select("value")
        .writeStream.format("tritonmq")
        .option("bootstrap.servers", bootstrap)
        .option("topic", NOWHERE)
    )
    if not sink.option("checkpointLocation", checkpoint).start().awaitTermination(60):
        raise TimeoutError("the stream did not end")


def main(bootstrap: str, checkpoint: str) -> None:
    spark = short_session().getOrCreate()
    text = spark.range(3).selectExpr("'v' AS value")
    told = []
    for case, write in (
        ("missing", lambda: batch(text, bootstrap, NOWHERE)),
        ("type", lambda: batch(spark.range(3).selectExpr("'v' AS id"), bootstrap, "typed")),
        ("stream", lambda: stream(spark, bootstrap, checkpoint)),
    ):
        mark(case)
        try:
            write()
        except PySparkException as error:
            told.append((case, type(error).__name__, str(error)))
    mark("reads")
    reader = spark.read.format("tritonmq").option("bootstrap.servers", bootstrap).option("subscribe", "flights").load()
    for _ in range(3):
        assert len(reader.limit(5).collect()) == 5
    mark("end")
    print(json.dumps(told))


if __name__ == "__main__":
    main(*sys.argv[1:])
