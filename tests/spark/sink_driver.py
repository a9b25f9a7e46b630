"""A Spark driver to be killed: copies one topic into another, exactly once, in micro-batches of 100 rows.

python sink_driver.py BOOTSTRAP SOURCE SINK CHECKPOINT [leases]

With `leases` it works off a queue of the topic instead.
"""

from __future__ import annotations

import sys
from typing import Final

from pyspark.sql import SparkSession, functions

from mq_spark.decoding import or_dead_letter, try_from_json
from mq_spark.session import configure

ENDS_S: Final = 300
"""In this time a driver starts and a stream ends, on a machine that has much else to do."""


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
    if not query.awaitTermination(ENDS_S):
        raise TimeoutError(f"the stream did not end within {ENDS_S} s")


def work_off(spark: SparkSession, bootstrap: str, source: str, sink: str, checkpoint: str) -> None:
    """Run until all that is ready now in the queue `spark` is settled. Rows that are no JSON go to `<sink>.dead`."""
    jobs = (
        spark.readStream.format("tritonmq")
        .option("bootstrap.servers", bootstrap)
        .option("subscribe", source)
        .option("lease.group", "spark")
        .option("lease.member", "copy")
        .option("maxOffsetsPerTrigger", 100)
        .load()
    )
    decoded = jobs.withColumn("job", try_from_json("value", "n long"))
    rows = [functions.col("key"), functions.col("job.row.n").cast("string").alias("value")]
    query = (
        or_dead_letter(decoded, "job", topic=sink, dead_letters=f"{sink}.dead", rows=rows)
        .writeStream.format("tritonmq")
        .option("bootstrap.servers", bootstrap)
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    if not query.awaitTermination(ENDS_S):
        raise TimeoutError(f"the stream did not end within {ENDS_S} s")


def short_session() -> SparkSession.Builder:
    """A session that starts quickly and says nothing."""
    builder = SparkSession.builder.master("local[2]")
    builder = builder.config("spark.ui.enabled", "false").config("spark.ui.showConsoleProgress", "false")
    return configure(builder.config("spark.sql.shuffle.partitions", "2").config("spark.log.level", "ERROR"))


if __name__ == "__main__":
    job = work_off if sys.argv[5:] == ["leases"] else copy_stream
    job(short_session().getOrCreate(), *sys.argv[1:5])
