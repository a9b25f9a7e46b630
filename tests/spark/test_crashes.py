"""The driver killed at each point of a commit, then started again on the same checkpoint: the output equals the
input."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from mq_client import Admin, Producer, Reader
from mq_dev.local_cluster import LocalCluster
from mq_spark.datasource.failpoints import VARIABLE
from tests.spark.crashes.spark_processes import kill_family
from tests.spark.sink_driver import ENDS_S, copy_stream

DRIVER = Path(__file__).with_name("sink_driver.py")
ROWS = 250  # micro-batches of 100, 100 and 50
KILLED_IN = 1


@contextmanager
def driver_killed_at(point: str, arguments: list[str], scratch: Path) -> Iterator[None]:
    """A real driver process, killed with SIGKILL (the JVM and all its Python workers too) when it reaches the point."""
    (scratch / f"{point}@{KILLED_IN}").touch()
    mark = scratch / f"{point}@{KILLED_IN}.reached"
    environment = {**os.environ, VARIABLE: str(scratch)}
    with (scratch / "driver.log").open("wb") as log:
        driver = subprocess.Popen([sys.executable, str(DRIVER), *arguments], env=environment, stdout=log, stderr=log)
        try:
            deadline = time.monotonic() + ENDS_S
            while not mark.exists():
                assert driver.poll() is None, (scratch / "driver.log").read_text()
                assert time.monotonic() < deadline, (scratch / "driver.log").read_text()
                time.sleep(0.02)
            yield
        finally:
            kill_family(driver.pid)
            driver.wait(30)


def contents(bootstrap: str, admin: Admin, topic: str) -> Counter[bytes]:
    found: Counter[bytes] = Counter()
    with Reader(bootstrap) as reader:
        for partition, (start, end) in admin.offsets(topic).items():
            for batch in reader.read(topic, partition, start, end):
                found.update(batch.column("value").to_pylist())
    return found


@pytest.fixture
def job(
    cluster: LocalCluster, admin: Admin, producer: Producer, name: Callable[[str], str], tmp_path: Path
) -> list[str]:
    """The driver's arguments, its topics made and its input published."""
    source, sink = name("in"), name("out")
    admin.create_topic(source, partitions=2, replicas=1)
    admin.create_topic(sink, partitions=3, replicas=1)
    for number in range(ROWS):
        producer.publish(source, f"{number}".encode(), key=f"{number % 17}".encode())
    producer.flush()
    return [cluster.bootstrap, source, sink, str(tmp_path / "checkpoint")]


EXPECTED = Counter(f"{number}".encode() for number in range(ROWS))


def test_a_driver_killed_between_the_decision_and_sparks_own_commit_file_has_written_its_micro_batch_once(
    spark: SparkSession, admin: Admin, job: list[str], tmp_path: Path
) -> None:
    with driver_killed_at("after_decide", job, tmp_path):
        assert contents(job[0], admin, job[2]).total() == 200
        assert not (tmp_path / "checkpoint" / "commits" / str(KILLED_IN)).exists()
    copy_stream(spark, *job)
    assert contents(job[0], admin, job[2]) == EXPECTED


def test_a_micro_batch_whose_log_was_lost_and_that_is_planned_again_wider_is_refused_or_kept_and_never_doubled(
    spark: SparkSession, admin: Admin, producer: Producer, job: list[str], tmp_path: Path
) -> None:
    bootstrap, source, sink, _ = job
    copy_stream(spark, *job)  # the last micro-batch has 50 rows
    for log in ("offsets", "commits"):
        last = max(int(path.name) for path in (tmp_path / "checkpoint" / log).glob("[0-9]*"))
        for name in (str(last), f".{last}.crc"):
            (tmp_path / "checkpoint" / log / name).unlink()
    producer.publish(source, b"one more", partition=0)
    producer.flush()
    with pytest.raises(StreamingQueryException, match="ReplayMismatch"):
        copy_stream(spark, *job)
    assert contents(bootstrap, admin, sink) == EXPECTED
    copy_stream(spark, *job, onReplayMismatch="keep")
    # The first decision holds: the row that came later is not in it
    assert contents(bootstrap, admin, sink) == EXPECTED
