"""What readers in other languages ask by Arrow Flight: which topics there are, where their partitions are read, and the
rows of a range of offsets.

A range is read as Fetch reads it (fetch.py), within the same bounds. Beside that only the ends of the range are cut to
it, small batches are joined, and columns that a batch of a former version lacks are null: a stream has one schema. What
needs none of this is sent as it is stored.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import pyarrow as pa

from mq_broker.broker.administration.topics import Admin
from mq_broker.broker.data.fetch import Reading
from mq_broker.broker.host.partition import Partition
from mq_broker.broker.host.shell import Shell
from mq_broker.broker.metadata.brokers import Cluster
from mq_broker.broker.metadata.topics import Topic, Topics
from mq_broker.broker.runtime.memory import Held
from mq_broker.broker.runtime.streams import in_turns
from mq_broker.rpc.callers import caller, client_port
from mq_broker.rpc.service import Batches, Send
from mq_broker.security.client_port import ClientPort
from mq_protocol import mq_pb2 as pb
from mq_protocol.arrow import decode_batch, encode_batch, schema_nodes
from mq_protocol.errors import (
    CoordinationUnavailable,
    InvalidRequest,
    NotLeader,
    NotYetWritten,
    OffsetOutOfRange,
    RequestTooLarge,
    SchemaMismatch,
    UnknownPartition,
    UnknownTopic,
)
from mq_protocol.limits import ANSWER_BYTES_MAX, FLIGHT_GATHER_BYTES
from mq_protocol.names import did_you_mean, no_such_topic, quoted
from mq_protocol.wire.envelope import Buffer
from mq_protocol.wire.flight import (
    Wanted,
    data_message,
    endpoint,
    flight_info,
    location,
    schema_result,
    split_message,
)
from mq_protocol.wire.ipc_message import codec_of, node_count, read_record_batch_message

GATHERED_DECODED_BYTES_MAX: Final = 16 << 20
"""Of small batches that are joined: they may be compressed."""

Stored = tuple[pb.StoredBatch, memoryview]


class Flights:
    """Owns nothing: `reading` reads, `admin` knows who leads, `held` counts what waits to be sent."""

    def __init__(
        self, shell: Shell, topics: Topics, cluster: Cluster, admin: Admin, reading: Reading, held: Held
    ) -> None:
        self._shell = shell
        self._topics = topics
        self._cluster = cluster
        self._admin = admin
        self._reading = reading
        self._held = held

    # ------------------------------------------------------------------ what there is

    async def flights(self, prefix: str, send: Send[bytes], deadline: float) -> None:
        """A `FlightInfo` for each topic that begins so and that the asker may describe."""
        after, more = "", True
        while more:
            async with self._held.sending(caller(), ANSWER_BYTES_MAX, ANSWER_BYTES_MAX) as room:
                answer = await self._admin.metadata(pb.MetadataRequest(all_topics=True, after=after), deadline)
                room.took(answer.ByteSize())  # it is here until the last of it is sent
                for info in answer.topics:
                    after = info.name
                    if info.name.startswith(prefix) and (topic := self._topics.find(info.name)) is not None:
                        await send(await self._told(topic, info, Wanted(info.name)))
                more = answer.more and bool(answer.topics)

    async def info(self, wanted: Wanted, deadline: float) -> bytes:
        """`FlightInfo`: a ticket for each partition, and where its leader is asked. Raises `UnknownTopic`,
        `UnknownPartition`, `SchemaMismatch`, or `RequestTooLarge` for columns and a filter that are too much to be said
        for each partition."""
        answer = await self._admin.metadata(pb.MetadataRequest(topics=[wanted.topic]), deadline)
        if not answer.topics:
            raise UnknownTopic(no_such_topic(wanted.topic))
        return await self._told(await self._topics.meant(wanted.topic, wanted.topic_id), answer.topics[0], wanted)

    async def schema(self, wanted: Wanted, _deadline: float) -> bytes:
        """`SchemaResult`, of the columns that are wanted. Raises `UnknownTopic` or `SchemaMismatch`."""
        topic = await self._topics.meant(wanted.topic, wanted.topic_id)
        return schema_result(_message_of(_schema(topic, wanted)))

    async def _told(self, topic: Topic, info: pb.TopicInfo, wanted: Wanted) -> bytes:
        if wanted.partition is not None and wanted.partition >= len(info.partitions):
            raise UnknownPartition(
                f"topic {info.name} has partitions 0 to {len(info.partitions) - 1}, not {wanted.partition}"
            )
        schema = _message_of(_schema(topic, wanted))
        count = len(info.partitions) if wanted.partition is None else 1
        if (wanted.columns or wanted.filter) and count * len(wanted.to_bytes()) > ANSWER_BYTES_MAX:
            raise RequestTooLarge(
                f"a ticket for each of the {count} partitions of {info.name} would say all these columns and this "
                "filter: ask for one partition, or write the tickets yourself"
            )
        port = client_port()
        endpoints = []
        async for partition in in_turns(info.partitions):
            if wanted.partition in (None, partition.partition):
                ticket = Wanted(
                    info.name,
                    partition.partition,
                    wanted.start,
                    wanted.end,
                    wanted.columns,
                    wanted.filter,
                    info.topic_id,
                )
                endpoints.append(endpoint(ticket, self._locations(partition.leader, port)))
        return flight_info(schema, wanted, endpoints)

    def _locations(self, broker: int, port: ClientPort) -> list[str]:
        registration = self._cluster.brokers.get(broker)
        address = "" if registration is None else registration.flight_address_for(port)
        return [location(address, tls=port.tls)] if address else []

    # ------------------------------------------------------------------ reading

    async def read(self, wanted: Wanted, send: Send[bytes]) -> None:
        """`FlightData`: the schema, then the rows of the range, in order. Raises what Fetch does, before anything is
        sent where the range or a column is wrong."""
        assert wanted.partition is not None
        topic = await self._topics.meant(wanted.topic, wanted.topic_id)
        partition = self._replica(topic, wanted.partition)
        start, end = self._range(partition, wanted)
        schema = _schema(topic, wanted)
        about = {"topic": topic.spec.name, "partition": wanted.partition, "start": start, "end": end}
        told = schema.with_metadata({f"tritonmq.{key}": str(value) for key, value in about.items()})
        await send(data_message(split_message(_message_of(told))[0]))
        shape = _Shape(schema, start, end, filtered=bool(wanted.filter))
        request = pb.FetchRequest(
            topic=topic.spec.name,
            topic_id=topic.spec.topic_id,
            partition=wanted.partition,
            start_offset=start,
            end_offset=end,
            filter=wanted.filter,
            project=wanted.columns is not None,
            columns=wanted.columns or (),
        )

        async def give(chunk: Batches) -> None:
            stored = [(each, memoryview(part)) for each, part in zip(chunk.header.batches, chunk.parts, strict=True)]
            if shape.is_as_stored(stored):
                messages: Iterable[bytes] = shape.messages(stored)
            else:
                messages = await self._reading.apart(list, shape.messages(stored))
            for message in messages:
                await send(message)

        await self._reading.fetch(request, give)

    def _replica(self, topic: Topic, number: int) -> Partition:
        try:
            return self._shell.partition(topic, number)
        except NotLeader as error:
            raise self._elsewhere(error) from error

    def _range(self, partition: Partition, wanted: Wanted) -> tuple[int, int]:
        """Which offsets. Where the log begins and ends is the leader's to say."""
        known = partition.next_offset
        if not partition.serving and (wanted.start is None or wanted.end is None or wanted.end > known):
            raise self._elsewhere(partition.not_leader())
        start = partition.index.log_start_offset if wanted.start is None else wanted.start
        end = known if wanted.end is None else wanted.end
        if wanted.end is not None and start > end:
            raise InvalidRequest(f"cannot read offsets {start} to {end}: give start <= end")
        if start > known:
            raise OffsetOutOfRange(
                f"offset {start} of {partition.name} is beyond the end of the log: the next record gets {known}"
            )
        if end > known:
            raise NotYetWritten(f"{partition.name} ends at offset {known} now: ask again, or read to there")
        return start, end

    def _elsewhere(self, error: NotLeader) -> NotLeader:
        """With the address of the leader's Flight port, since the number of a broker says nothing to a client of
        Flight."""
        if not error.leader or error.leader == self._shell.broker:
            return error
        found = self._locations(error.leader, client_port())
        where = f"its Flight address is {found[0]}" if found else "it has no Flight port: start it with --flight"
        return NotLeader(f"{error}; {where}", error.leader, error.leader_epoch)


def _message_of(schema: pa.Schema) -> bytes:
    message: bytes = schema.serialize().to_pybytes()
    return message


def _schema(topic: Topic, wanted: Wanted) -> pa.Schema:
    """Of what is read. Raises `SchemaMismatch` for a column that the topic does not have."""
    schema = topic.schema.remove_metadata()
    if wanted.columns is None:
        return schema
    known = set(schema.names)
    for name in wanted.columns:
        if name not in known:
            raise SchemaMismatch(
                f"topic {topic.spec.name} has no column {quoted(name)}{did_you_mean(name[:255], known)}"
            )
    return pa.schema([schema.field(name) for name in wanted.columns])


class _Shape:
    """Makes the messages of one stream of the batches that Fetch gives. `filtered`: these have been cut to the range
    already. Owns nothing that changes, so it may work in a thread."""

    def __init__(self, schema: pa.Schema, start: int, end: int, *, filtered: bool) -> None:
        self._schema = schema
        self._nodes = schema_nodes(schema)
        self._start, self._end = start, end
        self._filtered = filtered

    def is_as_stored(self, batches: Sequence[Stored]) -> bool:
        """Whether nothing needs to be decoded."""
        return all(self._is_whole(each) for each in batches) and not any(
            len(group) > 1 for group in self._groups(batches)
        )

    def messages(self, batches: Sequence[Stored]) -> Iterator[bytes]:
        """In order. Batches of which no row is kept are left out."""
        for group in self._groups(batches):
            about = json.dumps(
                {
                    "start": max(group[0][0].base_offset, self._start),
                    "end": min(group[-1][0].base_offset + group[-1][0].record_count, self._end),
                    "timestamp_us": group[-1][0].timestamp_us,
                }
            ).encode()
            payload: Buffer = group[0][1]
            if len(group) > 1 or not self._is_whole(group[0]):
                payload = self._joined(group)
            yield data_message(*split_message(payload), about)

    def _groups(self, batches: Sequence[Stored]) -> Iterator[list[Stored]]:
        """Small ones that follow each other are one group."""
        group: list[Stored] = []
        size = decoded = 0
        for each in batches:
            payload = each[1]
            if not payload:
                continue
            size += len(payload)
            decoded += _decoded_bytes(payload)
            if group and (size > FLIGHT_GATHER_BYTES or decoded > GATHERED_DECODED_BYTES_MAX):
                yield group
                group, size, decoded = [], len(payload), _decoded_bytes(payload)
            group.append(each)
        if group:
            yield group

    def _is_whole(self, each: Stored) -> bool:
        described, payload = each
        return not payload or (
            (self._filtered or self._cut(described) == (0, described.record_count))
            and node_count(payload) == self._nodes
        )

    def _cut(self, described: pb.StoredBatch) -> tuple[int, int]:
        """Which rows of a batch are in the range: the first, and behind the last."""
        base = described.base_offset
        return max(0, self._start - base), min(described.record_count, self._end - base)

    def _joined(self, group: Sequence[Stored]) -> Buffer:
        batches = []
        for described, payload in group:
            if node_count(payload) > self._nodes:
                raise CoordinationUnavailable("columns were added to the topic while it was read: ask again")
            rows = decode_batch(payload, self._schema)
            if not self._filtered:
                first, behind = self._cut(described)
                rows = rows.slice(first, behind - first)
            batches.append(rows)
        rows = batches[0] if len(batches) == 1 else _one(batches)
        return memoryview(encode_batch(rows, codec_of(group[0][1])))


def _decoded_bytes(payload: memoryview) -> int:
    return len(payload) if codec_of(payload) is None else read_record_batch_message(payload).decoded_bytes()


def _one(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    return pa.Table.from_batches(batches).combine_chunks().to_batches()[0]
