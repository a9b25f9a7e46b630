"""Purge: records dropped because an administrator says so, by the same entry (`Trim`) as retention's.

Staged batches have no offsets yet, so none of them is below one; the journal keeps their bytes (rule 13).
"""

from __future__ import annotations

import logging

from mq_broker.broker.host.shell import Shell
from mq_broker.broker.metadata.topics import Topics
from mq_broker.broker.runtime.streams import asked_of_each
from mq_broker.core.entries import Trim
from mq_protocol import mq_pb2 as pb
from mq_protocol.errors import InvalidRequest, TritonMQError
from mq_protocol.wire.error_messages import to_wire

log = logging.getLogger(__name__)


class Purging:
    """Owns nothing: each partition's leader writes the entry."""

    def __init__(self, shell: Shell, topics: Topics) -> None:
        self._shell = shell
        self._topics = topics

    async def purge(self, request: pb.PurgeRequest, deadline: float) -> pb.PurgeResponse:
        """Drop the records below each position. Its answer says where that log starts now, or why nothing was dropped.

        An offset beyond the end of the log drops all that is committed.
        """
        answers = await asked_of_each(lambda position: self._purge(position, deadline), request.positions)
        return pb.PurgeResponse(partitions=answers)

    async def _purge(self, position: pb.CursorPosition, deadline: float) -> pb.PartitionOffsets:
        try:
            topic = await self._topics.get(position.topic)
            if topic.internal:
                raise InvalidRequest(f"topic {position.topic} is the brokers' own: it cannot be purged")
            partition = self._shell.leader(topic, position.partition)
            if position.offset < 0:
                raise InvalidRequest(
                    f"records of {partition.name} below {position.offset} cannot be dropped: give an offset from 0 on"
                )
            await partition.ask(Trim(min(position.offset, partition.next_offset)), deadline)
        except TritonMQError as error:
            return pb.PartitionOffsets(partition=position.partition, error=to_wire(error))
        log.info("%s: records below offset %d are dropped by request", partition.name, partition.index.log_start_offset)
        return partition.offsets()
