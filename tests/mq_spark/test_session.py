"""The session helper: what it sets, what it leaves alone, which PySpark it refuses, and that queries which start at
once share a map that is made for threads."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pyspark
import pytest
from pyspark.sql import SparkSession

from mq_spark.datasource.source import TritonMQSource
from mq_spark.session import FAST_CHECKPOINTS, SETTINGS, configure, share_safely


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


def of_another_build() -> SparkSession:
    def refuse() -> Any:
        raise TypeError("'JavaPackage' object is not callable")

    return cast(SparkSession, SimpleNamespace(_jsparkSession=SimpleNamespace(sessionState=refuse), _jvm=object()))


@pytest.mark.parametrize("session", [of_another_build(), cast(SparkSession, object())])
def test_a_session_of_spark_connect_or_of_another_build_of_spark_is_left_as_it_is(session: SparkSession) -> None:
    assert share_safely(session) is session


def test_each_way_to_make_a_session_lets_its_queries_start_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    made = object()
    monkeypatch.setattr(SparkSession.Builder, "getOrCreate", lambda _: made)
    monkeypatch.setattr(SparkSession.Builder, "create", lambda _: made)
    shared: list[object] = []
    monkeypatch.setattr("mq_spark.session.share_safely", lambda session: shared.append(session) or session)
    builder = configure(SparkSession.Builder().config("a", "b")).config("c", "d")
    assert (builder.getOrCreate(), builder.create(), shared) == (made, made, [made, made])
    assert builder._options.items() >= {"a": "b", "c": "d"}.items()


WAYS_IN: list[Callable[[], object]] = [
    lambda: configure(SparkSession.Builder()),
    lambda: TritonMQSource({"bootstrap.servers": "127.0.0.1:1", "subscribe": "t"}),
]


@pytest.fixture
def version(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Of the PySpark that is there."""
    monkeypatch.setattr(pyspark, "__version__", request.param)
    return str(request.param)


@pytest.mark.parametrize("enter", WAYS_IN, ids=["configure", "data source"])
@pytest.mark.parametrize("version", ["4.1.1", "4.0.0.dev0", "3.5.9"], indirect=True)
def test_a_pyspark_below_the_first_that_works_is_refused_with_both_versions_and_what_to_install(
    enter: Callable[[], object], version: str
) -> None:
    with pytest.raises(
        ImportError, match=f"needs PySpark 4.2 or later, and this is PySpark {version}: pip install 'pyspark>=4.2'"
    ):
        enter()


@pytest.mark.parametrize("enter", WAYS_IN, ids=["configure", "data source"])
@pytest.mark.parametrize("version", ["4.2.0", "4.2.0.dev1", "4.10.0", "5.0.1", "a build of our own"], indirect=True)
def test_newer_ones_and_builds_with_odd_names_are_let_in(enter: Callable[[], object], version: str) -> None:
    enter()
