"""Two ends of a link in one process, for tests."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from typing import Any

import grpc

from mq_broker.rpc.links import Links, PeerAddress
from mq_broker.rpc.peer_proof import PeerProof
from mq_broker.rpc.refusals import Refusals
from mq_broker.rpc.server import listen
from mq_protocol import mq_pb2 as pb
from mq_protocol.methods import PEER

DEADLINE_S = 10.0
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
    """One broker's end: its links, served on a port."""

    def __init__(self, broker: int, *, incarnation: int = 1, cluster_id: str = "c", secret: bytes = SECRET) -> None:
        self.broker = broker
        self.incarnation = incarnation
        self.heard = Heard()
        self.tasks: list[asyncio.Task[None]] = []
        self.refusals = Refusals()
        self.readings = 0
        proof = PeerProof(broker, incarnation, cluster_id, secret)
        self.links = Links(proof, self.heard, self._spawn, self._read_brokers, self.refusals)
        self._server, port = listen("127.0.0.1:0")
        self._server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(PEER.name, {"Link": self.links.handler()}),)
        )
        self.address = f"127.0.0.1:{port}"

    def _read_brokers(self) -> None:
        self.readings += 1

    def _spawn(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        task = asyncio.create_task(work, name=name)
        self.tasks.append(task)
        return task

    async def start(self) -> None:
        await self._server.start()

    async def stop(self) -> None:
        await self.links.close()
        await self._server.stop(0)
        for task in self.tasks:
            assert task.cancelled(), task.exception()

    def knows(self, *others: Node) -> None:
        """As they know it."""
        everybody = (self, *others)
        for node in everybody:
            node.links.know({o.broker: PeerAddress(o.address, o.incarnation) for o in everybody})

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
