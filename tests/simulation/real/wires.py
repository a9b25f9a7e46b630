"""TCP without sockets: listeners, and byte streams between simulated processes, which are slow, cut and reset.

What is above asyncio's transports in the product runs as it is: ports, framing, hellos, calls, back pressure. Bytes
arrive in order, in pieces that are torn anywhere, each late in its own way. While two machines are cut off from each
other nothing arrives. If that ends in time, all of it does, late. If not, an end whose bytes are not acknowledged gives
the connection up, which loses those that have not arrived. An end that has nothing to say hears nothing of that, nor of
a machine that has lost its power: it is half open, until what it says is answered with a reset, or not at all.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from contextvars import Context, copy_context
from typing import Any

from tests.simulation.real.loop import PROCESS, Process, VirtualLoop

TIMEOUT_S = (5.0, 15.0)
"""After so long an end gives up whose bytes are not acknowledged."""

CONNECT_TIMEOUT_S = 4.0

TORN = 0.3
"""How often what is written arrives in more than one piece."""


def machine_of(process: Process | None) -> str:
    return process.name.partition("#")[0] if process is not None else "clients"


def host_of(machine: str) -> str:
    """The address of a machine that is called by a letter and a number; that of clients otherwise."""
    return f"10.0.0.{machine[1:]}" if machine[1:].isdigit() else "10.0.1.1"


class Network:
    """Owns who listens where, all connections, and which machines are cut off from each other."""

    def __init__(self, loop: VirtualLoop, trace: Callable[[str], None]) -> None:
        self.loop = loop
        self.trace = trace
        self.listeners: dict[str, Listener] = {}
        self.connections: dict[int, Connection] = {}
        self.cuts: set[frozenset[str]] = set()
        self.latency_s = (0.0001, 0.005)
        self.faults: Callable[[str], None] = lambda what: None
        self._ports = 20_000
        self._known: set[str] = set()
        loop.network = self

    def bind(self, address: str, option: str) -> tuple[Listener, int]:
        host, _, port = address.rpartition(":")
        bound = self.new_port() if port == "0" else int(port)
        return Listener(self, f"{host}:{bound}"), bound

    def new_port(self) -> int:
        self._ports += 1
        return self._ports

    async def connect(self, factory: Callable[[], Any], host: str, port: int) -> tuple[End, Any]:
        """Raises `OSError` as asyncio does, some time later."""
        process = PROCESS.get()
        machine, address = machine_of(process), f"{host}:{port}"
        if self.is_cut(machine, host):
            await asyncio.sleep(CONNECT_TIMEOUT_S)
            raise TimeoutError("nobody answers")
        await asyncio.sleep(2 * self.delay())
        listener = self.listeners.get(address)
        if listener is None or self.is_cut(machine, host):
            raise ConnectionRefusedError(f"nobody listens at {address}")
        connection = Connection(self, machine, copy_context(), host, listener.context)
        connection.send(connection.dialler, listener.connected, connection.acceptor)
        self.watch(process)
        protocol = factory()
        connection.dialler.begin(protocol)
        return connection.dialler, protocol

    def watch(self, process: Process | None) -> None:
        """Its machine closes what it has open once it is dead."""
        if process is not None and process.name not in self._known:
            self._known.add(process.name)
            process.at_death.append(lambda: self._died(process))

    def _died(self, process: Process) -> None:
        for listener in [each for each in self.listeners.values() if each.context.get(PROCESS) is process]:
            listener.close()
        for connection in list(self.connections.values()):
            for end in (connection.dialler, connection.acceptor):
                if end.context.get(PROCESS) is process:
                    end.abandon(silent=process.power_lost)

    # ------------------------------------------------------------------ the nemesis

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
        return [
            each for each in self.connections.values() if {each.dialler.machine, each.acceptor.machine} == {one, other}
        ]


class Listener:
    """What `socket.create_server` gives, as far as the product uses it."""

    def __init__(self, network: Network, address: str) -> None:
        self._network = network
        self._address = address
        self.context = copy_context()
        self._waiting: deque[End] = deque()
        self._came = asyncio.Event()
        self._closed = False
        network.listeners[address] = self
        network.watch(PROCESS.get())

    def connected(self, end: End) -> None:
        """Somebody has connected, and waits to be accepted."""
        if self._closed:
            end.abandon()
            return
        self._waiting.append(end)
        self._came.set()

    async def accept(self) -> End:
        while not self._waiting:
            self._came.clear()
            await self._came.wait()
        return self._waiting.popleft()

    def close(self) -> None:
        self._closed = True
        if self._network.listeners.get(self._address) is self:
            del self._network.listeners[self._address]
        for end in self._waiting:
            end.abandon()
        self._waiting.clear()


class Connection:
    """Two ends, and what is on its way between them."""

    def __init__(self, network: Network, dials: str, dials_in: Context, accepts: str, accepts_in: Context) -> None:
        self.network = network
        self.number = network.new_port()
        self.dialler = End(self, dials, dials_in)
        self.acceptor = End(self, accepts, accepts_in)
        self.dialler.other, self.acceptor.other = self.acceptor, self.dialler
        network.connections[self.number] = self

    @property
    def cut(self) -> bool:
        return self.network.is_cut(self.dialler.machine, self.acceptor.machine)

    def send(self, end: End, action: Callable[..., None], *args: Any, answered: bool = True) -> None:
        """`action` runs at the other end, after all that was sent to it before; never if the connection breaks first.
        `answered`: its arrival is acknowledged."""
        to, loop = end.other, self.network.loop
        if end.broken:
            return
        to.arrives_at = max(loop.time() + self.network.delay(), to.arrives_at)
        if answered:
            end.unanswered += 1
            if self.cut or to.broken:
                end.doubt()
        loop.call_at(to.arrives_at, self._arrive, to, action, args, answered, context=to.context)

    def _arrive(self, to: End, action: Callable[..., None], args: tuple[Any, ...], answered: bool) -> None:
        if self.cut or to.held:  # what was held comes first
            to.held.append((action, args, answered))
        elif not to.broken:
            to.other.unanswered -= answered
            action(*args)
        elif answered:
            to.other.doubt()

    def _let_in(self, to: End) -> None:
        while to.held and not self.cut and not to.broken:
            action, args, answered = to.held.popleft()
            to.other.unanswered -= answered
            action(*args)

    def stall(self) -> None:
        """From now on nothing arrives."""
        for end in (self.dialler, self.acceptor):
            if end.unanswered:
                end.doubt()

    def flow(self) -> None:
        loop = self.network.loop
        for end in (self.dialler, self.acceptor):
            loop.call_later(self.network.delay(), self._let_in, end, context=end.context)
            end.is_sure()
            if end.other.broken and not end.broken and (end.unanswered or end.other.says_so):
                end.doubt()

    def forget(self) -> None:
        """Both ends are broken."""
        self.network.connections.pop(self.number, None)


class End(asyncio.Transport):
    """One end of a connection, as asyncio's transport of a socket. `broken`: its machine knows the connection no more.
    `silent`: and says nothing to whoever goes on with it. `says_so`: it tries to say that it has gone. `unanswered`:
    what was sent from here and is not acknowledged."""

    other: End

    def __init__(self, connection: Connection, machine: str, context: Context) -> None:
        super().__init__()
        self._connection = connection
        self.machine = machine
        self.context = context
        self.arrives_at = 0.0
        self.held: deque[tuple[Callable[..., None], tuple[Any, ...], bool]] = deque()
        self.broken = self.silent = self.says_so = False
        self.unanswered = 0
        self._doubts: asyncio.TimerHandle | None = None
        self._protocol: Any = None
        self._arrived: deque[bytes] = deque()
        self._ended = False  # the other end has said its last
        self._reading = False
        self._closing = False
        self._said_last = False
        self._unread = 0
        self._read = 0  # and not told yet
        self._writing = True
        self._high = 64 << 10

    @property
    def _loop(self) -> VirtualLoop:
        return self._connection.network.loop

    def begin(self, protocol: Any) -> None:
        """What has come since it was connected is read next."""
        self._protocol = protocol
        protocol.connection_made(self)
        self._reading = not self._closing
        self._loop.call_soon(self._give)
        if self.broken:
            self._loop.call_soon(self._lost)

    # -- how it ends

    def doubt(self) -> None:
        """What was said is not acknowledged. The other machine may say that it knows nothing of it; else this end gives
        up after a time of its own."""
        if self._doubts is None and not self.broken:
            network = self._connection.network
            told = self.other.broken and not self.other.silent and not self._connection.cut
            delay = network.delay() if told else self._loop.random.uniform(*TIMEOUT_S)
            self._doubts = self._loop.call_later(delay, self._give_up, context=Context())

    def is_sure(self) -> None:
        """The network lets pass what is between the two again."""
        if self._doubts is not None:
            self._doubts.cancel()
            self._doubts = None

    def _give_up(self) -> None:
        self._doubts = None
        if not self.other.broken:
            self._connection.network.faults("connection timed out")
            self.other.held.clear()
        self._break()

    def abandon(self, *, silent: bool = False) -> None:
        """It is closed, or its process has gone. Its machine says so to the other end, unless it has lost its power, or
        cannot reach it."""
        if self.broken:
            return
        cut, other = self._connection.cut, self.other
        self.silent = silent
        self.says_so = cut and not silent and self._loop.chance(0.5)
        self._break()
        if silent:
            other.held.clear()
        elif not cut:
            other.is_sure()
        if other.unanswered or not (cut or silent):
            other.doubt()

    def _break(self) -> None:
        if self.broken:
            return
        self.broken = True
        self.is_sure()
        if self._protocol is not None:
            self._loop.call_soon(self._lost, context=self.context)
        if self.other.broken:
            self._connection.forget()

    def _lost(self) -> None:
        self._closing = True
        self._reading = False
        protocol, self._protocol = self._protocol, None
        if protocol is not None:
            protocol.connection_lost(None)

    # -- what the connection brings

    def _hear(self, data: bytes) -> None:
        self._arrived.append(data)
        self._give()

    def _hear_end(self) -> None:
        self._ended = True
        self._give()

    def _was_read(self, count: int) -> None:
        self._unread -= count
        if not self._writing and self._unread <= self._high // 2 and not self._closing:
            self._writing = True
            self._protocol.resume_writing()

    def _give(self) -> None:
        while self._arrived and self._reading and not self.broken:
            data = self._arrived[0]
            room = self._protocol.get_buffer(-1)
            count = min(len(room), len(data))
            assert count, "there is no room to receive into"
            room[:count] = data[:count]
            if count < len(data):
                self._arrived[0] = data[count:]
            else:
                self._arrived.popleft()
            self._read += count
            if self._read > self.other._high // 4:  # what is not told does not keep the other end from writing
                self._connection.send(self, self.other._was_read, self._read, answered=False)
                self._read = 0
            self._protocol.buffer_updated(count)
        if self._ended and self._reading and not self._arrived and not self.broken:
            self._ended = False
            if not self._protocol.eof_received():
                self.close()

    # -- what the product uses

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        if name == "peername":
            return host_of(self.other.machine), self._connection.number
        return default

    def set_protocol(self, protocol: Any) -> None:
        self._protocol = protocol

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
            self._connection.send(self, self.other._hear, left[:count])
            left = left[count:]
        if self._writing and self._unread > self._high:
            self._writing = False
            self._protocol.pause_writing()

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        if not self._said_last and not self._closing:
            self._said_last = True
            self._connection.send(self, self.other._hear_end)

    def pause_reading(self) -> None:
        self._reading = False

    def resume_reading(self) -> None:
        if not self._closing and not self._reading:
            self._reading = True
            self._loop.call_soon(self._give)

    def is_closing(self) -> bool:
        return self._closing

    def close(self) -> None:
        """What was written arrives before the end, if the network lets it."""
        if not self._closing:
            self.write_eof()
            self._closing = True
            self._reading = False
            self._break()

    def abort(self) -> None:
        self._closing = True
        self.abandon()
