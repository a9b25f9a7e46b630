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


if __name__ == "__main__":
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").config("spark.log.level", "ERROR")
    copy_stream(configure(builder).getOrCreate(), *sys.argv[1:])
