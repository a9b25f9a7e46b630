"""Passes on what a client asks of another broker, for clients that reach this one alone.

Such a client goes on choosing whom it asks: its metadata are those of the cluster, and it follows leaders. It sends
the call here, and names the broker that it means by the address that this one advertises (`tritonmq-forward`). So its
retries, its order and its UUIDs are what they are without this, and nothing of a call is decoded that the gate would
not look at anyway.

- **Twice judged.** The gate has let the call through before it comes here, and lets its later requests through one by
  one. The other broker judges it again, as the same user (rpc/forwarded.py).
- **Once only.** Calls go to peer ports, and what comes there is answered there.
- **Bounded.** Of each direction of a stream one message is here at a time, and counted in `Held`. Above the mark
  nothing more is read from either side: it waits in TCP. What a Fetch sends has its room before it is read. A stream
  that pushes may be silent for hours, so its messages are counted once they are there, as batches from clients are.
- **An error is the other broker's own.** One that is not reached is told as to a client that dials it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any, Final

import grpc
from grpc import aio

from mq_broker.broker.metadata.brokers import Cluster
from mq_broker.broker.runtime.memory import COPIES_SENT, Held
from mq_broker.broker.runtime.streams import until_one_ends
from mq_broker.measured import FORWARDED
from mq_broker.rpc.callers import caller, principal, serial, verified
from mq_broker.rpc.dialling import Dialling
from mq_broker.rpc.lines import Line, Lines
from mq_broker.rpc.pacing import room_to_lend, room_to_send
from mq_broker.rpc.peer_proof import PeerProof
from mq_broker.rpc.service import EOF, RefusedBatch, Send
from mq_broker.security.names import ANONYMOUS
from mq_protocol import mq_pb2 as pb
from mq_protocol.error_messages import to_wire
from mq_protocol.errors import InvalidRequest, PeerRefused, TritonMQError, Unreachable
from mq_protocol.limits import FETCH_CHUNK_BYTES
from mq_protocol.methods import BROKER, Method
from mq_protocol.names import quoted
from mq_protocol.transport import FORWARD_METADATA, from_call

CONNECT_S: Final = 2.0

_CONNECTING: Final = (grpc.ChannelConnectivity.IDLE, grpc.ChannelConnectivity.CONNECTING)
_LENDS: Final = "Work"
_READS: Final = "Fetch"


class Forwarding:
    """Owns the channels to other brokers' peer ports by which calls of clients go. `me`: this broker's proof."""

    def __init__(self, cluster: Cluster, me: PeerProof, dialling: Dialling, held: Held) -> None:
        self._cluster = cluster
        self._me = me
        self._dialling = dialling
        self._held = held
        self._lines = Lines(dialling)

    def to(self, context: aio.ServicerContext[Any, Any]) -> int:
        """The broker that a call is meant for; 0: this one. Raises `Unreachable` for an address at which no broker of
        this cluster serves clients now, and `InvalidRequest`."""
        named = [value for key, value in context.invocation_metadata() or () if key == FORWARD_METADATA]
        if not named:
            return 0
        if len(named) > 1:
            raise InvalidRequest(f"a call has {FORWARD_METADATA} {len(named)} times: name one broker")
        address, me = str(named[0]), self._cluster.me
        if address in _addresses(me):
            return 0
        for broker, registration in self._cluster.brokers.items():
            if address in _addresses(registration):
                return broker if broker != me.broker else 0
        raise Unreachable(
            f"no broker of this cluster serves clients at {quoted(address):.200} now: ask for the metadata again"
        )

    async def ask(self, to: int, method: Method, data: bytes, deadline: float) -> bytes:
        """As `Forwarder.ask` (rpc/service.py)."""
        async with self._line(to) as line:
            timeout = max(0.001, deadline - asyncio.get_running_loop().time())
            who, size = caller(), len(data)
            self._held.add(who, size)
            try:
                call = line.unary(BROKER.path(method.name))
                answer: bytes = await call(data, timeout=timeout, metadata=self._said(to, method))
            except aio.AioRpcError as error:
                raise self._meaning(error, to, line.address) from error
            finally:
                self._held.free(who, size)
            return answer

    async def answers(self, to: int, method: Method, data: bytes, left_s: float | None, send: Send[bytes]) -> None:
        """As `Forwarder.answers`."""
        async with self._line(to) as line:
            opened: Any = line.channel.unary_stream(BROKER.path(method.name), None, None)
            call = opened(data, timeout=left_s, metadata=self._said(to, method))
            try:
                if method.name == _READS:
                    await self._read(call, send)
                else:
                    await self._hear(call, method, send)
            except aio.AioRpcError as error:
                raise self._meaning(error, to, line.address) from error
            finally:
                call.cancel()

    async def converse(
        self,
        to: int,
        method: Method,
        requests: AsyncIterator[bytes | RefusedBatch],
        left_s: float | None,
        send: Send[bytes],
    ) -> None:
        """As `Forwarder.converse`."""
        sending = asyncio.Lock()

        async def in_turn(data: bytes) -> None:
            async with sending:
                await send(data)

        async with self._line(to) as line:
            opened: Any = line.channel.stream_stream(BROKER.path(method.name), None, None)
            call = opened(timeout=left_s, metadata=self._said(to, method))
            try:
                # What the call has ended with is heard, not met in speaking
                await until_one_ends(self._speak(call, requests, in_turn), self._hear(call, method, in_turn))
            except aio.AioRpcError as error:
                raise self._meaning(error, to, line.address) from error
            finally:
                call.cancel()

    async def reaches(self, to: int) -> bool:
        """Whether there is a connection to that broker. One that is just being made is waited for."""
        try:
            async with self._line(to) as line, asyncio.timeout(CONNECT_S):
                while (state := line.channel.get_state(try_to_connect=True)) in _CONNECTING:
                    await line.channel.wait_for_state_change(state)
        except (Unreachable, TimeoutError):
            return False
        return state is grpc.ChannelConnectivity.READY

    async def close(self) -> None:
        """End what is under way."""
        await self._lines.close()

    # ------------------------------------------------------------------ the other broker

    def _line(self, to: int) -> contextlib.AbstractAsyncContextManager[Line]:
        """Around a call to that broker."""
        address = self._cluster.peer_address(to)
        if address is None:
            raise Unreachable(f"broker {to} has gone, or has no port for other brokers: ask for the metadata again")
        if not self._dialling.way(address) and principal() != ANONYMOUS:
            raise Unreachable(
                f"broker {to} is reached in plain text from broker {self._me.broker}, and calls of {principal()} are "
                "passed on over TLS alone: give it certificates"
            )
        return self._lines.to(address)

    def _said(self, to: int, method: Method) -> tuple[tuple[str, bytes], ...]:
        """What a call of the method to that broker carries: whose it is."""
        FORWARDED.add(method.name)
        return self._me.forwarded(BROKER.path(method.name), to, whose())

    def _meaning(self, error: aio.AioRpcError, to: int, address: str) -> TritonMQError:
        me = self._me.broker
        found = from_call(error, f"{address}, to which broker {me} passes on,")
        if isinstance(found, PeerRefused):
            return Unreachable(f"broker {to} does not believe broker {me}, which passes on: {found}")
        return found

    # ------------------------------------------------------------------ both directions of a stream

    async def _speak(self, call: Any, requests: AsyncIterator[bytes | RefusedBatch], send: Send[bytes]) -> None:
        """What the client says, to the other broker. Does not return by itself: the answers say when it is over."""
        who = caller()
        with contextlib.suppress(grpc.RpcError, asyncio.InvalidStateError):  # it is over
            async for request in requests:
                if isinstance(request, RefusedBatch):
                    await send(_refusal(request))
                    continue
                size = len(request)
                self._held.add(who, size)
                try:
                    await call.write(request)
                finally:
                    self._held.free(who, size)
                del request
                await self._held.room(who)
            await call.done_writing()
        await asyncio.get_running_loop().create_future()

    async def _hear(self, call: Any, method: Method, send: Send[bytes]) -> None:
        """What the other broker answers, to the client, to the end."""
        who = caller()
        while True:
            await (room_to_lend() if method.name == _LENDS else room_to_send())
            await self._held.room(who)
            data = await call.read()
            if data is EOF:
                return
            size = len(data) * COPIES_SENT
            self._held.add(who, size)
            try:
                await send(data)
            finally:
                self._held.free(who, size)
            del data

    async def _read(self, call: Any, send: Send[bytes]) -> None:
        """The same of records that come at once: they have their room before they are read."""
        while True:
            await room_to_send()
            async with self._held.sending(caller(), FETCH_CHUNK_BYTES) as room:
                data = await call.read()
                if data is EOF:
                    return
                room.took(len(data))
                await send(data)
                del data


def _addresses(registration: Any) -> tuple[str, ...]:
    """Where clients of any kind reach it."""
    known = registration.address, registration.tls_address, registration.token_address
    return tuple(filter(None, known))


def whose() -> pb.ForwardedFor:
    """Who asks what this task answers."""
    whose = pb.ForwardedFor(principal=str(principal()), serial=serial(), address=caller())
    token = verified()
    if token is not None:
        whose.by_token, whose.token_expires_s, whose.api_token = True, token.expires_s, token.api_token
        whose.groups.extend(token.groups)
    return whose


def _refusal(batch: RefusedBatch) -> bytes:
    result = pb.ProduceResult(correlation=batch.header.correlation, base_offset=-1, error=to_wire(batch.error))
    return pb.ProduceResponse(results=[result]).SerializeToString()
