"""One Spark session and one broker for all tests here: each test has topics and checkpoints of its own."""

from __future__ import annotations

import itertools
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from mq_client import Admin, Producer
from mq_dev.local_cluster import LocalCluster
from tests.spark.harness import Collected, Sinks, Streams
from tests.spark.sink_driver import ENDS_S, short_session
from tests.spark.starting import FAILED_STARTS, forget_interrupted_call, start_session


def pytest_runtest_makereport(call: pytest.CallInfo[None]) -> None:
    if call.excinfo is not None and not isinstance(call.excinfo.value, (Exception, pytest.skip.Exception)):
        forget_interrupted_call()  # its time was over


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for told in FAILED_STARTS:
        terminalreporter.section("a start of Spark failed")
        terminalreporter.write_line(told)


def printed_so_far(config: pytest.Config) -> str:
    """What pytest has captured in this phase, Java's output included; it stays captured."""
    manager = config.pluginmanager.getplugin("capturemanager")
    if manager is None or not manager.is_globally_capturing():
        return "(not captured: see above)"
    out, err = manager.read_global_capture()
    sys.stdout.write(out)
    sys.stderr.write(err)
    return f"{out}{err}"


@pytest.fixture(scope="session")
def spark(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    assert shutil.which("java"), "these tests need Java 17 on the PATH"
    scratch = tmp_path_factory.mktemp("spark")
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    builder = (
        short_session()
        .config("spark.sql.warehouse.dir", str(scratch / "warehouse"))
        .config("spark.local.dir", str(scratch))
    )
    session = start_session(builder, lambda: printed_so_far(request.config))
    yield session
    session.stop()


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with LocalCluster(tmp_path_factory.mktemp("cluster")) as running:
        yield running


@pytest.fixture(scope="session")
def admin(cluster: LocalCluster) -> Iterator[Admin]:
    with Admin(cluster.bootstrap) as opened:
        yield opened


@pytest.fixture(scope="session")
def producer(cluster: LocalCluster) -> Iterator[Producer]:
    with Producer(cluster.bootstrap) as opened:
        yield opened


_numbers = itertools.count()


@pytest.fixture
def name(request: pytest.FixtureRequest) -> Callable[[str], str]:
    """Topic names that no other test has."""
    prefix = f"{request.node.originalname[:50]}-{next(_numbers)}"
    return lambda suffix: f"{prefix}.{suffix}"


@pytest.fixture
def run_stream(tmp_path: Path) -> Callable[[DataFrame], Collected]:
    """Run a stream to the end of what is there now, on the test's one checkpoint: calling it again is a restart."""

    def run(frame: DataFrame) -> Collected:
        collected = Collected()
        writer = frame.writeStream.foreachBatch(collected).option("checkpointLocation", str(tmp_path / "checkpoint"))
        query = writer.trigger(availableNow=True).start()
        assert query.awaitTermination(ENDS_S), "the stream did not end"
        return collected

    return run


@pytest.fixture
def streams(
    spark: SparkSession, cluster: LocalCluster, admin: Admin, producer: Producer, name: Callable[[str], str]
) -> Streams:
    return Streams(spark, cluster.bootstrap, admin, producer, name("in"))


@pytest.fixture
def sinks(
    spark: SparkSession,
    cluster: LocalCluster,
    admin: Admin,
    producer: Producer,
    name: Callable[[str], str],
    tmp_path: Path,
) -> Sinks:
    return Sinks(spark, cluster, admin, producer, name("t"), tmp_path)
