"""Looks at the records of a queue group, or takes some that are ready, without being a member that stays."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterable, Iterator

from mq_client.cluster.connection import Connection
from mq_client.cluster.deadline import Deadline
from mq_client.consuming.record_queue import ConsumerRecord, batch_to_records
from mq_client.errors import InvalidRequest, OffsetOutOfRange
from mq_client.queueing.administration import runs
from mq_client.queueing.offsets import from_gaps
from mq_client.reader import Reader
from mq_protocol import mq_pb2 as pb
from mq_protocol.queue_settings import MEMBER_PRIORITY_MAX

BROWSED_MAX = 10_000
"""Records that are held in memory at once."""

_ATTEMPT_MS = 5_000.0


def peek(
    connection: Connection,
    topic: str,
    group: str,
    count: int,
    state: pb.RecordState.ValueType,
    deadline: Deadline,
) -> list[ConsumerRecord]:
    """The first `count` records in that state, by partition and offset. Nothing is changed."""
    _check(count)
    view = connection.topic(topic, deadline)
    records: list[ConsumerRecord] = []
    for partition in range(view.partitions):
        ranges = ((run.first, run.end) for run in runs(connection, topic, group, partition, state, deadline))
        records += _read(connection, topic, partition, _cut(ranges, count - len(records)), deadline)
        if len(records) >= count:
            break
    return records


def pop(
    connection: Connection,
    topic: str,
    group: str,
    count: int,
    deadline: Deadline,
    deserialize: Callable[[ConsumerRecord], ConsumerRecord] | None = None,
    filter_text: str = "",
) -> list[ConsumerRecord]:
    """Up to `count` ready records that match, settled by being taken."""
    _check(count)
    view = connection.topic(topic, deadline)
    member, key = f"pop-{uuid.uuid4().hex}", os.urandom(32)
    records: list[ConsumerRecord] = []
    for partition in range(view.partitions):
        left = count - len(records)
        if not left:
            break
        request = pb.LeaseRequest(
            topic=topic,
            partition=partition,
            group=group,
            member=member,
            member_key=key,
            records_max=left,
            accept=True,
            priority=MEMBER_PRIORITY_MAX,  # whoever is there: this is asked for once, by hand
            leaving=True,
            filter=filter_text,
        )
        answer = connection.ask_leader(topic, partition, "Lease", request, pb.LeaseResponse, deadline, _ATTEMPT_MS)
        records += _read(connection, topic, partition, from_gaps(answer.ranges, left), deadline)
    return records if deserialize is None else [deserialize(record) for record in records]


def _read(
    connection: Connection, topic: str, partition: int, ranges: Iterable[tuple[int, int]], deadline: Deadline
) -> list[ConsumerRecord]:
    """Those of the records that are still kept."""
    reader = Reader(connection, max(1.0, deadline.remaining_s * 1000))
    typed = connection.topic(topic, deadline).typed
    records: list[ConsumerRecord] = []
    for first, end in ranges:
        while first < end:
            try:
                for piece in reader.read_stored(topic, partition, first, end):
                    records += batch_to_records(
                        piece.batch, topic, partition, piece.base_offset, piece.timestamp_us, typed=typed
                    )
                    first = piece.end_offset
            except OffsetOutOfRange as error:  # dropped by retention meanwhile
                if error.next_offset <= first:
                    raise
                first = error.next_offset
    return records


def _cut(ranges: Iterable[tuple[int, int]], count: int) -> Iterator[tuple[int, int]]:
    """The first `count` offsets of the ranges, at least one. No further range is asked for: it may cost a question."""
    for first, end in ranges:
        yield first, min(end, first + count)
        count -= end - first
        if count <= 0:
            return


def _check(count: int) -> None:
    if not 0 < count <= BROWSED_MAX:
        raise InvalidRequest(f"{count} records: from 1 to {BROWSED_MAX} can be asked for at once")
