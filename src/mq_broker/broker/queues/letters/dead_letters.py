"""Doomed records become letters in another topic, each exactly once.

The leader makes the letters, stages them in the dead-letter topic, and decides them by one entry of the group, which
settles the records; publishing is the outbox's (outbox.py). Before that entry nothing has happened: what was staged is
discarded. If the topic cannot take them, the records stay doomed and are tried again.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from dataclasses import dataclass, field
from typing import Final, NamedTuple, TypeAlias

from mq_broker.broker.administration.topics import Admin
from mq_broker.broker.host.partition import Partition
from mq_broker.broker.host.shell import Shell
from mq_broker.broker.metadata.topics import Topic, Topics
from mq_broker.broker.queues.group.led_group import LedGroup
from mq_broker.broker.queues.group.requests import OwnSteps, Sending
from mq_broker.broker.queues.letters.making import Letters, Origin, Piece, check_fits, letter_schema, make
from mq_broker.broker.queues.letters.staging import Staging
from mq_broker.broker.queues.policy.declared import Queue
from mq_broker.broker.runtime.places import Places
from mq_broker.broker.transactions.coordinator import Transactions
from mq_broker.core.work.ranges import Ranges
from mq_broker.core.work.settling import SendDead
from mq_broker.core.work.state import Mark
from mq_broker.core.work.steps import OutputLine, Park, Reason
from mq_protocol import mq_pb2 as pb
from mq_protocol.arrow import encode_batch, schema_fingerprint
from mq_protocol.errors import (
    InvalidRequest,
    OffsetOutOfRange,
    TritonMQError,
    UnknownTopic,
)
from mq_protocol.names import INTERNAL_PREFIX, quoted
from mq_protocol.queues.work_keys import WorkPlace, query_id_of, run_of_epoch
from mq_protocol.wire.ipc_message import read_record_batch_message

log = logging.getLogger(__name__)

RUNS_AT_ONCE: Final = 1_000
RECORDS_AT_ONCE: Final = 1_000
BYTES_AT_ONCE: Final = 4 << 20
BATCHES_AT_ONCE: Final = 200
"""Stored batches that are read in one round: so many, or so many bytes if the first is not larger."""

DECODED_AT_ONCE: Final = 16 << 20
"""Bytes of letters, decompressed, of one round; one stored batch may pass it."""

ATTEMPT_S: Final = 30.0
AGAIN_S: Final = (1.0, 2.0, 5.0, 10.0, 30.0)
RETRIED_UNTOLD: Final = 2
"""Attempts that may fail for a reason that passes before an operator is told."""

MAKING_AT_ONCE: Final = 1

Run: TypeAlias = tuple[int, int, Mark]


class _Made(NamedTuple):
    """Letters, and as they are stored; `decoded_bytes`: decompressed."""

    letters: Letters
    payload: bytes
    decoded_bytes: int


@dataclass(slots=True)
class _Group:
    """One group in one leadership. `in_hand`: batches that are staged, or may be, and not decided yet.
    `records_max`: of the next letters, fewer where more were too large."""

    led_group: LedGroup
    task: asyncio.Task[None] | None = None
    alarm: str = ""
    in_hand: set[bytes] = field(default_factory=set)
    records_max: int = RECORDS_AT_ONCE


class DeadLetters:
    """Owns the sending of each group's dead letters, where its partition is led here."""

    def __init__(
        self, shell: Shell, topics: Topics, admin: Admin, transactions: Transactions, staging: Staging
    ) -> None:
        self._shell = shell
        self._topics = topics
        self._admin = admin
        self._transactions = transactions
        self._staging = staging
        self._making = Places(MAKING_AT_ONCE, "dead-letters")
        self._groups: dict[tuple[str, str], _Group] = {}

    def look(self, led_group: LedGroup) -> None:
        """The group may have records that are to be sent."""
        name = led_group.partition.name, led_group.group
        group = self._groups.get(name)
        if group is None or group.led_group is not led_group:
            self._groups = {known: each for known, each in self._groups.items() if not each.led_group.closed}
            group = self._groups[name] = _Group(led_group)
        if group.task is None or group.task.done():
            what = f"dead letters of {led_group.group} of {led_group.partition.name}"
            group.task = self._shell.spawn(self._run(group), what)

    def alarm(self, partition: str, group: str) -> str:
        """Why the group's dead letters do not get on; empty if they do."""
        known = self._groups.get((partition, group))
        return "" if known is None or known.led_group.closed else known.alarm

    def in_hand(self, partition: str, group: str) -> frozenset[bytes]:
        """Batches that may be decided yet."""
        known = self._groups.get((partition, group))
        return frozenset() if known is None or known.led_group.closed else frozenset(known.in_hand)

    def close(self) -> None:
        self._making.close()

    async def _run(self, group: _Group) -> None:
        """Until nothing of it is doomed, or the leadership is over."""
        attempt = 0
        while group.led_group.partition.serving and not group.led_group.closed:
            queue = group.led_group.queue
            if queue is None or not isinstance(queue.settings.dead_letter, str):
                break
            runs, reason = self._next(group.led_group)
            if not runs:
                break
            try:
                await self._send_some(group, queue, queue.settings.dead_letter, runs, reason)
                attempt, group.alarm = 0, ""
            except TritonMQError as error:
                group.led_group.doomed_again(runs)
                if not error.retriable or attempt >= RETRIED_UNTOLD:
                    self._tell(group, queue.settings.dead_letter, error)
                await asyncio.sleep(AGAIN_S[min(attempt, len(AGAIN_S) - 1)])
                attempt += 1

    @staticmethod
    def _next(led_group: LedGroup) -> tuple[list[Run], Reason | None]:
        """What is to be sent next, and why, if not since it failed or was rejected."""
        for reason in (None, Reason.EXPIRED, Reason.LENGTH):
            runs = led_group.take_doomed(RUNS_AT_ONCE, reason)
            if runs:
                return runs, reason
        return [], None

    def _tell(self, group: _Group, target: str, error: TritonMQError) -> None:
        if not group.alarm:
            log.error(
                "%s: dead letters of queue group %s cannot go to topic %s, and wait: %s",
                group.led_group.partition.name,
                quoted(group.led_group.group),
                target,
                error,
            )
        group.alarm = f"dead letters wait for topic {target}: {error}"

    # ------------------------------------------------------------------ one round

    async def _send_some(
        self, group: _Group, queue: Queue, name: str, runs: list[Run], why: Reason | None = None
    ) -> None:
        """As many as one batch may have. Raises why nothing of them was sent. `why`: if they were not doomed."""
        led_group, partition = group.led_group, group.led_group.partition
        deadline = asyncio.get_running_loop().time() + ATTEMPT_S
        target = await self._target(partition, name, deadline)
        rejected = runs[0][2].rejected
        others = [run for run in runs if run[2].rejected != rejected]
        chosen = sorted((run for run in runs if run[2].rejected == rejected), key=lambda run: run[0])
        pieces, left = _read(partition, chosen, group.records_max)
        reason = why or (Reason.REJECTED if rejected else Reason.DELIVERY_LIMIT)
        origin = _origin(led_group, reason)
        made = await self._making.run(partition.name, _make, pieces, origin, target, DECODED_AT_ONCE)
        await self._send_made(group, queue, target, made, reason, deadline)
        led_group.doomed_again([*left, *_runs(made.letters.left), *others])

    async def _send_made(
        self, group: _Group, queue: Queue, target: Topic, made: _Made, reason: Reason, deadline: float
    ) -> None:
        """Raises why nothing of them was sent."""
        led_group, partition, letters = group.led_group, group.led_group.partition, made.letters
        if letters.weary:
            log.warning(
                "%s: records of queue group %s are parked, since they were dead letters too often: %s",
                partition.name,
                quoted(led_group.group),
                letters.weary[:10],
            )
            await self._park(led_group, queue, letters.weary)
        if letters.batch is None:
            return
        settings = target.settings
        if len(made.payload) > settings.batch_bytes_max or made.decoded_bytes > settings.batch_decoded_bytes_max:
            await self._part(group, queue, letters, target)
            return
        await self._decide(group, queue, target, letters, made.payload, reason, deadline)
        group.records_max = RECORDS_AT_ONCE

    async def _part(self, group: _Group, queue: Queue, letters: Letters, target: Topic) -> None:
        """They are too large together. One that is too large by itself is parked: it would hold up all others."""
        assert letters.batch is not None
        if letters.batch.num_rows > 1:
            group.records_max = max(letters.batch.num_rows // 2, 1)
            group.led_group.doomed_again(_runs(letters.ranges))
            return
        log.error(
            "%s: record %d of queue group %s is parked: as a dead letter it is above batch_bytes_max=%d or "
            "batch_decoded_bytes_max=%d of topic %s",
            group.led_group.partition.name,
            letters.ranges[0][0],
            quoted(group.led_group.group),
            target.settings.batch_bytes_max,
            target.settings.batch_decoded_bytes_max,
            target.spec.name,
        )
        await self._park(group.led_group, queue, letters.ranges)

    async def _park(self, led_group: LedGroup, queue: Queue, ranges: Ranges) -> None:
        own = OwnSteps(queue.life, (Park(ranges),))
        led_group.add(own)
        await own.written

    async def _decide(
        self,
        group: _Group,
        queue: Queue,
        target: Topic,
        letters: Letters,
        payload: bytes,
        reason: Reason,
        deadline: float,
    ) -> None:
        """Stage them, and decide if their records are doomed still."""
        led_group, partition = group.led_group, group.led_group.partition
        batch = uuid.uuid4().bytes
        number = partition.number % target.partitions
        key = _key(led_group, target)
        assert letters.batch is not None
        count = letters.batch.num_rows
        group.in_hand.add(batch)
        try:
            await self._stage(led_group, target, number, key, batch, count, payload, deadline)
            if led_group.closed:
                raise partition.not_leader()
        except TritonMQError:
            self._let_go(group, target, number, key, batch)
            raise
        line = OutputLine(target.spec.topic_id, number, (batch,))
        sending = Sending(queue.life, SendDead(letters.ranges, reason, (line,)))
        led_group.send(sending)
        try:
            answer = await sending.answered
        except TritonMQError as error:
            if error.definite:
                self._let_go(group, target, number, key, batch)
            raise  # else the entry may yet be committed, and the letters stay in hand until this leadership ends
        if answer.error is not None or answer.lost:
            self._let_go(group, target, number, key, batch)
        if answer.error is not None:
            raise answer.error
        if answer.lost:
            led_group.doomed_again(_runs(letters.ranges))
        group.in_hand.discard(batch)  # the outbox has it

    def _let_go(self, group: _Group, target: Topic, number: int, key: pb.TransactionKey, batch: bytes) -> None:
        """It is not decided, and never will be."""
        group.in_hand.discard(batch)
        self._shell.spawn(self._discard(target, number, key, batch), "discard of dead letters")

    async def stage_again(self, led_group: LedGroup, n: int) -> None:
        """The topic has lost letters that were decided as number `n`: they are made again of their records, which
        retention has kept, and staged under the same UUID. What was said of their failures is gone with the records'
        marks."""
        partition = led_group.partition
        state = partition.replica.machine.work.get(led_group.group)
        outgoing = state.outbox.get(n) if state is not None else None
        if outgoing is None or outgoing.reason is Reason.OUTPUT:
            return  # whoever made the outputs has to look at it
        try:
            for line in outgoing.lines:
                target = self._topics.with_id(line.topic_id)
                if target is None:
                    return
                pieces, _ = _read(partition, [(first, end, Mark()) for first, end in outgoing.ranges], 1 << 62)
                letters, payload, _ = await self._making.run(
                    partition.name, _make, pieces, _origin(led_group, outgoing.reason), target, 1 << 62
                )
                if letters.ranges == outgoing.ranges and letters.batch is not None:
                    key = _key(led_group, target)
                    deadline = asyncio.get_running_loop().time() + ATTEMPT_S
                    count = letters.batch.num_rows
                    await self._stage(led_group, target, line.partition, key, line.uuids[0], count, payload, deadline)
                    log.warning("%s: %d dead letters that were lost are staged again", partition.name, count)
        except TritonMQError as error:
            log.info("%s: dead letters that were lost are not staged again yet: %s", partition.name, error)

    async def _stage(
        self,
        led_group: LedGroup,
        target: Topic,
        number: int,
        key: pb.TransactionKey,
        batch: bytes,
        count: int,
        payload: bytes,
        deadline: float,
    ) -> None:
        request = pb.StageRequest(
            topic=target.spec.name,
            topic_id=target.spec.topic_id,
            partition=number,
            key=key,
            run_id=run_of_epoch(led_group.epoch),
            uuid=batch,
            record_count=count,
            schema_fingerprint=schema_fingerprint(target.schema),
            payload=payload,
        )
        stage = self._staging.stage
        await self._transactions.ask_leader(
            target.spec.name, number, "Stage", request, pb.StageResponse, stage, deadline
        )

    async def _discard(self, target: Topic, number: int, key: pb.TransactionKey, batch: bytes) -> None:
        """One attempt: what it does not reach is a leftover."""
        request = pb.DiscardRequest(topic=target.spec.name, partition=number, key=key, uuids=[batch])
        try:
            discard = self._transactions.discard
            await self._transactions.ask_leader(
                target.spec.name, number, "Discard", request, pb.DiscardResponse, discard
            )
        except TritonMQError as error:
            log.debug("%s-%d: letters that were not sent stay for now: %s", target.spec.name, number, error)

    async def _target(self, partition: Partition, name: str, deadline: float) -> Topic:
        """The dead-letter topic, made like the source if it is not there."""
        if name.startswith(INTERNAL_PREFIX):
            raise InvalidRequest(f"topic {name} is the brokers' own: give the queue group another dead_letter")
        source = partition.topic
        try:
            topic = await self._topics.get(name)
        except UnknownTopic:
            topic = await self._admin.make_like(source, name, letter_schema(source.schema), deadline)
        check_fits(source.schema, topic.schema, name)
        return topic


def _origin(led_group: LedGroup, reason: Reason) -> Origin:
    topic = led_group.partition.topic
    return Origin(topic.spec.name, led_group.partition.number, led_group.group, reason.name.lower(), topic.schema)


def _key(led_group: LedGroup, target: Topic) -> pb.TransactionKey:
    partition = led_group.partition
    place = WorkPlace(partition.topic.spec.topic_id, partition.number, led_group.group)
    return pb.TransactionKey(query_id=query_id_of(place), sink=target.spec.name)


def _read(partition: Partition, runs: list[Run], records_max: int) -> tuple[list[Piece], list[Run]]:
    """The first of these records, ascending, each once and with its stored batch; and the runs that are left. What
    retention has dropped is settled by now."""
    pieces: list[Piece] = []
    records = size = 0
    offset = end = 0  # `end`: of the batch that was read last
    for at, (first, until, mark) in enumerate(runs):
        offset = max(first, offset)
        while offset < until:
            full = size >= BYTES_AT_ONCE or len(pieces) >= BATCHES_AT_ONCE
            if records >= records_max or (offset >= end and full):
                return pieces, [(offset, until, mark), *runs[at + 1 :]]
            if offset >= end:
                try:
                    [(batch, payload)] = partition.read(offset, offset + 1, 1)
                except OffsetOutOfRange:
                    offset += 1
                    continue
                size += len(payload)
                end = batch.base_offset + batch.record_count
                pieces.append(Piece(batch.base_offset, batch.timestamp_us, payload))
            pieces[-1].records.append((offset, mark))
            records += 1
            offset += 1
    return pieces, []


def _make(pieces: list[Piece], origin: Origin, target: Topic, bytes_max: int) -> _Made:
    """Runs in a thread."""
    letters = make(pieces, origin, target.schema, bytes_max)
    if letters.batch is None:
        return _Made(letters, b"", 0)
    payload = encode_batch(letters.batch, "zstd").to_pybytes()
    return _Made(letters, payload, read_record_batch_message(memoryview(payload)).decoded_bytes())


def _runs(ranges: Ranges) -> list[Run]:
    """To be given back: what is known of them is read anew."""
    return [(first, end, Mark()) for first, end in ranges]
