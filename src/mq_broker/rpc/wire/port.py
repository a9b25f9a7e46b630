"""A broker's port: clients, other brokers' links and their calls, on TCP or on TLS above it.

Who speaks what is known by the first bytes (mq_protocol/wire/framing.py): a link (links.py), or calls (streams.py). Who
speaks is known once a certificate, a token or the brokers' secret has proved it. Until then whoever connects is a
stranger, of whom there are few, so that nobody keeps brokers or clients out.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import random
import socket
import traceback
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, TypeAlias
from weakref import WeakKeyDictionary

from mq_broker.rpc.call import Conversation, let_go
from mq_broker.rpc.callers import note_nobody
from mq_broker.rpc.wire.accepting import Accepting, begin
from mq_broker.rpc.wire.arriving import Memory
from mq_broker.rpc.wire.entering import Entering
from mq_broker.rpc.wire.framed import FramedWire, Tls
from mq_broker.rpc.wire.streams import CALL_MS_MAX, IDLE_MS, LINGER_S, StreamWire
from mq_protocol import mq_pb2 as pb
from mq_protocol.errors import (
    InternalError,
    InvalidRequest,
    Overloaded,
    TritonMQError,
    Unreachable,
)
from mq_protocol.limits import (
    CLIENT_MESSAGE_BYTES_MAX,
    CONNECTION_AGE_GRACE_MS,
    CONNECTIONS_MAX,
    HANDSHAKE_TIMEOUT_MS,
)
from mq_protocol.methods import BROKER, PEER, Method
from mq_protocol.methods import Kind as MethodKind
from mq_protocol.versions import Versions, check_overlap, ours
from mq_protocol.wire.framing import LINK, PREAMBLE_BYTES

log = logging.getLogger(__name__)

ACCEPTS_PER_S: Final = 500
"""Over TLS: a handshake takes the loop about a millisecond. Whoever comes when there are more waits in TCP."""

BROKERS_MAX: Final = 2_000
"""Connections beside those of clients: strangers, and other brokers, each of which has some dozens."""

_AGE_SPREAD: Final = 0.1

Converse: TypeAlias = Callable[[FramedWire, Callable[[], None]], Awaitable[None]]
"""Holds a link over a connection until it ends. The second is to be called once it is proved who is there."""


class _Greeting(asyncio.BufferedProtocol):
    """Receives what a connection begins with, and then gives it to the wire that speaks that."""

    def __init__(self, chosen: Callable[[bytes], asyncio.BufferedProtocol]) -> None:
        self._chosen = chosen
        self._room = bytearray(PREAMBLE_BYTES)
        self._count = 0
        self._transport: asyncio.Transport | None = None
        self.wire: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def get_buffer(self, sizehint: int) -> Any:
        return memoryview(self._room)[self._count :]

    def buffer_updated(self, nbytes: int) -> None:
        self._count += nbytes
        if self._count < PREAMBLE_BYTES or self._transport is None or self.wire.done():
            return
        wire = self._chosen(bytes(self._room))
        wire.connection_made(self._transport)
        self._transport.set_protocol(wire)
        memoryview(wire.get_buffer(PREAMBLE_BYTES))[:PREAMBLE_BYTES] = self._room
        wire.buffer_updated(PREAMBLE_BYTES)
        self.wire.set_result(wire)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        if not self.wire.done():
            self.wire.set_exception(Unreachable(f"a connection ended before it began: {exc or 'nothing came'}"))

    def cut(self) -> None:
        """Nobody takes the wire, though it may just have been chosen."""
        if not self.wire.cancel() and not self.wire.cancelled():
            self.wire.exception()  # seen
        if self._transport is not None:
            self._transport.abort()


@dataclass(frozen=True, slots=True)
class Served:
    """What is answered at a port: calls by the name of their method (`clients`; `brokers`: those that a broker proves),
    and links (None: none are held). `entering` says whose a call is; `memory`: where what is received is counted."""

    clients: Mapping[str, Conversation]
    entering: Entering
    memory: Memory
    brokers: Mapping[str, Conversation] = field(default_factory=dict)
    links: Converse | None = None


@dataclass(frozen=True, slots=True)
class Bounds:
    """`age_ms`: how old a connection becomes; None: as old as it likes. `handshake_ms`: how long its first bytes and
    its first call may be in coming. `idle_ms`: how long its next call may be, and the end of one that is answered."""

    message_bytes_max: int = CLIENT_MESSAGE_BYTES_MAX
    clients_max: int = CONNECTIONS_MAX
    age_ms: int | None = None
    handshake_ms: int = HANDSHAKE_TIMEOUT_MS
    idle_ms: int = IDLE_MS
    call_ms_max: int = CALL_MS_MAX


class Port(Accepting):
    """Owns the connections that were made to it. `strangers_max` None: `STRANGERS_MAX`."""

    def __init__(
        self,
        listener: socket.socket,
        served: Served,
        bounds: Bounds,
        tls: Tls | None = None,
        strangers_max: int | None = None,
    ) -> None:
        super().__init__(
            listener,
            "connection",
            connections_max=2 * bounds.clients_max + BROKERS_MAX,  # those that are passed on have as many
            per_second=math.inf if tls is None else ACCEPTS_PER_S,
            strangers_max=strangers_max,
        )
        self._served = served
        self._bounds = bounds
        self._tls = tls
        self._clients: set[asyncio.Task[None]] = set()
        self._passed_on: set[asyncio.Task[None]] = set()  # brokers' connections that carry clients' calls
        # The loop holds those whose connection is open
        self._wires: WeakKeyDictionary[StreamWire, None] = WeakKeyDictionary()

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

    # ------------------------------------------------------------------ one connection

    async def _serve(self, connection: socket.socket) -> None:
        try:
            wire = await self._greeted(connection)
        except Unreachable as gone:
            let_go(gone)
            log.debug("%s", gone)
            return
        await (self._hold_link(wire) if isinstance(wire, FramedWire) else self._hold_calls(wire))

    async def _greeted(self, connection: socket.socket) -> FramedWire | StreamWire:
        """The handshake, and the first bytes. Raises `Unreachable` if whoever connected has gone, says nothing, or
        speaks no TLS."""
        greeting = _Greeting(self._chosen)
        is_taken = False
        try:
            async with asyncio.timeout(self._bounds.handshake_ms / 1000):
                await begin(greeting, connection, self._tls)
                wire: FramedWire | StreamWire = await asyncio.shield(greeting.wire)
                is_taken = True
                return wire
        except TimeoutError as late:
            raise Unreachable("a connection ended before it began: nothing came") from late
        finally:
            if not is_taken:
                greeting.cut()

    def _chosen(self, preamble: bytes) -> FramedWire | StreamWire:
        if preamble.startswith(LINK) and self._served.links is not None:
            return FramedWire()
        wire = StreamWire(self._bounds.message_bytes_max, self._served.memory)
        self._wires[wire] = None
        return wire

    async def _hold_link(self, wire: FramedWire) -> None:
        task, links = asyncio.current_task(), self._served.links
        assert task is not None
        assert links is not None
        error: TritonMQError | None = None
        try:
            await links(wire, partial(self._known, task))
        except Unreachable as gone:
            log.debug("a link has ended: %s", gone)
        except TritonMQError as refused:
            error = refused
        except Exception as failure:
            log.exception("a link failed")
            error = InternalError(f"a link failed in the broker ({type(failure).__name__}): see the broker's log")
        finally:
            wire.close(error)
            del task, error  # else what was raised holds this frame, and this frame what was raised

    async def _hold_calls(self, wire: StreamWire) -> None:
        task = asyncio.current_task()
        assert task is not None
        error: TritonMQError | None = None
        age: asyncio.TimerHandle | None = None
        try:
            wire.belongs_to(task)
            if self._bounds.age_ms is not None:
                age = self._grow_old(wire, self._bounds.age_ms)
            wait_ms = self._bounds.handshake_ms
            while await self._opened(wire, wait_ms):
                refused = await self._hold(wire)
                self._known(task)  # if it has proved to be a broker: others are known before
                if not wire.end(refused):
                    break
                wait_ms = self._bounds.idle_ms
        except asyncio.CancelledError as cancelled:
            traceback.clear_frames(cancelled.__traceback__)  # the task keeps them: with what was to be written
            raise
        except TritonMQError as refused:
            let_go(refused)
            error = refused
        except Exception as failure:
            log.exception("a call failed")
            error = InternalError(f"a call failed in the broker ({type(failure).__name__}): see the broker's log")
        finally:
            if age is not None:
                age.cancel()
            wire.close(error)
            del task, error  # else what was raised holds this frame, and this frame what was raised

    @staticmethod
    async def _opened(wire: StreamWire, wait_ms: int) -> bool:
        try:
            async with asyncio.timeout(wait_ms / 1000):
                return await wire.next_call()
        except TimeoutError:
            return False

    def _found(self, opened: pb.CallOpen) -> tuple[Method, Conversation]:
        """The method that is called, and what answers it. Raises `InvalidRequest` for one that is not served."""
        proved = opened.HasField("proof")
        service, held = (PEER, self._served.brokers) if proved else (BROKER, self._served.clients)
        found = held.get(opened.method)
        if found is None:
            raise InvalidRequest(
                f"there is no method {opened.method[:100]!r} here: the far side runs another version; "
                "`tritonmq cluster status` shows versions"
            )
        return service.methods[opened.method], found

    async def _hold(self, wire: StreamWire) -> TritonMQError | None:
        """One call, until the client has said its last: the error of a single request. Raises what ends the
        connection."""
        opened = wire.opened
        theirs = Versions.said(opened.protocol, opened.protocol_oldest)
        check_overlap("this broker", ours(), "this client", theirs)
        method, held = self._found(opened)
        timeout_s = min(opened.timeout_ms, self._bounds.call_ms_max) / 1000 if opened.timeout_ms else None
        wire.begin(method, timeout_s)
        error: TritonMQError | None = None
        try:
            async with asyncio.timeout(timeout_s):
                try:
                    await self._enter(wire, method.name)
                    await held(wire)
                except TritonMQError as refused:
                    if not wire.may_stay or method.kind is MethodKind.CONVERSATION:
                        raise
                    let_go(refused)  # of the request: the client may stay
                    error = refused
                await self._to_its_end(wire, method.name, is_refused=error is not None)
        except TimeoutError as late:
            raise Unreachable("the time that the client gave is over") from late
        return error

    async def _enter(self, wire: StreamWire, method: str) -> None:
        """Whose the call is. Raises what refuses it. A broker is known by its proof, which the call's own door checks
        (calls.py): until it has answered a call it is a stranger. Whoever else has shown something is a
        client."""
        task = asyncio.current_task()
        assert task is not None
        if wire.opened.HasField("proof"):
            note_nobody(by_grpc=False)
            return
        await self._served.entering.enter(wire, method)
        held = self._passed_on if wire.opened.HasField("passed_on") else self._clients
        if task not in held:
            if len(held) >= self._bounds.clients_max:
                raise Overloaded(
                    f"this broker has {self._bounds.clients_max} connections of clients, as many as it takes: close "
                    "some, or ask again"
                )
            held.add(task)
            task.add_done_callback(held.discard)
            self._known(task)

    async def _to_its_end(self, wire: StreamWire, method: str, *, is_refused: bool) -> None:
        """The client's END after the last answer. It need not be long in coming, whether or not the client is there."""
        try:
            async with asyncio.timeout(self._bounds.idle_ms / 1000):
                heard = await wire.read()
                if is_refused and heard is not None:  # who is refused before the request is read: it is here
                    heard = await wire.read()
        except TimeoutError as late:
            raise InvalidRequest(f"{method} was answered, and not ended: say END after the request") from late
        if heard is not None:
            raise InvalidRequest(f"{method} was asked something after its last answer")

    @staticmethod
    def _grow_old(wire: StreamWire, age_ms: int) -> asyncio.TimerHandle:
        # Not all that were made together are made anew together
        age_s = age_ms / 1000 * random.uniform(1 - _AGE_SPREAD, 1 + _AGE_SPREAD)  # noqa: S311
        grace_s = min(CONNECTION_AGE_GRACE_MS, age_ms) / 1000
        return asyncio.get_running_loop().call_later(age_s, wire.grow_old, grace_s)
