"""What a person sees on the driver's standard error: the line that says what to do, once, and no noise beside good
reads."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from mq_client import Admin, Producer
from mq_dev.local_cluster import LocalCluster

ROOT = Path(__file__).parents[2]
pytestmark = [pytest.mark.long, pytest.mark.timeout(320)]
CREATE_IT = "unknown topic 'late_flights': create it first, `tritonmq topic create late_flights`"
WRONG_TYPE = "column 'id' is string and topic typed has it as bigint: cast it"


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, str], dict[str, tuple[str, str]]]:
    """Of one driver: what was printed on standard error in each case, and the error (class, text) that each write
    raised."""
    scratch = tmp_path_factory.mktemp("driver")
    with LocalCluster(scratch / "cluster") as running:
        with Admin(running.bootstrap) as admin, Producer(running.bootstrap) as producer:
            admin.create_topic("flights", partitions=1, replicas=1)
            admin.create_topic("typed", partitions=1, replicas=1, schema="id long")
            # More than a worker sends before anybody reads: some is left when Spark has had enough
            for _ in range(200_000):
                producer.publish("flights", b"x" * 100)
        run = [sys.executable, "-m", "tests.spark.failing_writes", running.bootstrap, str(scratch / "checkpoint")]
        done = subprocess.run(run, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-5000:]
    cases: dict[str, str] = {}
    for part in done.stderr.split("##### ")[1:]:
        case, _, printed = part.partition("\n")
        cases[case] = printed
    return cases, {case: (kind, text) for case, kind, text in json.loads(done.stdout)}


@pytest.mark.parametrize(("case", "line"), [("missing", CREATE_IT), ("type", WRONG_TYPE)])
def test_a_batch_write_that_cannot_work_raises_one_analysis_exception_and_logs_nothing(
    told: tuple[dict[str, str], dict[str, tuple[str, str]]], case: str, line: str
) -> None:
    printed, raised = told
    assert printed[case] == ""
    kind, text = raised[case]
    assert kind == "AnalysisException"
    assert text.count(line) == 1
    assert len(text.splitlines()) < 8


def test_a_stream_into_a_topic_that_is_not_there_fails_before_its_first_row_and_spark_logs_the_line_once(
    told: tuple[dict[str, str], dict[str, tuple[str, str]]],
) -> None:
    printed, raised = told
    assert printed["stream"].count(CREATE_IT) == 1
    assert "Lost task" not in printed["stream"]
    kind, text = raised["stream"]
    assert kind == "StreamingQueryException"
    assert text.count(CREATE_IT) == 1


def test_a_read_that_ends_early_prints_no_traceback(told: tuple[dict[str, str], dict[str, tuple[str, str]]]) -> None:
    printed, _ = told
    assert "Traceback" not in printed["reads"]
    assert "BrokenPipeError" not in printed["reads"]
