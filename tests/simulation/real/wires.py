"""gRPC without sockets: servers, channels and calls between simulated processes, over connections that are slow, cut
and reset.

What is above gRPC's API in the product runs as it is: handlers, streams, links, proofs, errors in metadata. What a
connection does is TCP's: bytes arrive in order or not at all. While two machines are cut off from each other nothing
arrives; if that ends in time all of it does, late, and if not both ends hear that the connection broke, each when its
keepalive says so.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from contextvars import Context, copy_context
from types import SimpleNamespace
from typing import Any

import grpc
from grpc import aio

from tests.simulation.real.loop import PROCESS, Process, VirtualLoop

WINDOW_BYTES = 256 << 10
"""Sent and not yet read by the far side: a writer waits beyond it."""

KEEPALIVE_S = (5.0, 15.0)
CONNECT_TIMEOUT_S = 2.0


def machine_of(process: Process | None) -> str:
    return process.name.partition("#")[0] if process is not None else "clients"


class Network:
    """Owns who listens where, all connections, and which machines are cut off from each other."""

    def __init__(self, loop: VirtualLoop, trace: Callable[[str], None]) -> None:
        self.loop = loop
        self.trace = trace
        self.servers: dict[str, Server] = {}
        self.connections: list[Connection] = []
        self.cuts: set[frozenset[str]] = set()
        self.latency_s = (0.0001, 0.005)
        self.faults: Callable[[str], None] = lambda what: None
        self._ports = 20_000

    def listen(
        self, address: str, option: str = "", options: Iterable[tuple[str, int]] = (), credentials: None = None
    ) -> tuple[Server, int]:
        address = self.bound(address)
        return Server(self, address), int(address.rpartition(":")[2])

    def bound(self, address: str) -> str:
        """The same; with a free port for port 0."""
        host, _, port = address.rpartition(":")
        if port != "0":
            return address
        self._ports += 1
        return f"{host}:{self._ports}"

    def dial(self, address: str) -> Channel:
        return Channel(self, address)

    def delay(self) -> float:
        return self.loop.often_short(*self.latency_s)

    def is_cut(self, one: str, other: str) -> bool:
        return frozenset((one, other)) in self.cuts

    def cut(self, one: str, other: str) -> None:
        self.cuts.add(frozenset((one, other)))
        for connection in self._between(one, other):
            connection.stall()

    def heal(self, one: str, other: str) -> None:
        self.cuts.discard(frozenset((one, other)))
        for connection in self._between(one, other):
            connection.flow()

    def _between(self, one: str, other: str) -> list[Connection]:
        self.connections = [connection for connection in self.connections if connection.up]
        return [each for each in self.connections if {each.dialler.machine, each.acceptor.machine} == {one, other}]


class End:
    """One end of a connection: what arrives here, and who is told if it breaks."""

    def __init__(self, machine: str, context: Context) -> None:
        self.machine = machine
        self.context = context
        self.arrives_at = 0.0
        self.held: deque[tuple[Callable[..., None], tuple[Any, ...]]] = deque()
        self.broken = False
        self.on_break: list[Callable[[], None]] = []


class Connection:
    """Two ends, and what is on its way between them."""

    def __init__(self, network: Network, dialler: End, acceptor: End) -> None:
        self.network = network
        self.dialler = dialler
        self.acceptor = acceptor
        self.up = True
        self._stalls = 0
        network.connections.append(self)

    @property
    def cut(self) -> bool:
        return self.network.is_cut(self.dialler.machine, self.acceptor.machine)

    def send(self, to: End, action: Callable[..., None], *args: Any) -> None:
        """`action` runs at that end, after all that was sent to it before; never if the connection breaks first."""
        if self.up:
            loop = self.network.loop
            to.arrives_at = max(loop.time() + self.network.delay(), to.arrives_at)
            loop.call_at(to.arrives_at, self._arrive, to, action, args, context=to.context)

    def _arrive(self, to: End, action: Callable[..., None], args: tuple[Any, ...]) -> None:
        if self.cut or to.held:  # what was held comes first
            to.held.append((action, args))
        elif not to.broken:
            action(*args)

    def _let_in(self, to: End) -> None:
        while to.held and not self.cut:
            action, args = to.held.popleft()
            if not to.broken:
                action(*args)

    def stall(self) -> None:
        """From now on nothing arrives. Each end gives up after a time of its own."""
        self._stalls += 1
        loop = self.network.loop
        for end in (self.dialler, self.acceptor):
            loop.call_later(loop.random.uniform(*KEEPALIVE_S), self._give_up, end, self._stalls, context=Context())

    def _give_up(self, end: End, stalls: int) -> None:
        if self.up and self.cut and self._stalls == stalls:
            self.network.faults("connection timed out")
            self._break(end)

    def flow(self) -> None:
        for end in (self.dialler, self.acceptor):
            self.network.loop.call_later(self.network.delay(), self._let_in, end, context=end.context)
            other = self.acceptor if end is self.dialler else self.dialler
            if other.broken and not end.broken:  # that end has given up: it answers whatever comes with a reset
                self.network.loop.call_later(self.network.delay(), self._break, end, context=Context())

    def abandon(self, end: End) -> None:
        """That end is closed, or its process has gone. Its machine says so to the other end, unless it has lost its
        power or cannot reach it: then that end finds out by its keepalive, or by the answer to what it sends once it
        can."""
        process = end.context.get(PROCESS)
        self._break(end)
        other = self.acceptor if end is self.dialler else self.dialler
        loop = self.network.loop
        silent = self.cut or (process is not None and process.power_lost)
        delay = loop.random.uniform(*KEEPALIVE_S) if silent else self.network.delay()
        loop.call_later(delay, self._break, other, context=Context())

    def leave(self, end: End) -> None:
        """That end is closed, and has said so to the other one."""
        self._break(end)

    def _break(self, end: End) -> None:
        if end.broken:
            return
        end.broken = True
        if self.dialler.broken and self.acceptor.broken:
            self.up = False
        for told in list(end.on_break):
            self.network.loop.call_soon(told, context=end.context)


# ---------------------------------------------------------------------- the server


class Server:
    """What `grpc.aio.server` gives, as far as the product uses it."""

    def __init__(self, network: Network, address: str) -> None:
        self._network = network
        self._address = address
        self._handlers: list[Any] = []
        self._calls: set[ServerCall] = set()
        self.process = PROCESS.get()
        self.context = copy_context()
        self.connections: list[Connection] = []

    def add_generic_rpc_handlers(self, handlers: tuple[Any, ...]) -> None:
        self._handlers += handlers

    async def start(self) -> None:
        self._network.servers[self._address] = self
        assert self.process is not None
        self.process.at_death.append(self._gone)

    async def stop(self, grace: float | None) -> None:
        self._close()
        for call in sorted(self._calls, key=lambda call: call.number):
            call.task.cancel()
        await asyncio.sleep(grace or 0)

    def _close(self) -> None:
        if self._network.servers.get(self._address) is self:
            del self._network.servers[self._address]

    def _gone(self) -> None:
        self._close()
        for connection in self.connections:
            connection.abandon(connection.acceptor)
        self.connections.clear()

    def accept(
        self, call: ClientCall, connection: Connection, method: str, metadata: Any, timeout: float | None
    ) -> None:
        """A call has arrived, in this process."""
        found = None
        for handlers in self._handlers:
            found = found or handlers.service(SimpleNamespace(method=method, invocation_metadata=metadata))
        served = ServerCall(self, call, connection, metadata, timeout)
        call.served = served
        self._calls.add(served)
        served.task = self._network.loop.create_task(served.run(found), name=method, context=copy_context())
        served.task.add_done_callback(lambda _: self._calls.discard(served))


class ServerCall:
    """One call at its server. Is the `ServicerContext` that handlers are given."""

    def __init__(
        self, server: Server, call: ClientCall, connection: Connection, metadata: Any, timeout: float | None
    ) -> None:
        loop = server._network.loop
        self.number = loop.next_number()
        self.task: asyncio.Task[Any]
        self._loop = loop
        self._call = call
        self._connection = connection
        self._metadata = metadata
        self._deadline = None if timeout is None else loop.time() + timeout
        self._inbox: deque[bytes] = deque()
        self._all_said = False
        self._news = asyncio.Event()
        self._unread = 0
        self._room = asyncio.Event()
        self._ended = False
        connection.acceptor.on_break.append(self.cancel)
        if timeout is not None:
            loop.call_later(timeout, self.cancel)

    def __hash__(self) -> int:
        return self.number

    # -- what the connection brings

    def hear(self, data: bytes | None) -> None:
        if data is None:
            self._all_said = True
        else:
            self._inbox.append(data)
        self._news.set()

    def was_read(self, size: int) -> None:
        self._unread -= size
        self._room.set()

    def cancel(self) -> None:
        """The client has gone, or waits no longer."""
        if not self._ended:
            self.task.cancel()

    # -- what handlers use

    async def read(self) -> Any:
        while not self._inbox:
            if self._all_said:
                return aio.EOF
            self._news.clear()
            await self._news.wait()
        data = self._inbox.popleft()
        self._connection.send(self._connection.dialler, self._call.was_read, len(data))
        return data

    async def write(self, data: bytes) -> None:
        if self._ended:
            raise aio.InternalError("the call has ended")
        while self._unread > WINDOW_BYTES:
            self._room.clear()
            await self._room.wait()
        self._unread += len(data)
        self._connection.send(self._connection.dialler, self._call.hear, bytes(data))

    async def abort(self, code: grpc.StatusCode, details: str = "", trailing_metadata: Any = ()) -> None:
        self._end(code, details, trailing_metadata)
        raise aio.AbortError

    def time_remaining(self) -> float | None:
        return None if self._deadline is None else max(0.0, self._deadline - self._loop.time())

    def invocation_metadata(self) -> Any:
        return self._metadata

    def peer(self) -> str:
        return self._connection.dialler.machine

    def auth_context(self) -> dict[str, list[bytes]]:
        return {"transport_security_type": [b"insecure"]}

    # -- its life

    async def run(self, handler: Any) -> None:
        try:
            if handler is None:
                self._end(grpc.StatusCode.UNIMPLEMENTED, "no such method", ())
            elif handler.unary_unary is not None:
                answer = await handler.unary_unary(await self.read(), self)
                await self.write(answer)
            elif handler.unary_stream is not None:
                await handler.unary_stream(await self.read(), self)
            else:
                await handler.stream_stream(None, self)
            self._end(grpc.StatusCode.OK, "", ())
        except asyncio.CancelledError:
            self._end(grpc.StatusCode.CANCELLED, "cancelled", ())
            raise
        except aio.AbortError:
            pass
        except Exception as error:  # noqa: BLE001 - as gRPC does
            self._end(grpc.StatusCode.UNKNOWN, f"{type(error).__name__}: {error}", ())

    def _end(self, code: grpc.StatusCode, details: str, metadata: Any) -> None:
        if not self._ended:
            self._ended = True
            if self.cancel in self._connection.acceptor.on_break:
                self._connection.acceptor.on_break.remove(self.cancel)
            self._connection.send(self._connection.dialler, self._call.end, code, details, metadata)


# ---------------------------------------------------------------------- the client


class Channel:
    """What `grpc.aio.insecure_channel` gives, as far as the product uses it."""

    def __init__(self, network: Network, address: str) -> None:
        self._network = network
        self._address = address
        self._connection: Connection | None = None
        self._connecting: asyncio.Future[None] | None = None
        self._calls: dict[ClientCall, None] = {}
        self._closed = False

    async def __aenter__(self) -> Channel:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close(None)

    async def close(self, grace: float | None) -> None:
        self._closed = True
        for call in list(self._calls):
            call.cancel()
        if self._connection is not None:
            self._connection.abandon(self._connection.dialler)

    def unary_unary(self, method: str, *_: Any) -> Callable[..., ClientCall]:
        return self._caller(method, answers=False)

    def unary_stream(self, method: str, *_: Any) -> Callable[..., ClientCall]:
        return self._caller(method, answers=True)

    def stream_stream(self, method: str, *_: Any) -> Callable[..., ClientCall]:
        return self._caller(method, answers=True)

    def _caller(self, method: str, *, answers: bool) -> Callable[..., ClientCall]:
        def call(request: bytes | None = None, *, timeout: float | None = None, metadata: Any = ()) -> ClientCall:
            made = ClientCall(self, method, request, timeout, metadata)
            self._calls[made] = None
            return made

        return call

    async def connected(self) -> Connection | None:
        """The connection, made if there is none; None if nobody is there."""
        while self._connecting is not None:
            await asyncio.wait({self._connecting})
        if self._connection is None or self._connection.dialler.broken:
            self._connecting = self._network.loop.create_future()
            try:
                self._connection = await self._connect()
            finally:
                connecting, self._connecting = self._connecting, None
                connecting.set_result(None)
        return self._connection

    async def _connect(self) -> Connection | None:
        network, process = self._network, PROCESS.get()
        machine = machine_of(process)
        other = self._address.rpartition(":")[0]
        if network.is_cut(machine, other):
            await asyncio.sleep(CONNECT_TIMEOUT_S)
            return None
        await asyncio.sleep(2 * network.delay())
        server = network.servers.get(self._address)
        if server is None or network.is_cut(machine, other):
            return None
        connection = Connection(network, End(machine, copy_context()), End(other, server.context))
        server.connections.append(connection)
        if process is not None:
            process.at_death.append(lambda: connection.abandon(connection.dialler))
        return connection

    @property
    def server(self) -> Server | None:
        return self._network.servers.get(self._address)

    def ended(self, call: ClientCall) -> None:
        self._calls.pop(call, None)


class ClientCall:
    """One call at its client: of one request or of a stream, answered by one message or by a stream."""

    def __init__(
        self, channel: Channel, method: str, request: bytes | None, timeout: float | None, metadata: Any
    ) -> None:
        self._channel = channel
        self._method = method
        self._loop = channel._network.loop
        self._metadata = metadata
        self._timeout = timeout
        self._request = request
        self.served: ServerCall | None = None
        self._connection: Connection | None = None
        self._inbox: deque[bytes] = deque()
        self._news = asyncio.Event()
        self._room = asyncio.Event()
        self._unread = 0
        self._status: tuple[grpc.StatusCode, str, Any] | None = None
        self._outbox: deque[bytes | None] = deque()
        self._open = asyncio.create_task(self._begin(), name=f"call {method}")
        if timeout is not None:
            self._loop.call_later(timeout, self._timed_out)

    async def _begin(self) -> None:
        connection = await self._channel.connected()
        server = self._channel.server
        if self._status is not None:
            return
        if connection is None or server is None:
            self.end(grpc.StatusCode.UNAVAILABLE, "nobody answers there", ())
            return
        self._connection = connection
        connection.dialler.on_break.append(self._broken)
        timeout = self._timeout
        connection.send(connection.acceptor, server.accept, self, connection, self._method, self._metadata, timeout)
        if self._request is not None:
            self._say(self._request)
            self._say(None)
        while self._outbox:
            self._say(self._outbox.popleft())

    def _say(self, data: bytes | None) -> None:
        assert self._connection is not None

        def heard() -> None:
            if self.served is not None:
                self.served.hear(data)

        if data is not None:
            self._unread += len(data)
        self._connection.send(self._connection.acceptor, heard)

    # -- what the connection brings

    def hear(self, data: bytes) -> None:
        self._inbox.append(data)
        self._news.set()

    def was_read(self, size: int) -> None:
        self._unread -= size
        self._room.set()

    def end(self, code: grpc.StatusCode, details: str, metadata: Any) -> None:
        if self._status is None:
            self._status = code, details, metadata
            self._news.set()
            self._room.set()
            if self._connection is not None and self._broken in self._connection.dialler.on_break:
                self._connection.dialler.on_break.remove(self._broken)
            self._channel.ended(self)

    def _broken(self) -> None:
        self.end(grpc.StatusCode.UNAVAILABLE, "the connection broke", ())

    def _timed_out(self) -> None:
        if self._status is None:
            self._tell_server()
            self.end(grpc.StatusCode.DEADLINE_EXCEEDED, "too late", ())

    def _tell_server(self) -> None:
        if self._connection is not None:
            self._connection.send(
                self._connection.acceptor, lambda: self.served.cancel() if self.served is not None else None
            )

    # -- what callers use

    def cancel(self) -> bool:
        if self._status is not None:
            return False
        self._tell_server()
        self.end(grpc.StatusCode.CANCELLED, "cancelled here", ())
        return True

    def done(self) -> bool:
        return self._status is not None

    async def write(self, data: bytes) -> None:
        if self._status is not None:
            raise asyncio.InvalidStateError("the call has ended")
        if self._connection is None:
            self._outbox.append(bytes(data))
            try:
                await asyncio.shield(self._open)
            except asyncio.CancelledError:
                self.cancel()
                raise
        else:
            self._say(bytes(data))
        while self._unread > WINDOW_BYTES and self._status is None:
            self._room.clear()
            await self._room.wait()
        if self._status is not None:
            self._raise_for_status()

    async def done_writing(self) -> None:
        if self._connection is None:
            self._outbox.append(None)
        else:
            self._say(None)

    async def read(self) -> Any:
        try:
            while not self._inbox:
                if self._status is not None:
                    self._raise_for_status()
                    return aio.EOF
                self._news.clear()
                await self._news.wait()
        except asyncio.CancelledError:
            self.cancel()
            raise
        data = self._inbox.popleft()
        if self._connection is not None and self._status is None:
            size = len(data)
            self._connection.send(
                self._connection.acceptor, lambda: self.served.was_read(size) if self.served is not None else None
            )
        return data

    def _raise_for_status(self) -> None:
        assert self._status is not None
        code, details, metadata = self._status
        if code is not grpc.StatusCode.OK:
            raise aio.AioRpcError(code, None, metadata, details)  # type: ignore[arg-type]

    def __aiter__(self) -> ClientCall:
        return self

    async def __anext__(self) -> bytes:
        data = await self.read()
        if data is aio.EOF:
            raise StopAsyncIteration
        return data  # type: ignore[no-any-return]

    def __await__(self) -> Any:
        return self._answer().__await__()

    async def _answer(self) -> bytes:
        data = await self.read()
        await self._ended()
        self._raise_for_status()
        return data  # type: ignore[no-any-return]

    async def _ended(self) -> tuple[grpc.StatusCode, str, Any]:
        while self._status is None:
            try:
                self._news.clear()
                await self._news.wait()
            except asyncio.CancelledError:
                self.cancel()
                raise
        return self._status

    async def code(self) -> grpc.StatusCode:
        return (await self._ended())[0]

    async def initial_metadata(self) -> Any:
        return ()

    async def trailing_metadata(self) -> Any:
        return (await self._ended())[2]
