"""The test suites of Spark's own Kafka connector, restated for this one: a table of cases, and what shows each.

`tests/spark/suites` has the cases. Each is named by its words in Spark (connector/kafka-0-10-sql, branch master of
November 2026), and is the same here, or differs as a sentence of docs/kafka-options.md says, or makes no sense for a
source and sink in Python (`NOT_HERE`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from mq_client import Admin, Producer
from mq_dev.local_cluster import LocalCluster
from tests.spark.suites import relation, sink, stream
from tests.spark.suites.ground import CASES, Case, Ground, Shows

ROOT = Path(__file__).parents[2]
PAGE = " ".join((ROOT / "docs" / "kafka-options.md").read_text().split())
DIFFERENT_MAX = 12

_JVM = "which class of the JVM reads: there is one of Spark's own for all sources in Python"
_CONTINUOUS = "continuous processing, which Spark has for no source in Python"
_FILE = "a file of Kafka's connector in the checkpoint: Spark gives a source in Python none"
_INSIDE = "a method of Kafka's connector itself"
NOT_HERE = {
    f"{relation.RELATION}: V1 Source is used when set through SQLConf": _JVM,
    f"{relation.RELATION}: V2 Source is used when set through SQLConf": _JVM,
    f"{relation.OFFSETS}: isolationLevel must give back default isolation level when not set": _INSIDE,
    f"{relation.OFFSETS}: isolationLevel must give back READ_UNCOMMITTED when set": _INSIDE,
    f"{relation.LOSS}: failOnDataLoss=false … continuous processing": _CONTINUOUS,
    f"{stream.STREAM}: V1 Source is used when disabled through SQLConf": _JVM,
    f"{stream.STREAM}: V2 Source is used by default": _JVM,
    f"{stream.STREAM}: ensure that initial offset are written with an extra byte in the beginning": _FILE,
    f"{stream.STREAM}: deserialization of initial offset written by Spark 2.1.0": _FILE,
    f"{stream.STREAM}: deserialization of initial offset written by future version": _FILE,
    f"{stream.STREAM}: default config of includeHeader doesn't break existing query from Spark 2.4": _FILE,
    f"{stream.STREAM}: test custom metrics - corner cases": _INSIDE,
    f"{stream.STREAM}: SPARK-57438: metrics should not NPE when latestPartitionOffsets is null": _INSIDE,
    f"{sink.SINK}: the streaming cases in KafkaContinuousSinkSuite": _CONTINUOUS,
}
ELSEWHERE = {
    f"{stream.STREAM}: allow group.id prefix": "test_source.py::"
    "test_progress_is_seen_at_the_brokers_under_the_querys_id_or_the_name_that_was_given",
    f"{stream.STREAM}: allow group.id override": "test_source.py::"
    "test_progress_is_seen_at_the_brokers_under_the_querys_id_or_the_name_that_was_given",
}
"""Cases that another test holds."""

_SHOWN = {case.shows: [each for each in CASES if each.shows is case.shows] for case in CASES}
_BY_SPARK = {"read", "stream", "run", "run_into", "write", "spark", "sees_what_is_committed"}
"""What `Ground` has that asks for Spark: such cases stay in the process that has it."""


def _by_spark(shows: Shows) -> bool:
    return bool(_BY_SPARK & {*shows.__code__.co_names})


@pytest.fixture
def ground(
    request: pytest.FixtureRequest,
    cluster: LocalCluster,
    admin: Admin,
    producer: Producer,
    name: Callable[[str], str],
    tmp_path: Path,
) -> Iterator[Ground]:
    def spark() -> SparkSession:
        assert request.node.get_closest_marker("xdist_group"), "name what asks for Spark in _BY_SPARK"
        return request.getfixturevalue("spark")  # type: ignore[no-any-return]

    ground = Ground(
        spark,
        cluster.bootstrap,
        admin,
        producer,
        name("s").replace(".", "-"),
        tmp_path,
    )
    yield ground
    for each in ground.opened:
        each.reader.stop()


@pytest.mark.parametrize(
    "cases",
    [
        pytest.param(cases, id=str(cases[0]), marks=[pytest.mark.xdist_group("spark")] if _by_spark(shows) else [])
        for shows, cases in _SHOWN.items()
    ],
)
def test_a_case_of_kafkas_suites(ground: Ground, cases: list[Case]) -> None:
    cases[0].shows(ground)


def test_every_difference_is_on_the_page_and_there_are_few() -> None:
    different = [case for case in CASES if case.differs]
    assert [str(case) for case in different if case.differs not in PAGE] == []
    assert len(different) <= DIFFERENT_MAX
    assert len({str(case) for case in CASES} | set(NOT_HERE) | set(ELSEWHERE)) == len(CASES) + len(NOT_HERE) + len(
        ELSEWHERE
    )


def test_what_another_test_holds_is_there() -> None:
    for held in ELSEWHERE.values():
        file, _, test = held.partition("::")
        assert re.search(rf"^def {test}\(", (Path(__file__).parent / file).read_text(), re.MULTILINE), held
