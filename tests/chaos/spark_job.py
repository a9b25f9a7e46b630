"""A Spark driver under fire: copies one topic into another, exactly once, until standard input ends; then what is left,
and ends.

    python -m tests.chaos.spark_job --bootstrap ADDRESSES --state CHECKPOINT --source TOPIC --sink TOPIC

What it has written is not recorded by it but told by its checkpoint (checkpoint.py), when all is over. A query that
fails is started again here, as a supervisor would; a killed process is started again by the run.
"""

from __future__ import annotations

import argparse
import sys
import threading
import time
from pathlib import Path
from typing import Final

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from tests.spark.sink_driver import short_session

ROWS_AT_ONCE: Final = 2_000
LOOK_S: Final = 0.2
FINISH_S: Final = 120.0


def start(spark: SparkSession, arguments: argparse.Namespace, *, to_the_end: bool) -> StreamingQuery:
    stream = (
        spark.readStream.format("tritonmq")
        .option("bootstrap.servers", arguments.bootstrap)
        .option("subscribe", arguments.source)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", ROWS_AT_ONCE)
        .load()
    )
    written = (
        stream.select("key", "value")
        .writeStream.format("tritonmq")
        .option("bootstrap.servers", arguments.bootstrap)
        .option("topic", arguments.sink)
        .option("checkpointLocation", str(arguments.state))
    )
    written = written.trigger(availableNow=True) if to_the_end else written.trigger(processingTime="200 milliseconds")
    return written.start()


def copy(spark: SparkSession, arguments: argparse.Namespace, end: threading.Event) -> None:
    """Until `end` is set; a query that failed begins again from its checkpoint."""
    while not end.is_set():
        query = start(spark, arguments, to_the_end=False)
        try:
            while not end.is_set() and not query.awaitTermination(LOOK_S):  # type: ignore[arg-type] # seconds may be a fraction
                pass
        except PySparkException as error:
            print(f"the query failed and is started again: {error}", file=sys.stderr, flush=True)
            end.wait(LOOK_S)
        query.stop()


def finish(spark: SparkSession, arguments: argparse.Namespace) -> bool:
    """Copy what is there now; whether that was done in time."""
    deadline = time.monotonic() + FINISH_S
    while time.monotonic() < deadline:
        try:
            if start(spark, arguments, to_the_end=True).awaitTermination(int(FINISH_S)):
                return True
        except PySparkException as error:
            print(f"the last query failed and is started again: {error}", file=sys.stderr, flush=True)
    return False


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.spark_job", description=__doc__)
    for name in ("--bootstrap", "--source", "--sink"):
        parser.add_argument(name, required=True)
    parser.add_argument("--state", type=Path, required=True)
    arguments = parser.parse_args()
    end = threading.Event()

    def wait_for_end() -> None:
        sys.stdin.buffer.read()
        end.set()

    threading.Thread(target=wait_for_end, daemon=True).start()
    # Its log is the record of what was done
    builder = short_session().config("spark.sql.streaming.minBatchesToRetain", "1000000")
    spark = builder.config("spark.sql.warehouse.dir", str(arguments.state.parent / "warehouse")).getOrCreate()
    copy(spark, arguments, end)
    return 0 if finish(spark, arguments) else 3


if __name__ == "__main__":
    sys.exit(main())
