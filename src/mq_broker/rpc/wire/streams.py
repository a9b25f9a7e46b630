"""A broker's calls: the port for clients, and the one for other brokers, on TCP or on TLS above it.
mq_protocol/wire/call.py has what is said.

A connection carries one call at a time; its task is the connection's, and ends with it. What is received waits in TCP
while nobody reads it: little more than one message is in memory. Of a call nothing is received before the gate has let
it in, and of a large message nothing before there is room for it (arriving.py).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from mq_broker.rpc.callers import account
from mq_broker.rpc.pacing import Present
from mq_broker.rpc.wire.arriving import WHOLE_S, Arriving, Memory
from mq_broker.rpc.wire.framed import joined, peer_of, prepare, proved, say_last
from mq_protocol import mq_pb2 as pb
from mq_protocol.errors import InvalidRequest, TritonMQError, Unreachable
from mq_protocol.limits import (
    HANDSHAKE_TIMEOUT_MS,
    PRODUCE_HEADER_BYTES_MAX,
)
from mq_protocol.methods import Method
from mq_protocol.wire.call import OPEN_BYTES_MAX, PREAMBLE, CallMachine, Kind, Said, Side, parsed
from mq_protocol.wire.envelope import Buffer

log = logging.getLogger(__name__)

ACCEPTS_PER_S: Final = 500
"""A handshake of TLS takes the loop about a millisecond. Whoever comes when there are more waits in TCP."""

IDLE_MS: Final = 60_000
"""Without a call for so long a connection is closed, or after the last answer of one that its client does not end.
Clients keep one for half of that."""

CALL_MS_MAX: Final = 300_000
"""A call with a deadline ends after so long in any case: its client need not answer when it is asked whether it is
there."""

UNREAD_BYTES: Final = 64 << 10
"""Of messages that wait for whoever reads them; then no more is received."""

FIRST_REQUEST_S: Final = HANDSHAKE_TIMEOUT_MS / 1000
"""How long a call may be open before its client asks something, and up to `_LOOK_S` more."""

_MESSAGE_BYTES: Final = 128
"""About what a message takes beside its bytes, so that a flood of empty ones is bounded too."""

SECURED_PIECE_BYTES: Final = 64 << 10
"""What TLS is given at once. asyncio hands on all that it is given while the socket below has room, and tells of what
waits there only with the next piece: a large message would count as sent while all of it is in memory."""

LINGER_S: Final = 1.0
"""How long the far side is given to read why a call ends."""

TURN_S: Final = 0.002
"""For so long one connection's calls and messages are answered before other work of the loop has its turn: as long as
they are there, nothing that is awaited has to wait."""

_LEFT: Final = memoryview(bytearray(64 << 10))
"""Where bytes go that nobody listens to any more. It is never read."""

_LOOK_S: Final = 5.0
_AGE_SPREAD: Final = 0.1


class StreamWire(asyncio.BufferedProtocol):
    """Owns one connection, and is the `Call` that is under way on it (call.py)."""

    is_by_grpc = False

    def __init__(self, message_bytes_max: int, memory: Memory) -> None:
        self._message_bytes_max = message_bytes_max
        self._arriving = Arriving(memory)
        self._loop = asyncio.get_running_loop()
        self._machine = CallMachine(Side.BROKER, OPEN_BYTES_MAX, self._loop.time())
        self.opened = pb.CallOpen()
        self._ends_at: float | None = None  # of the call, by the client's word
        self._transport: asyncio.Transport | None = None
        self._task: asyncio.Task[None] | None = None
        self._unread: deque[tuple[Said, int]] = deque()  # each with what is counted of it
        self._unread_bytes = 0
        self._reader: asyncio.Future[None] | None = None
        self._reading = True
        self._room = asyncio.Event()
        self._room.set()
        self._error: TritonMQError | None = None  # why nothing more is taken from this connection
        self._gone = False
        self._in_call = False
        self._admitted = False
        self._admitted_at = 0.0
        self._was_asked = False
        self._place: Present | None = None
        self._watched = False
        self._old = False
        self._turn_ends = 0.0
        self._look: asyncio.TimerHandle | None = None
        self._last: asyncio.TimerHandle | None = None  # when it is cut, once it was closed
        self._secured = False
        self.is_torn = False  # a message has begun to be written, and nothing may come before its end
        self.is_over = asyncio.Event()  # its socket is closed

    # ------------------------------------------------------------------ the call

    def auth_context(self) -> Mapping[str, Iterable[bytes]]:
        return proved(self._up())

    def peer(self) -> str:
        return peer_of(self._up())

    def left_s(self) -> float | None:
        return None if self._ends_at is None else max(0.0, self._ends_at - self._loop.time())

    def admit(self, present: Present) -> contextlib.AbstractContextManager[object]:
        """The call is received from now on. The connection counts for whoever has called last until it is closed, since
        nobody else can have its place; one of a broker that passes on counts for its client while the call lasts."""
        if not self.opened.HasField("passed_on"):
            connection = present.connection
            if self._place is None or not self._place.is_as(connection):
                connection.__enter__()
                self._leave_place()
                self._place = connection
        self._arriving.account, self._admitted = account(), True
        self._admitted_at = self._loop.time()
        self._arriving.begins()
        self._take()
        return present

    async def read(self) -> Said | None:
        message = await self._next()
        if message.kind is Kind.END:
            self._unread.appendleft((message, 0))  # to be read as often as it is asked for
            self._unread_bytes += _MESSAGE_BYTES
            return None
        return message

    async def write(self, body: bytes, parts: Sequence[Buffer] = ()) -> None:
        transport = self._up()
        for piece in joined(self._machine.say(Kind.MESSAGE, body, parts)):
            if not self._secured or len(piece) <= SECURED_PIECE_BYTES:
                transport.write(piece)
            else:
                await self._write_secured(memoryview(piece).cast("B"))
        self.is_torn = False
        if not self._room.is_set():
            await self._room.wait()
            self._up()

    async def _write_secured(self, piece: memoryview) -> None:
        self.is_torn = True
        for at in range(0, len(piece), SECURED_PIECE_BYTES):
            self._up().write(piece[at : at + SECURED_PIECE_BYTES])
            if not self._room.is_set():
                await self._room.wait()

    # ------------------------------------------------------------------ of the connection

    def belongs_to(self, task: asyncio.Task[None]) -> None:
        """It is cancelled when the far side goes within a call."""
        self._task = task

    async def next_call(self) -> bool:
        """Whether there is another one, which `opened` says then. Raises `InvalidRequest` and its like for what is no
        call."""
        self._machine.bound(OPEN_BYTES_MAX, OPEN_BYTES_MAX)
        self._take()
        try:
            message = await self._next()
        except Unreachable:
            return False
        if message.payload:
            raise InvalidRequest("a call begins with the name of a method, and with no payload")
        self.opened = parsed(message.body, pb.CallOpen)
        return True

    def begin(self, method: Method, timeout_s: float | None) -> None:
        """A call begins. `timeout_s` None: the client ends it, and answers when it is asked whether it is there."""
        most = self._message_bytes_max if method.name == "Produce" else method.bound.bytes_max
        self._machine.bound(PRODUCE_HEADER_BYTES_MAX if method.name == "Produce" else most, most)
        self._in_call, self._watched = True, timeout_s is None
        self._ends_at = None if timeout_s is None else self._loop.time() + timeout_s
        self._machine.goes_on(self._loop.time())
        self._flow()

    @property
    def may_stay(self) -> bool:
        """After a call that was refused: it was let in, so that the rest of it is received, and nothing was half
        written."""
        return self._admitted and not self.is_torn

    def end(self, error: TritonMQError | None) -> bool:
        """The call is over, with an error or without. Whether there may be another."""
        self._in_call = self._watched = self._admitted = self._was_asked = False
        self._unread.popleft()  # the client's END, to which it was read
        self._unread_bytes -= _MESSAGE_BYTES
        said = self._machine.say(Kind.END) if error is None else self._machine.fail(error)
        self._up().write(b"".join(said))
        return not self._old

    def grow_old(self, grace_s: float) -> None:
        """It ends with the call that is under way, and after the grace in any case."""
        self._old = True
        if not self._in_call:
            self._fail(Unreachable("the connection has become too old: make another one"))
        else:
            self._loop.call_later(grace_s, self.cut)

    def close(self, error: TritonMQError | None) -> None:
        """End the connection, once what was written is sent; `LINGER_S` later in any case. What it holds is free then,
        without the collector of cycles, which comes after hundreds of such connections."""
        transport, was_gone, self._gone = self._transport, self._gone, True
        self._fail(error or Unreachable("the connection was ended here"))
        self._error = Unreachable("the connection was ended here")  # the former knows where it was raised
        self._task = None
        self._arriving.free(sum(count for _, count in self._unread))
        self._unread.clear()
        self._leave_place()
        if self._look is not None:
            self._look.cancel()
        if transport is None:
            return
        # In any case: a client that reads byte by byte would keep what is to be written, and be counted nowhere
        self._last = self._loop.call_later(LINGER_S, self.cut)
        if transport.is_closing():
            return
        if not self.is_torn and not was_gone:
            transport.write(b"".join(self._machine.close(error)))
        if error is None or self.is_torn:
            transport.close()
            return
        # To close while there is something to read would reset the connection, and the client might not read this
        if transport.can_write_eof():
            say_last(transport)
            transport.resume_reading()
        else:
            transport.close()

    def cut(self) -> None:
        """End the connection now, whatever is to be written. `is_over` is set soon."""
        if self._transport is None:
            self.is_over.set()
        else:
            self._transport.abort()

    # ------------------------------------------------------------------ what asyncio tells

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._secured = transport.get_extra_info("ssl_object") is not None
        prepare(transport)
        transport.write(PREAMBLE)
        self._look = self._loop.call_later(_LOOK_S, self._look_after)

    def get_buffer(self, sizehint: int) -> Any:
        return _LEFT if self._error is not None else self._machine.buffer()

    def buffer_updated(self, nbytes: int) -> None:
        if self._error is None:
            if self._machine.is_empty:
                self._arriving.begins()
            self._machine.received(nbytes, self._loop.time())
            self._take()

    def eof_received(self) -> None:
        self._lost("the client has ended the connection")

    def connection_lost(self, exc: Exception | None) -> None:
        self._lost(f"the connection broke: {exc}")
        self._transport = None
        self.is_over.set()
        for timer in (self._last, self._look):  # nobody may have taken this wire, to close it
            if timer is not None:
                timer.cancel()

    def pause_writing(self) -> None:
        self._room.clear()

    def resume_writing(self) -> None:
        self._room.set()

    # ------------------------------------------------------------------ private

    def _leave_place(self) -> None:
        if self._place is not None:
            self._place.__exit__(None, None, None)
            self._place = None

    def _take(self) -> None:
        """What is whole, up to the bound of what may wait. Of what opens a call no more than that is taken: what is
        behind it may be larger."""
        try:
            while self._error is None and self._may_receive:
                message = self._machine.next()
                if message is None:
                    break
                self._arriving.begins()
                self._unread.append((message, self._arriving.whole()))
                self._unread_bytes += message.nbytes + _MESSAGE_BYTES
            if self._error is None and (missing := self._machine.missing_bytes):
                self._arriving.expect(missing, self._flow, self._fail)
        except TritonMQError as error:
            self._fail(error)
        if self._error is None:
            self._beat(self._machine.answer())
        self._flow()
        if (self._unread or self._error is not None) and self._reader is not None and not self._reader.done():
            self._reader.set_result(None)

    def _beat(self, pieces: list[Buffer]) -> None:
        """PING or PONG. Without room there is more than enough on its way to say that this end lives."""
        transport = self._transport
        assert transport is not None
        if pieces and self._room.is_set() and not self.is_torn and not transport.is_closing():
            transport.write(b"".join(pieces))

    @property
    def _may_receive(self) -> bool:
        if self._arriving.is_waiting or self._unread_bytes >= UNREAD_BYTES:
            return False
        return self._admitted if self._in_call else not self._unread

    def _flow(self) -> None:
        """Receive, or leave what comes in TCP. What was received is taken to its last message before more is."""
        transport = self._transport
        reading = self._may_receive
        if transport is None or reading is self._reading or transport.is_closing() or self._error is not None:
            return
        self._reading = reading
        if reading:
            self._machine.goes_on(self._loop.time())
            self._arriving.begins()
            transport.resume_reading()
        else:
            transport.pause_reading()

    async def _next(self) -> Said:
        while not self._unread:
            if self._error is not None:
                raise self._error
            self._reader = self._loop.create_future()
            try:
                await self._reader
            finally:
                self._reader = None
            self._turn_ends = self._loop.time() + TURN_S
        if self._loop.time() >= self._turn_ends:
            await asyncio.sleep(0)
            self._turn_ends = self._loop.time() + TURN_S
        message, counted = self._unread.popleft()
        self._arriving.free(counted)  # whoever reads it counts it
        self._was_asked = self._in_call
        self._unread_bytes -= message.nbytes + _MESSAGE_BYTES
        if self._in_call:  # else what is behind it may have other bounds
            self._take()
        return message

    def _look_after(self) -> None:
        """Whether the client is still there. While nothing is received it may have spoken all the same."""
        self._look = self._loop.call_later(_LOOK_S, self._look_after)
        if self._reading and (why := self._too_slow()):
            self._fail(Unreachable(why))
        if self._transport is None or self._transport.is_closing():
            return
        try:
            # Whoever is held back waits in TCP, with the PING by which its client would ask
            pieces = self._machine.look(self._loop.time(), reads=self._reading, grace_s=_LOOK_S)
        except Unreachable:
            if self._watched:
                self.cut()
            return
        if self._watched:
            self._beat(pieces)

    def _too_slow(self) -> str:
        waited_s = self._loop.time() - self._arriving.began_at
        if not self._machine.is_empty and waited_s >= WHOLE_S:
            return f"a message was not whole after {WHOLE_S:.0f} s: send it at once, or a smaller one"
        is_asked = not self._in_call or self._was_asked or self._unread
        idle_s = self._loop.time() - self._admitted_at  # whatever beats came meanwhile
        if not is_asked and self._machine.is_empty and idle_s >= FIRST_REQUEST_S:
            return f"{FIRST_REQUEST_S:.0f} s ago a call was opened, and nothing was asked"
        return ""

    def _lost(self, why: str) -> None:
        self._fail(Unreachable(why))
        if not self._gone:
            self._gone = True
            self._room.set()
            if self._in_call and self._task is not None:
                self._task.cancel()  # nobody waits for the answer any more

    def _fail(self, error: TritonMQError) -> None:
        if self._error is None:
            self._error = error
            self._machine.drop()  # what is not whole never will be
            self._arriving.drop()
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)

    def _up(self) -> asyncio.Transport:
        transport = self._transport
        if self._gone or transport is None or transport.is_closing():  # asyncio logs a line for each write too late
            raise self._error or Unreachable("the connection has ended")
        return transport
