"""One produce stream: what is refused by its header alone, when topics are read anew, and that all is answered to the
end."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from mq_broker.broker.data.produce import Tracing, _held_bytes, _Stream
from mq_broker.broker.host.windows import Fillers
from mq_broker.broker.metadata.topics import Topic
from mq_broker.broker.runtime.memory import Held
from mq_broker.coordination.interface import TopicSpec
from mq_broker.core.entries import NO_UUID
from mq_broker.core.messages import Done, RecordsThere, RecordThere, Room
from mq_protocol import mq_pb2 as pb
from mq_protocol.arrow import encode_batch, schema_to_bytes
from mq_protocol.errors import InvalidRequest, NotLeader, SchemaMismatch, TritonMQError
from mq_protocol.limits import PRODUCE_IN_FLIGHT_BYTES_MAX, RECORD_UUIDS_MAX, REQUEST_TIMEOUT_MS
from mq_protocol.wire.envelope import Buffer, Envelope
from mq_protocol.wire.error_messages import from_wire
from tests.coroutines import real_time, virtual_time
from tests.mq_broker.broker.cluster import DEADLINE_S, FINGERPRINT, SCHEMA, rows, standalone
from tests.virtual.world import in_virtual_time

UUID = bytes(range(1, 17))
KEY = pb.TransactionKey(query_id="q", sink="t")
OF_QUEUE = pb.TransactionKey(query_id=f"work:{'0' * 32}/0/g", sink="t")


TOPIC = Topic.of(TopicSpec("t", "0" * 32, ((1,),), schema_to_bytes(SCHEMA)))
WRONG: Sequence[tuple[dict[str, Any], type[TritonMQError], str]] = (
    ({"uuid": b"short"}, InvalidRequest, "UUID of 16 bytes, not all zero; this one has 5"),
    ({"uuid": b""}, InvalidRequest, "UUID of 16 bytes"),
    ({"uuid": NO_UUID}, InvalidRequest, "not all zero"),
    ({"after": b"short"}, InvalidRequest, "`after` names a UUID of 16 bytes; this one has 5"),
    ({"acks": 3}, InvalidRequest, "acks 3 is not known"),
    ({"record_uuids": UUID}, InvalidRequest, "16 for each of 2 records"),
    ({"record_uuids": UUID + NO_UUID}, InvalidRequest, "must not be all zero"),
    ({"record_uuids": UUID * 2, "stage": pb.StageOf(key=KEY)}, InvalidRequest, "its own is enough"),
    (
        {"record_uuids": UUID * (RECORD_UUIDS_MAX + 1), "record_count": RECORD_UUIDS_MAX + 1},
        InvalidRequest,
        "send smaller batches",
    ),
    ({"stage": pb.StageOf(key=pb.TransactionKey(sink="t"))}, InvalidRequest, "no query id"),
    ({"stage": pb.StageOf(key=KEY, batch_id=-1)}, InvalidRequest, "micro-batch ids"),
    ({"stage": pb.StageOf(key=KEY, run_id="r" * 10_000)}, InvalidRequest, "run id"),
    (
        {"stage": pb.StageOf(key=OF_QUEUE, run_id="lease:1.2")},
        InvalidRequest,
        "'lease:1.2' is no attempt of a queue group",
    ),
    ({"schema_fingerprint": 1}, SchemaMismatch, "n int64, s string"),
    ({"topic": "__transactions"}, InvalidRequest, "the brokers' own"),
)


@virtual_time
async def test_a_batch_is_refused_by_what_its_header_says(tmp_path: Path) -> None:
    async with standalone(tmp_path) as broker:
        await broker.create_topic("t")
        await broker.metadata("__transactions")  # makes it
        async with broker.producing() as stream:
            for given, kind, words in WRONG:
                fields = {"topic": "t", "record_count": 2, **given}
                await stream.send(fields.pop("topic"), encode_batch(rows(1, 2)), fields.pop("record_count"), **fields)
                error = from_wire((await stream.result()).error)
                assert (type(error), words in str(error)) == (kind, True), f"{given}: {error}"
            many = range(RECORD_UUIDS_MAX)
            payload, uuids = encode_batch(rows(*many)), b"".join(each.to_bytes(16) for each in range(1, len(many) + 1))
            await stream.send("t", payload, len(many), record_uuids=uuids)
            assert (await stream.result()).base_offset == 0, "so many records may have UUIDs of their own"


@virtual_time
async def test_a_batch_that_asks_for_weaker_acks_than_its_topic_demands_is_refused(tmp_path: Path) -> None:
    async with standalone(tmp_path) as broker:
        await broker.create_topic("t", acks_min="leader")
        async with broker.producing() as stream:
            await stream.send("t", encode_batch(rows(1)), 1, acks=pb.NONE)
            refused = from_wire((await stream.result()).error)
            assert type(refused) is InvalidRequest
            assert "acks=none is not enough for topic t: its setting acks_min demands acks=leader" in str(refused)
            for acks in (pb.LEADER, pb.ALL):
                await stream.send("t", encode_batch(rows(1)), 1, acks=acks)
                assert not (await stream.result()).HasField("error")
            await broker.ask("AlterTopic", pb.AlterTopicRequest(name="t", settings={"acks_min": "all"}))
            await stream.send("t", encode_batch(rows(1)), 1, acks=pb.LEADER)
            assert type(from_wire((await stream.result()).error)) is InvalidRequest


# ---------------------------------------------------------------- one stream, its broker played by the test


ROOM = Room(100, "g", 10)


class World:
    """A broker with one partition. What is proposed there is answered when the test says so."""

    def __init__(self, tracer: Any = None) -> None:
        self.held = Held(1 << 30)
        self.fillers = Fillers()
        self.tracing = Tracing(tracer)
        self.proposed: list[tuple[Any, dict[str, Any]]] = []
        self.replies: list[Any] = []
        self.deadlines: list[float] = []
        self.sent: list[list[pb.ProduceResult]] = []
        self.may_send = asyncio.Event()
        self.may_send.set()
        self.shell = self.topics = self
        self.leading = True
        world: Any = self
        self.stream = _Stream(world, self._send)

    async def get(self, _name: str) -> Any:
        return TOPIC

    def partition(self, _topic: object, _number: int) -> Any:
        return self

    @property
    def replica(self) -> Any:
        return self

    def room(self, _partition: object) -> Room:
        return ROOM

    def not_leader(self) -> NotLeader:
        return NotLeader("ask broker 2", 2)

    async def disk_room(self) -> None:
        pass

    def propose(self, operation: object, on_reply: Any, deadline: float, **fields: Any) -> None:
        self.proposed.append((operation, fields))
        self.replies.append(on_reply)
        self.deadlines.append(deadline)

    async def _send(self, response: pb.ProduceResponse) -> None:
        await self.may_send.wait()
        self.sent.append(list(response.results))

    def request(self, correlation: int = 1, payload: Buffer = b"", **fields: Any) -> Envelope[pb.ProduceHeader]:
        header = pb.ProduceHeader(
            topic="t", uuid=UUID, record_count=1, schema_fingerprint=FINGERPRINT, correlation=correlation, **fields
        )
        return Envelope(header, (memoryview(payload or encode_batch(rows(correlation))),))

    async def hear(self, *requests: Envelope[pb.ProduceHeader]) -> None:
        async def said() -> Any:
            for request in requests:
                yield request

        await self.stream.read(said())

    @property
    def results(self) -> list[pb.ProduceResult]:
        return [result for message in self.sent for result in message]


@virtual_time
async def test_a_stream_ends_once_all_is_answered_and_holds_nothing_then() -> None:
    world = World()
    writing = asyncio.create_task(world.stream.write())
    await world.hear(*(world.request(number) for number in (1, 2, 3)))
    assert world.held.bytes == sum(_held_bytes(world.request(number)) for number in (1, 2, 3))
    for number, reply in enumerate(world.replies):
        await asyncio.sleep(0)
        assert not writing.done()
        reply(Done(7, 10 + number, 99, number == 1))
    await asyncio.wait_for(writing, DEADLINE_S)
    told = [(r.correlation, r.base_offset, r.timestamp_us, r.duplicate) for r in world.results]
    assert told == [(1, 10, 99, False), (2, 11, 99, True), (3, 12, 99, False)]
    assert world.held.bytes == 0


def test_answers_that_are_ready_together_share_messages_of_bounded_size() -> None:
    """A thousand answers, or a mebibyte."""

    async def scenario(answer: Any, count: int) -> list[int]:
        world = World()
        await world.hear(*(world.request(number) for number in range(1, count + 1)))
        for reply in world.replies:
            reply(answer)
        await asyncio.wait_for(world.stream.write(), DEADLINE_S)
        assert [result.correlation for result in world.results] == [*range(1, count + 1)]
        assert all(sum(result.ByteSize() for result in message) <= 1 << 20 for message in world.sent)
        return [len(message) for message in world.sent]

    assert in_virtual_time(scenario(Done(1, 2), 1_500)) == [1_000, 500]
    large = RecordsThere(tuple(RecordThere(position, 1 << 60, 1 << 60) for position in range(4_000)))
    sizes = in_virtual_time(scenario(large, 20))
    assert len(sizes) > 1, "four thousand of its records each"
    assert len({*sizes[:-1]}) == 1


@virtual_time
async def test_a_producer_that_went_leaves_nothing_held_whenever_its_batches_are_answered() -> None:
    world = World()
    await world.hear(*(world.request(number) for number in (1, 2, 3)))
    world.may_send.clear()
    writing = asyncio.create_task(world.stream.write())
    world.replies[0](Done(1, 1))
    await asyncio.sleep(0)
    world.replies[1](Done(2, 2))
    writing.cancel()
    await asyncio.wait({writing})
    assert world.held.bytes == _held_bytes(world.request(3))
    world.replies[2](Done(3, 3))
    assert world.held.bytes == 0


@virtual_time
async def test_more_than_may_be_in_flight_waits_until_something_is_answered() -> None:
    world = World()
    large = encode_batch(pa.record_batch([pa.array([1]), pa.array(["x" * 50_000])], schema=SCHEMA))
    most = PRODUCE_IN_FLIGHT_BYTES_MAX // _held_bytes(world.request(payload=large))
    requests = [world.request(number, payload=large) for number in range(1, most + 4)]
    reading = asyncio.create_task(world.hear(*requests))
    writing = asyncio.create_task(world.stream.write())
    for answered in range(3):
        for _ in range(10):
            await asyncio.sleep(0)
        assert len(world.proposed) == most + 1 + answered, "one beyond the bound has been read already"
        world.replies[answered](Done(1, answered))
    for reply in world.replies[3:]:
        reply(Done(1, 9))
    await asyncio.wait_for(asyncio.gather(reading, writing), DEADLINE_S)
    assert len(world.results) == most + 3


@virtual_time
async def test_a_batch_waits_as_long_as_it_says_and_no_longer_than_any_request() -> None:
    world = World()
    now = asyncio.get_running_loop().time()
    timeouts = (0, 2_000, REQUEST_TIMEOUT_MS * 10)
    await world.hear(*(world.request(number, timeout_ms=timeout) for number, timeout in enumerate(timeouts)))
    assert [at - now for at in world.deadlines] == pytest.approx(
        [REQUEST_TIMEOUT_MS / 1000, 2, REQUEST_TIMEOUT_MS / 1000], abs=1
    )


@virtual_time
async def test_a_batch_is_refused_where_the_partition_is_not_led_and_none_overtakes_it() -> None:
    world = World()
    world.leading = False
    await world.hear(world.request(1))
    world.leading = True
    await world.hear(world.request(2))
    assert len(world.proposed) == 1
    world.replies[0](Done(1, 5))
    await asyncio.wait_for(world.stream.write(), DEADLINE_S)
    assert [from_wire(r.error).leader if r.HasField("error") else r.base_offset for r in world.results] == [2, 5]


# ---------------------------------------------------------------- a real broker


@virtual_time
async def test_a_producer_that_has_said_its_last_is_answered_and_then_its_stream_ends(tmp_path: Path) -> None:
    async with standalone(tmp_path) as broker:
        await broker.create_topic("t")
        async with broker.producing() as stream:
            count = 70_000
            large = pa.record_batch([pa.array(range(count), pa.int64()), pa.array([""] * count)], schema=SCHEMA)
            for payload, many in ((encode_batch(large), count), (encode_batch(rows(1)), 1)):
                await stream.send("t", payload, many)
            await stream.call.end()
            assert [(await stream.result()).base_offset for _ in range(2)] == [0, count]
            async with asyncio.timeout(DEADLINE_S):
                assert await stream.call.read() is None


@real_time
async def test_a_batch_at_which_its_stream_breaks_off_is_held_no_more() -> None:
    class Broken(World):
        async def get(self, _name: str) -> Any:
            raise asyncio.CancelledError

    world = Broken()
    with pytest.raises(asyncio.CancelledError):
        await world.hear(world.request(1))
    assert world.held.bytes == 0
