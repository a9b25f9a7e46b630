"""A decision's manifest, as the coordinator goes through it: one line for each partition."""

from __future__ import annotations

from mq_broker.broker.transactions.requests import by_partition
from mq_broker.core.entries import StagedBatches


def test_the_lines_of_one_partition_become_one_with_all_batches_in_their_order() -> None:
    manifest = [
        StagedBatches("t", 1, (b"a", b"b"), 3, "id"),
        StagedBatches("t", 0, (b"c",), 1, "id"),
        StagedBatches("t", 1, (b"d",), 2, "id"),
    ]
    assert by_partition(manifest) == [
        StagedBatches("t", 1, (b"a", b"b", b"d"), 5, "id"),
        StagedBatches("t", 0, (b"c",), 1, "id"),
    ]


def test_lines_of_two_topics_of_one_name_stay_apart() -> None:
    lines = [StagedBatches("t", 0, (b"a",), 1, "old"), StagedBatches("t", 0, (b"b",), 1, "new")]
    assert by_partition(lines) == lines
