"""Brokers in this process, and calls to them by hand: what the tests of the broker stand on."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa
import pytest

from mq_broker.broker import BrokerConfig, serve
from mq_broker.broker.metadata.brokers import Cluster
from mq_broker.coordination.interface import CoordinationEvent
from mq_broker.coordination.service import CoordinationService
from mq_broker.coordination.zookeeper import ZooKeeperStore
from mq_broker.rpc.service import UNARY, parse
from mq_protocol import mq_pb2 as pb
from mq_protocol.arrow import decode_batch, encode_batch, schema_fingerprint, schema_to_bytes
from mq_protocol.errors import NotLeader, TritonMQError
from mq_protocol.wire.envelope import Envelope, decode, encode, split
from mq_protocol.wire.error_messages import from_wire
from tests.mq_broker.broker.channel import Call, Channel
from tests.mq_broker.coordination.wire import LASTING_MS
from tests.simulation.real.zookeeper import Session
from tests.virtual.world import present, the_world

DEADLINE_S = 20.0
T = TypeVar("T")
SCHEMA = pa.schema([pa.field("n", pa.int64()), pa.field("s", pa.string())])
FINGERPRINT = schema_fingerprint(SCHEMA)


def rows(*numbers: int) -> pa.RecordBatch:
    return pa.record_batch([pa.array(numbers, pa.int64()), pa.array([f"row {n}" for n in numbers])], schema=SCHEMA)


async def until(condition: Callable[[], Awaitable[Any]], deadline_s: float = DEADLINE_S) -> Any:
    """The condition's first true answer. A `TritonMQError` counts as not yet."""
    last: object = None
    try:
        async with asyncio.timeout(deadline_s):
            while True:
                try:
                    last = await condition()
                except TritonMQError as error:
                    last = error
                else:
                    if last:
                        return last
                await asyncio.sleep(0.02)
    except TimeoutError:
        raise AssertionError(f"not within {deadline_s:g} s; last seen: {last!r}") from None


def deafen(monkeypatch: pytest.MonkeyPatch, event: CoordinationEvent, *brokers: int) -> None:
    """The coordination service's hints of that kind reach those brokers, or proxies, no more."""
    hear = Cluster.hear

    def hear_less(self: Cluster, heard: CoordinationEvent) -> None:
        if heard is not event or self.me.broker not in brokers:
            hear(self, heard)

    monkeypatch.setattr(Cluster, "hear", hear_less)


def shared(zookeeper: str, session_timeout_ms: int, root: str) -> Callable[[], CoordinationService]:
    """What brokers of one cluster are given as `coordination`: in virtual time a simulated ZooKeeper, with that
    session."""
    world = present()
    if world is None:
        return lambda: CoordinationService(ZooKeeperStore(zookeeper, LASTING_MS, root=root))
    service = world.zookeeper(root, session_timeout_ms / 1000)
    return lambda: CoordinationService(Session(service))


class Broker:
    """One broker in this process, and a channel to it. `asks_again`: as clients do, for as long as nobody is known to
    lead the partition. Nothing was done by what is told so."""

    asks_again = True

    def __init__(self, config: BrokerConfig) -> None:
        self.config = config
        self.address = ""
        self._stop = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._channel: Channel | None = None
        self._process: Any = None

    async def start(self) -> Broker:
        ready: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._stop.clear()
        world = present()
        if world is None:
            self._task = asyncio.create_task(serve(self.config, ready=ready.set_result, stop=self._stop))
        else:
            self._process = world.process(f"broker-{self.config.broker}", self.config.data_dir, self.config.broker)
            config = replace(self.config, data_dir=self._process.disk.path)
            serving = serve(config, ready=ready.set_result, stop=self._stop)
            self._task = world.loop.spawn(self._process, serving, self._process.name)
        either: set[asyncio.Future[Any]] = {ready, self._task}
        await asyncio.wait(either, timeout=DEADLINE_S, return_when=asyncio.FIRST_COMPLETED)
        if self._task.done():
            self._task.result()
        self.address = ready.result()
        self._channel = Channel(self.address)
        return self

    async def stop(self) -> None:
        """Cleanly."""
        await self._close_channel()
        await self.stop_keeping_channel()

    async def stop_keeping_channel(self) -> None:
        """Cleanly, with clients still connected."""
        if self._task is not None:
            task, self._task = self._task, None
            self._stop.set()
            await asyncio.wait_for(task, DEADLINE_S)

    async def abandon(self) -> None:
        """Without handing over, as near to a crash as one process allows."""
        await self._close_channel()
        if self._task is not None:
            task, self._task = self._task, None
            if (world := present()) is not None:
                world.kill(self._process)
                return
            task.cancel()
            await asyncio.wait({task}, timeout=DEADLINE_S)

    async def stand_still(self, seconds: float) -> None:
        """As a process does that gets no time; in virtual time."""
        self._process.paused = True
        await asyncio.sleep(seconds)
        the_world().loop.resume(self._process)

    async def _close_channel(self) -> None:
        if self._channel is not None:
            channel, self._channel = self._channel, None
            await channel.close()

    # -- requests

    @property
    def channel(self) -> Channel:
        assert self._channel is not None
        return self._channel

    async def until_ready(self) -> Broker:
        """Until it leads, or follows in sync, all that is assigned to it: before, it serves what it was when it ended,
        and refuses changes."""

        async def is_ready() -> bool:
            answer = await self._ask("Metadata", pb.MetadataRequest(), DEADLINE_S)
            return not answer.not_ready

        await until(is_ready)
        return self

    async def ask(self, method: str, request: Any, timeout_s: float = DEADLINE_S) -> Any:
        return await self._once_led(lambda: self._ask(method, request, timeout_s))

    async def _once_led(self, attempt: Callable[[], Awaitable[T]]) -> T:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + DEADLINE_S
        while True:
            try:
                return await attempt()
            except NotLeader as error:
                if error.leader or not self.asks_again or loop.time() > deadline:
                    raise
            await asyncio.sleep(0.02)

    async def _ask(self, method: str, request: Any, timeout_s: float) -> Any:
        data = await self.channel.ask(method, request.SerializeToString(), timeout_s)
        return parse(data, UNARY[method].response)

    async def create_topic(
        self, name: str, partitions: int = 1, replicas: int = 1, schema: pa.Schema | None = SCHEMA, **settings: str
    ) -> pb.TopicInfo:
        data = schema_to_bytes(schema) if schema is not None else b""
        request = pb.CreateTopicRequest(
            name=name, partitions=partitions, replicas=replicas, schema=data, settings=settings
        )
        info: pb.TopicInfo = (await self.ask("CreateTopic", request)).topic
        return info

    async def metadata(self, *topics: str) -> pb.MetadataResponse:
        answer: pb.MetadataResponse = await self.ask(
            "Metadata", pb.MetadataRequest(topics=topics, all_topics=not topics)
        )
        return answer

    async def end(self, topic: str, partition: int = 0) -> int:
        return await self._once_led(lambda: self._end(topic, partition))

    async def _end(self, topic: str, partition: int) -> int:
        answer = await self.ask("ListOffsets", pb.ListOffsetsRequest(topic=topic, partitions=[partition]))
        if answer.partitions[0].HasField("error"):
            raise from_wire(answer.partitions[0].error)
        return int(answer.partitions[0].log_end_offset)

    @contextlib.asynccontextmanager
    async def producing(self) -> AsyncIterator[ProduceStream]:
        stream = ProduceStream(self.channel.call("Produce"))
        try:
            yield stream
        finally:
            stream.call.cancel()

    async def produce(self, topic: str, *numbers: int, partition: int = 0, **fields: Any) -> pb.ProduceResult:
        """One batch, acknowledged. Raises the error it was refused with."""
        return await self._once_led(lambda: self._produce(topic, *numbers, partition=partition, **fields))

    async def _produce(self, topic: str, *numbers: int, partition: int, **fields: Any) -> pb.ProduceResult:
        async with self.producing() as stream:
            await stream.send(topic, encode_batch(rows(*numbers)), len(numbers), partition=partition, **fields)
            result = await stream.result()
        if result.HasField("error"):
            raise from_wire(result.error)
        return result

    async def fetch(
        self, topic: str, start: int, end: int, partition: int = 0, **fields: Any
    ) -> list[tuple[pb.StoredBatch, bytes]]:
        """The stored batches, each with its payload."""
        return await self._once_led(lambda: self._fetch(topic, start, end, partition, **fields))

    async def _fetch(
        self, topic: str, start: int, end: int, partition: int, **fields: Any
    ) -> list[tuple[pb.StoredBatch, bytes]]:
        request = pb.FetchRequest(topic=topic, partition=partition, start_offset=start, end_offset=end, **fields)
        found: list[tuple[pb.StoredBatch, bytes]] = []
        async for data in self.channel.answers("Fetch", request.SerializeToString()):
            found += unpack(decode(data, pb.BatchesHeader))
        return found

    async def numbers(self, topic: str, partition: int = 0) -> list[int]:
        """Every `n` of the partition, in order."""
        end = await self.end(topic, partition)
        return [n for _, payload in await self.fetch(topic, 0, end, partition) for n in numbers_in(payload)]

    @contextlib.asynccontextmanager
    async def subscribing(self) -> AsyncIterator[Subscription]:
        subscription = Subscription(self.channel.call("Subscribe"))
        try:
            yield subscription
        finally:
            subscription.call.cancel()


def unpack(message: Envelope[pb.BatchesHeader]) -> list[tuple[pb.StoredBatch, bytes]]:
    batches = list(message.header.batches)
    return list(zip(batches, map(bytes, split(message.payload, [b.payload_bytes for b in batches])), strict=True))


def numbers_in(payload: bytes) -> list[int]:
    numbers: list[int] = decode_batch(payload, SCHEMA).column("n").to_pylist()
    return numbers


class ProduceStream:
    """A Produce stream, spoken by hand."""

    def __init__(self, call: Call) -> None:
        self.call = call
        self._correlation = 0
        self._results: list[pb.ProduceResult] = []

    async def send(self, topic: str, payload: Any, record_count: int, **fields: Any) -> int:
        self._correlation += 1
        fields = {"partition": 0, "uuid": uuid.uuid4().bytes, "schema_fingerprint": FINGERPRINT, **fields}
        header = pb.ProduceHeader(correlation=self._correlation, topic=topic, record_count=record_count, **fields)
        await self.call.write(encode(Envelope(header, (memoryview(payload),))))
        return self._correlation

    async def result(self) -> pb.ProduceResult:
        async with asyncio.timeout(DEADLINE_S):
            while not self._results:
                data = await self.call.read()
                assert data is not None, "the stream ended"
                self._results += parse(data, pb.ProduceResponse).results
        return self._results.pop(0)


class Subscription:
    """A Subscribe stream, spoken by hand. Collects what it is told."""

    def __init__(self, call: Call) -> None:
        self.call = call
        self.opened: list[pb.PartitionOpened] = []
        self.batches: list[tuple[pb.StoredBatch, bytes]] = []

    async def say(self, **fields: Any) -> None:
        await self.call.write(pb.SubscribeRequest(**fields).SerializeToString())

    async def open(
        self,
        topic: str,
        partitions: Sequence[int] = (0,),
        *,
        group: str = "",
        member: str = "",
        key: bytes = b"k" * 16,
        credit: int = 1 << 20,
        **start: Any,
    ) -> None:
        wanted = [pb.SubscribePartition(topic=topic, partition=p, **start) for p in partitions]
        await self.say(
            open=pb.SubscribeOpen(group=group, member_id=member, member_key=key, partitions=wanted),
            credit=pb.SubscribeCredit(bytes=credit),
        )

    async def settle(self, topic: str, offset: int, partition: int = 0) -> None:
        await self.say(settled=[pb.CursorPosition(topic=topic, partition=partition, offset=offset)])

    async def read(self) -> None:
        async with asyncio.timeout(DEADLINE_S):
            data = await self.call.read()
        assert data is not None, "the stream ended"
        message = decode(data, pb.BatchesHeader)
        self.opened += message.header.opened
        self.batches += unpack(message)

    async def read_numbers(self, count: int) -> list[int]:
        """The first `count` pushed, at least."""
        while len(numbers := [n for _, payload in self.batches for n in numbers_in(payload)]) < count:
            await self.read()
        return numbers

    async def read_opened(self, count: int = 1) -> list[pb.PartitionOpened]:
        while len(self.opened) < count:
            await self.read()
        return self.opened


@contextlib.asynccontextmanager
async def standalone(data: Path, *, led: bool = True, **fields: Any) -> AsyncIterator[Broker]:
    """A broker that stands alone, ended cleanly. `led`: begun with once it leads all that it has."""
    broker = await Broker(BrokerConfig(1, "127.0.0.1:0", data, **fields)).start()
    try:
        yield await broker.until_ready() if led else broker
    finally:
        await broker.stop()
