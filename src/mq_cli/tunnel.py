"""An HTTP CONNECT tunnel to the brokers of one cluster: what `tritonmq proxy` runs, on one event loop.

It moves bytes and understands none of them: TLS, rights, order, exactly-once and back pressure are between the client
and the broker. It connects to addresses at which brokers serve clients, as the cluster's metadata and its own bootstrap
name them, and to nothing else.

Whoever connects is a stranger. A request has a bound and a deadline, and takes no more memory than its bound. Of
connections that have not said theirs there are at most `UNSAID_MAX`: for a further one the oldest goes, of whoever has
the most, so nobody keeps others out by being silent. Each tunnel holds at most one piece in each direction: it reads
nothing from one end while the other one has not taken what was read before.
"""

from __future__ import annotations

import asyncio
import logging
import re
import socket
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum, auto
from functools import partial
from typing import Final, cast

from mq_client.cluster.connection import Connection
from mq_client.cluster.deadline import Deadline
from mq_protocol.addresses import origin, parse_address
from mq_protocol.errors import InvalidSetting, TritonMQError

log = logging.getLogger(__name__)

HEAD_BYTES_MAX: Final = 4 << 10
"""Of a request. gRPC sends about 150 bytes."""

HEAD_S: Final = 5.0
"""How long a request may take to arrive."""

CONNECT_S: Final = 1.5
"""How long a broker may take to be connected, and the cluster to be asked before for an address that is not known. gRPC
gives an attempt up after 2 s, and is to hear of it before."""

HALF_OPEN_S: Final = 30.0
"""How long one direction may last once the other one has ended."""

CLOSING_S: Final = 5.0
"""How long the other end may take for what is left, once one end is gone."""

BACKLOG: Final = 1_024

LINGER_S: Final = 1.0
"""How long somebody who was refused may take to read why."""

UNSAID_MAX: Final = 256
"""Connections that have not said where they want to go."""

PIECE_BYTES: Final = 128 << 10
"""What is read at once, and what a tunnel holds in each direction at most."""

REFRESH_S: Final = 10.0
"""How often the cluster is asked for its brokers."""

AGAIN_S: Final = 1.0
"""An address that is not known has it asked at once, but not more often."""

REMEMBER_S: Final = 600.0
"""For so long after it was told last an address counts: of a broker that is down, or while nobody can be asked."""

ASK_MS: Final = 5_000.0

TELL_S: Final = 10.0
"""How often is logged what was refused."""

_REQUEST: Final = re.compile(rb"CONNECT ([!-~]{1,260}) HTTP/1\.[01]\r\n")
_BEGINNING: Final = re.compile(rb"[A-Z]{0,16}($| )")
"""Of any request of HTTP. gRPC without a tunnel begins with PRI."""

_OK: Final = b"HTTP/1.1 200 Connection established\r\n\r\n"


class Refusal(Enum):
    """Why there is no tunnel: the status line, and words for a person."""

    BAD = "400 Bad Request", "this is an HTTP CONNECT tunnel to TritonMQ brokers, and that is no request for it"
    FORBIDDEN = "403 Forbidden", "that is no address at which a broker of this tunnel's cluster serves clients"
    METHOD = "405 Method Not Allowed", "this is an HTTP CONNECT tunnel to TritonMQ brokers: give its address as via"
    LATE = "408 Request Timeout", "the request did not arrive in time"
    LONG = "431 Request Header Fields Too Large", "the request is too long"
    BROKER = "502 Bad Gateway", "the broker there cannot be reached"
    FULL = "503 Service Unavailable", "there are too many connections"
    SILENT = "504 Gateway Timeout", "the broker there does not answer"
    UNSURE = "504 Gateway Timeout", "no broker is known there, and the cluster cannot be asked for its brokers"

    @property
    def answer(self) -> bytes:
        status, words = self.value
        head = f"HTTP/1.1 {status}\r\nConnection: close\r\nContent-Type: text/plain\r\nContent-Length: {len(words) + 1}"
        return f"{head}\r\n\r\n{words}\n".encode("ascii")


def wanted(head: bytes) -> str | Refusal | None:
    """The address that a request wants, as it is compared; None: the request is not whole yet."""
    if not _BEGINNING.match(head):
        return Refusal.BAD
    if b"\r\n\r\n" not in head:
        return Refusal.LONG if len(head) >= HEAD_BYTES_MAX else None
    found = _REQUEST.match(head)
    if found is None:
        return Refusal.BAD if head.startswith(b"CONNECT ") else Refusal.METHOD
    try:
        return compared(found[1].decode("ascii"))
    except InvalidSetting:
        return Refusal.BAD


def compared(address: str) -> str:
    """`HOST:PORT` in the form in which addresses are compared. Raises `InvalidSetting`."""
    host, port = parse_address(address)
    return f"{host.lower()}:{port}"


class Addresses:
    """Owns where the brokers of one cluster serve clients, as it was told last. On the event loop, but for asking."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._bootstrap = frozenset(compared(address) for address in connection.bootstrap)
        self._told: dict[str, float] = {}
        self._asked_at = -AGAIN_S
        self._asking: asyncio.Task[None] | None = None
        self._thread = ThreadPoolExecutor(1, "tritonmq-proxy-addresses")
        self._fault = ""

    async def allow(self, address: str) -> bool:
        """Whether it is one of theirs. Of one that is not known they are asked first."""
        if self._knows(address):
            return True
        await self._refresh()
        return self._knows(address)

    async def keep_fresh(self) -> None:
        """Ask again and again, until it is cancelled."""
        while True:
            await self._refresh()
            await asyncio.sleep(REFRESH_S)

    @property
    def is_unsure(self) -> bool:
        """Whether the cluster could not be asked last."""
        return bool(self._fault)

    def close(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _knows(self, address: str) -> bool:
        now = asyncio.get_running_loop().time()
        return address in self._bootstrap or now - self._told.get(address, -REMEMBER_S) < REMEMBER_S

    async def _refresh(self) -> None:
        """All who want to know share one question."""
        loop = asyncio.get_running_loop()
        if self._asking is None or self._asking.done():
            if loop.time() - self._asked_at < AGAIN_S:
                return
            self._asking = loop.create_task(self._ask())
        await asyncio.shield(self._asking)

    async def _ask(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            told = await loop.run_in_executor(self._thread, self._connection.metadata, Deadline(ASK_MS))
        except TritonMQError as error:
            if str(error) != self._fault:
                self._fault = str(error)
                log.warning("the cluster cannot be asked for its brokers, those known are served further: %s", error)
        else:
            if self._fault:
                self._fault = ""
                log.info("the cluster answers again")
            now = loop.time()
            for broker in told.brokers:
                for address in (broker.address, broker.stream_address):
                    with suppress(InvalidSetting):  # there is none, or none that can be dialled
                        self._told[compared(address)] = now
            self._told = {address: when for address, when in self._told.items() if now - when < REMEMBER_S}
        finally:
            self._asked_at = loop.time()


@dataclass(frozen=True, slots=True)
class Bounds:
    """Tunnels in all, and for one address that they come from."""

    connections_max: int
    connections_per_address_max: int


class _End(asyncio.BufferedProtocol):
    """One end of a tunnel: what it reads is written to `other`."""

    def __init__(self, piece: bytearray) -> None:
        self._piece = piece  # shared by all ends: what was read is passed on before anything else is read
        self._transport: asyncio.Transport | None = None
        self.other: _End | None = None
        self.ended = False

    @property
    def transport(self) -> asyncio.Transport:
        assert self._transport is not None
        return self._transport

    @property
    def is_closing(self) -> bool:
        return self._transport is None or self._transport.is_closing()

    # -- called by the loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(0)
        _watch_over(self._transport)

    def get_buffer(self, _sizehint: int) -> bytearray:
        return self._piece

    def buffer_updated(self, count: int) -> None:
        if self.other is not None and not self.other.is_closing:
            self.other.transport.write(bytes(memoryview(self._piece)[:count]))

    def pause_writing(self) -> None:
        if self.other is not None and not self.other.is_closing:
            self.other.transport.pause_reading()

    def resume_writing(self) -> None:
        if self.other is not None and not self.other.is_closing:
            self.other.transport.resume_reading()

    def eof_received(self) -> bool:
        """Whether the connection stays: the other direction goes on, for a while."""
        self.ended = True
        if self.other is None or self.other.ended or self.other.is_closing:
            return False
        _say_last(self.other.transport)
        asyncio.get_running_loop().call_later(HALF_OPEN_S, self.other.transport.abort)
        return True

    def connection_lost(self, _error: Exception | None) -> None:
        self.ended = True
        if self.other is not None:
            _close(self.other.transport)


def _close(transport: asyncio.Transport) -> None:
    """Once the far end has taken what is left, or soon."""
    transport.close()
    asyncio.get_running_loop().call_later(CLOSING_S, transport.abort)


def _say_last(transport: asyncio.Transport) -> None:
    """End the direction to the far end. It may have reset the connection just now, and nobody else would hear of that
    while nothing is read."""
    try:
        transport.write_eof()
    except OSError:
        transport.abort()


def _watch_over(transport: asyncio.Transport) -> None:
    """A machine that has vanished is noticed within a minute, also while nothing is sent."""
    opened = transport.get_extra_info("socket")
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 3)):
        if hasattr(socket, name):
            opened.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


class _Far(_End):
    """The end of a broker. A broker may speak first, so it is joined to its guest before anything is read."""

    def __init__(self, guest: Guest, piece: bytearray) -> None:
        super().__init__(piece)
        self._guest = guest

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._guest.join(self)


class _State(Enum):
    SAYING = auto()  # where it wants to go
    WAITING = auto()
    JOINED = auto()
    OVER = auto()


class Guest(_End):
    """The end of a client. `host`: where it comes from, of IPv6 the network."""

    def __init__(self, tunnel: Tunnel, piece: bytearray) -> None:
        super().__init__(piece)
        self.host = ""
        self._tunnel = tunnel
        self._state = _State.SAYING
        self._head = bytearray()
        self._room = bytearray()
        self._rest = b""
        self._timer: asyncio.TimerHandle | None = None
        self._going: asyncio.Task[None] | None = None

    # -- called by the loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        peer = self.transport.get_extra_info("peername")  # None: it has gone already
        self.host = origin(peer[0]) if peer else ""
        self._timer = asyncio.get_running_loop().call_later(HEAD_S, self.refuse, Refusal.LATE)
        self._tunnel.came(self)

    def get_buffer(self, sizehint: int) -> bytearray:
        if self._state in (_State.JOINED, _State.OVER):  # of one that is over all is dropped, in large pieces
            return super().get_buffer(sizehint)
        self._room = bytearray(max(1, HEAD_BYTES_MAX - len(self._head)))
        return self._room

    def buffer_updated(self, count: int) -> None:
        if self._state is _State.JOINED:
            super().buffer_updated(count)
        elif self._state is _State.SAYING:
            self._head += self._room[:count]
            self._heard(wanted(bytes(self._head)))

    def eof_received(self) -> bool:
        return super().eof_received() if self._state is _State.JOINED else False

    def connection_lost(self, error: Exception | None) -> None:
        self._state = _State.OVER
        if self._timer is not None:
            self._timer.cancel()
        if self._going is not None:
            self._going.cancel()
        super().connection_lost(error)
        self._tunnel.left(self)

    # -- called by the tunnel

    def refuse(self, refusal: Refusal, address: str = "") -> None:
        """Say why, and end the connection."""
        if self._state in (_State.SAYING, _State.WAITING):
            self._state = _State.OVER
            self._tunnel.refused(self, refusal, address)
            self.transport.write(refusal.answer)
            if refusal is Refusal.FULL:
                self.transport.close()
                return
            # What is left unread would have the kernel take the answer back
            _say_last(self.transport)
            self.transport.resume_reading()
            asyncio.get_running_loop().call_later(LINGER_S, self.transport.abort)

    def give_way(self) -> None:
        """End the connection, which has said nothing, without a word."""
        self._state = _State.OVER
        self.transport.abort()

    def join(self, far: _Far) -> None:
        """Both ends are there."""
        if self._state is not _State.WAITING:
            far.transport.abort()
            return
        self._state = _State.JOINED
        self.other, far.other = far, self
        self.transport.write(_OK)
        if self._rest:
            far.transport.write(self._rest)
        if not far.transport.get_write_buffer_size():
            self.transport.resume_reading()

    def _heard(self, want: str | Refusal | None) -> None:
        if want is None:
            return
        if self._timer is not None:
            self._timer.cancel()
        if isinstance(want, Refusal):
            # It has not said where it wants to go: it takes no place of those who have while it reads why
            self.refuse(want)
            return
        self._tunnel.said(self)
        self._state = _State.WAITING
        self.transport.pause_reading()
        self._rest = bytes(self._head.partition(b"\r\n\r\n")[2])
        self._going = asyncio.get_running_loop().create_task(self._go(want))

    async def _go(self, address: str) -> None:
        refusal = await self._tunnel.connect(self, address)
        if refusal is not None:
            self.refuse(refusal, address)


class Tunnel:
    """Owns the connections."""

    def __init__(self, addresses: Addresses, bounds: Bounds) -> None:
        self._addresses = addresses
        self._bounds = bounds
        self._piece = bytearray(PIECE_BYTES)
        self._unsaid: dict[Guest, None] = {}  # the oldest first
        self._unsaid_of: Counter[str] = Counter()
        self._said: set[Guest] = set()
        self._said_of: Counter[str] = Counter()
        self._refused = 0
        self._last_refused = ""

    def guest(self) -> Guest:
        """For a connection that was just accepted."""
        return Guest(self, self._piece)

    def end(self) -> None:
        """All at once."""
        for guest in [*self._unsaid, *self._said]:
            guest.transport.abort()

    async def tell(self) -> None:
        """Log what was refused, now and then, until it is cancelled: a stranger must not fill the log."""
        while True:
            await asyncio.sleep(TELL_S)
            if self._refused:
                log.warning(
                    "refused %d connections in %g s; the last one %s", self._refused, TELL_S, self._last_refused
                )
                self._refused = 0

    @property
    def counts(self) -> tuple[int, int]:
        """Connections that have not said where they want to go, and those that have."""
        return len(self._unsaid), len(self._said)

    # -- called by guests

    def came(self, guest: Guest) -> None:
        self._unsaid[guest] = None
        self._unsaid_of[guest.host] += 1
        if len(self._unsaid) > UNSAID_MAX:
            most = max(self._unsaid_of.values())
            oldest = next(each for each in self._unsaid if self._unsaid_of[each.host] == most)
            self._forget(oldest)
            self._note(f"from {oldest.host} had said nothing, and made room for another one")
            oldest.give_way()

    def said(self, guest: Guest) -> None:
        if guest in self._unsaid:
            self._forget(guest)
            self._said.add(guest)
            self._said_of[guest.host] += 1

    def left(self, guest: Guest) -> None:
        self._forget(guest)
        if guest in self._said:
            self._said.remove(guest)
            _less(self._said_of, guest.host)

    def refused(self, guest: Guest, refusal: Refusal, address: str) -> None:
        to = f" to {address}" if address else ""
        self._note(f"from {guest.host}{to}: {refusal.value[0]}, {refusal.value[1]}")

    async def connect(self, guest: Guest, address: str) -> Refusal | None:
        """Join it to the broker there; or why it is not."""
        of_this = self._said_of[guest.host]
        if len(self._said) > self._bounds.connections_max or of_this > self._bounds.connections_per_address_max:
            return Refusal.FULL
        loop = asyncio.get_running_loop()
        until = loop.time() + CONNECT_S
        try:
            async with asyncio.timeout_at(until):
                allowed = await self._addresses.allow(address)
        except TimeoutError:
            return Refusal.UNSURE
        if not allowed:
            return Refusal.UNSURE if self._addresses.is_unsure else Refusal.FORBIDDEN
        host, port = parse_address(address)
        try:
            async with asyncio.timeout_at(until):
                await loop.create_connection(partial(_Far, guest, self._piece), host.strip("[]"), port)
        except TimeoutError:
            return Refusal.SILENT
        except (OSError, UnicodeError):  # the latter of a name that is none, as `b..example`
            return Refusal.BROKER
        return None

    def _forget(self, guest: Guest) -> None:
        if guest in self._unsaid:
            del self._unsaid[guest]
            _less(self._unsaid_of, guest.host)

    def _note(self, text: str) -> None:
        self._refused += 1
        self._last_refused = text


def _less(counter: Counter[str], key: str) -> None:
    counter[key] -= 1
    if not counter[key]:
        del counter[key]


async def run(listener: socket.socket, addresses: Addresses, bounds: Bounds, stop: asyncio.Event) -> None:
    """Serve on a socket that is bound, until `stop`. What is open then is ended."""
    tunnel = Tunnel(addresses, bounds)
    loop = asyncio.get_running_loop()
    server = await loop.create_server(tunnel.guest, sock=listener, backlog=BACKLOG)
    beside = [loop.create_task(addresses.keep_fresh()), loop.create_task(tunnel.tell())]
    try:
        await stop.wait()
    finally:
        server.close()
        for task in beside:
            task.cancel()
        tunnel.end()
        addresses.close()
