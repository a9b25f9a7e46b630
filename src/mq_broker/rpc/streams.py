"""The stream port: calls of clients on TCP, or on TLS above it, without gRPC. mq_protocol/streams.py has what is said.

A connection is in the place of gRPC's context (`StreamWire`), so what answers a call, and the gate before it, are the
same (service.py, gate.py). One call at a time; its task is the connection's, and ends with it. What is received waits
in TCP while nobody reads it: little more than one message is in memory. Of a call nothing is received before the gate
has let it in, and of a large message nothing before there is room for it (arriving.py).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import socket
import traceback
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any, Final
from weakref import WeakSet

from mq_broker.rpc.arriving import WHOLE_S, Arriving, Memory
from mq_broker.rpc.callers import account
from mq_broker.rpc.framed import Accepting, Tls, begin, joined, peer_of, prepare, proved, say_last
from mq_broker.rpc.pacing import Present
from mq_broker.rpc.service import EOF, Coding, Conversation
from mq_broker.rpc.status import let_go
from mq_protocol import mq_pb2 as pb
from mq_protocol.envelope import Buffer, Envelope
from mq_protocol.error_messages import to_wire
from mq_protocol.errors import InternalError, InvalidRequest, RequestTooLarge, TritonMQError, Unreachable
from mq_protocol.framing import STREAM, Receiver
from mq_protocol.limits import (
    CONNECTION_AGE_GRACE_MS,
    HANDSHAKE_TIMEOUT_MS,
    PRODUCE_HEADER_BYTES_MAX,
)
from mq_protocol.methods import BROKER
from mq_protocol.methods import Kind as MethodKind
from mq_protocol.streams import (
    KIND_BYTES,
    OPEN_BYTES_MAX,
    PING_S,
    PREAMBLE,
    SILENCE_S,
    Kind,
    Said,
    parsed,
    said,
    say,
    say_envelope,
)
from mq_protocol.versions import Versions, check_overlap, ours

log = logging.getLogger(__name__)

METHODS: Final = ("Produce", "Fetch", "Subscribe", "Work", "WatchOffsets")
"""What is served here. All else is asked by gRPC, and so may these be."""

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

BEATS_MAX: Final = 100
"""PING and PONG that a client may say within `_LOOK_S`. One is enough for ten seconds."""

TURN_S: Final = 0.002
"""For so long one connection's calls and messages are answered before other work of the loop has its turn: as long as
they are there, nothing that is awaited has to wait."""

_LEFT: Final = memoryview(bytearray(64 << 10))
"""Where bytes go that nobody listens to any more. It is never read."""

_LOOK_S: Final = 5.0
_AGE_SPREAD: Final = 0.1


def _message_of(data: Said, kind: type[pb.ProduceHeader], header_bytes_max: int) -> Envelope[pb.ProduceHeader]:
    if len(data.body) > header_bytes_max:
        raise RequestTooLarge(
            f"a message's header of {len(data.body)} bytes is above {header_bytes_max}: only the payload may be large"
        )
    header = parsed(data.body, kind)
    return Envelope(header, (data.payload,) if data.payload else ())


def _body_of(data: Said) -> bytes:
    if data.payload:
        raise InvalidRequest("a request with a payload: this method has none")
    return data.body


def _envelope(envelope: Envelope[Any]) -> list[Buffer]:
    return list(joined(say_envelope(envelope)))


def _plain(body: bytes) -> list[Buffer]:
    return say(Kind.MESSAGE, body)


def _size_of(message: Said | list[Buffer]) -> int:
    if isinstance(message, Said):
        return message.nbytes
    return sum(len(part) if type(part) is bytes else memoryview(part).nbytes for part in message)


def _place_of(wire: StreamWire, present: Present) -> contextlib.AbstractContextManager[None]:
    wire.admit(present)
    return contextlib.nullcontext()


FRAMED: Final = Coding(_envelope, _plain, _message_of, _body_of, _size_of, _place_of, "framed")


class StreamWire(asyncio.BufferedProtocol):
    """Owns one connection. In a call it stands in the place of gRPC's context: `auth_context`, `peer`, `read`,
    `write`."""

    def __init__(self, message_bytes_max: int, memory: Memory) -> None:
        self._message_bytes_max = message_bytes_max
        self._arriving = Arriving(memory)
        self._receiver = Receiver(OPEN_BYTES_MAX, OPEN_BYTES_MAX, spoken=STREAM)
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._task = asyncio.current_task()
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
        self._was_asked = False
        self._place: Present | None = None
        self._watched = False
        self._old = False
        self._heard_at = self._loop.time()
        self._beats = 0  # since `_look` began
        self._turn_ends = 0.0
        self._look: asyncio.TimerHandle | None = None
        self._last: asyncio.TimerHandle | None = None  # when it is cut, once it was closed
        self._secured = False
        self.is_torn = False  # a message has begun to be written, and nothing may come before its end
        self.is_over = asyncio.Event()  # its socket is closed

    # ------------------------------------------------------------------ as gRPC's context

    def auth_context(self) -> Mapping[str, Iterable[bytes]]:
        """What the handshake has proved, as gRPC says it (security/names.py)."""
        return proved(self._up())

    def peer(self) -> str:
        """Where it comes from, as gRPC writes it."""
        return peer_of(self._up())

    async def read(self) -> Any:
        """The next message of the call, a `Said`; `EOF` once the client has said its last. Raises what ends the
        call."""
        message = await self._next()
        if message.kind is Kind.END:
            self._unread.appendleft((message, 0))  # to be read as often as it is asked for
            self._unread_bytes += _MESSAGE_BYTES
            return EOF
        if message.kind is not Kind.MESSAGE:
            raise InvalidRequest(f"{message.kind.name} within a call: it has to be ended first")
        return message

    async def write(self, pieces: list[Buffer]) -> None:
        """Waits while the client does not read."""
        transport = self._up()
        for piece in joined(pieces):
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

    async def opened(self) -> pb.StreamOpen | None:
        """The next call; None if there will be none. Raises `InvalidRequest` and its like for what is no call."""
        self._bound(OPEN_BYTES_MAX, OPEN_BYTES_MAX)
        self._take()
        try:
            message = await self._next()
        except Unreachable:
            return None
        if message.kind is not Kind.OPEN or message.payload:
            raise InvalidRequest("a call begins with the name of a method")
        return parsed(message.body, pb.StreamOpen)

    def begin(self, method: str, *, watched: bool) -> None:
        """A call begins. `watched`: the client answers when it is asked whether it is there."""
        request = BROKER.methods[method].bound.bytes_max
        if method == "Produce":
            self._bound(PRODUCE_HEADER_BYTES_MAX, self._message_bytes_max)
        else:
            self._bound(request, request)
        self._in_call, self._watched = True, watched
        self._heard_at = self._loop.time()
        self._flow()

    def admit(self, present: Present) -> None:
        """The gate has let the call in: it is received from now on. The connection counts for whose it is until it is
        closed, since nobody else can have its place. Raises `QuotaExceeded`."""
        if self._place is None:
            present.__enter__()
            self._place = present
        self._arriving.account, self._admitted = account(), True
        self._arriving.begins()
        self._take()

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
        said = say(Kind.END) if error is None else say(Kind.ERROR, to_wire(error).SerializeToString())
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
        transport, self._gone = self._transport, True
        self._fail(error or Unreachable("the connection was ended here"))
        self._error = Unreachable("the connection was ended here")  # the former knows where it was raised
        self._task = None
        self._arriving.free(sum(count for _, count in self._unread))
        self._unread.clear()
        if self._place is not None:
            self._place.__exit__(None, None, None)
            self._place = None
        if self._look is not None:
            self._look.cancel()
        if transport is None:
            return
        # In any case: a client that reads byte by byte would keep what is to be written, and be counted nowhere
        self._last = self._loop.call_later(LINGER_S, self.cut)
        if transport.is_closing():
            return
        if error is None or self.is_torn:
            transport.close()
            return
        transport.write(b"".join(say(Kind.ERROR, to_wire(error).SerializeToString())))
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
        return _LEFT if self._error is not None else self._receiver.buffer()

    def buffer_updated(self, nbytes: int) -> None:
        if self._error is None:
            self._heard_at = self._loop.time()
            if self._receiver.is_empty:
                self._arriving.begins()
            self._receiver.received(nbytes)
            self._take()

    def eof_received(self) -> None:
        self._lost("the client has ended the connection")

    def connection_lost(self, exc: Exception | None) -> None:
        self._lost(f"the connection broke: {exc}")
        self._transport = None
        self.is_over.set()
        if self._last is not None:
            self._last.cancel()

    def pause_writing(self) -> None:
        self._room.clear()

    def resume_writing(self) -> None:
        self._room.set()

    # ------------------------------------------------------------------ private

    def _bound(self, header_bytes_max: int, message_bytes_max: int) -> None:
        self._receiver.header_bytes_max = header_bytes_max + KIND_BYTES
        self._receiver.message_bytes_max = message_bytes_max + KIND_BYTES

    def _take(self) -> None:
        """What is whole, up to the bound of what may wait. Of what opens a call no more than that is taken: what is
        behind it may be larger."""
        asked = False
        try:
            while self._error is None and self._may_receive:
                found = self._receiver.next()
                if found is None:
                    break
                self._arriving.begins()
                message = said(found)
                if message.nbytes and message.kind in (Kind.END, Kind.PING, Kind.PONG):
                    raise InvalidRequest(
                        f"{message.kind.name} says nothing more, and {message.nbytes} bytes came with it"
                    )
                if message.kind in (Kind.PING, Kind.PONG):
                    self._count_beat()
                    asked = asked or message.kind is Kind.PING
                else:
                    self._unread.append((message, self._arriving.whole()))
                    self._unread_bytes += message.nbytes + _MESSAGE_BYTES
            if self._error is None and self._receiver.is_large:
                self._arriving.expect(len(self._receiver.buffer()), self._flow, self._fail)
        except TritonMQError as error:
            self._fail(error)
        if asked and self._error is None:
            self._answer()  # once, however often it was asked at once
        self._flow()
        if (self._unread or self._error is not None) and self._reader is not None and not self._reader.done():
            self._reader.set_result(None)

    def _count_beat(self) -> None:
        self._beats += 1
        if self._beats > BEATS_MAX:
            raise InvalidRequest(
                f"more than {BEATS_MAX} PING and PONG within {_LOOK_S:.0f} s: ask once in {PING_S:.0f} s"
            )

    def _answer(self) -> None:
        transport = self._transport
        assert transport is not None
        # Without room there is more than enough on its way to say that this end lives
        if self._room.is_set() and not self.is_torn and not transport.is_closing():
            transport.write(b"".join(say(Kind.PONG)))

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
            self._heard_at = self._loop.time()
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
        self._beats = 0
        if self._reading and (why := self._too_slow()):
            self._fail(Unreachable(why))
        if not self._watched or self._transport is None or self._transport.is_closing():
            return
        if not self._reading:
            # Whoever is held back waits in TCP, with the PING by which its client would ask
            self._answer()
            return
        silent_s = self._loop.time() - self._heard_at
        if silent_s >= SILENCE_S + _LOOK_S:
            self.cut()
        elif silent_s >= PING_S and self._room.is_set() and not self.is_torn:
            self._transport.write(b"".join(say(Kind.PING)))

    def _too_slow(self) -> str:
        waited_s = self._loop.time() - self._arriving.began_at
        if not self._receiver.is_empty and waited_s >= WHOLE_S:
            return f"a message was not whole after {WHOLE_S:.0f} s: send it at once, or a smaller one"
        is_asked = not self._in_call or self._was_asked or self._unread
        if not is_asked and self._receiver.is_empty and waited_s >= FIRST_REQUEST_S:
            return f"{FIRST_REQUEST_S:.0f} s ago a call was opened, and nothing was asked"
        return ""

    def _lost(self, why: str) -> None:
        self._fail(Unreachable(why))
        if not self._gone:
            self._gone = True
            self._room.set()
            if self._in_call and self._task is not None:
                self._task.cancel()  # as gRPC does: nobody waits for the answer any more

    def _fail(self, error: TritonMQError) -> None:
        if self._error is None:
            self._error = error
            self._receiver.drop()  # what is not whole never will be
            self._arriving.drop()
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)

    def _up(self) -> asyncio.Transport:
        transport = self._transport
        if self._gone or transport is None or transport.is_closing():  # asyncio logs a line for each write too late
            raise self._error or Unreachable("the connection has ended")
        return transport


class StreamServer(Accepting):
    """The stream port. `conversations`: what holds a call, by the name of its method. `age_ms`: how old a connection
    becomes; None: as old as it likes."""

    def __init__(
        self,
        listener: socket.socket,
        conversations: Mapping[str, Conversation],
        message_bytes_max: int,
        connections_max: int,
        memory: Memory,
        tls: Tls | None = None,
        age_ms: int | None = None,
    ) -> None:
        super().__init__(listener, "stream", connections_max=connections_max, per_second=ACCEPTS_PER_S)
        self._conversations = conversations
        self._message_bytes_max = message_bytes_max
        self._memory = memory
        self._tls = tls
        self._age_ms = age_ms
        self._wires: WeakSet[StreamWire] = WeakSet()  # the loop holds those whose connection is open

    async def stop(self) -> None:
        """As `Accepting.stop`. Every socket that was accepted is closed then."""
        await super().stop()
        wires = list(self._wires)
        for wire in wires:
            wire.cut()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LINGER_S):
                for wire in wires:
                    await wire.is_over.wait()

    async def _serve(self, connection: socket.socket) -> None:
        task = asyncio.current_task()
        assert task is not None
        wire = StreamWire(self._message_bytes_max, self._memory)
        self._wires.add(wire)
        error: TritonMQError | None = None
        age: asyncio.TimerHandle | None = None
        try:
            await begin(wire, connection, self._tls)
            if self._age_ms is not None:
                age = self._grow_old(wire, self._age_ms)
            wait_ms = HANDSHAKE_TIMEOUT_MS
            while (opened := await self._opened(wire, wait_ms)) is not None:
                self._known(task)
                if not wire.end(await self._hold(wire, opened)):
                    break
                wait_ms = IDLE_MS
        except asyncio.CancelledError as cancelled:
            traceback.clear_frames(cancelled.__traceback__)  # the task keeps them: with what was to be written
            raise
        except TritonMQError as refused:
            let_go(refused)
            error = refused
        except Exception as failure:
            log.exception("a stream failed")
            error = InternalError(f"a stream failed in the broker ({type(failure).__name__}): see the broker's log")
        finally:
            if age is not None:
                age.cancel()
            wire.close(error)
            del task, error  # else what was raised holds this frame, and this frame what was raised

    @staticmethod
    async def _opened(wire: StreamWire, wait_ms: int) -> pb.StreamOpen | None:
        try:
            async with asyncio.timeout(wait_ms / 1000):
                return await wire.opened()
        except TimeoutError:
            return None

    async def _hold(self, wire: StreamWire, opened: pb.StreamOpen) -> TritonMQError | None:
        """One call, until the client has said its last: the error of a single request. Raises what ends the
        connection."""
        theirs = Versions.said(opened.protocol, opened.protocol_oldest)
        check_overlap("this broker", ours(), "this client", theirs)
        held = self._conversations.get(opened.method)
        if held is None:
            raise InvalidRequest(
                f"the stream port has no method {opened.method[:100]!r}: ask it by gRPC, at the address for clients"
            )
        wire.begin(opened.method, watched=not opened.timeout_ms)
        error: TritonMQError | None = None
        try:
            async with asyncio.timeout(min(opened.timeout_ms, CALL_MS_MAX) / 1000 if opened.timeout_ms else None):
                try:
                    await held(wire)  # type: ignore[arg-type]  # stands in the place of gRPC's context
                except TritonMQError as refused:
                    if not wire.may_stay or BROKER.methods[opened.method].kind is not MethodKind.ANSWERS:
                        raise
                    let_go(refused)  # of the request: the client may stay
                    error = refused
                await self._to_its_end(wire, opened.method, is_refused=error is not None)
        except TimeoutError as late:
            raise Unreachable("the time that the client gave is over") from late
        return error

    @staticmethod
    async def _to_its_end(wire: StreamWire, method: str, *, is_refused: bool) -> None:
        """The client's END after the last answer. It need not be long in coming, whether or not the client is there."""
        try:
            async with asyncio.timeout(IDLE_MS / 1000):
                heard = await wire.read()
                if is_refused and heard is not EOF:  # who is refused before the request is read: it is here
                    heard = await wire.read()
        except TimeoutError as late:
            raise InvalidRequest(f"{method} was answered, and not ended: say END after the request") from late
        if heard is not EOF:
            raise InvalidRequest(f"{method} was asked something after its last answer")

    @staticmethod
    def _grow_old(wire: StreamWire, age_ms: int) -> asyncio.TimerHandle:
        # Not all that were made together are made anew together, as gRPC has it
        age_s = age_ms / 1000 * random.uniform(1 - _AGE_SPREAD, 1 + _AGE_SPREAD)  # noqa: S311
        grace_s = min(CONNECTION_AGE_GRACE_MS, age_ms) / 1000
        return asyncio.get_running_loop().call_later(age_s, wire.grow_old, grace_s)
