"""What a queue group has to do in each partition: how many records are in which state, who has them, which they are.

A state may have 100,000 runs. They are counted in turns, so while members go on, the counts are of about the same
moment.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from itertools import islice
from typing import Final, TypeAlias

from mq_broker.broker.host.partition import Partition
from mq_broker.broker.host.shell import Shell
from mq_broker.broker.metadata.topics import Topics
from mq_broker.broker.queues.declaring import queue_told
from mq_broker.broker.queues.group.row_reading import shown_key
from mq_broker.broker.queues.policy.declared import Declared, Queue, unknown_queue
from mq_broker.core.work.state import NO_MARK, Mark, WorkState
from mq_broker.core.work.steps import LeaseId
from mq_broker.security.names import member_shown
from mq_protocol import mq_pb2 as pb
from mq_protocol.errors import InvalidRequest, NotLeader, RequestTooLarge, TritonMQError, WrongGroupKind
from mq_protocol.limits import ANSWER_BYTES_MAX
from mq_protocol.wire.error_messages import to_wire

MEMBERS_TOLD_MAX: Final = 100
RUNS_TOLD_MAX: Final = 1_000
LOOKED_AT_ONCE: Final = 1_000
"""Runs between which others on the loop get their turn."""


class Describing:
    """Owns nothing: the facts are in the partitions. `alarm`: why what a group in a partition, by their names, has
    decided or is to send does not get on; empty if it does. `blocked_by`: the record that others of the group wait
    for."""

    def __init__(
        self,
        shell: Shell,
        topics: Topics,
        declared: Declared,
        alarm: Callable[[str, str], str] = lambda *_: "",
        blocked_by: Callable[[Partition, str], int | None] = lambda *_: None,
    ) -> None:
        self._alarm = alarm
        self._blocked_by = blocked_by
        self._shell = shell
        self._topics = topics
        self._declared = declared

    async def describe_queue(self, request: pb.DescribeQueueRequest, _deadline: float) -> pb.DescribeQueueResponse:
        """Each partition by itself: an error of one is in its answer. With `runs_max` and a state also the runs of
        records in that state, from `after` on."""
        topic = await self._topics.get(request.topic)
        spec = topic.spec.queues.get(request.group)
        if spec is None:  # this broker may have read the topic before the group was declared
            topic = await self._topics.renewed(topic)
            spec = topic.spec.queues.get(request.group)
        if spec is None:
            if self._declared.reads(request.topic, request.group):
                raise WrongGroupKind(
                    f"group {request.group!r} reads topic {request.topic} as a stream, and is no queue: "
                    f"`tritonmq group describe {request.group}` shows where it is"
                )
            raise unknown_queue(request.topic, request.group, topic.spec.queues)
        if request.state not in pb.RecordState.values():
            raise InvalidRequest(f"state={request.state} is not known: give one of 0 to {max(pb.RecordState.values())}")
        if request.runs_max > RUNS_TOLD_MAX:
            raise InvalidRequest(f"runs_max={request.runs_max} is above {RUNS_TOLD_MAX}: ask for fewer, then for more")
        response = pb.DescribeQueueResponse(queue=queue_told(request.topic, request.group, spec))
        size = 0
        for number in request.partitions:
            told = await self._told(request, number) if size < ANSWER_BYTES_MAX else _too_much(number)
            size += told.ByteSize()
            response.partitions.append(told)
        return response

    async def _told(self, request: pb.DescribeQueueRequest, number: int) -> pb.QueuePartition:
        try:
            partition = self._shell.leader(await self._topics.get(request.topic), number)
            queue = self._declared.get(partition, request.group)
            told = pb.QueuePartition(
                partition=number, log_end_offset=partition.next_offset, leader_epoch=partition.replica.leader_epoch
            )
            state = partition.replica.machine.work.get(request.group)
            if state is None or state.life != queue.life:
                return told
            await _count(told, partition, state, queue)
            _tell_totals(told, state)
            told.alarm = self._alarm(partition.name, request.group)
            blocked_by = self._blocked_by(partition, request.group)
            if blocked_by is not None:
                key = shown_key(partition, blocked_by, queue.settings)
                told.blocked_by.CopyFrom(pb.BlockedBy(offset=blocked_by, key=key))
            if request.runs_max:
                await _tell_runs(told, request, partition, state, queue)
            if not partition.serving:
                raise NotLeader(f"{partition.name} has another leader now: ask again")
        except TritonMQError as error:
            return pb.QueuePartition(partition=number, error=to_wire(error))
        return told


def _too_much(number: int) -> pb.QueuePartition:
    error = RequestTooLarge("one answer does not take so much: describe fewer partitions at once")
    return pb.QueuePartition(partition=number, error=to_wire(error))


def _tell_totals(told: pb.QueuePartition, state: WorkState) -> None:
    told.life, told.base, told.frontier, told.runs_kept = state.life, state.base, state.frontier, state.runs
    totals = state.totals
    told.outbox, told.dead = len(state.outbox), totals.dead
    told.accepted, told.returned, told.charged = totals.accepted, totals.returned, totals.charged
    for reason, count in totals.dropped:
        told.dropped[reason.name.lower()] = count
    records: Counter[str] = Counter()
    for held in state.leases.values():
        records[held.member] += held.records
    for member, count in records.most_common(MEMBERS_TOLD_MAX):
        told.members.add(member=member_shown(member), records=count)
    told.more_members = max(len(records) - MEMBERS_TOLD_MAX, 0)


async def _count(told: pb.QueuePartition, partition: Partition, state: WorkState, queue: Queue) -> None:
    now_us, end = _now_us(), partition.next_offset
    counts: Counter[pb.RecordState.ValueType] = Counter()
    first_ready = end
    async for page in pages(state, state.base, end):
        for low, high, lease, mark in page:
            count = state.settled.missing_count(low, high)
            kind = _kind(lease, mark, queue, now_us)
            counts[kind] += count
            if count and kind == pb.RECORD_READY and first_ready == end:
                first_ready = state.settled.next_missing(low)
    told.ready, told.leased = counts[pb.RECORD_READY], counts[pb.RECORD_LEASED]
    told.delayed, told.doomed = counts[pb.RECORD_DELAYED], counts[pb.RECORD_DOOMED]
    told.parked = counts[pb.RECORD_PARKED]
    if first_ready < end:
        told.oldest_ready_us = partition.index.find(max(first_ready, partition.index.log_start_offset)).timestamp_us


async def _tell_runs(
    told: pb.QueuePartition, request: pb.DescribeQueueRequest, partition: Partition, state: WorkState, queue: Queue
) -> None:
    now_us = _now_us()
    async for page in pages(state, max(request.after, state.base), partition.next_offset):
        for low, high, lease, mark in page:
            kind = _kind(lease, mark, queue, now_us)
            for first, end in state.settled.missing(low, high) if request.state in (pb.RECORD_ANY, kind) else ():
                if len(told.runs) >= request.runs_max:
                    told.more = True
                    return
                known = mark or NO_MARK
                told.runs.add(
                    first=first,
                    end=end,
                    state=kind,
                    deliveries=known.deliveries + (lease is not None),
                    failures=known.failures,
                    due_us=known.due_us,
                    error=known.error,
                    member=member_shown(state.leases[lease].member) if lease is not None else "",
                )


def _kind(lease: LeaseId | None, mark: Mark | None, queue: Queue, now_us: int) -> pb.RecordState.ValueType:
    """The state of records that are not settled."""
    if lease is not None:
        return pb.RECORD_LEASED
    if mark is None:
        return pb.RECORD_READY
    if mark.parked:
        return pb.RECORD_PARKED
    if mark.doomed(queue.settings.delivery_limit):
        return pb.RECORD_DOOMED
    return pb.RECORD_DELAYED if mark.due_us > now_us else pb.RECORD_READY


Piece: TypeAlias = tuple[int, int, LeaseId | None, Mark | None]
"""Records of one lease and one mark, settled ones among them: the first, one past the last."""


async def pages(state: WorkState, first: int, end: int) -> AsyncIterator[list[Piece]]:
    """All of it, cut where the lease or the mark changes. Between two pages others get their turn, and may change what
    comes afterwards."""
    while first < end:
        cut = (
            (c, d, lease, mark)
            for a, b, lease in state.lent.pieces(((first, end),))
            for c, d, mark in state.marks.pieces(((a, b),))
        )
        page = list(islice(cut, LOOKED_AT_ONCE))
        yield page
        first = page[-1][1]
        await asyncio.sleep(0)


def _now_us() -> int:
    return time.time_ns() // 1000
