"""The Spark driver that the cases kill: one streaming query, begun again when it fails, until somebody ends the
process.

python -m tests.spark.crashes.driver SPECIFICATION.json
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path

from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from mq_spark.session import configure
from tests.spark.quick_start import QUICK_JVM

FAILURES_MAX = 100


@dataclass(frozen=True)
class Specification:
    """`source`: a topic's name, or a directory of text files. Rows are numbers as text; of two outputs the first has
    the even. `options`: of both, beside those."""

    master: str
    bootstrap: str
    source: str
    from_files: bool
    outputs: list[str]
    checkpoint: str
    settings: dict[str, str] = field(default_factory=dict)
    jvm_options: str = QUICK_JVM
    options: dict[str, str] = field(default_factory=dict)

    def save(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self)))

    @classmethod
    def load(cls, path: Path) -> Specification:
        return cls(**json.loads(path.read_text()))


def session(specification: Specification) -> SparkSession:
    builder = SparkSession.builder.master(specification.master).config("spark.ui.enabled", "false")
    builder = builder.config("spark.ui.showConsoleProgress", "false").config("spark.log.level", "ERROR")
    for process in ("driver", "executor"):
        builder = builder.config(f"spark.{process}.extraJavaOptions", specification.jvm_options)
    for name, value in specification.settings.items():
        builder = builder.config(name, value)
    return configure(builder).getOrCreate()


def rows(spark: SparkSession, specification: Specification) -> DataFrame:
    """Columns `key` and `value`, or `value` alone; and `topic` if there are two outputs."""
    if specification.from_files:
        stream = spark.readStream.option("maxFilesPerTrigger", 1).text(specification.source)
        dealt = stream.withColumn("salt", f.expr("reflect('java.util.UUID', 'randomUUID')"))  # other tasks each time
        stream = dealt.repartition(3, "salt").drop("salt")
    else:
        source = spark.readStream.format("tritonmq").options(**specification.options)
        source = source.option("bootstrap.servers", specification.bootstrap)
        stream = source.option("subscribe", specification.source).option("startingOffsets", "earliest").load()
        stream = stream.select("key", f.col("value").cast("string"))
    if len(specification.outputs) == 1:
        return stream
    even, odd = specification.outputs
    return stream.withColumn("topic", f.when(f.col("value").cast("long") % 2 == 0, even).otherwise(odd))


def run(specification: Specification) -> None:
    """Start the query, and again each time it fails. Raises the error of the last failure that is borne with."""
    _say("the driver starts")
    spark = session(specification)
    _say("Spark runs")
    for failures in range(FAILURES_MAX):
        sink = (
            rows(spark, specification)
            .writeStream.format("tritonmq")
            .options(**specification.options)
            .option("bootstrap.servers", specification.bootstrap)
        )
        if len(specification.outputs) == 1:
            sink = sink.option("topic", specification.outputs[0])
        query = (
            sink.option("checkpointLocation", specification.checkpoint)
            .trigger(processingTime="100 milliseconds")
            .start()
        )
        try:
            query.awaitTermination()
        except StreamingQueryException as error:
            _say(f"failure {failures + 1}: {str(error)[:2_000]}")
            if failures == FAILURES_MAX - 1:
                raise


def _say(words: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {words}", flush=True)


def _end_with_owner() -> None:
    """Our standard input is a pipe that the owner holds: when it ends, however that happened, so do we, and the JVM
    with us."""
    sys.stdin.read()
    os._exit(1)


if __name__ == "__main__":
    threading.Thread(target=_end_with_owner, daemon=True).start()
    run(Specification.load(Path(sys.argv[1])))
