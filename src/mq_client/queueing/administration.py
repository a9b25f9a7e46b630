"""Queue groups: declared, changed, listed, described, purged, deleted. Asked of the brokers; nothing is kept here."""

from __future__ import annotations

import logging
import os
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import closing
from datetime import datetime

from mq_client.cluster.connection import Connection
from mq_client.cluster.deadline import Deadline
from mq_client.cluster.paging import Parts
from mq_client.cluster.requests import ask_leaders
from mq_client.consuming.record_queue import ConsumerRecord, batch_to_records
from mq_client.errors import InvalidRequest, OffsetOutOfRange, UnknownQueue
from mq_client.producing.batches import to_timestamp_us
from mq_client.queueing.borrowing import Borrower
from mq_client.queueing.leases import from_gaps
from mq_client.reader import Reader
from mq_client.shown.descriptions import (
    QueueDescription,
    QueueInfo,
    QueueRun,
    described_info,
    described_partition,
    described_run,
)
from mq_protocol import mq_pb2 as pb
from mq_protocol.names import check_group_name, check_new_group_name, check_topic_name, did_you_mean, quoted
from mq_protocol.queues.settings import MEMBER_PRIORITY_MAX

log = logging.getLogger(__name__)

_SPREAD_MS = 10_000.0
"""How long the leaders may take to begin a queue that was just declared."""

_RUNS_AT_ONCE = 1_000


def declare(
    connection: Connection,
    topic: str,
    group: str,
    start: str | datetime,
    settings: Mapping[str, object],
    deadline: Deadline,
) -> tuple[QueueInfo, bool]:
    """The queue as it is now, and whether this has made it. Returns once all partitions that have a leader have begun
    it, or after ten seconds."""
    _check(topic, group)
    request = pb.AlterQueueRequest(
        topic=topic, group=group, change=pb.QUEUE_DECLARE, settings={name: _text(v) for name, v in settings.items()}
    )
    if isinstance(start, datetime):
        request.timestamp_us = to_timestamp_us(start)
    elif start == "latest":
        request.latest = True
    elif start == "earliest":
        request.earliest = True
    else:
        hint = did_you_mean(str(start), ("earliest", "latest"))
        raise InvalidRequest(f"start={start!r} is not known{hint or ':'} give 'earliest', 'latest' or a datetime")
    unclear: list[str] = []
    answer = connection.ask_any("AlterQueue", request, pb.AlterQueueResponse, deadline, unclear)
    if answer.made:
        _wait_until_begun(connection, topic, group, deadline.at_most(_SPREAD_MS))
    return described_info(answer.queue), answer.made or bool(unclear)


def ensure_declared(connection: Connection, topic: str, group: str, deadline: Deadline) -> None:
    """Declare the queue with the default settings if there is none. The log says so: a name that was misspelt is a
    new queue, which has all records still to do."""
    known = [queue.group for queue in list_queues(connection, topic, deadline)]
    if group in known:
        return
    check_new_group_name(group)
    _, made = declare(connection, topic, group, "earliest", {}, deadline)
    if made:
        near = did_you_mean(group, known)
        log.log(
            logging.WARNING if near else logging.INFO,
            "declared queue %s of topic %s, which was not there and begins with the first record%s",
            quoted(group),
            topic,
            near,
        )


def _wait_until_begun(connection: Connection, topic: str, group: str, limit: Deadline) -> None:
    """What is asked next may go to any leader. A partition that has no leader now is not waited for."""
    while not limit.expired:
        try:
            found = describe(connection, topic, group, limit)
        except UnknownQueue:
            limit.pause(0.02)
            continue
        if all(partition.begun for partition in found.partitions):
            return
        limit.pause(0.02)


def alter(
    connection: Connection, topic: str, group: str, settings: Mapping[str, object], deadline: Deadline
) -> QueueInfo:
    """Change settings; None restores the default."""
    _check(topic, group)
    given = {name: "" if value is None else _text(value) for name, value in settings.items()}
    request = pb.AlterQueueRequest(topic=topic, group=group, change=pb.QUEUE_ALTER, settings=given)
    return described_info(connection.ask_any("AlterQueue", request, pb.AlterQueueResponse, deadline, []).queue)


def delete(connection: Connection, topic: str, group: str, deadline: Deadline) -> None:
    """What its members hold is theirs no more."""
    _check(topic, group)
    unclear: list[str] = []
    request = pb.AlterQueueRequest(topic=topic, group=group, change=pb.QUEUE_DELETE)
    try:
        connection.ask_any("AlterQueue", request, pb.AlterQueueResponse, deadline, unclear)
    except UnknownQueue:
        if not unclear:  # else an attempt whose answer was lost has done it
            raise


def list_queues(connection: Connection, topic: str | None, deadline: Deadline) -> list[QueueInfo]:
    """By topic and group; of all topics, or of one."""
    if topic is not None:
        check_topic_name(topic)
    request = pb.QueuesRequest(topic=topic or "")
    found, parts = list[pb.QueueInfo](), Parts()
    while True:
        answer = connection.ask_any("Queues", request, pb.QueuesResponse, deadline)
        found.extend(answer.queues)
        if not parts.more(answer, answer.queues):
            return sorted(map(described_info, found), key=lambda queue: (queue.topic, queue.group))
        request.after_topic, request.after_group = answer.queues[-1].topic, answer.queues[-1].group


def find_queue(connection: Connection, topic: str, group: str, deadline: Deadline) -> QueueInfo | None:
    """The queue as one broker knows it, None if it knows none."""
    return next((queue for queue in list_queues(connection, topic, deadline) if queue.group == group), None)


def describe(
    connection: Connection,
    topic: str,
    group: str,
    deadline: Deadline,
    partitions: Collection[int] | None = None,
) -> QueueDescription:
    """Raises `UnknownQueue` with the nearest name."""
    _check(topic, group)
    info: list[pb.QueueInfo] = []

    def ask(address: str, numbers: list[int], limit: Deadline) -> Iterable[pb.QueuePartition]:
        request = pb.DescribeQueueRequest(topic=topic, group=group, partitions=numbers)
        answer = connection.ask(address, "DescribeQueue", request, pb.DescribeQueueResponse, limit)
        info.append(answer.queue)
        return answer.partitions

    answers = ask_leaders(connection, topic, partitions, ask, deadline)
    newest = max(info, key=lambda queue: queue.life)
    return QueueDescription(described_info(newest), tuple(described_partition(answers[n]) for n in sorted(answers)))


def runs(
    connection: Connection,
    topic: str,
    group: str,
    partition: int,
    state: pb.RecordState.ValueType,
    deadline: Deadline,
) -> Iterator[QueueRun]:
    """The runs of records of one partition that are in that state, by offset. Asked for in parts."""
    after = 0
    while True:

        def ask(address: str, numbers: list[int], limit: Deadline, after: int = after) -> Iterable[pb.QueuePartition]:
            request = pb.DescribeQueueRequest(
                topic=topic, group=group, partitions=numbers, state=state, after=after, runs_max=_RUNS_AT_ONCE
            )
            return connection.ask(address, "DescribeQueue", request, pb.DescribeQueueResponse, limit).partitions

        answer = ask_leaders(connection, topic, [partition], ask, deadline)[partition]
        for run in answer.runs:
            yield described_run(partition, run)
        if not answer.more or not answer.runs or answer.runs[-1].end <= after:
            return
        after = answer.runs[-1].end


def sweep(
    connection: Connection,
    topic: str,
    group: str,
    deadline: Deadline,
    *,
    redrive: bool,
    partitions: Collection[int] | None = None,
) -> dict[int, int]:
    """Purge, or redrive what is parked. `{partition: records}`. Asked again it does the rest."""
    _check(topic, group)

    def ask(address: str, numbers: list[int], limit: Deadline) -> Iterable[pb.SweptPartition]:
        request = pb.SweepQueueRequest(
            topic=topic, group=group, partitions=numbers, redrive=redrive, timeout_ms=int(limit.remaining_s * 1000) + 1
        )
        return connection.ask(address, "SweepQueue", request, pb.SweepQueueResponse, limit).partitions

    answers = ask_leaders(connection, topic, partitions, ask, deadline)
    return {number: answers[number].records for number in sorted(answers)}


def _check(topic: str, group: str) -> None:
    check_topic_name(topic)
    check_group_name(group)


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


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
    _check_count(count)
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
    _check_count(count)
    view = connection.topic(topic, deadline)
    member, key = f"pop-{uuid.uuid4().hex}", os.urandom(32)
    # Before whoever is there: this is asked for once, by hand
    terms = pb.WorkTerms(accept=True, priority=MEMBER_PRIORITY_MAX, filter=filter_text)
    records: list[ConsumerRecord] = []
    for partition in range(view.partitions):
        left = count - len(records)
        if not left:
            break
        opened = pb.WorkOpen(topic=topic, partition=partition, group=group, member=member, member_key=key)
        with closing(Borrower(connection, opened, terms)) as borrower:
            lent = borrower.lend(left, (), deadline)
        records += _read(connection, topic, partition, from_gaps(lent.ranges, left), deadline)
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


def _check_count(count: int) -> None:
    if not 0 < count <= BROWSED_MAX:
        raise InvalidRequest(f"{count} records: from 1 to {BROWSED_MAX} can be asked for at once")
