"""Queries that start at once share a map that is made for threads, wherever Spark can be told so."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
from pyspark.sql import SparkSession

from mq_spark.session import configure, share_safely


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
