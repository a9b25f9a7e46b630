"""A Subscribe stream, on the event loop of this process. Not here: what is said on it, and what comes of it
(subscription.py)."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable

from mq_client.cluster.client import NOBODY, Client
from mq_client.cluster.loop import Call, this_process
from mq_client.errors import TritonMQError
from mq_protocol import mq_pb2 as pb
from mq_protocol.wire.envelope import Envelope

Heard = Callable[[Envelope[pb.BatchesHeader]], Awaitable[None]]
Over = Callable[[TritonMQError | None], None]


class PushStream:
    """Owns one stream to the broker at `address`.

    On the loop's thread, which must not be held up: `heard` is awaited for each message in its order, and `over` is
    called once, with what broke the stream or None.
    """

    def __init__(self, address: str, heard: Heard, over: Over, client: Client = NOBODY) -> None:
        self._address = address
        self._client = client
        self._heard = heard
        self._over = over
        # Bounded by who speaks: a request for each change of what is subscribed, each settling and each quarter of the
        # credit.
        self._requests: asyncio.Queue[pb.SubscribeRequest | None] = asyncio.Queue()
        self._task: asyncio.Task[None] | None = None
        self._broke: TritonMQError | None = None
        self._ended = threading.Event()
        self._loop = this_process()
        self._loop.call(self._begin)

    # -- from any thread

    def say(self, request: pb.SubscribeRequest) -> None:
        self._loop.call(self._requests.put_nowait, request)

    def say_last(self) -> None:
        """The broker ends the stream once it has heard all before."""
        self._loop.call(self._requests.put_nowait, None)

    def cancel(self) -> None:
        self._loop.call(self._cancel)

    def wait_over(self, timeout_s: float) -> bool:
        return self._ended.wait(timeout_s)

    # -- on the loop

    def _begin(self) -> None:
        if self._loop.closing:  # a consumer that was left open, whose stream the end of the process has just broken
            self._finish()
            return
        self._task = self._loop.spawn(self._run())
        # a task that is cancelled before its first step runs none of its own code
        self._task.add_done_callback(self._finish)

    def _finish(self, _: asyncio.Task[None] | None = None) -> None:
        self._over(self._broke)
        self._ended.set()

    def _cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def _run(self) -> None:
        try:
            async with self._loop.opened("Subscribe", pb.BatchesHeader, self._address, self._client) as call:
                await self._converse(call)
        except TritonMQError as error:
            self._broke = error

    async def _converse(self, call: Call[pb.BatchesHeader]) -> None:
        writing = self._loop.spawn(self._write(call))
        try:
            while (message := await call.read()) is not None:
                await self._heard(message)
        finally:
            writing.cancel()

    async def _write(self, call: Call[pb.BatchesHeader]) -> None:
        while (request := await self._requests.get()) is not None:
            await call.write(request)
        call.end()
