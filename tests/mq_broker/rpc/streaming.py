"""A stream port in this process, with a service that a test holds in hand, and a client that speaks byte by byte."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Callable
from typing import Any

from mq_broker.broker.runtime.arrivals import Arrivals
from mq_broker.broker.runtime.memory import Held
from mq_broker.rpc.certificates import Certificates
from mq_broker.rpc.framed import bind
from mq_broker.rpc.gate import Gate
from mq_broker.rpc.service import Batches, ProduceRequests, Room, Send, conversations
from mq_broker.rpc.streams import FRAMED, METHODS, StreamServer
from mq_broker.security.authority import Authority
from mq_protocol import mq_pb2 as pb
from mq_protocol.envelope import Envelope
from mq_protocol.error_messages import from_wire
from mq_protocol.errors import (
    TritonMQError,
)
from mq_protocol.framing import STREAM, Receiver
from mq_protocol.streams import Kind, Said, parsed, said, say, say_envelope
from tests.securing import HOST, Certs

DEADLINE_S = 30.0
MESSAGE_BYTES_MAX = 1 << 20


class Answering:
    """A service that answers, fails or hangs as a test wants."""

    def __init__(self) -> None:
        self.error: Exception | None = None
        self.hangs = False
        self.begun = 0
        self.heard: list[pb.SubscribeRequest] = []
        self.sent = 0
        self.ended = asyncio.Event()
        self.refusals: list[TritonMQError] = []

    async def produce(self, requests: ProduceRequests, send: Send[pb.ProduceResponse]) -> None:
        self.begun += 1
        try:
            if self.hangs:
                await asyncio.Event().wait()
            async for request in requests:
                if self.error is not None:
                    raise self.error
                if (refusal := getattr(request, "error", None)) is not None:
                    self.refusals.append(refusal)
                result = pb.ProduceResult(correlation=request.header.correlation, base_offset=len(request.payload))
                await send(pb.ProduceResponse(results=[result]))
        finally:
            self.ended.set()

    async def fetch(self, request: pb.FetchRequest, send: Send[Batches]) -> None:
        if self.error is not None:
            raise self.error
        for n in range(request.start_offset, request.end_offset):
            batch = pb.StoredBatch(base_offset=n, payload_bytes=request.chunk_bytes_max)
            await send(Envelope(pb.BatchesHeader(batches=[batch]), (b"a", bytes(request.chunk_bytes_max - 1))))

    async def subscribe(self, requests: AsyncIterator[pb.SubscribeRequest], send: Send[Batches]) -> None:
        """A batch of as many bytes as there is credit for."""
        self.begun += 1
        try:
            async for request in requests:
                self.heard.append(request)
                size = request.credit.bytes
                await send(Envelope(pb.BatchesHeader(batches=[pb.StoredBatch(payload_bytes=size)]), (bytes(size),)))
                self.sent += 1
        finally:
            self.ended.set()

    async def work(self, requests: AsyncIterator[pb.WorkRequest], send: Send[Envelope[pb.WorkHeader]]) -> None:
        """Each session is told its number, with a byte."""
        async for request in requests:
            sessions = [pb.SessionResponse(session=said_.session) for said_ in request.sessions]
            await send(Envelope(pb.WorkHeader(sessions=sessions), (b"r" * len(sessions),)))

    async def watch_offsets(self, request: pb.WatchOffsetsRequest, send: Send[pb.WatchOffsetsResponse]) -> None:
        """An answer for each place, and no end."""
        try:
            for place in request.partitions:
                await send(pb.WatchOffsetsResponse(offsets=[pb.WatchedOffsets(topic=place.topic)]))
            await asyncio.Event().wait()
        finally:
            self.ended.set()


class Served:
    """A stream port. `room`: of streams at once. `memory`: what clients may have there."""

    def __init__(
        self, authority: Authority | None = None, room: int = 100, memory: Held | None = None, **options: Any
    ) -> None:
        self.service = Answering()
        self.authority = authority or Authority()
        self.gate = Gate(self.authority)
        held = conversations(self.service, self.gate, Room(room), FRAMED, METHODS)
        listener, self.port = bind(f"{HOST}:0", "--stream-listen")
        options = {"connections_max": 100, **options}
        self.memory = memory or Held(1 << 30)
        self.server = StreamServer(listener, held, MESSAGE_BYTES_MAX, memory=Arrivals(self.memory), **options)


class Client:
    """A connection to it, byte by byte."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self.receiver = Receiver(1 << 20, 1 << 20, spoken=STREAM)

    def say(self, *pieces: list[Any]) -> None:
        for each in pieces:
            self.writer.write(b"".join(each))

    async def hear(self) -> Said | None:
        """The next message; None at the end."""
        async with asyncio.timeout(DEADLINE_S):
            while (message := self.receiver.next()) is None:
                data = await self.reader.read(len(self.receiver.buffer()))
                if not data:
                    return None
                self.receiver.buffer()[: len(data)] = data
                self.receiver.received(len(data))
        return said(message)

    async def result(self) -> tuple[int, int]:
        message = await self.hear()
        assert message is not None
        if message.kind is Kind.ERROR:
            raise from_wire(parsed(message.body, pb.Error))
        assert message.kind is Kind.MESSAGE
        [result] = parsed(message.body, pb.ProduceResponse).results
        return result.correlation, result.base_offset

    async def refused(self) -> TritonMQError:
        """Why the connection was ended, which it was."""
        message = await self.hear()
        assert message is not None, "it was ended without a word"
        assert message.kind is Kind.ERROR
        assert await self.hear() is None
        return from_wire(parsed(message.body, pb.Error))


def opening(method: str = "Produce", **fields: Any) -> list[Any]:
    fields = {"protocol": 1, "protocol_oldest": 1, **fields}
    return say(Kind.OPEN, pb.StreamOpen(method=method, **fields).SerializeToString())


def batch(correlation: int, payload: bytes = b"", topic: str = "t") -> list[Any]:
    return say_envelope(Envelope(pb.ProduceHeader(correlation=correlation, topic=topic), (payload,)))


@contextlib.asynccontextmanager
async def connected(served: Served, tls: ssl.SSLContext | None = None) -> AsyncIterator[Client]:
    reader, writer = await asyncio.open_connection(
        HOST, served.port, ssl=tls, server_hostname=HOST if tls is not None else None
    )
    try:
        yield Client(reader, writer)
    finally:
        writer.transport.abort()


def run(scenario: Callable[[Served], Any], authority: Authority | None = None, room: int = 100, **options: Any) -> None:
    async def main() -> None:
        served = Served(authority, room, **options)
        served.server.start()
        try:
            async with asyncio.timeout(3 * DEADLINE_S):
                await scenario(served)
        finally:
            await served.server.stop()

    asyncio.run(main())


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not true():  # noqa: ASYNC110 - of what is looked at nothing tells
            await asyncio.sleep(0.01)


def fetching(start: int, end: int, size: int = 10) -> list[Any]:
    request = pb.FetchRequest(topic="t", start_offset=start, end_offset=end, chunk_bytes_max=size)
    return [*opening("Fetch", timeout_ms=60_000), *say(Kind.MESSAGE, request.SerializeToString()), *say(Kind.END)]


def server_tls(certs: Certs) -> Callable[[], ssl.SSLContext]:
    return Certificates(certs.path, 1).server_context
