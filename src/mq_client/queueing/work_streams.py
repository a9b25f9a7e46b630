"""The Work streams of this process: one to each broker, for the sessions of all its queues. Everything here is on the
event loop of this process, which must not be held up."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from itertools import count
from typing import Final, NamedTuple
from weakref import WeakValueDictionary

from mq_client.cluster.client import Client
from mq_client.cluster.loop import Call, EventLoop
from mq_client.errors import TritonMQError, Unreachable
from mq_client.queueing.shares import Round
from mq_protocol import mq_pb2 as pb
from mq_protocol.limits import WORK_SESSIONS_AT_ONCE_MAX
from mq_protocol.wire.envelope import Envelope

MESSAGE_BYTES: Final = 256 << 10
"""Where a message stops gathering: a broker takes a megabyte."""


class Told(NamedTuple):
    """What a session is told, with the payload of each batch of its lease."""

    said: pb.SessionResponse
    payloads: Sequence[memoryview]


Listener = Callable[[Told | TritonMQError], None]
"""Is told what its session is told, and last the error that ended the stream."""


class WorkStream:
    """Owns one stream to a broker, and the numbers of the sessions on it."""

    def __init__(self, loop: EventLoop, address: str, client: Client, over: Callable[[WorkStream], None]) -> None:
        self.address = address
        self.broken = False
        self._loop = loop
        self._client = client
        self._on_over = over
        self._listeners: dict[int, Listener] = {}
        self._numbers = count(1)
        self._said: deque[pb.SessionRequest] = deque()
        self._wake = asyncio.Event()
        self._task = loop.spawn(self._run())

    def open(self, listener: Listener) -> int:
        """The number of a new session."""
        number = next(self._numbers)
        self._listeners[number] = listener
        return number

    def say(self, request: pb.SessionRequest) -> None:
        self._said.append(request)
        self._wake.set()

    def forget(self, number: int) -> None:
        """Its session is over: what comes for it is passed over. A stream without any ends, once all is said."""
        self._listeners.pop(number, None)
        self._wake.set()

    async def _run(self) -> None:
        error: TritonMQError = Unreachable(f"broker at {self.address} has ended the stream: ask again")
        try:
            async with self._loop.opened("Work", pb.WorkHeader, self.address, self._client) as call:
                await self._converse(call)
        except TritonMQError as broke:
            error = broke
        finally:
            self.broken = True
            self._on_over(self)
            listeners, self._listeners = self._listeners, {}
            for listener in listeners.values():
                listener(error)

    async def _converse(self, call: Call[pb.WorkHeader]) -> None:
        writing = self._loop.spawn(self._write(call))
        try:
            while (message := await call.read()) is not None:
                self._hear(message)
        finally:
            writing.cancel()

    async def _write(self, call: Call[pb.WorkHeader]) -> None:
        while self._said or self._listeners:
            if self._said:
                await call.write(self._next())
            else:
                self._wake.clear()
                await self._wake.wait()
        self._on_over(self)
        call.end()

    def _next(self) -> pb.WorkRequest:
        """What was said, in its order, of each session once."""
        request = pb.WorkRequest()
        named: set[int] = set()
        size = 0
        while self._said and size < MESSAGE_BYTES and len(named) < WORK_SESSIONS_AT_ONCE_MAX:
            if self._said[0].session in named:
                break
            said = self._said.popleft()
            named.add(said.session)
            request.sessions.append(said)
            size += said.ByteSize()
        return request

    def _hear(self, message: Envelope[pb.WorkHeader]) -> None:
        payload, at = message.payload, 0
        for said in message.header.sessions:
            payloads = []
            for stored in said.lease.batches:
                payloads.append(payload[at : at + stored.payload_bytes])
                at += stored.payload_bytes
            listener = self._listeners.get(said.session)
            if listener is not None:
                listener(Told(said, payloads))


class WorkStreams:
    """Owns the streams of one process."""

    def __init__(self, loop: EventLoop) -> None:
        self._loop = loop
        self._streams: dict[tuple[Client, str], WorkStream] = {}
        self._rounds: WeakValueDictionary[tuple[str, str], Round] = WeakValueDictionary()

    def to(self, address: str, client: Client) -> WorkStream:
        """The stream to that broker, made if there is none that works."""
        found = self._streams.get((client, address))
        if found is None or found.broken:
            found = WorkStream(self._loop, address, client, self._over)
            self._streams[client, address] = found
        return found

    def round(self, topic_id: str, group: str) -> Round:
        """Which partition comes first for the members of that queue."""
        return self._rounds.setdefault((topic_id, group), Round())

    def _over(self, stream: WorkStream) -> None:
        """It takes no more sessions."""
        for key in [key for key, each in self._streams.items() if each is stream]:
            del self._streams[key]


_of_loops: dict[EventLoop, WorkStreams] = {}


def work_streams(loop: EventLoop) -> WorkStreams:
    """Those of the process whose loop that is. On the loop."""
    found = _of_loops.get(loop)
    if found is None:
        found = _of_loops[loop] = WorkStreams(loop)
    return found
