"""A connection to a broker on an event loop, which carries one call after another (call.py).

Everything here is on the loop, which must not be held up. What is received waits up to `UNREAD_BYTES`, then in TCP.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections import deque
from collections.abc import Sequence
from typing import Any, Final

from mq_protocol import mq_pb2 as pb
from mq_protocol.addresses import parse_address
from mq_protocol.errors import IncompatibleVersion, InvalidSetting, TritonMQError, Unreachable
from mq_protocol.limits import MESSAGE_BYTES_MAX
from mq_protocol.wire.call import GREETING_S, LOOK_S, PREAMBLE, CallMachine, Kind, Said, Side, State, error_of
from mq_protocol.wire.envelope import Buffer

UNREAD_BYTES: Final = 1 << 20
WRITE_BUFFER_BYTES: Final = 256 << 10

_LEFT: Final = memoryview(bytearray(64 << 10))
"""Where bytes go that nobody listens to any more. It is never read."""


class Connection(asyncio.BufferedProtocol):
    """Owns one connection. `address`: the broker's, as errors have it."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._loop = asyncio.get_running_loop()
        self._machine = CallMachine(Side.CLIENT, MESSAGE_BYTES_MAX, self._loop.time())
        self._transport: asyncio.Transport | None = None
        self._unread: deque[Said] = deque()
        self._unread_bytes = 0
        self._reading = True
        self._reader: asyncio.Future[None] | None = None
        self._room = asyncio.Event()
        self._room.set()
        self._error: TritonMQError | None = None  # why nothing more comes
        self._look: asyncio.TimerHandle | None = None

    # ------------------------------------------------------------------ for whoever calls

    async def greeted(self) -> None:
        """Until the far side has begun as a broker does. Raises `TritonMQError` if it has not."""
        while not self._machine.is_greeted:
            await self._arrival()

    def fileno(self) -> int:
        """Of its socket; -1 once that is closed."""
        connection = None if self._transport is None else self._transport.get_extra_info("socket")
        return -1 if connection is None else int(connection.fileno())

    @property
    def is_free(self) -> bool:
        """It stands, and another call may be opened."""
        return self._error is None and not self._unread and self._machine.state is State.IDLE

    def open(self, opened: pb.CallOpen) -> None:
        """Begin a call. That the broker has ended the connection meanwhile shows where it is read."""
        if self._machine.state is State.ENDED:
            return
        self._machine.goes_on(self._loop.time())  # between two calls nobody says anything
        self._send(self._machine.open(opened))
        if not opened.timeout_ms and self._look is None:
            self._look = self._loop.call_later(LOOK_S, self._look_after)

    async def read(self) -> Said | None:
        """The next answer; None once the broker has answered its last. Raises the broker's error, or `Unreachable` once
        the connection has ended or the broker has been silent for long."""
        while not self._unread:
            await self._arrival()
        message = self._unread.popleft()
        self._unread_bytes -= message.nbytes
        if not self._unread:
            self._take()
        if (error := error_of(message)) is not None:
            raise error
        return None if message.kind is Kind.END else message

    async def write(self, body: bytes, parts: Sequence[Buffer] = ()) -> None:
        """Waits while TCP takes nothing. That the call is over shows where it is read."""
        if self._machine.state is State.OPEN:
            self._send(self._machine.say(Kind.MESSAGE, body, parts))
            await self._room.wait()

    def end(self) -> None:
        """The last that this end says in this call."""
        if self._machine.state is State.OPEN:
            self._send(self._machine.say(Kind.END))

    async def ask(self, opened: pb.CallOpen, body: bytes) -> Said:
        """A call with one request and one answer. Raises as `read`."""
        self.open(opened)
        await self.write(body)
        self.end()
        answer = await self.read()
        if answer is None or await self.read() is not None:
            raise self._broken("it has answered otherwise than once")
        return answer

    def close(self) -> None:
        """Let go of the connection. Whoever reads hears `Unreachable`."""
        self._fail(Unreachable("the call was ended here"))
        if self._look is not None:
            self._look.cancel()
        if self._transport is not None:
            self._transport.abort()

    # ------------------------------------------------------------------ what asyncio tells

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        connection = transport.get_extra_info("socket")
        if connection is not None:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        transport.set_write_buffer_limits(high=WRITE_BUFFER_BYTES)
        transport.write(PREAMBLE)

    def get_buffer(self, sizehint: int) -> Any:
        return _LEFT if self._error is not None else self._machine.buffer()

    def buffer_updated(self, nbytes: int) -> None:
        if self._error is None:
            self._machine.received(nbytes, self._loop.time())
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
        if pieces and transport is not None and not transport.is_closing():
            transport.write(b"".join(pieces))

    def _take(self) -> None:
        """What is whole, up to the bound of what may wait."""
        try:
            while self._error is None and self._unread_bytes < UNREAD_BYTES:
                message = self._machine.next()
                if message is None:
                    break
                self._unread.append(message)
                self._unread_bytes += message.nbytes
        except IncompatibleVersion as error:
            self._fail(error)
        except TritonMQError as error:  # what was asked may have been heard, whatever it has said
            self._fail(self._broken(str(error)))
        self._send(self._machine.answer())
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
            self._machine.goes_on(self._loop.time())
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
        """Whether the broker is still there, while a call is under way."""
        self._look = None
        if self._machine.state is State.IDLE:
            return
        self._look = self._loop.call_later(LOOK_S, self._look_after)
        try:
            pieces = self._machine.look(self._loop.time(), reads=self._reading)
        except Unreachable as silent:
            self._fail(self._broken(str(silent)))
            self.close()
            return
        if self._room.is_set():
            self._send(pieces)

    def _fail(self, error: TritonMQError) -> None:
        if self._error is None:
            self._error = error
        self._room.set()
        self._wake()

    def _broken(self, why: str) -> Unreachable:
        return Unreachable(f"broker at {self.address} cannot be reached: {why}")


async def connect(dialled: str, address: str, connect_s: float, tls: ssl.SSLContext | None = None) -> Connection:
    """A connection to `dialled` on which both ends have said what they speak. `address`: of the broker that is meant,
    as errors have it. Raises `Unreachable`, and `IncompatibleVersion`."""
    loop = asyncio.get_running_loop()
    connection: Connection | None = None
    try:
        host, port = parse_address(dialled)
        name = host.strip("[]")
        async with asyncio.timeout(connect_s if tls is None else max(connect_s, GREETING_S)):
            _, connection = await loop.create_connection(
                lambda: Connection(address), name, port, ssl=tls, server_hostname=name if tls is not None else None
            )
            await connection.greeted()
            greeted, connection = connection, None
            return greeted
    except (OSError, UnicodeError, TimeoutError, InvalidSetting) as error:
        raise Unreachable(f"broker at {address} cannot be reached: {str(error) or 'no answer'}") from error
    finally:
        if connection is not None:
            connection.close()
