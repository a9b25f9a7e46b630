"""What a member publishes with the records that it has worked on: batches that it has staged, settled by one entry."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Final

from mq_broker.broker.host.partition import Partition
from mq_broker.broker.metadata.topics import Topics
from mq_broker.broker.transactions.coordinator import Transactions
from mq_broker.core.entries import UUID_BYTES, Work
from mq_broker.core.work.settling import AckWithOutputs
from mq_broker.core.work.steps import OutputLine
from mq_protocol import mq_pb2 as pb
from mq_protocol.errors import InvalidRequest, TritonMQError, UnknownPartition
from mq_protocol.limits import MICRO_BATCH_ID_MAX, OUTPUT_BATCHES_MAX, OUTPUT_PARTITIONS_MAX
from mq_protocol.names import check_topic_name
from mq_protocol.queues.work_keys import WorkPlace, query_id_of

_ABOVE_ALL: Final = (1 << 63) - 1
"""A number under which nothing was published yet: that of the outputs is not known."""


class Outputs:
    """Owns nothing: what is staged, and what was decided, is in the journals."""

    def __init__(self, topics: Topics, transactions: Transactions) -> None:
        self._topics = topics
        self._transactions = transactions

    async def check(self, partition: Partition, group: str, member: str, settle: pb.SettleOne, until: float) -> None:
        """Before they are decided: every batch must be staged, under the group's key. One that is not could never be
        published, and would stop all outputs of the group to its partition.

        Raises `UnknownTopic`, `UnknownPartition`, `StagedBatchMissing`, or why that is not known by `until` (loop's
        time). Does nothing for what was decided before: it may be published by now.
        """
        if _is_decided(partition, group, member, settle.number):
            return
        checks = [self._check_line(partition, group, line, until) for line in settle.outputs]
        why = next((each for each in await asyncio.gather(*checks, return_exceptions=True) if each is not None), None)
        if why is None:
            return
        if isinstance(why, TritonMQError) and not why.retriable:
            # Asked again, it may have been decided and published meanwhile, perhaps by another leader.
            state = partition.replica.machine.work.get(group)
            await partition.ask(Work(group, state.life if state is not None else 1, ()), until)
            if _is_decided(partition, group, member, settle.number):
                return
        raise why

    async def _check_line(self, partition: Partition, group: str, line: pb.StagedBatches, until: float) -> None:
        topic = await self._topics.meant(line.topic, line.topic_id)
        if not 0 <= line.partition < topic.partitions:
            raise UnknownPartition(
                f"topic {line.topic} has partitions 0 to {topic.partitions - 1}, not {line.partition}"
            )
        place = WorkPlace(partition.topic.spec.topic_id, partition.number, group)
        request = pb.AreStagedRequest(
            topic=line.topic,
            partition=line.partition,
            key=pb.TransactionKey(query_id=query_id_of(place), sink=line.topic),
            batch_id=_ABOVE_ALL,
            uuids=line.uuids,
            topic_id=line.topic_id,
        )
        are_staged = self._transactions.are_staged
        await self._transactions.ask_leader(
            line.topic, line.partition, "AreStaged", request, pb.AreStagedResponse, are_staged, until
        )


def outputs_of(settle: pb.SettleOne) -> AckWithOutputs:
    """The outputs, one line for each partition. Raises `InvalidRequest` for what cannot be right."""
    _check(settle)
    lines: dict[tuple[str, int], list[bytes]] = {}
    for line in settle.outputs:
        check_topic_name(line.topic)
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
    batches = sum(len(line.uuids) for line in settle.outputs)
    if len(settle.outputs) > OUTPUT_PARTITIONS_MAX or batches > OUTPUT_BATCHES_MAX:
        raise InvalidRequest(
            f"one ack has outputs of at most {OUTPUT_PARTITIONS_MAX} partitions and {OUTPUT_BATCHES_MAX} batches: "
            "write larger ones"
        )
    if any(not line.topic_id or not line.uuids for line in settle.outputs):
        raise InvalidRequest("each line of outputs names the id of its topic, and at least one staged batch")
    if any(len(uuid) != UUID_BYTES for uuid in _uuids(settle.outputs)):
        raise InvalidRequest("outputs name staged batches by UUIDs of 16 bytes")


def _uuids(lines: Iterable[pb.StagedBatches]) -> Iterable[bytes]:
    return (uuid for line in lines for uuid in line.uuids)


def last_number(partition: Partition, group: str, member: str) -> int:
    """Of the member's acks with outputs; 0 if there was none."""
    state = partition.replica.machine.work.get(group)
    return state.taken.get(member, 0) if state is not None else 0


def _is_decided(partition: Partition, group: str, member: str, number: int) -> bool:
    return number <= last_number(partition, group, member)
