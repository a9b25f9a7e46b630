"""Purge a queue group, or have what is parked worked on again: an administrator's word, written by the leaders."""

from __future__ import annotations

import asyncio
import logging

from mq_broker.broker.host.partition import Partition
from mq_broker.broker.host.shell import Shell
from mq_broker.broker.metadata.topics import Topics
from mq_broker.broker.queues.describing import pages
from mq_broker.broker.queues.policy.declared import Declared, Queue
from mq_broker.broker.queues.working import Working
from mq_broker.broker.runtime.streams import asked_of_each
from mq_broker.core.work.ranges import joined
from mq_broker.core.work.state import WorkState
from mq_broker.core.work.steps import Drop, Reason, Reset, Step
from mq_protocol import mq_pb2 as pb
from mq_protocol.errors import NotLeader, OutcomeUnknown, TritonMQError
from mq_protocol.names import quoted
from mq_protocol.wire.error_messages import to_wire

log = logging.getLogger(__name__)


class Sweeping:
    """Owns nothing: what is swept is in the journals."""

    def __init__(self, shell: Shell, topics: Topics, declared: Declared, working: Working) -> None:
        self._shell = shell
        self._topics = topics
        self._declared = declared
        self._working = working

    async def sweep_queue(self, request: pb.SweepQueueRequest, deadline: float) -> pb.SweepQueueResponse:
        """Settle what nobody has (purge), or take back that records are parked (redrive): below the end of the log as
        it is now. Each partition answers for itself how many records that were."""
        swept = await asked_of_each(lambda number: self._swept(request, number, deadline), request.partitions)
        return pb.SweepQueueResponse(partitions=swept)

    async def _swept(self, request: pb.SweepQueueRequest, number: int, deadline: float) -> pb.SweptPartition:
        try:
            partition = self._shell.leader(await self._topics.get(request.topic), number)
            queue = self._declared.get(partition, request.group)
            async with asyncio.timeout_at(deadline):
                records = await (self._redrive if request.redrive else self._purge)(partition, queue)
        except TimeoutError:
            late = OutcomeUnknown(f"partition {number} did not commit this in time: ask again, it is done once")
            return pb.SweptPartition(partition=number, error=to_wire(late))
        except TritonMQError as error:
            return pb.SweptPartition(partition=number, error=to_wire(error))
        log.info(
            "%s: %d records of queue group %s are %s by request",
            partition.name,
            records,
            quoted(queue.group),
            "sent back" if request.redrive else "purged",
        )
        return pb.SweptPartition(partition=number, records=records)

    async def _purge(self, partition: Partition, queue: Queue) -> int:
        """A piece of the state at a time, each an entry: to settle all of it at once may take long."""
        end, total = partition.next_offset, 0
        state = _state(partition, queue)
        if state is None:
            return 0
        async for page in pages(state, state.base, end):
            free = sum(state.settled.missing_count(low, high) for low, high, lease, _ in page if lease is None)
            if free:
                await self._write(partition, queue, Drop(((page[0][0], page[-1][1]),), Reason.PURGED))
                total += free
        return total

    async def _redrive(self, partition: Partition, queue: Queue) -> int:
        total, state = 0, _state(partition, queue)
        if state is None:
            return 0
        async for page in pages(state, state.base, partition.next_offset):
            parked = joined((low, high) for low, high, lease, mark in page if lease is None and mark and mark.parked)
            count = sum(state.settled.missing_count(low, high) for low, high in parked)
            if count:
                await self._write(partition, queue, Reset(parked))
                total += count
        return total

    async def _write(self, partition: Partition, queue: Queue, step: Step) -> None:
        await self._working.add_steps(partition, queue.group, queue.life, (step,))


def _state(partition: Partition, queue: Queue) -> WorkState | None:
    """Raises `NotLeader`. None: the group has not begun here."""
    if not partition.serving:
        raise NotLeader(f"{partition.name} has another leader now: ask again")
    state = partition.replica.machine.work.get(queue.group)
    return state if state is not None and state.life == queue.life else None
