"""One broker without ZooKeeper, end to end over gRPC: what clients are promised about topics, batches and reads."""

from __future__ import annotations

import uuid
from pathlib import Path

import pyarrow as pa
import pytest

from mq_protocol import mq_pb2 as pb
from mq_protocol.arrow import RECORD_SCHEMA, encode_batch, schema_fingerprint
from mq_protocol.errors import (
    BatchTooLarge,
    CorruptBatch,
    InvalidRequest,
    InvalidSetting,
    InvalidTopicName,
    NotEnoughBrokers,
    NotLeader,
    NotYetWritten,
    OffsetOutOfRange,
    OutOfOrder,
    SchemaMismatch,
    TopicExists,
    UnknownPartition,
    UnknownTopic,
)
from mq_protocol.limits import OFFSETS_OF_A_LIFE, PARTITIONS_PER_TOPIC_MAX
from mq_protocol.wire.error_messages import from_wire
from tests.coroutines import virtual_time
from tests.mq_broker.broker.cluster import FINGERPRINT, Broker, rows, standalone, until


@virtual_time
async def test_what_is_produced_is_fetched_byte_for_byte(tmp_path: Path) -> None:
    async with standalone(tmp_path) as broker:
        info = await broker.create_topic("t", partitions=3)
        assert [p.leader for p in info.partitions] == [1, 1, 1]
        payload = bytes(encode_batch(rows(1, 2, 3)))
        async with broker.producing() as stream:
            for _ in range(2):
                await stream.send("t", payload, 3)
            assert [(await stream.result()).base_offset for _ in range(2)] == [0, 3]
        found = await broker.fetch("t", 1, 5)
        assert [(b.base_offset, b.record_count, data) for b, data in found] == [(0, 3, payload), (3, 3, payload)]
        assert await broker.end("t") == 6


@virtual_time
async def test_the_same_uuid_gets_the_first_answer_again(tmp_path: Path) -> None:
    async with standalone(tmp_path) as broker:
        await broker.create_topic("t")
        await broker.produce("t", 0)
        name = uuid.uuid4().bytes
        first = await broker.produce("t", 1, uuid=name)
        second = await broker.produce("t", 1, uuid=name)
        assert (first.base_offset, first.duplicate) == (1, False)
        assert (second.base_offset, second.timestamp_us, second.duplicate) == (1, first.timestamp_us, True)
        assert await broker.numbers("t") == [0, 1]


@virtual_time
async def test_a_record_is_recognised_by_its_own_uuid_in_another_batch_and_after_a_restart(tmp_path: Path) -> None:
    one, two, three = (uuid.uuid4().bytes for _ in range(3))
    async with standalone(tmp_path) as broker:
        await broker.create_topic("t")
        assert (await broker.produce("t", 1, 2, record_uuids=one + two)).base_offset == 0
    async with standalone(tmp_path) as broker:
        await until(lambda: _leads(broker, "t"))
        answer = await broker.produce("t", 3, 2, record_uuids=three + two)
        assert (list(answer.there.positions), list(answer.there.offsets), answer.base_offset) == ([1], [1], -1)
        assert (await broker.produce("t", 3, record_uuids=three)).base_offset == 2
        assert await broker.numbers("t") == [1, 2, 3]


@virtual_time
async def test_a_restart_keeps_everything(tmp_path: Path) -> None:
    name = uuid.uuid4().bytes
    async with standalone(tmp_path) as broker:
        await broker.create_topic("t", durability="fsync")
        await broker.create_topic("gone", durability="memory")
        await broker.produce("t", 1, 2, uuid=name)
        await broker.produce("gone", 1)
        before = await broker.fetch("t", 0, 2)
    async with standalone(tmp_path) as broker:
        await until(lambda: _leads(broker, "t"))
        assert await broker.fetch("t", 0, 2) == before
        assert (await broker.produce("t", 1, 2, uuid=name)).duplicate
        assert (await broker.produce("t", 3)).base_offset == 2
        await until(lambda: _leads(broker, "gone"))
        assert await broker.end("gone") == OFFSETS_OF_A_LIFE, "it is empty, and no offset is given twice"


@virtual_time
async def test_a_crash_loses_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    async with standalone(tmp_path) as broker:
        await broker.create_topic("t")
        await broker.produce("t", 1)
        await broker.abandon()
    async with standalone(tmp_path) as broker:
        await until(lambda: _leads(broker, "t"))
        assert await broker.numbers("t") == [1]


async def _leads(broker: Broker, topic: str) -> bool:
    return all(p.leader for p in (await broker.metadata(topic)).topics[0].partitions)


@virtual_time
async def test_answers_come_back_in_order_however_large_the_batches(tmp_path: Path) -> None:
    large = encode_batch(rows(*range(20_000)))
    async with standalone(tmp_path) as broker:
        await broker.create_topic("t", durability="memory")
        async with broker.producing() as stream:
            for n in range(30):
                if n % 3 == 0:
                    await stream.send("t", large, 20_000)
                else:
                    await stream.send("t", encode_batch(rows(n)), 1)
            results = [await stream.result() for _ in range(30)]
        assert [r.correlation for r in results] == list(range(1, 31))
        assert [r.base_offset for r in results] == sorted(r.base_offset for r in results)


@virtual_time
async def test_acks_leader_and_none_are_answered_too(tmp_path: Path) -> None:
    async with standalone(tmp_path) as broker:
        await broker.create_topic("t")
        await broker.produce("t", 1, acks=pb.LEADER)
        await broker.produce("t", 2, acks=pb.NONE)
        await broker.produce("t", 3)
        assert await broker.numbers("t") == [1, 2, 3]


@virtual_time
async def test_a_batch_that_must_follow_another_waits_for_it(tmp_path: Path) -> None:
    async with standalone(tmp_path) as broker:
        await broker.create_topic("t")
        first = uuid.uuid4().bytes
        with pytest.raises(OutOfOrder):
            await broker.produce("t", 2, after=first)
        await broker.produce("t", 1, uuid=first)
        assert (await broker.produce("t", 2, after=first)).base_offset == 1


@virtual_time
async def test_bad_batches_are_refused_and_the_stream_goes_on(tmp_path: Path) -> None:
    good, two = bytes(encode_batch(rows(1))), bytes(encode_batch(rows(1, 2)))
    forged = bytearray(encode_batch(rows(1, 2, 3)))
    # The string offsets: 0, 5, 10, 15
    at = bytes(forged).rindex((5).to_bytes(4, "little") + (10).to_bytes(4, "little"))
    forged[at : at + 4] = (1 << 30).to_bytes(4, "little")
    cases = [
        (CorruptBatch, {"payload": b"no arrow at all", "record_count": 1}),
        (CorruptBatch, {"payload": good, "record_count": 2}),
        (CorruptBatch, {"payload": bytes(forged), "record_count": 3}),
        (CorruptBatch, {"payload": b"", "record_count": 0}),
        (SchemaMismatch, {"payload": good, "record_count": 1, "schema_fingerprint": FINGERPRINT + 1}),
        (BatchTooLarge, {"payload": encode_batch(rows(*range(5_000))), "record_count": 5_000}),
        (InvalidRequest, {"payload": good, "record_count": 1, "uuid": b"short"}),
        (InvalidRequest, {"payload": good, "record_count": 1, "record_uuids": b"short"}),
        (InvalidRequest, {"payload": good, "record_count": 1, "record_uuids": b"x" * 32}),
        (InvalidRequest, {"payload": good, "record_count": 1, "record_uuids": bytes(range(1, 33))}),
        (InvalidRequest, {"payload": two, "record_count": 2, "record_uuids": bytes(range(1, 17))}),
        (InvalidRequest, {"payload": good, "record_count": 1, "record_uuids": bytes(16)}),
        (InvalidRequest, {"payload": good, "record_count": 4_001, "record_uuids": b"x" * 64_016}),
        (InvalidRequest, {"payload": two, "record_count": 2, "record_uuids": b"x" * 32}),
        (InvalidRequest, {"payload": good, "record_count": 1, "acks": 7}),
        (UnknownTopic, {"payload": good, "record_count": 1, "topic": "other"}),
        (UnknownPartition, {"payload": good, "record_count": 1, "partition": 1}),
        (UnknownPartition, {"payload": good, "record_count": 1, "partition": -1}),
    ]
    async with standalone(tmp_path) as broker:
        await broker.create_topic("t", batch_bytes_max="64KiB", record_bytes_max="1000")
        async with broker.producing() as stream:
            for expected, fields in cases:
                await stream.send(**{"topic": "t", **fields})
                error = from_wire((await stream.result()).error)
                assert type(error) is expected, error
            await stream.send("t", good, 1)
            assert (await stream.result()).base_offset == 0
        assert await broker.numbers("t") == [1]


@virtual_time
async def test_fetching_past_what_is_committed_says_retry(tmp_path: Path) -> None:
    async with standalone(tmp_path) as broker:
        await broker.create_topic("t")
        await broker.produce("t", 1)
        with pytest.raises(NotYetWritten, match="ends at offset 1 now"):
            await broker.fetch("t", 1, 2)
        with pytest.raises(OffsetOutOfRange, match="offset 2 of t-0 is beyond the end of the log"):
            await broker.fetch("t", 2, 3)
        with pytest.raises(NotLeader):
            await broker.fetch("t", 0, 1, leader_epoch=99)
        with pytest.raises(InvalidRequest):
            await broker.fetch("t", 1, 0)
        assert await broker.fetch("t", 1, 1) == []


@virtual_time
async def test_stored_batches_share_chunks_up_to_their_size(tmp_path: Path) -> None:
    async with standalone(tmp_path) as broker:
        await broker.create_topic("t", durability="memory")
        async with broker.producing() as stream:
            for n in range(20):
                await stream.send("t", encode_batch(rows(n)), 1)
            size = len(encode_batch(rows(0)))
            for _ in range(20):
                await stream.result()
        found = await broker.fetch("t", 0, 20, chunk_bytes_max=5 * size)
        assert [b.base_offset for b, _ in found] == list(range(20))


@virtual_time
async def test_offsets_are_found_by_time(tmp_path: Path) -> None:
    async with standalone(tmp_path) as broker:
        await broker.create_topic("t")
        await broker.produce("t", 1, 2)
        second = await broker.produce("t", 3)

        async def at(timestamp_us: int) -> int:
            request = pb.ListOffsetsRequest(topic="t", partitions=[0], timestamp_us=timestamp_us)
            return int((await broker.ask("ListOffsets", request)).partitions[0].offset_at_timestamp)

        assert [await at(0), await at(second.timestamp_us), await at(second.timestamp_us + 1)] == [0, 2, 3]


@virtual_time
async def test_topics_are_refused_with_the_reason(tmp_path: Path) -> None:
    async with standalone(tmp_path) as broker:
        await broker.create_topic("t")
        with pytest.raises(TopicExists):
            await broker.create_topic("t")
        with pytest.raises(InvalidTopicName):
            await broker.create_topic("a/b")
        with pytest.raises(InvalidTopicName):
            await broker.create_topic("__mine")
        with pytest.raises(NotEnoughBrokers, match="there are 1"):
            await broker.create_topic("u", replicas=3)
        with pytest.raises(InvalidSetting, match="durability"):
            await broker.create_topic("u", durabilty="os")
        for partitions in (0, PARTITIONS_PER_TOPIC_MAX + 1):
            with pytest.raises(InvalidSetting, match=f"partitions={partitions}"):
                await broker.create_topic("u", partitions=partitions)
        with pytest.raises(InvalidRequest):
            await broker.ask(
                "CreateTopic", pb.CreateTopicRequest(name="u", partitions=1, replicas=1, schema=b"nonsense")
            )
        assert [topic.name for topic in (await broker.metadata()).topics] == ["t"]


@virtual_time
async def test_a_topic_without_a_schema_has_the_record_schema(tmp_path: Path) -> None:
    async with standalone(tmp_path) as broker:
        info = await broker.create_topic("t", schema=None)
        assert not info.typed
        assert pa.ipc.read_schema(pa.py_buffer(info.schema)).equals(RECORD_SCHEMA)
        batch = pa.record_batch([[b"k"], [b"v"], [None], [None]], schema=RECORD_SCHEMA)
        async with broker.producing() as stream:
            await stream.send("t", encode_batch(batch), 1, schema_fingerprint=schema_fingerprint(RECORD_SCHEMA))
            assert (await stream.result()).base_offset == 0


@virtual_time
async def test_a_deleted_topic_is_gone_and_its_name_begins_anew(tmp_path: Path) -> None:
    async with standalone(tmp_path) as broker:
        await broker.create_topic("t")
        await broker.produce("t", 1)
        await broker.ask("DeleteTopic", pb.DeleteTopicRequest(name="t"))
        with pytest.raises(UnknownTopic, match="there is no topic 't'"):
            await broker.end("t")
        assert (await broker.metadata("t")).unknown_topics == ["t"]
        await until(lambda: _no_partitions(tmp_path))
        with pytest.raises(UnknownTopic):
            await broker.ask("DeleteTopic", pb.DeleteTopicRequest(name="t"))
        await broker.create_topic("t")
        assert await broker.end("t") == 0


async def _no_partitions(data: Path) -> bool:
    return not list((data / "partitions").iterdir())
