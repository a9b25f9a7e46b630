"""A Spark driver to be killed: copies one topic into another, exactly once, in micro-batches of 100 rows.

python sink_driver.py BOOTSTRAP SOURCE SINK CHECKPOINT
"""

from __future__ import annotations

import sys

from pyspark.sql import SparkSession

from mq_spark.session import configure


def copy_stream(spark: SparkSession, bootstrap: str, source: str, sink: str, checkpoint: str, **options: str) -> None:
    """Run until all that is there now is copied."""
    stream = (
        spark.readStream.format("tritonmq")
        .option("bootstrap.servers", bootstrap)
        .option("subscribe", source)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", 100)
        .load()
    )
    written = (
        stream.select("key", "value")
        .writeStream.format("tritonmq")
        .option("bootstrap.servers", bootstrap)
        .option("topic", sink)
        .option("checkpointLocation", checkpoint)
    )
    for option, value in options.items():
        written = written.option(option, value)
    query = written.trigger(availableNow=True).start()
    if not query.awaitTermination(90):
        raise TimeoutError("the stream did not end within 90 s")


def short_session() -> SparkSession.Builder:
    """A session that starts quickly and says nothing."""
    builder = SparkSession.builder.master("local[2]")
    builder = builder.config("spark.ui.enabled", "false").config("spark.ui.showConsoleProgress", "false")
    return configure(builder.config("spark.sql.shuffle.partitions", "2").config("spark.log.level", "ERROR"))


if __name__ == "__main__":
    copy_stream(short_session().getOrCreate(), *sys.argv[1:])
