"""A port for calls in this process, with a service that a test holds in hand, and a client that speaks byte by byte."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Callable
from typing import Any

from mq_broker.broker.runtime.arrivals import Arrivals
from mq_broker.broker.runtime.memory import Held
from mq_broker.rpc.gate import Gate
from mq_broker.rpc.service import Batches, ProduceRequests, Room, Send, served
from mq_broker.rpc.wire import port as rpc_port
from mq_broker.rpc.wire.accepting import bind
from mq_broker.rpc.wire.certificates import Certificates
from mq_broker.rpc.wire.entering import Entering, TokenDoor
from mq_broker.security.authority import Authority
from mq_protocol import mq_pb2 as pb
from mq_protocol.errors import TritonMQError
from mq_protocol.methods import BROKER
from mq_protocol.wire.call import Kind, Said, error_of, parsed, said, say
from mq_protocol.wire.connection import connect
from mq_protocol.wire.envelope import Envelope
from mq_protocol.wire.framing import STREAM, Receiver
from tests.securing import HOST, Certs

DEADLINE_S = 30.0
MESSAGE_BYTES_MAX = 1 << 20


class Answering:
    """A service that answers, fails or hangs as a test wants."""

    def __init__(self) -> None:
        self.error: Exception | None = None
        self.hangs = False
        self.begun = 0
        self._begins = asyncio.Semaphore(0)
        self.heard: list[pb.SubscribeRequest] = []
        self.sent = 0
        self.ended = asyncio.Event()
        self.refusals: list[TritonMQError] = []
        self.deadline = 0.0  # of what was asked last
        for name, method in BROKER.unary.items():
            setattr(self, method.attribute, self._unary(name, method.response))

    def _begin(self) -> None:
        self.begun += 1
        self._begins.release()

    async def begins(self, streams: int = 1) -> None:
        """Until so many more streams have begun."""
        async with asyncio.timeout(DEADLINE_S):
            for _ in range(streams):
                await self._begins.acquire()

    def _unary(self, name: str, response: type[Any]) -> Any:
        async def answer(request: Any, deadline: float) -> Any:
            self.deadline = deadline
            if self.error is not None:
                raise self.error
            if name == "Staged" and request.topic == "hang":
                await asyncio.Event().wait()
            return response()

        return answer

    async def produce(self, requests: ProduceRequests, send: Send[pb.ProduceResponse]) -> None:
        self._begin()
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
        self._begin()
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

    async def lock(self, requests: AsyncIterator[pb.LockRequest], send: Send[pb.LockResponse]) -> None:
        """The token is as large as the name is long."""
        async for request in requests:
            await send(pb.LockResponse(token=len(request.name)))

    async def watch_offsets(self, request: pb.WatchOffsetsRequest, send: Send[pb.WatchOffsetsResponse]) -> None:
        """An answer for each place, and no end."""
        try:
            for place in request.partitions:
                await send(pb.WatchOffsetsResponse(offsets=[pb.WatchedOffsets(topic=place.topic)]))
            await asyncio.Event().wait()
        finally:
            self.ended.set()


class Served:
    """A port for calls. `room`: of streams at once. `memory`: what clients may have there. `entering`: what stands
    before each call. `waits`: how long connections and calls may take, in the words of `Bounds`."""

    def __init__(
        self,
        authority: Authority | None = None,
        room: int = 100,
        memory: Held | None = None,
        entering: Entering | None = None,
        service: Any = None,
        waits: dict[str, int] | None = None,
        **options: Any,
    ) -> None:
        self.service = service or Answering()
        self.authority = authority or Authority()
        self.gate = Gate(self.authority)
        clients = served(self.service, self.gate, Room(room))
        listener, self.port = bind(f"{HOST}:0", "--listen")
        self.address = f"{HOST}:{self.port}"
        self.memory = memory or Held(1 << 30)
        offered = rpc_port.Served(
            clients, entering or Entering(TokenDoor(())), Arrivals(self.memory), options.pop("of_brokers", {})
        )
        bounds = rpc_port.Bounds(MESSAGE_BYTES_MAX, options.pop("connections_max", 100), **(waits or {}))
        self.server = rpc_port.Port(listener, offered, bounds, **options)


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

    async def hear_answer(self) -> Said:
        """The same of what the call is answered. Raises the error with which it ends."""
        message = await self.hear()
        assert message is not None, "it was ended without a word"
        if (error := error_of(message)) is not None:
            raise error
        assert message.kind is Kind.MESSAGE
        return message

    async def hear_end(self) -> None:
        message = await self.hear()
        assert message is not None
        assert message.kind is Kind.END

    async def result(self) -> tuple[int, int]:
        [result] = parsed((await self.hear_answer()).body, pb.ProduceResponse).results
        return result.correlation, result.base_offset

    async def failed(self) -> TritonMQError:
        """Why the call was, after which the connection is free."""
        return await self._error(Kind.ERROR)

    async def refused(self) -> TritonMQError:
        """Why the connection was ended, which it was."""
        error = await self._error(Kind.CLOSE)
        assert await self.hear() is None
        return error

    async def gone(self) -> None:
        """Until the connection was ended, with a word or without."""
        with contextlib.suppress(ConnectionError):
            while await self.hear() is not None:
                pass

    async def _error(self, kind: Kind) -> TritonMQError:
        message = await self.hear()
        assert message is not None, "it was ended without a word"
        assert message.kind is kind
        error = error_of(message)
        assert error is not None
        return error


def opening(method: str = "Produce", **fields: Any) -> list[Any]:
    fields = {"protocol": 1, "protocol_oldest": 1, **fields}
    return say(Kind.OPEN, pb.CallOpen(method=method, **fields).SerializeToString())


def batch(correlation: int, payload: bytes = b"", topic: str = "t") -> list[Any]:
    header = pb.ProduceHeader(correlation=correlation, topic=topic)
    return say(Kind.MESSAGE, header.SerializeToString(), (payload,))


@contextlib.asynccontextmanager
async def connected(served: Served, tls: ssl.SSLContext | None = None) -> AsyncIterator[Client]:
    """It has not said its preamble."""
    reader, writer = await asyncio.open_connection(
        HOST, served.port, ssl=tls, server_hostname=HOST if tls is not None else None
    )
    try:
        yield Client(reader, writer)
    finally:
        writer.transport.abort()


@contextlib.asynccontextmanager
async def serving(authority: Authority | None = None, **options: Any) -> AsyncIterator[Served]:
    served = Served(authority, **options)
    served.server.start()
    try:
        async with asyncio.timeout(3 * DEADLINE_S):
            yield served
    finally:
        await served.server.stop()


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not true():  # noqa: ASYNC110 - of what is looked at nothing tells
            await asyncio.sleep(0.01)


def asking(method: str, request: Any = None, **fields: Any) -> list[Any]:
    """A call with one request. `request` None: an empty one."""
    said_ = b"" if request is None else request.SerializeToString()
    return [*opening(method, **fields), *say(Kind.MESSAGE, said_), *say(Kind.END)]


def fetching(start: int, end: int, size: int = 10) -> list[Any]:
    request = pb.FetchRequest(topic="t", start_offset=start, end_offset=end, chunk_bytes_max=size)
    return asking("Fetch", request, timeout_ms=60_000)


async def ask(address: str, opened: pb.CallOpen, body: bytes = b"", tls: ssl.SSLContext | None = None) -> bytes:
    """A call with one request on a connection of its own. Raises what it is refused with."""
    opened.protocol = opened.protocol_oldest = 1
    connection = await connect(address, address, DEADLINE_S, tls)
    try:
        return (await connection.ask(opened, body)).body
    finally:
        connection.close()


def server_tls(certs: Certs) -> Callable[[], ssl.SSLContext]:
    return Certificates(certs.path, 1).server_context
