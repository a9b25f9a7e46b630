"""Starts the Spark session of the tests, and keeps it usable.

A start that fails is tried once more, and what the JVM said is kept for the report.
Dozens of tests share one session: without a second try one failed start of Java would fail them all.
"""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable
from typing import Final

from pyspark import SparkContext
from pyspark.sql import SparkSession

FAILED_STARTS: Final[list[str]] = []
"""Of this run of pytest: what was raised, and what the JVM had printed. conftest.py shows them at the end of every
run."""


def start_session(builder: SparkSession.Builder, printed: Callable[[], str]) -> SparkSession:
    """The session, after a second try if need be. `printed`: what the process and its children have printed so far.

    Raises what the second try raises, with what was printed at both as notes.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # a start that failed leaves the pipe to its Java open
        try:
            return builder.getOrCreate()
        except Exception as error:  # noqa: BLE001 - whatever it was, it may be different the second time
            FAILED_STARTS.append(_told("first", error, printed()))
        gc.collect()
    try:
        return builder.getOrCreate()
    except Exception as error:
        FAILED_STARTS.append(_told("second", error, printed()))
        for each in FAILED_STARTS:
            error.add_note(each)
        raise


def forget_interrupted_call() -> None:
    """Make this thread's connection to Java anew.

    A test that ran out of time was interrupted while it waited for an answer. That answer comes later, and whoever asks
    next on the same connection takes it for its own: one late test would fail all that come after it. Another
    connection is another thread of Java, in which no session is the active one yet: a stream finds no sink there.
    """
    gateway = SparkContext._gateway
    connection = None if gateway is None else gateway._gateway_client.get_thread_connection()
    if connection is not None:
        connection.close()
    session = SparkSession._instantiatedSession
    if session is not None:
        session._jvm.SparkSession.setActiveSession(session._jsparkSession)


def _told(which: str, error: Exception, printed: str) -> str:
    said = printed.strip() or "(nothing)"
    return f"the {which} start of Spark failed: {type(error).__name__}: {error}\nprinted meanwhile:\n{said}"
