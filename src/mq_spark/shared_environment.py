"""Spark shares one Python function among all queries that use a format, and with it a map that no thread may change
while another one does.

Spark finds the format "tritonmq" once for a JVM. Each streaming query that starts puts the same few variables of the
environment into the map of that function, and each write serializes it. The map is not made for threads: of two queries
that start at once one may lose what the other puts. From then on every write of that JVM fails with "Task not
serializable: Illegal size 5 of collection, expected 7". A map that is made for threads, put in its place before the
first query, ends that.
"""

from __future__ import annotations

import logging

from pyspark.sql import SparkSession

log = logging.getLogger(__name__)

SAFE = "java.util.concurrent.ConcurrentHashMap"


def share_safely(spark: SparkSession) -> SparkSession:
    """The session, whose JVM's queries may start at the same time from now on.

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
