"""What a stranger says at the port for calls: calls as clients and brokers make them, wrong in a few places, received
in pieces of any size and answered by a service that reads all it is sent."""

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
from mq_broker.rpc.service import Batches, ProduceRequests, Room, Send, served
from mq_broker.rpc.wire.entering import Entering, TokenDoor
from mq_broker.rpc.wire.port import Bounds, Port, Served
from mq_broker.rpc.wire.streams import StreamWire
from mq_broker.security.authority import Authority
from mq_protocol import mq_pb2 as pb
from mq_protocol.errors import TritonMQError
from mq_protocol.methods import BROKER
from mq_protocol.wire.call import PREAMBLE, Kind, error_of, said, say
from mq_protocol.wire.envelope import Envelope
from mq_protocol.wire.framing import STREAM, Receiver

MESSAGE_BYTES_MAX = 100_000
_SIZES = (0, 1, 7, 300, 40_000, MESSAGE_BYTES_MAX)
_STREAMS = ("Produce", "Fetch", "Subscribe", "Work", "WatchOffsets")
_SEED = struct.Struct(">I")
"""Before all: of the pieces in which it is received."""
_LENGTH = struct.Struct(">I")
"""Before each part: clients wait for the end of a call before they begin another."""
_TURNS_MAX = 200


def generate(chance: random.Random) -> bytes:
    parts = [_call(chance) for _ in range(chance.choice((1, 1, 2, 5)))]
    parts[0] = PREAMBLE + parts[0]
    for _ in range(chance.choice((0, 0, 0, 1, 3))):
        number = chance.randrange(len(parts))
        part = bytearray(parts[number])
        if part:
            part[chance.randrange(min(len(part), 400))] = chance.choice((0, 1, 8, 127, 128, 255))
        parts[number] = bytes(part)
    if chance.random() < 0.3:
        parts[-1] = parts[-1][: chance.randrange(len(parts[-1]) + 1)]
    return _SEED.pack(chance.getrandbits(32)) + b"".join(_LENGTH.pack(len(part)) + part for part in parts)


def _call(chance: random.Random) -> bytes:
    method = chance.choice((*_STREAMS, *_STREAMS, "Metadata", "Metadata", "Publish", ""))
    opened = pb.CallOpen(method=method, protocol=chance.choice((0, 2, 2, 2, 2, 99)), timeout_ms=50)
    match chance.randrange(20):
        case 0:
            opened.token = "t0ken"
        case 1:
            opened.proof.broker = 2
        case 2:
            opened.passed_on.said = chance.randbytes(5)
    parts = _joined(say(Kind.OPEN, opened.SerializeToString()))
    asked = (0, 1, 1, 3, 20) if method in _STREAMS else (1, 1, 1, 1, 0, 2)
    for _ in range(chance.choice(asked)):
        header = pb.ProduceHeader(topic="t" * chance.choice((1, 50)), correlation=chance.getrandbits(20))
        parts += _joined(
            say(Kind.MESSAGE, header.SerializeToString(), (bytes(chance.choice(_SIZES)),))
            if method == "Produce"
            else say(Kind.MESSAGE, _request(method, chance).SerializeToString())
        )
        if chance.random() < 0.1:
            parts += _joined(say(chance.choice(list(Kind)), chance.randbytes(chance.choice((0, 3)))))
    if chance.random() < 0.9:
        parts += _joined(say(Kind.END))
    return b"".join(parts)


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
        case "Fetch":
            return pb.FetchRequest(topic="t", end_offset=chance.randrange(3))
        case _:
            return pb.MetadataRequest(topics=["t"])


def check(data: bytes) -> bool:
    if len(data) < _SEED.size:
        return False
    parts, at = [], _SEED.size
    while at + _LENGTH.size <= len(data):
        (length,) = _LENGTH.unpack_from(data, at)
        at += _LENGTH.size
        parts.append(data[at : at + length])
        at += length
    return asyncio.run(_serve(parts, random.Random(*_SEED.unpack_from(data))))


def _joined(pieces: list[Any]) -> list[bytes]:
    return [bytes(piece) for piece in pieces]


class _Service:
    """Of the methods that ask once each answers nothing."""

    def __getattr__(self, name: str) -> Any:
        [response] = [method.response for method in BROKER.methods.values() if method.attribute == name]

        async def answer(_request: Message, _deadline: float) -> Message:
            return response()

        return answer

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
    """Reads what is written: all is whole, and of kinds that a broker says."""

    def __init__(self) -> None:
        super().__init__()
        self._receiver = Receiver(1 << 20, 1 << 20, spoken=STREAM)
        self.ended = 0  # calls
        self.reading = asyncio.Event()
        self.reading.set()
        self.closed = False

    def write(self, data: Any) -> None:
        written, at = memoryview(data), 0
        while at < len(written):
            room = self._receiver.buffer()
            count = min(len(room), len(written) - at)
            room[:count] = written[at : at + count]
            self._receiver.received(count)
            at += count
            while (message := self._receiver.next()) is not None:
                told = said(message)
                assert told.kind is not Kind.OPEN
                if told.kind in (Kind.END, Kind.ERROR, Kind.CLOSE):
                    self.ended += 1
                error_of(told)

    @property
    def is_whole(self) -> bool:
        return self._receiver.is_empty

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


async def _serve(parts: list[bytes], pieces: random.Random) -> bool:
    held = Held(1 << 30)
    clients = served(_Service(), Gate(Authority()), Room(10))
    nowhere: Any = None
    server = Port(nowhere, Served(clients, Entering(TokenDoor(())), Arrivals(held)), Bounds())
    wire, transport = StreamWire(MESSAGE_BYTES_MAX, Arrivals(held)), _Transport()
    wire.connection_made(transport)
    feeding = asyncio.create_task(_feed(wire, transport, parts, pieces))
    error: TritonMQError | None = None
    try:
        while await server._opened(wire, 1_000):
            if not wire.end(await server._hold(wire)):
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
    assert transport.is_whole
    assert held.bytes == 0
    return error is None


async def _feed(wire: StreamWire, transport: _Transport, parts: list[bytes], pieces: random.Random) -> None:
    for number, part in enumerate(parts, 1):
        at = 0
        while at < len(part) and not transport.closed:
            await transport.reading.wait()
            room = wire.get_buffer(-1)
            assert 0 < len(room) <= MESSAGE_BYTES_MAX + (64 << 10)
            count = min(len(room), len(part) - at, pieces.choice((1, 60, 100, 5_000, 1 << 20)))
            room[:count] = part[at : at + count]
            wire.buffer_updated(count)
            at += count
            if pieces.random() < 0.3:
                await asyncio.sleep(0)
        for _ in range(_TURNS_MAX):
            if transport.ended >= number or transport.closed:
                break
            await asyncio.sleep(0)
    wire.eof_received()
