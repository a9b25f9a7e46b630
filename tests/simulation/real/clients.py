"""What uses the simulated cluster: clients that speak to brokers as the product's own do, and write down what they did
and saw.

Each is one coroutine of the world around the brokers. Values are numbers, each sent once; the history is judged by
tests/history/checker.py.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import OrderedDict
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from mq_broker.rpc.calls import opening
from mq_broker.rpc.service import UNARY, parse
from mq_broker.rpc.wire.lines import Dialling, Lines
from mq_protocol import mq_pb2 as pb
from mq_protocol.arrow import decode_batch, encode_batch, schema_fingerprint, schema_to_bytes
from mq_protocol.errors import NotYetWritten, OffsetOutOfRange, OutcomeUnknown, OutOfOrder, TritonMQError, Unreachable
from mq_protocol.wire.call import Said
from mq_protocol.wire.connection import Connection
from mq_protocol.wire.envelope import split
from mq_protocol.wire.error_messages import from_wire

if TYPE_CHECKING:
    from tests.simulation.real.cluster import Cluster

KEYS = 3
PRIORITIES = (0, 4, 5, 9)
"""Of records, two on each side of where `weighted` counts them as high."""

LIVES_MS = (1, 400, 1_500, 4_000, 60_000)
"""Of batches, beside those that never expire."""

SCHEMA = pa.schema([pa.field("n", pa.int64()), pa.field("k", pa.int8()), pa.field("f", pa.int8())])
"""`k` is the key by which queue groups may put rows in order, `f` what their filters look at."""

SCHEMA_BYTES = schema_to_bytes(SCHEMA)
FINGERPRINT = schema_fingerprint(SCHEMA)
ANSWER_S = 8.0
"""A client that has heard nothing for so long looks for another leader."""

PASSED_ON = 0.2
"""How often a broker is called by way of another one."""


def fourth_of(value: int) -> int:
    """0 to 3."""
    return value // KEYS % 4


def payload_of(values: list[int]) -> bytes:
    columns = [
        pa.array(values, pa.int64()),
        pa.array([value % KEYS for value in values], pa.int8()),
        pa.array([fourth_of(value) for value in values], pa.int8()),
    ]
    return bytes(encode_batch(pa.record_batch(columns, schema=SCHEMA)))


def values_in(payload: Any) -> list[int]:
    values: list[int] = decode_batch(payload, SCHEMA).column("n").to_pylist()
    return values


class Client:
    """Owns connections to the brokers, and the name under which its history is written."""

    def __init__(self, cluster: Cluster, name: str) -> None:
        self.cluster = cluster
        self.loop = cluster.loop
        self.random = cluster.loop.random
        self.name = name
        self._lines = Lines(Dialling())
        self._ids = 0

    @contextlib.asynccontextmanager
    async def call(self, broker: int, method: str, timeout_s: float | None = None) -> AsyncIterator[Connection]:
        """Around a call of that method. Raises `TritonMQError`. What was not ended is broken off."""
        async with self._line(broker, method, timeout_s) as (line, opened):
            line.open(opened)
            yield line

    @contextlib.asynccontextmanager
    async def _line(
        self, broker: int, method: str, timeout_s: float | None
    ) -> AsyncIterator[tuple[Connection, pb.CallOpen]]:
        """A connection on which a call may be opened, to the broker or to another one that passes the call on."""
        opened, to = opening(method, timeout_s), f"b{broker}:9000"
        if self.random.random() < PASSED_ON:
            opened.forward, to = to, f"b{self.any_broker()}:9000"
        try:
            async with asyncio.timeout(timeout_s), self._lines.to(to) as line:
                yield line, opened
        except TimeoutError as late:
            raise OutcomeUnknown(f"broker {broker} did not answer in time") from late

    def write(self, op: str, **fields: Any) -> None:
        self.cluster.write(self.name, op, **fields)

    def invoke(self, topic: str, partition: int | None, values: list[int]) -> int:
        self._ids += 1
        self.write("send", state="invoke", id=self._ids, topic=topic, partition=partition, values=values)
        return self._ids

    async def ask(self, broker: int, method: str, request: Any, timeout_s: float = ANSWER_S) -> Any:
        """Raises `TritonMQError`."""
        async with self._line(broker, method, timeout_s) as (line, opened):
            answer = await line.ask(opened, request.SerializeToString())
        return parse(answer.body, UNARY[method].response)

    async def lent(
        self, broker: int, opened: pb.WorkOpen, terms: pb.WorkTerms, request: pb.SessionRequest, timeout_s: float
    ) -> tuple[pb.LeaseResponse, list[pb.LeaseId]]:
        """What a member is lent by that credit for once, and which of its leases are gone. Raises `TritonMQError`."""
        lent, gone = pb.LeaseResponse(), list[pb.LeaseId]()
        async for said in self._told(broker, opened, terms, request, timeout_s):
            gone += said.gone
            lent = said.lease if said.HasField("lease") else lent
            if said.HasField("credit"):
                break
        return lent, gone

    async def answered(
        self, broker: int, opened: pb.WorkOpen, settles: list[pb.SettleOne], timeout_s: float = ANSWER_S
    ) -> list[pb.SettleAnswer]:
        """What became of each. Raises `TritonMQError`."""
        answers: dict[int, pb.SettleAnswer] = {}
        async for said in self._told(broker, opened, pb.WorkTerms(), pb.SessionRequest(settles=settles), timeout_s):
            answers |= {each.number: each.answer for each in said.answers}
            if len(answers) == len(settles):
                break
        return [answers[number] for number in sorted(answers)]

    async def _told(
        self, broker: int, opened: pb.WorkOpen, terms: pb.WorkTerms, request: pb.SessionRequest, timeout_s: float
    ) -> AsyncIterator[pb.SessionResponse]:
        """In a session that lasts for one question. What the member has outlives it."""
        opened.lasting = True
        request.session = 1
        first = pb.SessionRequest(session=1, open=opened, terms=terms)
        async with self.call(broker, "Work", timeout_s) as line:
            for said in (first, request):
                await line.write(pb.WorkRequest(sessions=[said]).SerializeToString())
            while (heard := await self.read(line)) is not None:
                for told in parse(heard.body, pb.WorkHeader).sessions:
                    if told.HasField("error"):
                        raise from_wire(told.error)
                    yield told
        raise Unreachable(f"broker {broker} has ended the stream")

    @staticmethod
    async def read(line: Connection) -> Said | None:
        """The next answer of a stream that is not silent for long; None at its end."""
        async with asyncio.timeout(ANSWER_S):
            return await line.read()

    def any_broker(self) -> int:
        return self.random.choice(sorted(self.cluster.machines))

    async def leader(self, topic: str, partition: int) -> int:
        """Who leads, as somebody says; 0 if nobody knows."""
        try:
            answer = await self.ask(self.any_broker(), "Metadata", pb.MetadataRequest(topics=[topic]), 2.0)
        except TritonMQError:
            return 0
        for info in answer.topics:
            for each in info.partitions:
                if each.partition == partition:
                    return int(each.leader)
        return 0

    async def pause(self, seconds: float) -> None:
        await asyncio.sleep(self.loop.often_short(seconds / 20, seconds * 2))


@dataclass(slots=True)
class Batch:
    uuid: bytes
    after: bytes
    values: list[int]
    id: int


class Producer(Client):
    """Sends to one partition, in order, some batches at once, each again until it is acknowledged."""

    def __init__(self, cluster: Cluster, name: str, topic: str, partition: int, at_once: int) -> None:
        super().__init__(cluster, name)
        self.topic = topic
        self.partition = partition
        self._at_once = at_once
        self._unanswered: OrderedDict[bytes, Batch] = OrderedDict()
        self._last = b""

    async def run(self) -> None:
        while not (self.cluster.stopping and not self._unanswered):
            broker = await self.leader(self.topic, self.partition)
            if broker:
                try:
                    await self._converse(broker)
                except TritonMQError as error:
                    self.cluster.done[f"produce again: {type(error).__name__}"] += 1
            await self.pause(0.1)

    async def _converse(self, broker: int) -> None:
        """Until something goes wrong, or all is sent and answered."""
        async with self.call(broker, "Produce") as line:
            sent: dict[int, Batch] = {}
            answering = self.loop.create_task(self._answers(line, sent))
            try:
                for batch in list(self._unanswered.values()):
                    await self._send(line, batch, sent)
                while not (self.cluster.stopping and not self._unanswered):
                    if answering.done():
                        return answering.result()
                    if len(self._unanswered) < self._at_once and not self.cluster.stopping:
                        await self._send(line, self._new_batch(), sent)
                    pause_s = self.cluster.plan.pause_s
                    await asyncio.wait({answering}, timeout=self.loop.often_short(pause_s / 20, pause_s))
            finally:
                answering.cancel()

    def _new_batch(self) -> Batch:
        values = self.cluster.new_values(self.random.randint(1, 4))
        batch = Batch(self.random.randbytes(16), self._last, values, self.invoke(self.topic, self.partition, values))
        self._last = batch.uuid
        self.cluster.values[batch.uuid] = values
        if self.cluster.plan.priority:
            self.cluster.priorities[batch.uuid] = self.random.choice(PRIORITIES)
        if self.cluster.plan.lives and self.random.random() < 0.6:
            self.cluster.lives_ms[batch.uuid] = self.random.choice(LIVES_MS)
        self._unanswered[batch.uuid] = batch
        return batch

    async def _send(self, line: Connection, batch: Batch, sent: dict[int, Batch]) -> None:
        correlation = len(sent) + 1
        sent[correlation] = batch
        header = pb.ProduceHeader(
            correlation=correlation,
            topic=self.topic,
            partition=self.partition,
            uuid=batch.uuid,
            after=batch.after,
            record_count=len(batch.values),
            schema_fingerprint=FINGERPRINT,
            timeout_ms=int(ANSWER_S * 1000),
        )
        if batch.uuid in self.cluster.priorities:
            header.attributes.priority = self.cluster.priorities[batch.uuid]
        if batch.uuid in self.cluster.lives_ms:
            header.attributes.ttl_ms = self.cluster.lives_ms[batch.uuid]
        await line.write(header.SerializeToString(), (payload_of(batch.values),))
        if self.random.random() < 0.01:  # a retry that need not have been
            sent[correlation + 1] = batch
            header.correlation = correlation + 1
            await line.write(header.SerializeToString(), (payload_of(batch.values),))

    async def _answers(self, line: Connection, sent: dict[int, Batch]) -> None:
        while (said := await self.read(line)) is not None:
            for result in parse(said.body, pb.ProduceResponse).results:
                batch = sent[result.correlation]
                if result.HasField("error"):
                    error = from_wire(result.error)
                    if isinstance(error, OutOfOrder) and next(iter(self._unanswered)) == batch.uuid:
                        batch.after = b""  # the one before was acknowledged, and is lost
                    if batch.uuid in self._unanswered:
                        raise error
                    continue
                offsets = list(range(result.base_offset, result.base_offset + len(batch.values)))
                if self._unanswered.pop(batch.uuid, None) is not None:
                    self.cluster.done["batches acknowledged"] += 1
                    self.write("send", state="ok", id=batch.id, partition=self.partition, offsets=offsets)


class Reader(Client):
    """Reads one partition from its first record on, from whichever replica."""

    def __init__(self, cluster: Cluster, name: str, topic: str, partition: int) -> None:
        super().__init__(cluster, name)
        self.topic = topic
        self.partition = partition
        self.at = 0

    async def run(self) -> None:
        while not self.cluster.over:
            try:
                await self._fetch(self.any_broker(), self.at + self.random.randint(1, 60))
            except TritonMQError as error:
                self.cluster.done[f"read again: {type(error).__name__}"] += 1
            await self.pause(self.cluster.plan.pause_s * 4)

    async def _fetch(self, broker: int, end: int) -> None:
        request = pb.FetchRequest(topic=self.topic, partition=self.partition, start_offset=self.at, end_offset=end)
        try:
            async with self.call(broker, "Fetch", ANSWER_S) as line:
                await line.write(request.SerializeToString())
                line.end()
                while (said := await line.read()) is not None:
                    batches = parse(said.body, pb.BatchesHeader).batches
                    lengths = [batch.payload_bytes for batch in batches]
                    for batch, payload in zip(batches, split(said.payload, lengths), strict=True):
                        self._read(batch, values_in(payload))
        except NotYetWritten:
            pass
        except OffsetOutOfRange as told:
            if told.next_offset <= self.at:
                raise
            self.at = told.next_offset
            self.write("trimmed", topic=self.topic, partition=self.partition, offset=self.at)

    def _read(self, batch: pb.StoredBatch, values: list[int]) -> None:
        offsets = list(range(batch.base_offset, batch.base_offset + batch.record_count))
        skip = self.at - batch.base_offset
        offsets, values = offsets[skip:], values[skip:]
        if offsets:
            self.at = offsets[-1] + 1
            self.cluster.done["records read"] += len(offsets)
            self.write("poll", topic=self.topic, partition=self.partition, offsets=offsets, values=values)
