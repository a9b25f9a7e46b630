"""A manifest's line on the wire, in the journal and in snapshots: everywhere the same message."""

from __future__ import annotations

from mq_protocol import mq_pb2 as pb
from mq_protocol.manifest import StagedPart


def line_to_wire(line: StagedPart) -> pb.StagedBatches:
    """The line as protobuf."""
    return pb.StagedBatches(
        topic=line.topic, partition=line.partition, uuids=line.uuids, row_count=line.row_count, topic_id=line.topic_id
    )


def line_from_wire(line: pb.StagedBatches) -> StagedPart:
    """What `line_to_wire` made."""
    return StagedPart(line.topic, line.partition, tuple(line.uuids), line.row_count, line.topic_id)
