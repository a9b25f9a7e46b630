"""Two ends of a link in one process, for tests, and links that are spoken by hand."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from typing import Any

from mq_broker.broker.runtime.arrivals import Arrivals
from mq_broker.broker.runtime.memory import Held
from mq_broker.rpc.peer_proof import PeerProof, Refusals
from mq_broker.rpc.wire.accepting import bind
from mq_broker.rpc.wire.entering import Entering, TokenDoor
from mq_broker.rpc.wire.framed import Tls
from mq_broker.rpc.wire.links import Links, PeerAddress
from mq_broker.rpc.wire.port import Bounds, Port, Served
from mq_protocol import mq_pb2 as pb
from mq_protocol.limits import MESSAGE_BYTES_MAX
from mq_protocol.wire import framing
from mq_protocol.wire.error_messages import from_wire

DEADLINE_S = 30.0
SECRET = bytes(range(32))


class Heard:
    """What a listener was told, in order."""

    def __init__(self) -> None:
        self.events: list[tuple[Any, ...]] = []
        self.beats: list[tuple[int, bool]] = []
        self._news = asyncio.Event()

    def _hear(self, *event: Any) -> None:
        self.events.append(event)
        self._news.set()

    def link_up(self, broker: int) -> None:
        self._hear("up", broker)

    def link_down(self, broker: int) -> None:
        self._hear("down", broker)

    def link_beat(self, broker: int, *, dropped: bool) -> None:
        self.beats.append((broker, dropped))

    def link_dropped(self, broker: int) -> None:
        self._hear("dropped", broker)

    def hearer(self, topic_id: str, partition: int) -> Heard:
        return self

    def hear_entries(self, message: pb.AppendEntries, frames: Sequence[memoryview]) -> None:
        self._hear("append", message.sequence, [bytes(frame) for frame in frames])

    def hear_ack(self, message: pb.AppendAck) -> None:
        self._hear("ack", message.sequence)

    def hear_snapshot(self, message: pb.SnapshotPart) -> None:
        self._hear("snapshot", message.sequence, message.part)

    async def until(self, condition: Callable[[list[tuple[Any, ...]]], bool]) -> None:
        try:
            async with asyncio.timeout(DEADLINE_S):
                while not condition(self.events):
                    self._news.clear()
                    await self._news.wait()
        except TimeoutError:
            raise AssertionError(f"heard only {self.events[-20:]}") from None


class Node:
    """One broker's end: its links, and its port. `dialled`, `served`: TLS of it."""

    def __init__(
        self,
        broker: int,
        *,
        incarnation: int = 1,
        cluster_id: str = "c",
        secret: bytes = SECRET,
        dialled: Tls | None = None,
        served: Tls | None = None,
        bounds: Bounds | None = None,
    ) -> None:
        self.broker = broker
        self.incarnation = incarnation
        self.heard = Heard()
        self.tasks: list[asyncio.Task[None]] = []
        self.refusals = Refusals()
        self.readings = 0
        proof = PeerProof(broker, incarnation, cluster_id, secret)
        self.links = Links(proof, self.heard, self._spawn, self._read_brokers, self.refusals, dialled)
        listener, port = bind("127.0.0.1:0", "--listen")
        offered = Served({}, Entering(TokenDoor(())), Arrivals(Held(1 << 30)), links=self.links.accept)
        self.port = Port(listener, offered, bounds or Bounds(), served)
        self.address = f"127.0.0.1:{port}"

    def _read_brokers(self) -> None:
        self.readings += 1

    def _spawn(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        task = asyncio.create_task(work, name=name)
        self.tasks.append(task)
        return task

    async def start(self) -> None:
        self.port.start()

    async def stop(self) -> None:
        await self.links.close()
        await self.port.stop()
        for task in self.tasks:
            assert task.cancelled(), task.exception()

    def knows(self, *others: Node) -> None:
        """As they know it."""
        everybody = (self, *others)
        for node in everybody:
            node.links.know({o.broker: o.registered for o in everybody})

    @property
    def registered(self) -> PeerAddress:
        return PeerAddress(self.address, self.incarnation)

    def knows_of(self, broker: int, incarnation: int = 1) -> None:
        """That broker is registered; nothing listens at its address."""
        self.links.know({broker: PeerAddress("127.0.0.1:1", incarnation)})

    def send_entries(self, to: int, sequence: int, *frames: bytes) -> None:
        sizes = [len(frame) for frame in frames]
        message = pb.AppendEntries(
            leader=self.broker, incarnation=self.incarnation, sequence=sequence, frame_bytes=sizes
        )
        self.links.send_entries(to, message, frames)

    def send_ack(self, to: int, sequence: int) -> None:
        self.links.send_ack(to, pb.AppendAck(follower=self.broker, incarnation=self.incarnation, sequence=sequence))


@contextlib.asynccontextmanager
async def nodes(*made: Node) -> AsyncIterator[None]:
    try:
        for node in made:
            await node.start()
        yield
    finally:
        for node in made:
            await node.stop()


async def until(condition: Callable[[], Any]) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not condition():  # noqa: ASYNC110 - of any kind
            await asyncio.sleep(0.005)


# ---------------------------------------------------------------------- links that are spoken by hand


class Call:
    """A connection to a link port, or of one (`served`), of whose messages each is written and read whole."""

    def __init__(self, opened: Callable[[], Coroutine[Any, Any, Streams]], *, served: bool = False) -> None:
        self._opened = opened
        self._served = served
        self._streams: Streams | None = None
        self._receiver = framing.Receiver(MESSAGE_BYTES_MAX, MESSAGE_BYTES_MAX)

    async def streams(self) -> Streams:
        if self._streams is None:
            self._streams = await self._opened()
            self._streams[1].write(framing.preamble())
        return self._streams

    async def say(self, header: pb.LinkHeader, *parts: framing.Buffer) -> None:
        await self.write_raw(*framing.encode(header.SerializeToString(), parts))

    async def write_raw(self, *pieces: framing.Buffer) -> None:
        _, writer = await self.streams()
        with contextlib.suppress(ConnectionError):  # what was said in return is to be read
            for piece in pieces:
                writer.write(piece)
            await writer.drain()

    async def hear(self) -> pb.LinkHeader | None:
        """None: it was ended. Raises the error that it was ended with, but at the end that was dialled."""
        reader, _ = await self.streams()
        while (message := self._receiver.next()) is None:
            room = self._receiver.buffer()
            try:
                data = await reader.read(len(room))
            except ConnectionError:
                return None
            if not data:
                return None
            room[: len(data)] = data
            self._receiver.received(len(data))
        header = pb.LinkHeader.FromString(message.header)
        if header.HasField("error"):
            if self._served:
                return None
            raise from_wire(header.error)
        return header

    def cancel(self) -> None:
        if self._streams is not None:
            self._streams[1].transport.abort()


Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]
Door = Callable[[], Call]
"""Makes a call that is spoken by hand."""


@contextlib.asynccontextmanager
async def door(node: Node) -> AsyncIterator[Door]:
    """To that broker's links."""
    made: list[Call] = []

    def call() -> Call:
        host, _, port = node.address.rpartition(":")
        made.append(Call(lambda: asyncio.open_connection(host, int(port))))
        return made[-1]

    yield call
    for each in made:
        each.cancel()


@contextlib.asynccontextmanager
async def impostor(answer: Callable[[Call], Coroutine[Any, Any, None]]) -> AsyncIterator[PeerAddress]:
    """Somebody who is dialled as broker 2. `answer` is given what to hear from and to speak to."""

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async def opened() -> Streams:
            return reader, writer

        await answer(Call(opened, served=True))
        writer.close()

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    yield PeerAddress(f"127.0.0.1:{server.sockets[0].getsockname()[1]}", 1)
    server.close()


class Spoken:
    """A link to a broker, spoken by hand, as the broker with that proof would."""

    def __init__(self, there: Door, proof: PeerProof) -> None:
        self.call = there()
        self.proof = proof

    async def say(self, **fields: Any) -> None:
        await self.call.say(pb.LinkHeader(**fields))

    async def hear(self) -> pb.LinkHeader:
        """Raises the error that the link was ended with."""
        async with asyncio.timeout(DEADLINE_S):
            header = await self.call.hear()
        assert header is not None, "the link was ended"
        return header

    async def greet(self, to: int = 2) -> tuple[pb.LinkHello, pb.LinkHello]:
        """Both hellos, once the other side has accepted."""
        mine = self.proof.hello(to)
        await self.say(hello=mine)
        theirs = (await self.hear()).hello
        assert theirs.proof == self.proof.of_acceptor(mine, theirs)
        await self.say(hello=pb.LinkHello(proof=self.proof.of_dialler(mine, theirs)))
        await self.hear()
        return mine, theirs
