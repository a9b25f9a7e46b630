"""The streaming sink's refusals, without brokers: nothing is ever made up, and abort never hides the real error."""

from __future__ import annotations

import pytest
from pyspark import TaskContext
from pyspark.sql.types import StructType

from mq_protocol.errors import InvalidRequest
from mq_spark.datasource.staging import MicroBatch, StagedMessage
from mq_spark.datasource.writers import StreamWriter, _micro_batch
from mq_spark.planning.options import parse_sink

OPTIONS = parse_sink({"bootstrap.servers": "127.0.0.1:1", "topic": "t"}, streaming=True)
PROPERTIES = {"sql.streaming.queryId": "query", "streaming.sql.batchId": "7", "spark.jobGroup.id": "run"}


@pytest.fixture(autouse=True)
def _no_task_is_left_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """A `TaskContext` once made is this process's for good, and Spark then takes the driver for a task."""
    monkeypatch.setattr(TaskContext, "_taskContext", None)


def task_with(properties: dict[str, str]) -> TaskContext:
    context = TaskContext()
    context._localProperties = properties
    return context


def test_a_task_learns_its_micro_batch_from_spark() -> None:
    assert _micro_batch(task_with(PROPERTIES), "t") == MicroBatch("query", "t", 7, "run")


@pytest.mark.parametrize("missing", PROPERTIES)
def test_a_property_that_is_missing_is_an_error_and_never_made_up(missing: str) -> None:
    properties = {name: value for name, value in PROPERTIES.items() if name != missing}
    with pytest.raises(InvalidRequest, match=f"Spark names no streaming query in this task \\({missing} is not set\\)"):
        _micro_batch(task_with(properties), "t")


def test_a_commit_of_another_micro_batch_than_was_written_is_refused_before_anybody_is_asked() -> None:
    message = StagedMessage(MicroBatch("query", "t", 7, "run"), ())
    with pytest.raises(InvalidRequest, match="the tasks wrote micro-batch 7 and Spark commits 8"):
        StreamWriter(OPTIONS, StructType()).commit([message], 8)


def test_abort_marks_nothing_and_never_raises_even_after_failed_tasks() -> None:
    StreamWriter(OPTIONS, StructType()).abort([None, None], 7)
