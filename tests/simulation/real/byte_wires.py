"""TCP without sockets: listeners, and byte streams between simulated processes, over the connections of wires.py.

What is above asyncio's transports in the product runs as it is: the link port, its framing, hellos, back pressure.
Bytes arrive in order, in pieces that are torn anywhere, each late in its own way. A connection that is cut holds them;
one that breaks loses those that have not arrived.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from contextvars import copy_context
from typing import Any

from tests.simulation.real.loop import PROCESS, VirtualLoop
from tests.simulation.real.wires import CONNECT_TIMEOUT_S, Connection, End, Network, machine_of

TORN = 0.3
"""How often what is written arrives in more than one piece."""


class Listener:
    """What `socket.create_server` gives, as far as the product uses it."""

    def __init__(self, sockets: Sockets, address: str) -> None:
        self._sockets = sockets
        self._address = address
        self.context = copy_context()
        self._waiting: deque[ByteTransport] = deque()
        self._came = asyncio.Event()
        self._accepted: list[ByteTransport] = []
        sockets.listeners[address] = self
        process = PROCESS.get()
        assert process is not None
        process.at_death.append(self._gone)

    def connected(self, transport: ByteTransport) -> None:
        """Somebody has connected, and waits to be accepted."""
        self._waiting.append(transport)
        self._accepted.append(transport)
        self._came.set()

    async def accept(self) -> ByteTransport:
        while not self._waiting:
            self._came.clear()
            await self._came.wait()
        return self._waiting.popleft()

    def close(self) -> None:
        if self._sockets.listeners.get(self._address) is self:
            del self._sockets.listeners[self._address]

    def _gone(self) -> None:
        self.close()
        for transport in self._accepted:
            transport.abandon()


class Sockets:
    """Owns who listens where for byte streams."""

    def __init__(self, network: Network) -> None:
        self.network = network
        self.listeners: dict[str, Listener] = {}
        network.loop.sockets = self

    def bind(self, address: str, option: str) -> tuple[Listener, int]:
        address = self.network.bound(address)
        return Listener(self, address), int(address.rpartition(":")[2])

    async def connect(self, factory: Callable[[], Any], host: str, port: int) -> tuple[ByteTransport, Any]:
        network, process = self.network, PROCESS.get()
        machine, address = machine_of(process), f"{host}:{port}"
        if network.is_cut(machine, host):
            await asyncio.sleep(2 * CONNECT_TIMEOUT_S)
            raise TimeoutError("nobody answers")
        await asyncio.sleep(2 * network.delay())
        listener = self.listeners.get(address)
        if listener is None or network.is_cut(machine, host):
            raise ConnectionRefusedError(f"nobody listens at {address}")
        connection = Connection(network, End(machine, copy_context()), End(host, listener.context))
        here = ByteTransport(connection, connection.dialler, connection.acceptor)
        there = ByteTransport(connection, connection.acceptor, connection.dialler)
        here.other, there.other = there, here
        if process is not None:
            process.at_death.append(here.abandon)
        connection.send(connection.acceptor, listener.connected, there)
        protocol = factory()
        here.begin(protocol)
        return here, protocol


class ByteTransport(asyncio.Transport):
    """One end of a byte stream, as asyncio's transport of a socket."""

    other: ByteTransport

    def __init__(self, connection: Connection, here: End, there: End) -> None:
        super().__init__()
        self._connection = connection
        self._here = here
        self._there = there
        self._protocol: Any = None
        self._arrived: deque[bytes] = deque()
        self._ended = False  # the other end has said its last
        self._reading = False
        self._closing = False
        self._said_last = False
        self._unread = 0
        self._writing = True
        self._high = 64 << 10
        here.on_break.append(self._lost)

    @property
    def _loop(self) -> VirtualLoop:
        return self._connection.network.loop

    def begin(self, protocol: Any) -> None:
        """What has come since it was connected is read next."""
        self._protocol = protocol
        protocol.connection_made(self)
        self._reading = not self._closing
        self._loop.call_soon(self._give)

    def abandon(self) -> None:
        if not self._here.broken:
            self._connection.abandon(self._here)

    # -- what the connection brings

    def arrive(self, data: bytes) -> None:
        self._arrived.append(data)
        self._give()

    def arrive_end(self) -> None:
        self._ended = True
        self._give()

    def was_read(self, count: int) -> None:
        self._unread -= count
        if not self._writing and self._unread <= self._high // 4 and not self._closing:
            self._writing = True
            self._protocol.resume_writing()

    def _give(self) -> None:
        while self._arrived and self._reading and not self._here.broken:
            data = self._arrived[0]
            room = self._protocol.get_buffer(-1)
            count = min(len(room), len(data))
            assert count, "there is no room to receive into"
            room[:count] = data[:count]
            if count < len(data):
                self._arrived[0] = data[count:]
            else:
                self._arrived.popleft()
            self._connection.send(self._there, self.other.was_read, count)
            self._protocol.buffer_updated(count)
        if self._ended and self._reading and not self._arrived and not self._here.broken:
            self._ended = False
            if not self._protocol.eof_received():
                self.close()

    def _lost(self) -> None:
        self._closing = True
        self._reading = False
        if self._protocol is not None:
            self._protocol.connection_lost(None)

    # -- what the product uses

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high = high or self._high

    def write(self, data: Any) -> None:
        assert not self._said_last, "it writes after its end"
        if self._closing:
            return
        left = bytes(data)
        self._unread += len(left)
        while left:
            torn = self._loop.chance(TORN)
            count = self._loop.random.randint(1, len(left)) if torn else len(left)
            self._connection.send(self._there, self.other.arrive, left[:count])
            left = left[count:]
        if self._writing and self._unread > self._high:
            self._writing = False
            self._protocol.pause_writing()

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        if not self._said_last and not self._closing:
            self._said_last = True
            self._connection.send(self._there, self.other.arrive_end)

    def pause_reading(self) -> None:
        self._reading = False

    def resume_reading(self) -> None:
        if not self._closing and not self._reading:
            self._reading = True
            self._loop.call_soon(self._give)

    def is_closing(self) -> bool:
        return self._closing

    def close(self) -> None:
        if not self._closing:
            self.write_eof()
            self._closing = True
            self._reading = False
            self._connection.leave(self._here)

    def abort(self) -> None:
        self._closing = True
        self.abandon()
