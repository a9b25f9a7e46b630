"""One call for a Spark session that works well with TritonMQ. Exactness needs none of it; each setting says what it is
for.

spark = configure(SparkSession.builder.master("local[4]")).getOrCreate()
"""

from __future__ import annotations

import logging
import os
import sys
from typing import Final

from pyspark.sql import SparkSession

from mq_spark.supported import check_pyspark

log = logging.getLogger(__name__)


SETTINGS: Final = {
    # Spark's tasks talk to Python through a Unix socket, not loopback TCP: about 30 ms off each trigger's work.
    "spark.python.unix.domain.socket.enabled": "true",
    # A worker that is kept keeps its connections to the brokers and what it knows of the topics.
    "spark.python.worker.reuse": "true",
    # toPandas and createDataFrame a column at a time.
    "spark.sql.execution.arrow.pyspark.enabled": "true",
}

FAST_CHECKPOINTS: Final = {
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
}
"""Two checkpoint files a trigger cost 90 to 200 ms on a local disk, and 40 with these; but their renaming is not
atomic."""


class _Builder(SparkSession.Builder):
    """A builder whose session may start several queries at once."""

    def __init__(self, begun: SparkSession.Builder) -> None:
        super().__init__()
        self._options.update(begun._options)  # noqa: SLF001 - its own, but of another object

    def getOrCreate(self) -> SparkSession:  # noqa: N802 - Spark's name
        return share_safely(super().getOrCreate())

    def create(self) -> SparkSession:
        return share_safely(super().create())


def configure(builder: SparkSession.Builder, *, fast_checkpoints: bool = False) -> SparkSession.Builder:
    """A builder of the same session, with the settings above and with Spark's workers running this interpreter.

    The interpreter matters most: Spark runs `python3` as the PATH has it, and in a virtual environment that is not
    activated the only symptom is that the format "tritonmq" is not found. A PYSPARK_PYTHON that is already set is left
    alone.

    Queries of its session may be started at the same time; without this they may spoil each other's start
    (`share_safely`).

    `fast_checkpoints`: for a checkpoint on a local disk that may lose the log of a micro-batch when the machine
    crashes.

    Raises `ImportError` for a PySpark below 4.2.
    """
    check_pyspark()
    python = os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = _Builder(builder).config("spark.pyspark.python", python)
    for name, value in (SETTINGS | FAST_CHECKPOINTS if fast_checkpoints else SETTINGS).items():
        builder = builder.config(name, value)
    return builder


SAFE = "java.util.concurrent.ConcurrentHashMap"


def share_safely(spark: SparkSession) -> SparkSession:
    """The session, whose JVM's queries may start at the same time from now on.

    Spark shares one Python function among all queries that use a format. Each streaming query that starts puts the same
    few variables of the environment into the map of that function, and each write serializes it. The map is not made
    for threads: of two queries that start at once one may lose what the other puts. From then on every write of that
    JVM fails with "Task not serializable: Illegal size 5 of collection, expected 7". A map that is made for threads,
    put in its place before the first query, ends that.

    Does nothing for a session of Spark Connect, whose JVM is elsewhere, nor where Spark is built otherwise than it is
    known here.
    """
    session, jvm = getattr(spark, "_jsparkSession", None), getattr(spark, "_jvm", None)
    if session is None or jvm is None:
        return spark
    try:
        function = session.sessionState().dataSourceManager().lookupDataSource("tritonmq").dataSourceCls()
        variables = function.getClass().getDeclaredField("envVars")
        variables.setAccessible(True)
        if variables.get(function).getClass().getName() != SAFE:
            variables.set(function, jvm.java.util.concurrent.ConcurrentHashMap(function.envVars()))
    except Exception as error:  # noqa: BLE001 - Spark promises nothing of this, and a session without it is one as before
        log.info("start one query after another, since their environment is not shared safely: %r", error)
    return spark
