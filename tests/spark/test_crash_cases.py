"""The short version of the crash table (`make crashes` is the long one): one query, hurt at one point after another.

The tests share a broker and a query, in their order: each begins and ends with the query quiet and every row there
once.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from tests.spark.crashes.cases import case_named
from tests.spark.crashes.ground import Ground
from tests.spark.crashes.job import Job
from tests.spark.crashes.spark_processes import executors_under

pytestmark = [
    pytest.mark.long,
    pytest.mark.timeout(600),  # a driver's start takes minutes on a machine that has much else to do
]


@pytest.fixture(scope="module")
def ground(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ground]:
    with Ground(tmp_path_factory.mktemp("crashes"), brokers=1) as ground:
        yield ground


@pytest.fixture(scope="module")
def job(ground: Ground) -> Iterator[Job]:
    """A query that copies a topic into two, in a driver of its own."""
    job = ground.job("local", "route")
    try:
        job.begin()
        yield job
    finally:
        job.end()


@pytest.mark.parametrize(
    ("point", "victim"),
    [
        ("during_stage", "Python-worker"),
        ("before_decide", "commit-process"),
        ("before_publish", "coordinator"),
        ("before_answer", "coordinator"),
        ("after_decide", "answer"),
    ],
)
def test_every_row_comes_out_once_whoever_is_killed_at_a_point(
    ground: Ground, job: Job, point: str, victim: str
) -> None:
    ground.inject(job, case_named(f"local/route/{point}/{victim}"), random.Random(1))
    assert job.verdict().exact, job.verdict()


def test_topics_of_a_decided_micro_batch_are_all_published_though_driver_and_coordinator_die_between_them(
    ground: Ground, job: Job
) -> None:
    """Rows of one topic are visible, none of the other. Both processes are killed, the broker alone comes back: then
    every row of the micro-batch is visible, before Spark runs anything again (`Injection` looks). And the driver that
    follows adds none.
    """
    lives = job.driver.lives
    ground.inject(job, case_named("local/route/between_publishes/driver-and-coordinator"), random.Random(1))
    assert job.driver.lives == lives + 1
    assert job.verdict().exact, job.verdict()


def test_a_query_runs_on_a_cluster_of_executors_from_files_through_a_shuffle_into_a_topic(ground: Ground) -> None:
    job = ground.job("local-cluster", "repartition")
    try:
        job.begin()
        assert len(executors_under([job.driver.pid])) == 2
        job.publish()
        job.until_quiet()
        assert job.verdict().exact, job.verdict()
    finally:
        job.end()
