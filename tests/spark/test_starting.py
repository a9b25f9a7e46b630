"""A start of Spark that fails once fails no test, and what Java said is shown: a real run of pytest with a Java that
fails."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.spark.starting import forget_interrupted_call

pytestmark = pytest.mark.long

ROOT = Path(__file__).parents[2]
ONE_TEST = "tests/spark/test_errors.py::test_an_unknown_option_is_answered_with_the_nearest_right_one"
BROKEN_JAVA = """#!/bin/sh
echo x >> "{count}"
if [ "$(wc -l < "{count}")" -le {failures} ]; then echo "Java has no memory today" >&2; exit 1; fi
exec "{java}" "$@"
"""


@pytest.mark.timeout(320)
@pytest.mark.parametrize(("failures", "outcome"), [(1, "1 passed"), (2, "1 error")])
def test_a_second_start_is_tried_and_the_report_has_what_java_printed(
    tmp_path: Path, failures: int, outcome: str
) -> None:
    java = shutil.which("java")
    assert java is not None
    broken = tmp_path / "home" / "bin" / "java"
    broken.parent.mkdir(parents=True)
    broken.write_text(BROKEN_JAVA.format(count=tmp_path / "count", failures=failures, java=java))
    broken.chmod(0o755)
    environment = {**os.environ, "JAVA_HOME": str(tmp_path / "home"), "PYTEST_ADDOPTS": ""}
    run = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", f"--basetemp={tmp_path / 'inner'}", ONE_TEST]
    done = subprocess.run(run, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300)
    assert outcome in done.stdout, done.stdout[-4000:]
    assert "the first start of Spark failed" in done.stdout
    assert "Java has no memory today" in done.stdout
    assert ("the second start of Spark failed" in done.stdout) == (failures == 2)


class Interrupted(BaseException):
    pass


def interrupt(*_: object) -> None:
    raise Interrupted


def test_what_java_answers_to_an_interrupted_call_is_not_taken_for_the_next_answer(
    spark: SparkSession,
) -> None:
    java = spark._jvm.java.lang
    former = signal.signal(signal.SIGUSR1, interrupt)
    try:
        here = threading.get_ident()
        soon = threading.Timer(0.3, signal.pthread_kill, (here, signal.SIGUSR1))
        with pytest.raises(Interrupted) as kept:  # noqa: PT012 - as a report keeps it, and the connection with it
            soon.start()
            java.Thread.sleep(5_000)
    finally:
        signal.signal(signal.SIGUSR1, former)
    forget_interrupted_call()
    assert (java.Math.max(1, 2), kept.type) == (2, Interrupted)
    assert spark._jvm.SparkSession.getActiveSession().isDefined(), "a stream finds its sink there"
