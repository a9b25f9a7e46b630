"""Reading by offset: Fetch, ListOffsets and WatchOffsets. None of them touches a group.

Stored payloads are sent as they are, never decoded, unless a reader wants only some columns or rows of them
(pushdown.py). Any replica serves what it knows to be committed; where the log ends is the leader's to say (rules 3 and
11).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import closing
from itertools import islice
from typing import Any, Final, NamedTuple, TypeVar

from mq_broker.broker.data.pushdown import Pushdown, stored
from mq_broker.broker.host.cold_reads import ColdReads
from mq_broker.broker.host.partition import Partition
from mq_broker.broker.host.shell import Shell
from mq_broker.broker.metadata.topics import Topic, Topics
from mq_broker.broker.runtime.memory import Held
from mq_broker.broker.runtime.places import Places
from mq_broker.broker.runtime.streams import in_turns
from mq_broker.measured import TOPIC_BYTES_OUT
from mq_broker.rpc import pacing
from mq_broker.rpc.callers import caller
from mq_broker.rpc.pacing import room_to_send
from mq_broker.rpc.service import Batches, Send
from mq_broker.rpc.turns import Turns
from mq_protocol import mq_pb2 as pb
from mq_protocol.errors import (
    CoordinationUnavailable,
    InvalidRequest,
    InvalidSetting,
    NotLeader,
    NotYetWritten,
    OffsetOutOfRange,
    SchemaMismatch,
    TritonMQError,
)
from mq_protocol.limits import FETCH_CHUNK_BYTES, FILTERS_AT_ONCE_MAX, YIELD_EVERY
from mq_protocol.wire.envelope import Buffer, Envelope
from mq_protocol.wire.error_messages import to_wire

T = TypeVar("T")

CHUNK_BYTES_CEILING: Final = 4 * FETCH_CHUNK_BYTES
PUSHDOWN_READ_BYTES: Final = 4 * FETCH_CHUNK_BYTES
"""What is read at once to send a part of it: little of it may be left."""
WATCH_GATHER_S: Final = 0.002
"""Commits within this share one answer: a watcher wants the newest end, not each one."""


class Reading:
    """Owns nothing but the places in which fetches are filtered: offsets and payloads are the partitions'."""

    def __init__(self, shell: Shell, topics: Topics, held: Held) -> None:
        self._shell = shell
        self._held = held
        self._topics = topics
        self._filtering = Places(FILTERS_AT_ONCE_MAX, "filter-rows")

    def close(self) -> None:
        """Nothing is filtered any more."""
        self._filtering.close()

    def apart(self, work: Callable[..., T], *arguments: Any) -> asyncio.Future[T]:
        """What the work returns or raises, done where rows are filtered: in turns with others who ask."""
        return self._filtering.run(caller(), work, *arguments)

    # ------------------------------------------------------------------ fetch

    async def fetch(self, request: pb.FetchRequest, send: Send[Batches]) -> None:
        """The batches that hold `start_offset .. end_offset - 1`, in chunks.

        What is known here to be committed comes first. Past that, a serving leader says that the records are not there
        yet, or that `start_offset` is out of range; any other replica says who to ask (`NotLeader`).
        """
        topic = await self._topics.meant(request.topic, request.topic_id)
        partition = self._shell.partition(topic, request.partition)
        if not 0 <= request.start_offset <= request.end_offset:
            raise InvalidRequest(
                f"cannot fetch offsets {request.start_offset} to {request.end_offset}: give 0 <= start <= end"
            )
        chunk_bytes = pacing.chunk_bytes(min(request.chunk_bytes_max or FETCH_CHUNK_BYTES, CHUNK_BYTES_CEILING))
        pushdown = None
        if request.filter or request.project:
            pushdown = await self._pushdown(topic, request)
            chunk_bytes = max(chunk_bytes, PUSHDOWN_READ_BYTES)
        wanted = _Wanted(request, topic, partition, pushdown)
        at = request.start_offset
        with closing(ColdReads(self._held, caller())) as cold:
            while at < request.end_offset:
                await room_to_send()
                first = partition.index.next_bytes(at)  # a batch is not divided
                async with self._held.sending(caller(), max(chunk_bytes, first), first) as room:
                    at, message = await self._read(wanted, cold, at, min(chunk_bytes, room.bytes))
                    sent_bytes = sum(described.payload_bytes for described in message.header.batches)
                    room.took(sent_bytes)
                    cold.open_ahead(partition, at, min(request.end_offset, partition.next_offset), chunk_bytes)
                    await send(message)
                TOPIC_BYTES_OUT.add(topic.spec.name, "fetch", n=sent_bytes)

    async def _read(self, wanted: _Wanted, cold: ColdReads, at: int, bytes_max: int) -> tuple[int, Batches]:
        """The next message, and the offset behind it."""
        request, topic, partition, pushdown = wanted
        opened = await cold.opened(partition, at, self._known_end(partition, request, at), bytes_max)
        batches = partition.read(at, self._known_end(partition, request, at), bytes_max, opened)
        epoch = partition.replica.leader_epoch
        if pushdown is None:
            sent: list[tuple[pb.StoredBatch, Buffer]] = [(stored(batch), payload) for batch, payload in batches]
        else:
            if topic.spec.schema and not pushdown.knows(batches):
                await self._topics.renewed(topic)
                raise CoordinationUnavailable(
                    f"this broker has only now heard of columns added to {request.topic}: ask again"
                )
            # A broker has other work: what columns and rows cost is paid beside the loop, in turns with others who ask.
            sent = await self.apart(pushdown.apply, batches)
        last = batches[len(sent) - 1][0]
        header = pb.BatchesHeader(batches=[described for described, _ in sent], leader_epoch=epoch)
        return last.base_offset + last.record_count, Envelope(header, tuple(payload for _, payload in sent))

    async def _pushdown(self, topic: Topic, request: pb.FetchRequest) -> Pushdown:
        try:
            return Pushdown(topic.schema, request, typed=bool(topic.spec.schema))
        except (SchemaMismatch, InvalidSetting):
            newer = await self._topics.renewed(topic)  # the reader may have heard of new columns before this broker
            if newer is topic:
                raise
        return Pushdown(newer.schema, request, typed=bool(newer.spec.schema))

    def _known_end(self, partition: Partition, request: pb.FetchRequest, at: int) -> int:
        """How far the request can be served here from `at` on.

        Rule 3: at or beyond its high watermark a broker says "retry", never "out of range", unless it leads and knows
        where the log ends. A leader that was deposed unawares may say so wrongly: the reader asks again after a look at
        who leads.
        """
        replica, known = partition.replica, partition.next_offset
        if partition.closed or request.leader_epoch > replica.leader_epoch:
            raise partition.not_leader()
        if at < known:
            return min(request.end_offset, known)
        if not partition.serving:
            leader = replica.leader if replica.leader != self._shell.broker else 0
            raise NotLeader(
                f"broker {self._shell.broker} knows {partition.name} to be committed up to offset {known}, "
                f"not {request.end_offset}: ask again, or ask its leader",
                leader,
                replica.leader_epoch,
            )
        if at > known:
            raise OffsetOutOfRange(
                f"offset {at} of {partition.name} is beyond the end of the log: the next record gets {known}"
            )
        raise NotYetWritten(f"{partition.name} ends at offset {known} now: ask again, or read to there")

    # ------------------------------------------------------------------ offsets

    async def list_offsets(self, request: pb.ListOffsetsRequest, _deadline: float) -> pb.ListOffsetsResponse:
        """Of the partitions named, or of all; an error for each that is led elsewhere, unless any replica's word will
        do."""
        topic = await self._topics.get(request.topic)
        numbers = request.partitions or range(topic.partitions)
        spans = {span.partition: span for span in request.spans}
        response = pb.ListOffsetsResponse()
        async for number in in_turns(numbers):
            try:
                partition = (
                    self._shell.partition(topic, number) if request.any_replica else self._shell.leader(topic, number)
                )
                if not (partition.serving or partition.knows_committed):
                    raise partition.not_leader()
                answer = partition.offsets()
                answer.lower_bound = not partition.serving
                if request.HasField("timestamp_us"):
                    answer.offset_at_timestamp = partition.index.find_time(request.timestamp_us)
                if number in spans:
                    answer.span.CopyFrom(_measured(partition, spans[number]))
            except TritonMQError as error:
                answer = pb.PartitionOffsets(partition=number, error=to_wire(error))
            response.partitions.append(answer)
        return response

    async def watch_offsets(self, request: pb.WatchOffsetsRequest, send: Send[pb.WatchOffsetsResponse]) -> None:
        """The ends of the partitions named that are led here, now and whenever they change, until the client goes.

        One that is not led here is answered once with NOT_LEADER, and left out from then on: its leader is to be asked.
        """
        watch = _Watch()
        try:
            async for place in in_turns(request.partitions, Turns()):
                try:
                    watch.add(self._shell.partition(await self._topics.get(place.topic), place.partition))
                except TritonMQError as error:
                    watch.refuse(place.topic, place.partition, error)
                if watch.refused >= YIELD_EVERY and (answer := watch.take()) is not None:
                    await send(answer)
            while True:
                answer = watch.take()
                if answer is not None:
                    await send(answer)
                    await asyncio.sleep(WATCH_GATHER_S)
                else:
                    await asyncio.sleep(0)
                    await watch.changed.wait()
        finally:
            watch.close()


def _measured(partition: Partition, span: pb.OffsetSpan) -> pb.SpanMeasure:
    """How many bytes the span has, and how much of it `bytes_max` is enough for. Offsets outside the log count as its
    ends."""
    start, end = span.start_offset, span.end_offset
    if not 0 <= start <= end:
        raise InvalidRequest(f"cannot measure offsets {start} to {end}: give 0 <= start <= end")
    index = partition.index
    low, high = start, min(end, partition.next_offset)
    while low < high:
        middle = (low + high + 1) // 2
        if index.bytes_between(start, middle) <= span.bytes_max:
            low = middle
        else:
            high = middle - 1
    return pb.SpanMeasure(
        bytes=index.bytes_between(start, end),
        first_bytes=index.bytes_between(start, min(start + 1, end)),
        end_offset=low,
    )


class _Wanted(NamedTuple):
    """What one fetch asks for."""

    request: pb.FetchRequest
    topic: Topic
    partition: Partition
    pushdown: Pushdown | None


class _Watch:
    """Owns one watcher's partitions: which have changed since it was last told."""

    def __init__(self) -> None:
        self.changed = asyncio.Event()
        self._observers: dict[Partition, Callable[[], None]] = {}
        self._dirty: dict[Partition, None] = {}
        self._told: dict[Partition, tuple[int, int]] = {}
        self._refused: list[pb.WatchedOffsets] = []

    def add(self, partition: Partition) -> None:
        def changed() -> None:
            self._dirty[partition] = None
            self.changed.set()

        if partition in self._observers:
            return
        self._observers[partition] = changed
        partition.observers.add(changed)
        changed()

    def refuse(self, topic: str, number: int, error: TritonMQError) -> None:
        self._refused.append(
            pb.WatchedOffsets(topic=topic, offsets=pb.PartitionOffsets(partition=number, error=to_wire(error)))
        )

    @property
    def refused(self) -> int:
        """How many refusals are still to be told."""
        return len(self._refused)

    def take(self) -> pb.WatchOffsetsResponse | None:
        """What changed since the last, of some partitions if many have; None if there is nothing to tell of those."""
        response = pb.WatchOffsetsResponse(offsets=self._refused)
        self._refused = []
        dirty = list(islice(self._dirty, YIELD_EVERY))
        for partition in dirty:
            del self._dirty[partition]
        if not self._dirty:
            self.changed.clear()
        for partition in dirty:
            name = partition.topic.spec.name
            if partition.serving:
                offsets = partition.offsets()
                ends = (offsets.log_end_offset, offsets.leader_epoch)
                if self._told.get(partition) != ends:
                    self._told[partition] = ends
                    response.offsets.add(topic=name, offsets=offsets)
            elif partition.closed or not partition.replica.leading:
                self._remove(partition)
                error = to_wire(partition.not_leader())
                response.offsets.add(topic=name, offsets=pb.PartitionOffsets(partition=partition.number, error=error))
        return response if response.offsets else None

    def _remove(self, partition: Partition) -> None:
        observer = self._observers.pop(partition, None)
        if observer is not None:
            partition.observers.discard(observer)

    def close(self) -> None:
        for partition in list(self._observers):
            self._remove(partition)
