"""What a stranger says at a stream port: calls as clients make them, wrong in a few places, received in pieces of any
size and answered by a service that reads all it is sent."""

from __future__ import annotations

import asyncio
import random
import struct
from collections.abc import AsyncIterator
from typing import Any

from google.protobuf.message import Message

from mq_broker.broker.runtime.arrivals import Arrivals
from mq_broker.broker.runtime.memory import Held
from mq_broker.rpc.gate import Gate
from mq_broker.rpc.service import Batches, ProduceRequests, Room, Send, conversations
from mq_broker.rpc.streams import FRAMED, METHODS, StreamServer, StreamWire
from mq_broker.security.authority import Authority
from mq_protocol import mq_pb2 as pb
from mq_protocol.envelope import Envelope
from mq_protocol.errors import TritonMQError
from mq_protocol.framing import STREAM, Receiver
from mq_protocol.streams import PREAMBLE, Kind, parsed, said, say, say_envelope

MESSAGE_BYTES_MAX = 100_000
_SIZES = (0, 1, 7, 300, 40_000, MESSAGE_BYTES_MAX)
_PREFIX = struct.Struct(">I")
"""Before the stream: the seed of the pieces in which it is received."""


def generate(chance: random.Random) -> bytes:
    parts = [PREAMBLE]
    for _ in range(chance.choice((0, 1, 1, 2, 5))):
        method = chance.choice((*METHODS, *METHODS, "Metadata", ""))
        opened = pb.StreamOpen(method=method, protocol=chance.choice((0, 2, 2, 2, 99)), timeout_ms=50)
        parts += _joined(say(Kind.OPEN, opened.SerializeToString()))
        for _ in range(chance.choice((0, 1, 1, 3, 20))):
            header = pb.ProduceHeader(topic="t" * chance.choice((1, 50)), correlation=chance.getrandbits(20))
            parts += _joined(
                say_envelope(Envelope(header, (bytes(chance.choice(_SIZES)),)))
                if method == "Produce"
                else say(Kind.MESSAGE, _request(method, chance).SerializeToString())
            )
            if chance.random() < 0.1:
                parts += _joined(say(chance.choice(list(Kind)), chance.randbytes(chance.choice((0, 3)))))
        if chance.random() < 0.9:
            parts += _joined(say(Kind.END))
    stream = bytearray(b"".join(parts))
    for _ in range(chance.choice((0, 0, 0, 1, 3))):
        stream[chance.randrange(min(len(stream), 400))] = chance.choice((0, 1, 8, 127, 128, 255))
    if chance.random() < 0.3:
        del stream[chance.randrange(len(stream)) :]
    return _PREFIX.pack(chance.getrandbits(32)) + stream


def _request(method: str, chance: random.Random) -> Message:
    places = [pb.TopicPartition(topic="t", partition=n) for n in range(chance.choice((0, 1, 3)))]
    match method:
        case "Subscribe":
            return pb.SubscribeRequest(
                credit=pb.SubscribeCredit(bytes=chance.randrange(3)), close=pb.SubscribeClose(partitions=places)
            )
        case "Work":
            said_ = [pb.SessionRequest(session=n, close=True) for n in range(chance.choice((0, 1, 3)))]
            return pb.WorkRequest(sessions=said_)
        case "WatchOffsets":
            return pb.WatchOffsetsRequest(partitions=places)
        case _:
            return pb.FetchRequest(topic="t", end_offset=chance.randrange(3))


def check(data: bytes) -> bool:
    if len(data) < _PREFIX.size:
        return False
    return asyncio.run(_serve(data[_PREFIX.size :], random.Random(*_PREFIX.unpack_from(data))))


def _joined(pieces: list[Any]) -> list[bytes]:
    return [bytes(piece) for piece in pieces]


class _Service:
    async def produce(self, requests: ProduceRequests, send: Send[pb.ProduceResponse]) -> None:
        async for request in requests:
            assert len(request.payload) <= MESSAGE_BYTES_MAX
            await send(pb.ProduceResponse(results=[pb.ProduceResult(correlation=request.header.correlation)]))

    async def fetch(self, request: pb.FetchRequest, send: Send[Batches]) -> None:
        for _ in range(min(request.end_offset, 3)):
            await send(Envelope(pb.BatchesHeader(), (b"ab", b"c")))

    async def subscribe(self, requests: AsyncIterator[pb.SubscribeRequest], send: Send[Batches]) -> None:
        async for request in requests:
            if request.credit.bytes:
                await send(Envelope(pb.BatchesHeader(), (b"ab", b"c")))

    async def work(self, requests: AsyncIterator[pb.WorkRequest], send: Send[Envelope[pb.WorkHeader]]) -> None:
        async for request in requests:
            sessions = [pb.SessionResponse(session=said_.session) for said_ in request.sessions]
            await send(Envelope(pb.WorkHeader(sessions=sessions)))

    async def watch_offsets(self, request: pb.WatchOffsetsRequest, send: Send[pb.WatchOffsetsResponse]) -> None:
        for place in request.partitions:
            await send(pb.WatchOffsetsResponse(offsets=[pb.WatchedOffsets(topic=place.topic)]))


class _Transport(asyncio.Transport):
    """Keeps what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.written = bytearray()
        self.reading = asyncio.Event()
        self.reading.set()
        self.closed = False

    def write(self, data: Any) -> None:
        self.written += data

    def pause_reading(self) -> None:
        self.reading.clear()

    def resume_reading(self) -> None:
        self.reading.set()

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True

    abort = close

    def can_write_eof(self) -> bool:
        return False

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass


async def _serve(stream: bytes, pieces: random.Random) -> bool:
    held = conversations(_Service(), Gate(Authority()), Room(10), FRAMED, METHODS)
    server: Any = StreamServer.__new__(StreamServer)
    server._conversations = held
    wire, transport = StreamWire(MESSAGE_BYTES_MAX, Arrivals(Held(1 << 30))), _Transport()
    wire.connection_made(transport)
    feeding = asyncio.create_task(_feed(wire, transport, stream, pieces))
    error: TritonMQError | None = None
    try:
        while (opened := await StreamServer._opened(wire, 1_000)) is not None:
            if not wire.end(await server._hold(wire, opened)):
                break
    except TritonMQError as refused:
        error = refused
    except asyncio.CancelledError:
        task = asyncio.current_task()
        assert task is not None
        task.uncancel()  # the client has gone
    finally:
        wire.close(error)
        feeding.cancel()
    _check_answers(bytes(transport.written))
    return error is None


async def _feed(wire: StreamWire, transport: _Transport, stream: bytes, pieces: random.Random) -> None:
    at = 0
    while at < len(stream) and not transport.closed:
        await transport.reading.wait()
        room = wire.get_buffer(-1)
        assert 0 < len(room) <= MESSAGE_BYTES_MAX + (64 << 10)
        count = min(len(room), len(stream) - at, pieces.choice((1, 60, 100, 5_000, 1 << 20)))
        room[:count] = stream[at : at + count]
        wire.buffer_updated(count)
        at += count
        if pieces.random() < 0.3:
            await asyncio.sleep(0)
    wire.eof_received()


def _check_answers(written: bytes) -> None:
    """All that was said is whole, and of kinds that a broker says."""
    receiver = Receiver(1 << 20, 1 << 20, spoken=STREAM)
    at = 0
    while at < len(written):
        room = receiver.buffer()
        count = min(len(room), len(written) - at)
        room[:count] = written[at : at + count]
        receiver.received(count)
        at += count
        while (message := receiver.next()) is not None:
            told = said(message)
            assert told.kind in (Kind.MESSAGE, Kind.END, Kind.ERROR, Kind.PING, Kind.PONG)
            if told.kind is Kind.ERROR:
                assert parsed(told.body, pb.Error).message
