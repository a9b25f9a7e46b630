"""Running Spark to be timed: a batch read to `noop`, and a stream to its end of which each micro-batch is timed by
Spark itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

from benchmarks.bench.arrow_source import FORMAT
from benchmarks.bench.measure import Readings, Stopwatch
from benchmarks.bench.workbench import Workbench

STREAM_TIMEOUT_S: Final = 120
_MICRO_BATCHES_NOT_COUNTED: Final = 1


def in_memory(bench: Workbench, kind: str, rows: int, tasks: int, per_trigger: int | None = None) -> DataFrame:
    """The in-memory source: a stream if `per_trigger` is given."""
    reader = bench.spark.read if per_trigger is None else bench.spark.readStream
    given: dict[str, str | int] = {"kind": kind, "rows": rows, "tasks": tasks, "rowsPerTrigger": per_trigger or 0}
    return reader.format(FORMAT).options(**given).load()


def topic(bench: Workbench, name: str, per_trigger: int | None = None, *, group: str | None = None) -> DataFrame:
    """The topic from its start to its end: a stream if `per_trigger` is given. `group`: the stream works it off as a
    member of that queue group."""
    options: dict[str, str] = {
        "bootstrap.servers": bench.cluster.bootstrap,
        "subscribe": name,
        "startingOffsets": "earliest",
    }
    if group is not None:
        del options["startingOffsets"]
        options |= {"lease.group": group, "lease.member": "bench"}
    if per_trigger is None:
        return bench.spark.read.format("tritonmq").options(**options).load()
    return bench.spark.readStream.format("tritonmq").options(**options, maxOffsetsPerTrigger=str(per_trigger)).load()


def read_all(frame: DataFrame, rows: int) -> Readings:
    """All `rows` of a batch read to `noop`, planning included."""
    with Stopwatch() as watch:
        frame.write.format("noop").mode("overwrite").save()
    return {"rows/s": rows / watch.seconds}


def stream_all(bench: Workbench, frame: DataFrame, rows: int, sink: str, options: Mapping[str, str]) -> Readings:
    """A stream of `rows` rows to its end, its checkpoint new. What counts is Spark's time for whole micro-batches that
    had rows, checkpoint files included, but for the first, in which workers start.
    """
    writer = frame.writeStream.format(sink).options(**options).option("checkpointLocation", str(bench.scratch()))
    query = writer.outputMode("append").trigger(availableNow=True).start()
    if not query.awaitTermination(STREAM_TIMEOUT_S):
        query.stop()
        raise TimeoutError(f"the stream to {sink} did not end in {STREAM_TIMEOUT_S} s")
    return {"rows/s": _steady_rows_per_second(query, rows)}


def _steady_rows_per_second(query: StreamingQuery, rows: int) -> float:
    seen = [progress for progress in query.recentProgress if progress.numInputRows]
    assert sum(progress.numInputRows for progress in seen) == rows, (
        f"the stream was given {rows} rows, its micro-batches saw "
        f"{[progress.numInputRows for progress in query.recentProgress]}"
    )
    counted = seen[_MICRO_BATCHES_NOT_COUNTED:]
    seconds = sum(progress.durationMs["triggerExecution"] for progress in counted) / 1_000
    return sum(progress.numInputRows for progress in counted) / seconds
