"""The session helper: what it sets, and that it leaves alone what the user has set."""

from __future__ import annotations

import os
import sys

import pytest
from pyspark.sql import SparkSession

from mq_spark.session import FAST_CHECKPOINTS, SETTINGS, configure


def test_workers_run_this_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    builder = configure(SparkSession.Builder())
    assert builder._options == {**SETTINGS, "spark.pyspark.python": sys.executable}
    assert os.environ["PYSPARK_PYTHON"] == sys.executable


def test_an_interpreter_that_the_user_has_named_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", "/opt/python")
    builder = configure(SparkSession.Builder(), fast_checkpoints=True)
    assert builder._options["spark.pyspark.python"] == "/opt/python"
    assert builder._options.items() >= FAST_CHECKPOINTS.items()
