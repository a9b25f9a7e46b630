"""Calls at a broker's stream port on an event loop: what pushes to consumers and to members of queues goes over.

Everything here is on the loop, which must not be held up. What is received waits up to `UNREAD_BYTES`, then in TCP.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections import deque
from typing import Any, Final

from mq_client.cluster.channels import Client
from mq_client.cluster.credentials import current
from mq_client.cluster.streams import CONNECT_S, NoStreamPort, open_message, raise_error
from mq_client.errors import TritonMQError, Unreachable
from mq_protocol.addresses import parse_address
from mq_protocol.envelope import Buffer
from mq_protocol.framing import STREAM, Receiver
from mq_protocol.limits import MESSAGE_BYTES_MAX
from mq_protocol.streams import PING_S, PREAMBLE, SILENCE_S, Kind, Said, said, say

GREETING_S: Final = 5.0
"""How long the handshake and the first word may take, once there is a connection: many may be made at once."""

ADDRESSES_MAX: Final = 4
"""So many of a host's addresses are tried."""

UNREAD_BYTES: Final = 1 << 20
WRITE_BUFFER_BYTES: Final = 256 << 10
LOOK_S: Final = 2.5

_LEFT: Final = memoryview(bytearray(64 << 10))
"""Where bytes go that nobody listens to any more. It is never read."""


class StreamCall(asyncio.BufferedProtocol):
    """Owns one connection, which carries one call to the broker at `address`."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._loop = asyncio.get_running_loop()
        self._receiver = Receiver(MESSAGE_BYTES_MAX, MESSAGE_BYTES_MAX, spoken=STREAM)
        self._transport: asyncio.Transport | None = None
        self._unread: deque[Said] = deque()
        self._unread_bytes = 0
        self._reading = True
        self._reader: asyncio.Future[None] | None = None
        self._room = asyncio.Event()
        self._room.set()
        self._error: TritonMQError | None = None  # why nothing more comes
        self._heard_at = self._loop.time()
        self._look: asyncio.TimerHandle | None = None

    # ------------------------------------------------------------------ for whoever calls

    async def greeted(self) -> None:
        """Until the far side has begun as a stream port does. Raises `TritonMQError` if it has not."""
        while self._receiver.version == 0:
            await self._arrival()

    def open(self, method: str) -> None:
        self._send(open_message(method))
        self._look = self._loop.call_later(LOOK_S, self._look_after)

    async def read(self) -> Said | None:
        """The next message; None once the broker has answered its last. Raises the broker's error, or `Unreachable`
        once the connection has ended or the broker has said nothing for `SILENCE_S`."""
        while not self._unread:
            await self._arrival()
        message = self._unread.popleft()
        self._unread_bytes -= message.nbytes
        if not self._unread:
            self._take()
        if message.kind is Kind.END:
            return None
        raise_error(message)
        return message

    async def write(self, pieces: list[Buffer]) -> None:
        """Waits while TCP takes nothing. That the call is over shows where it is read."""
        self._send(pieces)
        await self._room.wait()

    def end(self) -> None:
        """The last that this end says."""
        self._send(say(Kind.END))

    def cancel(self) -> None:
        """Let go of the connection."""
        self._fail(Unreachable("the call was ended here"))
        if self._look is not None:
            self._look.cancel()
        if self._transport is not None:
            self._transport.abort()

    # ------------------------------------------------------------------ what asyncio tells

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        transport.set_write_buffer_limits(high=WRITE_BUFFER_BYTES)
        transport.write(PREAMBLE)

    def get_buffer(self, sizehint: int) -> Any:
        return _LEFT if self._error is not None else self._receiver.buffer()

    def buffer_updated(self, nbytes: int) -> None:
        if self._error is None:
            self._heard_at = self._loop.time()
            self._receiver.received(nbytes)
            self._take()

    def eof_received(self) -> None:
        self._fail(self._broken("it has ended the connection"))

    def connection_lost(self, exc: Exception | None) -> None:
        self._fail(self._broken(str(exc or "the connection has ended")))
        self._transport = None  # else the two hold each other until the collector of cycles comes
        if self._look is not None:
            self._look.cancel()

    def pause_writing(self) -> None:
        self._room.clear()

    def resume_writing(self) -> None:
        self._room.set()

    # ------------------------------------------------------------------ private

    def _send(self, pieces: list[Buffer]) -> None:
        transport = self._transport
        if transport is not None and not transport.is_closing():
            transport.write(b"".join(pieces))

    def _take(self) -> None:
        """What is whole, up to the bound of what may wait."""
        asked = False
        try:
            while self._error is None and self._unread_bytes < UNREAD_BYTES:
                found = self._receiver.next()
                if found is None:
                    break
                message = said(found)
                if message.kind is Kind.PING:
                    asked = True
                elif message.kind is not Kind.PONG:
                    self._unread.append(message)
                    self._unread_bytes += message.nbytes
        except TritonMQError as error:
            self._fail(error)
        if asked:
            self._send(say(Kind.PONG))
        self._flow()
        self._wake()

    def _flow(self) -> None:
        """Receive, or leave what comes in TCP."""
        transport = self._transport
        reading = self._unread_bytes < UNREAD_BYTES
        if transport is None or reading is self._reading or transport.is_closing() or self._error is not None:
            return
        self._reading = reading
        if reading:
            self._heard_at = self._loop.time()
            transport.resume_reading()
        else:
            transport.pause_reading()

    async def _arrival(self) -> None:
        """Until something has come. Raises why nothing will."""
        if self._error is not None:
            raise self._error
        self._reader = self._loop.create_future()
        try:
            await self._reader
        finally:
            self._reader = None

    def _wake(self) -> None:
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)

    def _look_after(self) -> None:
        """Whether the broker is still there. While nothing is received it may have spoken all the same."""
        self._look = self._loop.call_later(LOOK_S, self._look_after)
        if not self._reading:
            # A PING of the broker's waits in TCP, and who does not answer it for long is cut off
            if self._room.is_set():
                self._send(say(Kind.PONG))
            return
        silent_s = self._loop.time() - self._heard_at
        if silent_s >= SILENCE_S:
            self._fail(self._broken(f"it has said nothing for {SILENCE_S:.0f} s"))
            self.cancel()
        elif silent_s >= PING_S:
            self._send(say(Kind.PING))

    def _fail(self, error: TritonMQError) -> None:
        if self._error is None:
            self._error = error
        self._room.set()
        self._wake()

    def _broken(self, why: str) -> Unreachable:
        return Unreachable(f"broker at {self._address} cannot be reached: {why}")


async def dial(stream_address: str, address: str, client: Client) -> StreamCall:
    """A connection on which both ends have said what they speak; `StreamCall.open` is next. Raises `NoStreamPort`."""
    name = parse_address(stream_address)[0].strip("[]")
    credentials = current(client.security)
    if credentials.tls is None and credentials.channel is not None:
        raise NoStreamPort("a token is shown by gRPC alone")
    loop = asyncio.get_running_loop()
    call: StreamCall | None = None
    try:
        connection = await _connected(stream_address)
        async with asyncio.timeout(GREETING_S):
            _, call = await loop.create_connection(
                lambda: StreamCall(address),
                sock=connection,
                ssl=credentials.tls,
                server_hostname=name if credentials.tls is not None else None,
            )
            await call.greeted()
            greeted, call = call, None
            return greeted
    except (OSError, UnicodeError, TritonMQError) as error:
        raise NoStreamPort(f"stream port {stream_address}: {error or 'no answer'}") from error
    finally:
        if call is not None:
            call.cancel()


async def _connected(address: str) -> socket.socket:
    """A connection to one of the addresses that the host has, as `socket.create_connection` makes it: each is given
    `CONNECT_S`. It does not block. Raises `OSError`."""
    host, port = parse_address(address)
    async with asyncio.timeout(CONNECT_S):
        found = await asyncio.get_running_loop().getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM)
    failed: OSError = ConnectionError("the host has no address")
    for family, _, _, _, where in found[:ADDRESSES_MAX]:
        try:
            async with asyncio.timeout(CONNECT_S):
                return await _connected_to(family, where)
        except OSError as error:
            failed = error
    raise failed


async def _connected_to(family: int, where: Any) -> socket.socket:
    with contextlib.ExitStack() as unless_connected:
        connection = unless_connected.enter_context(socket.socket(family, socket.SOCK_STREAM))
        connection.setblocking(False)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        await asyncio.get_running_loop().sock_connect(connection, where)
        unless_connected.pop_all()
        return connection
