"""A manifest's lines: one for each partition and topic id, and the same on both sides of the wire."""

from __future__ import annotations

from mq_protocol import mq_pb2 as pb
from mq_protocol.manifest import StagedPart, by_partition
from mq_protocol.manifest_lines import line_from_wire, line_to_wire


def test_the_lines_of_one_partition_become_one_with_all_batches_in_their_order() -> None:
    manifest = [
        StagedPart("t", 1, (b"a", b"b"), 3, "id"),
        StagedPart("t", 0, (b"c",), 1, "id"),
        StagedPart("t", 1, (b"d",), 2, "id"),
    ]
    assert by_partition(manifest) == [
        StagedPart("t", 1, (b"a", b"b", b"d"), 5, "id"),
        StagedPart("t", 0, (b"c",), 1, "id"),
    ]


def test_lines_of_two_topics_of_one_name_stay_apart() -> None:
    lines = [StagedPart("t", 0, (b"a",), 1, "old"), StagedPart("t", 0, (b"b",), 1, "new")]
    assert by_partition(lines) == lines


def test_a_line_of_a_manifest_is_the_same_on_both_sides_of_the_wire() -> None:
    for line in (StagedPart("t", 2, (b"a" * 16, b"b" * 16), 7, "id"), StagedPart("t", 0, (), 0)):
        assert line_from_wire(pb.StagedBatches.FromString(line_to_wire(line).SerializeToString())) == line
