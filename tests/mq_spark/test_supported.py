"""PySpark that is too old is refused by name, wherever a user meets this package first."""

from __future__ import annotations

from collections.abc import Callable

import pyspark
import pytest
from pyspark.sql import SparkSession

from mq_spark import configure
from mq_spark.datasource.source import TritonMQSource

WAYS_IN: list[Callable[[], object]] = [
    lambda: configure(SparkSession.Builder()),
    lambda: TritonMQSource({"bootstrap.servers": "127.0.0.1:1", "subscribe": "t"}),
]


@pytest.mark.parametrize("enter", WAYS_IN, ids=["configure", "data source"])
@pytest.mark.parametrize("version", ["4.1.1", "4.0.0.dev0", "3.5.9"])
def test_a_pyspark_below_the_first_that_works_is_refused_with_both_versions_and_what_to_install(
    monkeypatch: pytest.MonkeyPatch, enter: Callable[[], object], version: str
) -> None:
    monkeypatch.setattr(pyspark, "__version__", version)
    with pytest.raises(
        ImportError, match=f"needs PySpark 4.2 or later, and this is PySpark {version}: pip install 'pyspark>=4.2'"
    ):
        enter()


@pytest.mark.parametrize("enter", WAYS_IN, ids=["configure", "data source"])
@pytest.mark.parametrize("version", ["4.2.0", "4.2.0.dev1", "4.10.0", "5.0.1", "a build of our own"])
def test_newer_ones_and_builds_with_odd_names_are_let_in(
    monkeypatch: pytest.MonkeyPatch, enter: Callable[[], object], version: str
) -> None:
    monkeypatch.setattr(pyspark, "__version__", version)
    enter()
