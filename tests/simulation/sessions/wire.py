"""Streams between a member's process and brokers: slow, in order, and broken now and then, which the two ends notice at
different times. A message that was on its way then is lost, or is not."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Final

from mq_protocol import mq_pb2 as pb
from mq_protocol.errors import Unreachable
from mq_protocol.wire.envelope import Envelope

NOTICED_S: Final = 1.0
"""So long at most it takes an end to notice that a stream broke."""

Serve = Callable[[AsyncIterator[pb.WorkRequest], Callable[[Envelope[pb.WorkHeader]], Awaitable[None]]], Any]


class _Way:
    """One direction: what was sent comes in order, each message after `delay_s`."""

    def __init__(self, delay_s: Callable[[], float]) -> None:
        self._delay_s = delay_s
        self._last = 0.0
        self._come: asyncio.Queue[Any] = asyncio.Queue()
        self.cut = False

    def send(self, message: Any) -> None:
        loop = asyncio.get_running_loop()
        self._last = max(self._last, loop.time() + self._delay_s())
        loop.call_at(self._last, self._arrive, message)

    def _arrive(self, message: Any) -> None:
        if not self.cut:
            self._come.put_nowait(message)

    def end_with(self, message: Any) -> None:
        """Nothing but this comes any more."""
        self.cut = True
        self._come.put_nowait(message)

    async def next(self) -> Any:
        return await self._come.get()


class Stream:
    """Both ends of one stream. The member's is what the event loop of its process gives for a call."""

    def __init__(self, wire: Wire, serve: Serve) -> None:
        self._wire = wire
        self._up, self._down = _Way(wire.delay_s), _Way(wire.delay_s)
        self.broken = False
        self._task = asyncio.get_running_loop().create_task(self._served(serve))

    # -- the member's end

    async def write(self, request: pb.WorkRequest) -> None:
        copied = pb.WorkRequest()
        copied.CopyFrom(request)
        self._up.send(copied)
        await asyncio.sleep(self._wire.busy_s())

    async def read(self) -> Any:
        message = await self._down.next()
        if isinstance(message, Exception):
            raise message
        return message

    def end(self) -> None:
        self._up.send(None)

    def cancel(self) -> None:
        self._down.cut = True
        self._break_up()

    # -- the broker's end

    async def _served(self, serve: Serve) -> None:
        try:
            await serve(self._requests(), self._send)
            self._down.send(None)
        finally:
            self._wire.streams.discard(self)

    async def _requests(self) -> AsyncIterator[pb.WorkRequest]:
        while (request := await self._up.next()) is not None:
            yield request

    async def _send(self, message: Envelope[pb.WorkHeader]) -> None:
        header = pb.WorkHeader()
        header.CopyFrom(message.header)
        self._down.send(Envelope(header, (b"".join(message.parts),)))
        await asyncio.sleep(self._wire.busy_s())

    # -- what goes wrong

    def break_off(self) -> None:
        """Each end notices it at a time of its own."""
        if self.broken:
            return
        self.broken = True
        loop, chance = asyncio.get_running_loop(), self._wire.random
        for way in (self._up, self._down):
            way.cut = way.cut or chance.random() < 0.7
        loop.call_later(chance.random() * NOTICED_S, self._down.end_with, _unavailable())
        loop.call_later(chance.random() * NOTICED_S, self._break_up)

    def _break_up(self) -> None:
        self._up.cut = True
        self._task.cancel()


def _unavailable() -> Unreachable:
    return Unreachable("the connection was reset")


class Wire:
    """Owns the streams. In the place of the event loop of a process and its calls."""

    def __init__(self, random: Any, delay_s: Callable[[], float]) -> None:
        self.random = random
        self.delay_s = delay_s
        self.busy_s: Callable[[], float] = lambda: 0.0
        self.streams: set[Stream] = set()
        self.brokers: dict[str, Serve] = {}
        self._loop = asyncio.get_running_loop()

    def soon(self, function: Callable[[], Any]) -> None:
        self._loop.call_soon(function)

    def later(self, seconds: float, function: Callable[[], Any]) -> asyncio.TimerHandle:
        return self._loop.call_later(seconds, function)

    def spawn(self, work: Any) -> asyncio.Task[None]:
        return self._loop.create_task(work)

    @contextlib.asynccontextmanager
    async def opened(self, method: str, header: object, address: str, client: object) -> AsyncIterator[Stream]:
        stream = Stream(self, self.brokers[address])
        self.streams.add(stream)
        try:
            yield stream
        finally:
            stream.cancel()

    def break_one(self) -> None:
        if self.streams:
            self.random.choice(sorted(self.streams, key=lambda stream: stream._task.number)).break_off()
