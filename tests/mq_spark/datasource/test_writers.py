"""The sinks without brokers: a manifest is exactly what the tasks' messages name, or an error, nothing is ever made up,
and abort never hides the real error."""

from __future__ import annotations

import pickle
from dataclasses import replace

import pytest
from pyspark import TaskContext
from pyspark.sql.types import StructType

from mq_protocol.errors import InvalidRequest
from mq_protocol.manifest import StagedPart
from mq_spark.datasource.staging import MicroBatch, StagedMessage, manifest_of
from mq_spark.datasource.writers import StreamWriter, _key_of, _micro_batch
from mq_spark.planning.options import SinkOptions, parse_sink

BATCH = MicroBatch("query", "sink", 3, "run")


def message(*staged: StagedPart, batch: MicroBatch = BATCH) -> StagedMessage:
    return pickle.loads(pickle.dumps(StagedMessage(batch, staged)))  # as Spark carries it


def test_lines_of_one_partition_are_joined_in_the_order_of_the_tasks() -> None:
    batch, manifest = manifest_of(
        [
            message(StagedPart("t", 1, (b"a", b"b"), 5)),
            message(StagedPart("t", 0, (b"c",), 1), StagedPart("t", 1, (b"d",), 2)),
            message(),
        ]
    )
    assert batch == BATCH
    assert manifest == [StagedPart("t", 0, (b"c",), 1), StagedPart("t", 1, (b"a", b"b", b"d"), 7)]


def test_an_empty_key_of_still_names_its_query() -> None:
    assert manifest_of([message()]) == (BATCH, [])


def test_a_missing_message_commits_nothing() -> None:
    with pytest.raises(InvalidRequest, match="1 of 2 tasks left no message"):
        manifest_of([message(), None])
    with pytest.raises(InvalidRequest, match="nothing can be committed"):
        manifest_of([])


def test_continuous_processing_which_hands_no_rows_over_is_told_what_to_do() -> None:
    with pytest.raises(
        InvalidRequest, match=r"trigger\(continuous=…\).*nothing is written; stop the query, and start it with"
    ):
        manifest_of([None, None])


def test_messages_of_two_key_ofes_commit_nothing() -> None:
    with pytest.raises(InvalidRequest, match="several micro-batches"):
        manifest_of([message(), message(batch=MicroBatch("query", "sink", 4, "run"))])


def test_only_a_write_that_was_given_no_name_has_a_key_for_one_decision() -> None:
    unnamed = SinkOptions("h:1", "t", None, False, None, None, 1000)
    named = replace(unnamed, txn_app_id="write:nightly", txn_version=3)
    assert _key_of(unnamed).once
    assert not _key_of(named).once, "whatever an application calls itself"
    assert not BATCH.once


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
