"""The streams by which brokers push: all of a process on one event loop, in one thread. Here Subscribe; `lock.py` has
Lock.

They go over the stream ports of brokers where those can be reached, else by gRPC (push_calls.py).

gRPC's synchronous streams have two threads each, and a process with a hundred consumers spends itself on handing the
interpreter's lock from one to the next (benchmarks/NOTES.md). Not here: what is said on a stream, and what comes of it
(session.py, subscription.py).
"""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import contextlib
import os
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from dataclasses import dataclass
from typing import Any, Final

from grpc import aio

from mq_client.cluster import forwarding
from mq_client.cluster.channels import NOBODY, Client
from mq_client.cluster.credentials import Credentials, current
from mq_client.consuming import push_calls
from mq_client.consuming.push_calls import PushCall
from mq_client.errors import TritonMQError
from mq_protocol import mq_pb2 as pb
from mq_protocol.envelope import Envelope
from mq_protocol.limits import STREAMS_PER_CHANNEL
from mq_protocol.transport import CHANNEL_OPTIONS

Heard = Callable[[Envelope[pb.BatchesHeader]], Awaitable[None]]
Over = Callable[[TritonMQError | None], None]

_CLOSE_S: Final = 2.0


class PushStream:
    """Owns one stream to the broker at `address`. `stream_address`: its stream port; empty if it has none.

    On the loop's thread, which must not be held up: `heard` is awaited for each message in its order, and `over` is
    called once, with what broke the stream or None.
    """

    def __init__(
        self, address: str, heard: Heard, over: Over, client: Client = NOBODY, stream_address: str = ""
    ) -> None:
        self._address = address
        self._stream_address = stream_address
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
            async with push_calls.opened(
                self._loop, "Subscribe", pb.BatchesHeader, self._address, self._client, self._stream_address
            ) as call:
                await self._converse(call)
        except TritonMQError as error:
            self._broke = error

    async def _converse(self, call: PushCall[pb.BatchesHeader]) -> None:
        writing = self._loop.spawn(self._write(call))
        try:
            while (message := await call.read()) is not None:
                await self._heard(message)
        finally:
            writing.cancel()

    async def _write(self, call: PushCall[pb.BatchesHeader]) -> None:
        while (request := await self._requests.get()) is not None:
            await call.write(request)
        await call.done_writing()


def _connect(address: str, credentials: Credentials) -> aio.Channel:
    if credentials.channel is None:
        return aio.insecure_channel(address, options=CHANNEL_OPTIONS)
    return aio.secure_channel(address, credentials.channel, options=CHANNEL_OPTIONS)


@dataclass(eq=False, slots=True)
class _Channel:
    """And how many streams are open on it."""

    channel: aio.Channel
    streams: int = 0


class EventLoop:
    """Owns the event loop, its thread, its channels and what runs on it. There is a channel for each client and
    address that is dialled, and more where there are many streams. Kept while the process lives, or until the client's
    certificate was replaced and the last stream has ended."""

    def __init__(self) -> None:
        self.closing = False
        self.stream_calls: Counter[str] = Counter()  # open over each stream port
        self._loop = asyncio.new_event_loop()
        self._channels: dict[tuple[Client, str, int], list[_Channel]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._thread = threading.Thread(target=self._loop.run_forever, name="tritonmq-pushes", daemon=True)
        self._thread.start()

    def call(self, function: Callable[..., Any], *arguments: Any) -> None:
        """From any thread: soon, in the order of the calls."""
        self._loop.call_soon_threadsafe(function, *arguments)

    @property
    def mine(self) -> bool:
        """Whether this is its thread."""
        return threading.current_thread() is self._thread

    def soon(self, function: Callable[[], Any]) -> None:
        """From any thread: in the next turn of the loop."""
        if self.mine:
            self._loop.call_soon(function)
        else:
            self._loop.call_soon_threadsafe(function)

    def later(self, seconds: float, function: Callable[[], Any]) -> asyncio.TimerHandle:
        """On the loop."""
        return self._loop.call_later(seconds, function)

    def now(self) -> float:
        """The loop's clock, in seconds."""
        return self._loop.time()

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    @contextlib.contextmanager
    def channel(self, address: str, client: Client = NOBODY) -> Iterator[aio.Channel]:
        """For one stream. It connects when first used, and again by itself. A broker takes so many streams on a
        connection, and one more would wait in silence: then there is another connection."""
        credentials = current(client.security)
        dialled = forwarding.entry(address, client)
        key = client, dialled, credentials.generation
        known = self._channels.setdefault(key, [])
        found = next((each for each in known if each.streams < STREAMS_PER_CHANNEL), None)
        if found is None:
            found = _Channel(_connect(dialled, credentials))
            known.append(found)
        found.streams += 1
        try:
            yield found.channel
        finally:
            found.streams -= 1
            if not found.streams and current(client.security).generation != credentials.generation:
                known.remove(found)
                if not known:
                    self._channels.pop(key, None)
                self.spawn(found.channel.close(None))

    def stop(self) -> None:
        closing = asyncio.run_coroutine_threadsafe(self._close(), self._loop)
        with contextlib.suppress(concurrent.futures.TimeoutError):
            closing.result(_CLOSE_S)
        # Never closed: a consumer that was not stopped may still speak.
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_CLOSE_S)

    async def _close(self) -> None:
        self.closing = True
        mine = [task for task in self._tasks if task is not asyncio.current_task()]
        for task in mine:
            task.cancel()
        await asyncio.gather(*mine, return_exceptions=True)
        for opened in [each for known in self._channels.values() for each in known]:
            await opened.channel.close(None)


_lock = threading.Lock()
_loops: dict[int, EventLoop] = {}


def _after_fork() -> None:
    """The lock may have been held by a thread that the child does not have."""
    global _lock
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_after_fork)


def this_process() -> EventLoop:
    """A process that was forked has a loop of its own."""
    with _lock:
        found = _loops.get(os.getpid())
        if found is None:
            found = _loops[os.getpid()] = EventLoop()
        return found


def on_loop() -> bool:
    """Whether the caller is on this process's loop. Makes none."""
    found = _loops.get(os.getpid())
    return found is not None and found.mine


@atexit.register
def _stop() -> None:
    """While gRPC's threads still run, as in channels.py."""
    with _lock:
        mine = _loops.get(os.getpid())
    if mine is not None:
        mine.stop()
