"""Listening to events, and a wire to ZooKeeper that can be cut at a chosen message."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import threading
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from enum import Enum
from typing import Any

from kazoo.client import KazooClient

from mq_broker.coordination.interface import CoordinationEvent
from mq_broker.coordination.service import CoordinationService
from mq_broker.core.messages import LeaderName, NodeState

WAIT_S = 20.0

LASTING_MS = 30_000
"""A session that no test lets run out: it outlasts a stall of the process that keeps it."""

Opener = Callable[..., AbstractAsyncContextManager[CoordinationService]]


class Heard:
    """A listener that remembers, in order, and can be waited on."""

    def __init__(self) -> None:
        self.events: list[CoordinationEvent] = []
        self._more = asyncio.Event()

    def __call__(self, event: CoordinationEvent) -> None:
        self.events.append(event)
        self._more.set()

    async def until(self, event: CoordinationEvent) -> None:
        async with asyncio.timeout(WAIT_S):
            while event not in self.events:
                self._more.clear()
                await self._more.wait()

    def forget(self) -> None:
        self.events.clear()


def end_session_of(service: CoordinationService) -> None:
    """As the server would after silence: whoever knows a session's id and password may close it. Its owner, whose
    connection the server drops for that, connects again only once it is closed: it would take its session back."""
    session = service._store._session
    client = session._client
    assert client is not None
    connection, ended = client._connection, threading.Event()
    attempt = connection._connect_attempt

    def later(*args: Any) -> Any:
        ended.wait(WAIT_S)
        return attempt(*args)

    connection._connect_attempt = later
    other = KazooClient(hosts=session.hosts, client_id=client.client_id)
    try:
        other.start(timeout=30)
        other.stop()
        other.close()
    finally:
        connection._connect_attempt = attempt
        ended.set()


class Fate(Enum):
    """What becomes of a request on its way to the server."""

    PASSES = "passes"
    ANSWER_IS_LOST = "the server acts on it; the connection breaks before the answer"
    REQUEST_IS_LOST = "the connection breaks before the server has it"


MULTI, GET_DATA, SET_DATA, SYNC = 14, 4, 5, 9


def operation_of(request: bytes) -> int:
    """ZooKeeper's number for what a request asks: length, xid, then this."""
    return int.from_bytes(request[8:12], "big") if len(request) >= 12 else 0


class Wire:
    """A TCP proxy before a ZooKeeper server. `fate_of` is asked for each request; what it loses, it loses once."""

    def __init__(self, hosts: str) -> None:
        host, _, port = hosts.partition(":")
        self._target = (host, int(port))
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._cutting: asyncio.Event | None = None
        self.fate_of: Callable[[bytes], Fate] = lambda _request: Fate.PASSES
        self.open = True
        self.lost = 0

    async def __aenter__(self) -> Wire:
        self._server = await asyncio.start_server(self._carry, "127.0.0.1", 0)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    @property
    def hosts(self) -> str:
        assert self._server is not None
        return f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        if not self.open:
            writer.close()
            return
        with contextlib.suppress(OSError):
            far_reader, far_writer = await asyncio.open_connection(*self._target)
            muted = asyncio.Event()
            answers = asyncio.create_task(self._answers(far_reader, writer, muted))
            try:
                await self._requests(reader, far_writer, muted, answers)
            finally:
                answers.cancel()
                far_writer.close()
                writer.close()

    async def _requests(
        self,
        reader: asyncio.StreamReader,
        far_writer: asyncio.StreamWriter,
        muted: asyncio.Event,
        answers: asyncio.Task[None],
    ) -> None:
        while request := await _message(reader):
            fate = self.fate_of(request)
            if fate is Fate.PASSES:
                far_writer.write(request)
                continue
            self.fate_of = lambda _request: Fate.PASSES
            self.lost += 1
            if fate is Fate.ANSWER_IS_LOST:
                muted.set()
                far_writer.write(request)
                await asyncio.wait([answers], timeout=WAIT_S)  # ends with the answer that nobody will get
            return

    @staticmethod
    async def _answers(far_reader: asyncio.StreamReader, writer: asyncio.StreamWriter, muted: asyncio.Event) -> None:
        with contextlib.suppress(OSError):
            while answer := await far_reader.read(1 << 20):
                if muted.is_set():
                    return
                writer.write(answer)


async def _message(reader: asyncio.StreamReader) -> bytes:
    """One request, however many came at once: its length and what it says. Empty at the end of the stream."""
    try:
        length = await reader.readexactly(4)
        return length + await reader.readexactly(int.from_bytes(length, "big"))
    except asyncio.IncompleteReadError:
        return b""


def id_of(name: object) -> str:
    """A topic's id, the same for the same name."""
    return hashlib.sha256(str(name).encode()).hexdigest()[:32]


def state_of(leader: int = 1, epoch: int = 0, token: str = "t") -> NodeState:
    return NodeState(
        leader=LeaderName(leader, 7), leader_epoch=epoch, isr=((leader, f"log-{leader}"),), recovery=0, token=token
    )


async def eventually(condition: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(WAIT_S):
        while not await condition():  # noqa: ASYNC110 (it is a server's state, which no event of ours tells)
            await asyncio.sleep(0.02)
