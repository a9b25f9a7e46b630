"""Produce streams: batches from outside, checked and proposed, answered when their durability promise holds.

A stream's batches for one partition are proposed in the order in which they came. Checking a batch decodes it; large
ones are decoded by a few threads, so that the loop is not held up, and still proposed in order.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any, Final, NamedTuple

import pyarrow as pa

from mq_broker.broker.data.scheduled import Scheduled, check_schedule, is_scheduled
from mq_broker.broker.host.partition import Partition
from mq_broker.broker.host.shell import Shell
from mq_broker.broker.host.windows import Fillers
from mq_broker.broker.metadata.topics import Topic, Topics
from mq_broker.broker.runtime.memory import Held
from mq_broker.broker.runtime.places import Places
from mq_broker.broker.runtime.streams import side_by_side
from mq_broker.broker.transactions.owners import Owned, owner_of
from mq_broker.broker.transactions.requests import check_attempt, check_micro_batch_id, key_of, listed_name
from mq_broker.core.entries import (
    NO_UUID,
    PRIORITY_MAX,
    PRIORITY_USUAL,
    TTL_MS_MAX,
    USUAL,
    UUID_BYTES,
    Append,
    Attributes,
    Operation,
    Schedule,
    Stage,
)
from mq_broker.core.messages import Decided, Done, RecordsThere, Refused, Result, Room, Wait
from mq_broker.measured import PRODUCE_BATCHES, PRODUCE_SECONDS
from mq_broker.rpc.callers import account, asker, caller
from mq_broker.rpc.service import ProduceRequests, RefusedBatch, Send
from mq_broker.rpc.turns import Spacing
from mq_process.tracing import tracer
from mq_protocol import mq_pb2 as pb
from mq_protocol.access.quotas import Quota
from mq_protocol.arrow import check_untrusted
from mq_protocol.errors import (
    BatchTooLarge,
    InternalError,
    InvalidRequest,
    QuotaExceeded,
    SchemaMismatch,
    TritonMQError,
)
from mq_protocol.limits import PRODUCE_IN_FLIGHT_BYTES_MAX, RECORD_UUIDS_MAX, REQUEST_TIMEOUT_MS, SCHEDULED_MAX
from mq_protocol.names import INTERNAL_PREFIX, check_id
from mq_protocol.queues.work_keys import is_of_queue, place_of
from mq_protocol.wire.envelope import Envelope
from mq_protocol.wire.error_messages import code_of, to_wire
from mq_protocol.wire.traceparent import from_bytes

log = logging.getLogger(__name__)

CHECK_INLINE_BYTES_MAX: Final = 64 << 10
CHECK_INLINE_DECODED_BYTES_MAX: Final = 1 << 20
"""Checking this much takes about as long as handing it to a thread. What is small only while it is compressed goes to
one as well: seven kilobytes of zstd may hold 200 MB, which take a third of a second."""

CHECKS_AT_ONCE_MAX: Final = 2
"""Batches that are checked at the same time, in threads; one of them for one connection."""

SWOLLEN_BYTES: Final = 16 << 20
SWOLLEN_TIMES: Final = 64
"""A batch that has more inside than both, bytes and times of what was sent, is followed by a rest. So is one that is
refused after `REFUSED_LATE_S`."""

REFUSED_LATE_S: Final = 0.01
RESTS: Final = 8
REST_S_MAX: Final = 1.0
"""A rest is so many times as long as the check was, and not longer than this."""

RESTS_S_MAX: Final = 4.0
"""Those of an account's connections come one after the other, up to this."""

_BATCH_BYTES: Final = 1 << 10
"""About what a batch takes beside its payload until its answer is written, so that a flood of empty ones is bounded
too."""

_ANSWERS_AT_ONCE_MAX: Final = 1_000
_ANSWERS_BYTES_MAX: Final = 1 << 20
"""Of one message. To encode so much takes a few milliseconds."""

_ACKS: Final = {pb.ALL: "all", pb.LEADER: "leader", pb.NONE: "none"}
_WAITS: Final = {pb.ALL: Wait.COMMITTED, pb.LEADER: Wait.WRITTEN, pb.NONE: Wait.NOTHING}


@dataclass(slots=True)
class _Batch:
    """A batch on its way from the stream to the core. `decoded_bytes`, or `error`, is known once it is checked."""

    header: pb.ProduceHeader
    payload: memoryview
    held_bytes: int
    deadline: float
    began: float
    partition: Partition | None = None
    decoded_bytes: int = 0
    error: TritonMQError | None = None
    checked: bool = False
    check_s: float = 0.0
    span: Any | None = None  # where somebody records its trace


class _Answer(NamedTuple):
    result: pb.ProduceResult
    held_bytes: int


class Producing:
    """Owns the places in which large batches are checked."""

    def __init__(
        self,
        shell: Shell,
        topics: Topics,
        held: Held,
        scheduled: Scheduled,
        owned: Owned,
        room: Callable[[Partition], Room | None],
    ) -> None:
        """`room`: how far batches may be appended to a partition."""
        self.shell = shell
        self.owned = owned
        self.room = room
        self.scheduled = scheduled
        self.held = held
        self.topics = topics
        self.fillers = Fillers()
        self.tracing = Tracing(tracer())
        self.checks = Places(CHECKS_AT_ONCE_MAX, "check-batch")
        self.rests = Spacing(RESTS_S_MAX)

    async def produce(self, requests: ProduceRequests, send: Send[pb.ProduceResponse]) -> None:
        """One stream, until the client has said its last and has been answered."""
        stream = _Stream(self, send)
        await side_by_side(stream.read(requests), stream.write())

    def close(self) -> None:
        self.checks.close()


class _Stream:
    """Owns one client's stream: what is in flight, and what is answered and not yet written. Both count as unanswered.

    Answers that are ready together share one message.
    """

    def __init__(self, producing: Producing, send: Send[pb.ProduceResponse]) -> None:
        self._producing = producing
        self._send = send
        self._unchecked: deque[_Batch] = deque()
        self._unanswered = 0
        self._unanswered_bytes = 0
        self._ready: deque[_Answer] = deque()
        self._caller = caller()
        self._asker = asker()
        self._gone = False
        self._some_ready = asyncio.Event()
        self._room = asyncio.Event()
        self._ended = False
        self._loop = asyncio.get_running_loop()

    async def read(self, requests: ProduceRequests) -> None:
        async for request in requests:
            self._unanswered += 1
            size = _held_bytes(request)
            self._unanswered_bytes += size
            self._producing.held.add(self._caller, size)
            try:
                await self._take(request)
            except BaseException:  # the stream has ended: this one is never answered
                self._producing.held.free(self._caller, size)
                raise
            while self._unanswered_bytes > PRODUCE_IN_FLIGHT_BYTES_MAX:  # what comes now waits in TCP
                self._room.clear()
                await self._room.wait()
            await self._producing.shell.disk_room()
            await self._producing.held.room(self._caller)
        self._ended = True
        self._some_ready.set()

    async def write(self) -> None:
        try:
            while not (self._ended and self._unanswered == 0):
                await self._some_ready.wait()
                self._some_ready.clear()
                while self._ready:
                    await self._write_some()
        finally:
            self._gone = True
            for answer in self._ready:
                self._producing.held.free(self._caller, answer.held_bytes)

    async def _write_some(self) -> None:
        """As many answers as one message may have, at least one. They are held until they are written."""
        count = answers_bytes = 0
        for answer in islice(self._ready, _ANSWERS_AT_ONCE_MAX):
            if count and answers_bytes + answer.result.ByteSize() > _ANSWERS_BYTES_MAX:
                break
            count += 1
            answers_bytes += answer.result.ByteSize()
        await self._send(pb.ProduceResponse(results=[answer.result for answer in islice(self._ready, count)]))
        for _ in range(count):
            held_bytes = self._ready.popleft().held_bytes
            self._producing.held.free(self._caller, held_bytes)
            self._unanswered_bytes -= held_bytes
        self._unanswered -= count
        self._room.set()

    # ------------------------------------------------------------------ from the stream to the core

    async def _take(self, request: Envelope[pb.ProduceHeader]) -> None:
        header = request.header
        timeout_ms = min(header.timeout_ms or REQUEST_TIMEOUT_MS, REQUEST_TIMEOUT_MS)
        now = self._loop.time()
        batch = _Batch(header, request.payload, _held_bytes(request), now + timeout_ms / 1000, now)
        try:
            if isinstance(request, RefusedBatch):
                raise request.error
            topic = await self._producing.topics.get(header.topic)
            batch.span = self._producing.tracing.begin(header, len(batch.payload))
            if topic.spec.schema and header.schema_fingerprint not in topic.versions:
                # The producer may have heard of new columns before this broker
                topic = await self._producing.topics.renewed(topic)
            batch.partition = self._producing.shell.partition(topic, header.partition)
            if not batch.partition.replica.leading:
                raise batch.partition.not_leader()
            schema = _check_header(header, topic)
            if is_scheduled(header):
                check_schedule(header, self._producing.scheduled.now_us())
        except TritonMQError as error:
            batch.error = error
            self._checked(batch)
            return
        if len(batch.payload) <= CHECK_INLINE_BYTES_MAX:
            _check(batch, topic, schema, min(CHECK_INLINE_DECODED_BYTES_MAX, topic.settings.batch_decoded_bytes_max))
            if not isinstance(batch.error, BatchTooLarge):
                self._checked(batch)
                return
            batch.error, batch.checked = None, False
        self._unchecked.append(batch)
        rest = partial(_rest, batch, self._producing.rests, account())
        checking = self._producing.checks.run(caller(), _check, batch, topic, schema, rest=rest)
        checking.add_done_callback(lambda done: self._propose_checked(batch, done))

    def _checked(self, batch: _Batch) -> None:
        batch.checked = True
        if self._unchecked:
            self._unchecked.append(batch)
        else:
            self._propose(batch)

    def _propose_checked(self, batch: _Batch, done: asyncio.Future[None]) -> None:
        """Those at the head whose check is done: none overtakes one that came before it."""
        if not done.cancelled() and (error := done.exception()) is not None:
            log.error("a batch could not be checked", exc_info=error)
            batch.error = InternalError(
                f"the batch could not be checked ({type(error).__name__}): see the broker's log"
            )
            batch.checked = True
        while self._unchecked and self._unchecked[0].checked:
            self._propose(self._unchecked.popleft())

    def _propose(self, batch: _Batch) -> None:
        if batch.error is not None:
            self._answer(batch, Refused(batch.error))
            return
        assert batch.partition is not None
        if batch.span is not None:
            batch.span.add_event("checked")
        header = batch.header
        stages = header.HasField("stage")
        due_us = self._producing.scheduled.due_us(header) if is_scheduled(header) else 0
        query = listed_name(header.stage.key.query_id) if stages else ""
        self._producing.fillers.count(batch.partition, self._caller, query, 1 + len(header.record_uuids) // UUID_BYTES)
        owner = owner_of(self._asker, key_of(header.stage.key)) if stages else ""
        try:
            if owner and header.uuid not in batch.partition.replica.machine.staged:
                more = {Quota.STAGED: 1, Quota.STAGED_BYTES: len(batch.payload)}
                self._producing.owned.add(self._asker, owner, more)
        except QuotaExceeded as error:
            self._answer(batch, Refused(error))
            return
        batch.partition.propose(
            _operation(header, due_us, owner),
            lambda result: self._answer(batch, result),
            batch.deadline,
            uuid=header.uuid,
            record_count=header.record_count,
            payload=batch.payload,
            decoded_bytes=batch.decoded_bytes,
            after=header.after,
            wait=Wait.COMMITTED if stages or due_us else _WAITS[header.acks],
            scheduled_max=batch.partition.topic.settings.scheduled_max if due_us else SCHEDULED_MAX,
            room=None if stages or due_us else self._producing.room(batch.partition),
        )

    def _answer(self, batch: _Batch, result: Result) -> None:
        answer = pb.ProduceResult(correlation=batch.header.correlation)
        PRODUCE_SECONDS.add(self._loop.time() - batch.began, _ACKS.get(batch.header.acks, "other"))
        PRODUCE_BATCHES.add(_code(result))
        if batch.span is not None:
            end_span(batch.span, batch.header, result)
        if batch.partition is not None and is_scheduled(batch.header):
            self._producing.scheduled.waits(batch.partition)
        match result:
            case Done(_, base_offset, timestamp_us, duplicate):
                answer.base_offset = base_offset
                answer.timestamp_us = timestamp_us
                answer.duplicate = duplicate
            case RecordsThere(records):
                answer.base_offset = -1
                answer.there.positions.extend(record.position for record in records)
                answer.there.offsets.extend(record.offset for record in records)
                answer.there.timestamps_us.extend(record.timestamp_us for record in records)
            case Refused(error):
                answer.base_offset = -1
                answer.error.CopyFrom(to_wire(error))
            case Decided():
                raise AssertionError(f"a batch cannot be answered with {result}")
        if self._gone:
            self._producing.held.free(self._caller, batch.held_bytes)
            return
        self._ready.append(_Answer(answer, batch.held_bytes))
        self._some_ready.set()


_APPEND: Final[Operation] = Append()


def _code(result: Result) -> str:
    if isinstance(result, Refused):
        return pb.ErrorCode.Name(code_of(result.error))
    return "DUPLICATE" if isinstance(result, RecordsThere) or (isinstance(result, Done) and result.duplicate) else "OK"


def _held_bytes(request: Envelope[pb.ProduceHeader]) -> int:
    """What a batch takes of the broker's memory until it is answered, about."""
    return len(request.payload) + len(request.header.record_uuids) + _BATCH_BYTES


def _operation(header: pb.ProduceHeader, due_us: int, owner: str = "") -> Operation:
    attributes = _attributes(header.attributes) if header.HasField("attributes") else USUAL
    if header.HasField("stage"):
        return Stage(key_of(header.stage.key), header.stage.batch_id, header.stage.run_id, attributes, owner)
    if due_us:
        return Schedule(due_us, attributes)
    return Append(header.record_uuids, attributes) if header.record_uuids or attributes != USUAL else _APPEND


def _attributes(told: pb.BatchAttributes) -> Attributes:
    """A priority above the highest is that one; so is a `ttl_ms`."""
    priority = min(told.priority, PRIORITY_MAX) if told.HasField("priority") else PRIORITY_USUAL
    return Attributes(priority, min(told.ttl_ms, TTL_MS_MAX))


def _check_header(header: pb.ProduceHeader, topic: Topic) -> pa.Schema:
    """What can be told without the payload; the version of the topic's schema that it was encoded with, the present one
    or one that that begins with. Raises `InvalidRequest` or `SchemaMismatch`."""
    if topic.spec.name.startswith(INTERNAL_PREFIX):
        raise InvalidRequest(f"topic {topic.spec.name} is the brokers' own: clients cannot write it")
    if len(header.uuid) != UUID_BYTES or header.uuid == NO_UUID:
        raise InvalidRequest(f"a batch needs a UUID of 16 bytes, not all zero; this one has {len(header.uuid)}")
    if len(header.after) not in (0, UUID_BYTES):
        raise InvalidRequest(f"`after` names a UUID of 16 bytes; this one has {len(header.after)}")
    if header.record_uuids:
        _check_record_uuids(header)
    if header.acks not in _WAITS:
        raise InvalidRequest(f"acks {header.acks} is not known: all (0), leader (1) or none (2)")
    if header.acks > pb.Acks.Value(topic.settings.acks_min.name):  # the weaker, the higher its number
        raise InvalidRequest(
            f"acks={_ACKS[header.acks]} is not enough for topic {topic.spec.name}: its setting acks_min demands "
            f"acks={topic.settings.acks_min.value}"
        )
    if header.HasField("stage"):
        query_id = key_of(header.stage.key).query_id
        if is_of_queue(query_id) and place_of(query_id) is None:
            raise InvalidRequest(
                f"query id {query_id[:100]!r} names no queue group: work:<topic id>/<partition>/<group>"
            )
        check_micro_batch_id(header.stage.batch_id)
        check_id("run id", header.stage.run_id)
        if is_of_queue(query_id):
            check_attempt(header.stage.run_id)
    schema = topic.versions.get(header.schema_fingerprint)
    if schema is None:
        raise SchemaMismatch(
            f"the batch was not encoded with the schema of topic {topic.spec.name}, which is: "
            f"{', '.join(f'{f.name} {f.type}' for f in topic.schema)}"[:500]
        )
    return schema


def _check_record_uuids(header: pb.ProduceHeader) -> None:
    """Raises `InvalidRequest` unless there is one for each record."""
    if header.HasField("stage"):
        raise InvalidRequest("a batch that is staged has no UUIDs of its records: its own is enough")
    if header.record_count > RECORD_UUIDS_MAX:
        raise InvalidRequest(
            f"a batch whose records have UUIDs may have {RECORD_UUIDS_MAX} of them, not {header.record_count}: send "
            "smaller batches"
        )
    if len(header.record_uuids) != header.record_count * UUID_BYTES:
        raise InvalidRequest(
            f"`record_uuids` has {len(header.record_uuids)} bytes: {UUID_BYTES} for each of {header.record_count} "
            "records, or none"
        )
    if any(uuid == NO_UUID for uuid in Append(header.record_uuids).uuids()):
        raise InvalidRequest("a record's UUID must not be all zero")


def _check(batch: _Batch, topic: Topic, schema: pa.Schema, decoded_bytes_max: int | None = None) -> None:
    """Look at every byte. May run in a thread: touches the batch alone. `decoded_bytes_max`: by default the topic's."""
    began = time.monotonic()
    try:
        batch.decoded_bytes = check_untrusted(
            batch.payload,
            schema,
            batch_bytes_max=topic.settings.batch_bytes_max,
            decoded_bytes_max=decoded_bytes_max or topic.settings.batch_decoded_bytes_max,
            record_count=batch.header.record_count,
        )
    except TritonMQError as error:
        batch.error = error
    batch.checked = True
    batch.check_s = time.monotonic() - began


def _rest(batch: _Batch, rests: Spacing, whose: str) -> float:
    """Seconds before another batch of the same connection is checked: after one that cost many times what it cost to
    send, whether it was good or refused. Rows of an application are no such batches. It comes after those `rests` that
    the account `whose` has already."""
    swollen = batch.decoded_bytes > max(SWOLLEN_BYTES, SWOLLEN_TIMES * len(batch.payload))
    refused = batch.error is not None and batch.check_s > REFUSED_LATE_S
    return rests.rest_s(min(RESTS * batch.check_s, REST_S_MAX), whose) if swollen or refused else 0.0


_TOLD: Final = {pb.ALL: "committed", pb.LEADER: "written", pb.NONE: "proposed"}


class Tracing:
    """Spans of batches that arrive, for those that say which trace they belong to, where this broker sends spans.
    `tracer`: the broker's, if it has one."""

    def __init__(self, tracer: Any | None) -> None:
        self._tracer = tracer

    def begin(self, header: pb.ProduceHeader, payload_bytes: int) -> Any | None:
        """The span of a batch, `append T`; None where it is of no trace, or of one that nobody records. Raises
        `InvalidRequest` for a `traceparent` that is none."""
        if not header.traceparent:
            return None
        parent = from_bytes(header.traceparent)
        if self._tracer is None or not parent.sampled:
            return None
        from opentelemetry import trace

        context = trace.SpanContext(parent.trace_id, parent.span_id, is_remote=True, trace_flags=trace.TraceFlags(1))
        span = self._tracer.start_span(
            f"append {header.topic}",
            trace.set_span_in_context(trace.NonRecordingSpan(context)),
            trace.SpanKind.SERVER,
            {
                "messaging.system": "tritonmq",
                "messaging.operation.name": "append",
                "messaging.destination.name": header.topic,
                "messaging.destination.partition.id": str(header.partition),
                "messaging.batch.message_count": header.record_count,
                "messaging.message.body.size": payload_bytes,
                "tritonmq.batch.uuid": header.uuid[:16].hex(),
            },
        )
        return span if span.is_recording() else None


def end_span(span: Any, header: pb.ProduceHeader, result: Result) -> None:
    """The batch has its answer, and so its span an end."""
    match result:
        case Done(_, base_offset, _, duplicate):
            # What is staged or scheduled waits for the in-sync replicas, whatever it asks for.
            at_once = base_offset >= 0 or header.acks == pb.NONE
            span.add_event(_TOLD[header.acks if at_once else pb.ALL])
            span.set_attributes({"tritonmq.offset": base_offset, "tritonmq.duplicate": duplicate})
        case RecordsThere(records):
            span.add_event("there", {"tritonmq.records": len(records)})
        case Refused(error):
            from opentelemetry.trace import Status, StatusCode

            span.set_attribute("error.type", pb.ErrorCode.Name(code_of(error)))
            span.set_status(Status(StatusCode.ERROR, str(error)))
        case Decided():
            raise AssertionError(f"a batch cannot be answered with {result}")
    span.end()
