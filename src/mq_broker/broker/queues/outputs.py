"""What a member publishes with the records that it has worked on: batches that it has staged, settled by one entry."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from mq_broker.broker.metadata.topics import Topics
from mq_broker.core.work.settling import AckWithOutputs
from mq_broker.core.work.steps import OutputLine
from mq_protocol import mq_pb2 as pb
from mq_protocol.errors import InvalidRequest, UnknownPartition
from mq_protocol.limits import MICRO_BATCH_ID_MAX
from mq_protocol.names import check_topic_name

LINES_MAX: Final = 64
UUIDS_MAX: Final = 8_192
"""Of one ack with outputs: partitions that it names, and batches in all. They stand in one entry."""

_UUID_BYTES: Final = 16


async def outputs_of(settle: pb.SettleOne, topics: Topics) -> AckWithOutputs:
    """The outputs, one line for each partition. Raises `InvalidRequest`, `UnknownTopic` and `UnknownPartition`."""
    _check(settle)
    lines: dict[tuple[str, int], list[bytes]] = {}
    for line in settle.outputs:
        check_topic_name(line.topic)
        topic = await topics.meant(line.topic, line.topic_id)
        if not 0 <= line.partition < topic.partitions:
            raise UnknownPartition(
                f"topic {line.topic} has partitions 0 to {topic.partitions - 1}, not {line.partition}"
            )
        lines.setdefault((line.topic_id, line.partition), []).extend(line.uuids)
    uuids = [uuid for each in lines.values() for uuid in each]
    if len(set(uuids)) < len(uuids):
        raise InvalidRequest("outputs name a staged batch twice: name each one once")
    made = tuple(OutputLine(topic_id, number, tuple(each)) for (topic_id, number), each in lines.items())
    return AckWithOutputs(made, settle.number)


def _check(settle: pb.SettleOne) -> None:
    """What can be seen without the topics."""
    if settle.outcome != pb.OUTCOME_ACK:
        raise InvalidRequest("outputs are published with records that are acknowledged, with no other outcome")
    if not settle.outputs or not 0 < settle.number <= MICRO_BATCH_ID_MAX:
        raise InvalidRequest(
            f"an ack with outputs has outputs and a number from 1 to {MICRO_BATCH_ID_MAX}, which grows with each: give "
            "both, or none for an ack alone"
        )
    if not settle.ranges:
        raise InvalidRequest("outputs are published with the records that they were made of: name some")
    if len(settle.outputs) > LINES_MAX or sum(len(line.uuids) for line in settle.outputs) > UUIDS_MAX:
        raise InvalidRequest(
            f"one ack has outputs of at most {LINES_MAX} partitions and {UUIDS_MAX} batches: write larger ones"
        )
    if any(not line.topic_id or not line.uuids for line in settle.outputs):
        raise InvalidRequest("each line of outputs names the id of its topic, and at least one staged batch")
    if any(len(uuid) != _UUID_BYTES for uuid in _uuids(settle.outputs)):
        raise InvalidRequest("outputs name staged batches by UUIDs of 16 bytes")


def _uuids(lines: Iterable[pb.StagedBatches]) -> Iterable[bytes]:
    return (uuid for line in lines for uuid in line.uuids)
