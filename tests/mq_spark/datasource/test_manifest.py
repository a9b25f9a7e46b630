"""Manifests: exactly what the tasks' messages name, or an error."""

from __future__ import annotations

import pickle
from dataclasses import replace

import pytest

from mq_protocol.errors import InvalidRequest
from mq_protocol.manifest import StagedPart
from mq_spark.datasource.staging import MicroBatch, StagedMessage, manifest_of
from mq_spark.datasource.writers import _key_of
from mq_spark.planning.options import SinkOptions

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
