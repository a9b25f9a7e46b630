"""The event loop of this process, in a thread of its own, and the calls on it: what pushes to consumers, members of
queues and holders of locks, and what is asked without waiting.

A call that pushes has a connection of its own. With a thread for each, a process with a hundred consumers would spend
itself on handing the interpreter's lock from one to the next (benchmarks/NOTES.md).
"""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import contextlib
import os
import threading
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any, Final, Generic, NamedTuple, TypeVar

from google.protobuf.message import Message

from mq_client.cluster.client import NOBODY, Client
from mq_client.cluster.credentials import Credentials, as_told, current
from mq_client.cluster.dialling import CONNECT_S, call_open, late, note_open, unreachable
from mq_client.cluster.lines import KEEP_S, KEPT_MAX, Key, heard
from mq_client.errors import NotAuthenticated, TritonMQError, Unreachable
from mq_protocol.methods import BROKER
from mq_protocol.wire.call import NotBegun
from mq_protocol.wire.connection import Connection, connect
from mq_protocol.wire.envelope import Envelope

_CLOSE_S: Final = 2.0

R = TypeVar("R", bound=Message)
H = TypeVar("H", bound=Message)


class Call(Generic[H]):
    """A call under way, on the loop. `header`: what each answer begins with."""

    def __init__(
        self, connection: Connection, header: type[H], address: str, client: Client, credentials: Credentials
    ) -> None:
        self._connection = connection
        self._header = header
        self._address = address
        self._client = client
        self._generation = credentials.generation

    async def read(self) -> Envelope[H] | None:
        """The next answer; None after the last one. Raises why there is none."""
        try:
            message = await self._connection.read()
        except NotAuthenticated as error:
            raise as_told(error, self._client.security, self._generation) from error
        if message is None:
            return None
        return Envelope(heard(message, self._header, self._address, self._client), (message.payload,))

    async def write(self, request: Message) -> None:
        """Waits while the broker reads nothing. That the call is over shows where it is read."""
        await self._connection.write(request.SerializeToString())

    def end(self) -> None:
        """Nothing more is said."""
        self._connection.end()


class _Kept(NamedTuple):
    until: float
    generation: int
    connection: Connection


class EventLoop:
    """Owns the event loop, its thread, and what runs on it. Of connections on which nothing is asked it keeps some, for
    a while."""

    def __init__(self) -> None:
        self.closing = False
        self._loop = asyncio.new_event_loop()
        self._kept: dict[Key, list[_Kept]] = {}
        self._sweep_at: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._thread = threading.Thread(target=self._loop.run_forever, name="tritonmq-pushes", daemon=True)
        self._thread.start()

    # ------------------------------------------------------------------ turns

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

    # ------------------------------------------------------------------ calls

    @contextlib.asynccontextmanager
    async def opened(
        self, method: str, header: type[H], address: str, client: Client = NOBODY
    ) -> AsyncIterator[Call[H]]:
        """Around a call to the broker at `address`. Raises `TritonMQError`."""
        credentials = current(client.security)
        connection = await _connected(address, client, credentials)
        try:
            connection.open(call_open(method, address, client, credentials))
            yield Call(connection, header, address, client, credentials)
        finally:
            connection.close()

    async def ask(
        self, address: str, method: str, request: Message, response: type[R], timeout_s: float, client: Client = NOBODY
    ) -> R:
        """One request, one answer. Raises as `call_unary`."""
        try:
            async with asyncio.timeout(timeout_s):
                return await self._asked(address, method, request, response, timeout_s, client)
        except TimeoutError as error:
            raise late(client.shown(address)) from error

    async def _asked(
        self, address: str, method: str, request: Message, response: type[R], timeout_s: float, client: Client
    ) -> R:
        credentials = current(client.security)
        key = client, client.dialled(address)
        opened = call_open(method, address, client, credentials, timeout_s)
        body = request.SerializeToString()
        connection = self._take(key, credentials.generation)
        if connection is not None:
            connection.address = client.shown(address)
        while True:
            is_new = connection is None
            if connection is None:
                connection = await _connected(address, client, credentials)
            try:
                answer = await connection.ask(opened, body)
                return heard(answer, response, address, client)
            except NotBegun:
                if is_new:
                    raise
                connection.close()
                connection = None
            except NotAuthenticated as error:
                raise as_told(error, client.security, credentials.generation) from error
            finally:
                if connection is not None:
                    self._keep(key, credentials.generation, connection)

    def _take(self, key: Key, generation: int) -> Connection | None:
        known = self._kept.get(key, [])
        while known:
            found = known.pop()
            if found.generation == generation and found.connection.is_free:
                return found.connection
            found.connection.close()
        return None

    def _keep(self, key: Key, generation: int, connection: Connection) -> None:
        """For the next call, if there may be one."""
        if self.closing or not connection.is_free:
            connection.close()
            return
        known = self._kept.setdefault(key, [])
        known.append(_Kept(self.now() + KEEP_S, generation, connection))
        if len(known) > KEPT_MAX:
            known.pop(0).connection.close()
        if self._sweep_at is None:
            self._sweep_at = self.later(KEEP_S, self._sweep)

    def _sweep(self) -> None:
        now, kept = self.now(), self._kept
        for each in [each for known in kept.values() for each in known if each.until <= now]:
            each.connection.close()
        left = {key: [each for each in known if each.until > now] for key, known in kept.items()}
        self._kept = {key: known for key, known in left.items() if known}
        self._sweep_at = self.later(KEEP_S, self._sweep) if self._kept else None

    # ------------------------------------------------------------------ the end

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
        for known in self._kept.values():
            for each in known:
                each.connection.close()


async def _connected(address: str, client: Client, credentials: Credentials) -> Connection:
    dialled = client.dialled(address)
    try:
        connection = await connect(dialled, client.shown(address), CONNECT_S, credentials.tls)
    except Unreachable:
        client.note_unreachable(dialled)
        raise
    note_open(connection)
    return connection


def call_later(
    address: str,
    method: str,
    request: Message,
    response: type[R],
    timeout_s: float,
    told: Callable[[R | TritonMQError], None],
    client: Client = NOBODY,
) -> Callable[[], object]:
    """As `call_unary`, but does not wait: `told` is called once, on the loop, with the answer or the error. What it
    gives back breaks the call off, which is told as `Unreachable`."""
    assert BROKER.methods[method].response is response
    loop = this_process()
    outcome: list[R | TritonMQError] = []
    task: asyncio.Task[None] | None = None

    async def run() -> None:
        try:
            outcome.append(await loop.ask(address, method, request, response, timeout_s, client))
        except TritonMQError as error:
            outcome.append(error)

    def over(_: object = None) -> None:
        told(outcome[0] if outcome else unreachable(client.shown(address), "the call was ended here"))

    def begin() -> None:
        nonlocal task
        if loop.closing:
            over()
            return
        task = loop.spawn(run())
        task.add_done_callback(over)

    def cancel() -> None:
        if task is not None:
            task.cancel()

    loop.call(begin)
    return lambda: loop.call(cancel)


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
    with _lock:
        mine = _loops.get(os.getpid())
    if mine is not None:
        mine.stop()
