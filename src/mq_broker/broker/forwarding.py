"""Passes on what a client asks of another broker, for clients that reach this one alone.

Such a client goes on choosing whom it asks: its metadata are those of the cluster, and it follows leaders. It sends
the call here, and names the broker that it means by the address that this one advertises (`CallOpen.forward`). So its
retries, its order and its UUIDs are what they are without this, and nothing of a call is decoded that the gate would
not look at anyway.

- **Twice judged.** The gate has let the call through before it comes here, and lets its later requests through one by
  one. The other broker judges it again, as the same user (rpc/wire/entering.py).
- **Once only.** What was passed on is answered where it comes.
- **Bounded.** Of each direction of a stream one message is here at a time, and counted in `Held`. Above the mark
  nothing more is read from either side: it waits in TCP. What a Fetch sends has its room before it is read. A stream
  that pushes may be silent for hours, so its messages are counted once they are there, as batches from clients are.
- **An error is the other broker's own.** One that is not reached is told as to a client that dials it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from typing import Any, Final

from mq_broker.broker.metadata.brokers import Cluster
from mq_broker.broker.runtime.memory import COPIES_SENT, Held
from mq_broker.broker.runtime.streams import until_one_ends
from mq_broker.measured import FORWARDED
from mq_broker.rpc.call import Call
from mq_broker.rpc.callers import caller, client_port, principal, serial, verified
from mq_broker.rpc.calls import opening
from mq_broker.rpc.pacing import room_to_lend, room_to_send
from mq_broker.rpc.peer_proof import PeerProof
from mq_broker.rpc.service import RefusedBatch, Send
from mq_broker.rpc.wire.lines import Dialling, Lines
from mq_broker.security.names import ANONYMOUS
from mq_protocol import mq_pb2 as pb
from mq_protocol.errors import OutcomeUnknown, PeerRefused, Unreachable
from mq_protocol.limits import FETCH_CHUNK_BYTES
from mq_protocol.methods import BROKER, Method
from mq_protocol.names import quoted
from mq_protocol.wire.call import Kind, Said
from mq_protocol.wire.connection import Connection
from mq_protocol.wire.error_messages import to_wire

_EMPTY: Final = memoryview(b"")
_LENDS: Final = "Work"
_READS: Final = "Fetch"


class Forwarding:
    """Owns the connections to other brokers by which calls of clients go. `me`: this broker's proof."""

    def __init__(self, cluster: Cluster, me: PeerProof, dialling: Dialling, held: Held) -> None:
        self._cluster = cluster
        self._me = me
        self._dialling = dialling
        self._held = held
        self._lines = Lines(dialling)

    def to(self, call: Call) -> int:
        """The broker that a call is meant for; 0: this one. Raises `Unreachable` for an address at which no broker of
        this cluster serves clients now."""
        address, me = call.opened.forward, self._cluster.me
        if not address or call.opened.HasField("passed_on") or address in _addresses(me):
            return 0
        for broker, registration in self._cluster.brokers.items():
            if address in _addresses(registration):
                return broker if broker != me.broker else 0
        raise Unreachable(
            f"no broker of this cluster serves clients at {quoted(address):.200} now: ask for the metadata again"
        )

    async def ask(self, to: int, method: Method, request: Said, deadline: float) -> Said:
        """As `Forwarder.ask` (rpc/service.py)."""
        left_s = max(0.001, deadline - asyncio.get_running_loop().time())
        async with self._called(to, method, left_s) as call:
            with self._counted(request.nbytes):
                await call.write(request.body)
                call.end()
                answer = await call.read()
            if answer is None or await call.read() is not None:
                raise Unreachable(f"broker {to} has answered otherwise than once")
            return answer

    async def answers(self, to: int, method: Method, request: Said, left_s: float | None, send: Send[Said]) -> None:
        """As `Forwarder.answers`."""
        async with self._called(to, method, left_s) as call:
            await call.write(request.body)
            call.end()
            await (self._read(call, send) if method.name == _READS else self._hear(call, method, send))

    async def converse(
        self,
        to: int,
        method: Method,
        requests: AsyncIterator[Said | RefusedBatch],
        left_s: float | None,
        send: Send[Said],
    ) -> None:
        """As `Forwarder.converse`."""
        sending = asyncio.Lock()

        async def in_turn(answer: Said) -> None:
            async with sending:
                await send(answer)

        async with self._called(to, method, left_s) as call:
            # What the call has ended with is heard, not met in speaking
            await until_one_ends(self._speak(call, requests, in_turn), self._hear(call, method, in_turn))

    async def reaches(self, to: int) -> bool:
        """Whether there is a connection to that broker, or one can be made."""
        address = self._cluster.peer_address(to)
        return address is not None and await self._lines.reaches(address)

    async def close(self) -> None:
        """End what is under way."""
        await self._lines.close()

    # ------------------------------------------------------------------ the other broker

    @contextlib.asynccontextmanager
    async def _called(self, to: int, method: Method, left_s: float | None) -> AsyncIterator[Connection]:
        """Around a call of the method to that broker, which carries whose it is."""
        address = self._cluster.peer_address(to)
        if address is None:
            raise Unreachable(f"broker {to} has gone, or has no port for other brokers: ask for the metadata again")
        if not self._dialling.way(address) and principal() != ANONYMOUS:
            raise Unreachable(
                f"broker {to} is reached in plain text from broker {self._me.broker}, and calls of {principal()} are "
                "passed on over TLS alone: give it certificates"
            )
        opened = opening(method.name, left_s)
        opened.passed_on.CopyFrom(self._me.forwarded(BROKER.path(method.name), to, whose()))
        FORWARDED.add(method.name)
        try:
            async with asyncio.timeout(left_s), self._lines.to(address) as line:
                line.open(opened)
                yield line
        except PeerRefused as found:
            me = self._me.broker
            raise Unreachable(f"broker {to} does not believe broker {me}, which passes on: {found}") from found
        except TimeoutError as late:
            raise OutcomeUnknown(
                f"broker {to}, to which this is passed on, did not answer in time: ask again"
            ) from late

    @contextlib.contextmanager
    def _counted(self, size: int) -> Iterator[None]:
        """So much is here of what the client has said, or is told."""
        who = caller()
        self._held.add(who, size)
        try:
            yield
        finally:
            self._held.free(who, size)

    # ------------------------------------------------------------------ both directions of a stream

    async def _speak(self, call: Connection, requests: AsyncIterator[Said | RefusedBatch], send: Send[Said]) -> None:
        """What the client says, to the other broker. Does not return by itself: the answers say when it is over."""
        async for request in requests:
            if isinstance(request, RefusedBatch):
                await send(_refusal(request))
                continue
            with self._counted(request.nbytes):
                await call.write(request.body, (request.payload,) if request.payload else ())
            del request
            await self._held.room(caller())
        call.end()
        await asyncio.get_running_loop().create_future()

    async def _hear(self, call: Connection, method: Method, send: Send[Said]) -> None:
        """What the other broker answers, to the client, to the end."""
        who = caller()
        while True:
            await (room_to_lend() if method.name == _LENDS else room_to_send())
            await self._held.room(who)
            answer = await call.read()
            if answer is None:
                return
            with self._counted(answer.nbytes * COPIES_SENT):
                await send(answer)
            del answer

    async def _read(self, call: Connection, send: Send[Said]) -> None:
        """The same of records that come at once: they have their room before they are read."""
        while True:
            await room_to_send()
            async with self._held.sending(caller(), FETCH_CHUNK_BYTES) as room:
                answer = await call.read()
                if answer is None:
                    return
                room.took(answer.nbytes)
                await send(answer)
                del answer


def _addresses(registration: Any) -> tuple[str, ...]:
    """Where clients of any kind reach it."""
    known = registration.address, registration.tls_address
    by_grpc = registration.grpc_address, registration.tls_grpc_address, registration.grpc_token_address
    return tuple(filter(None, (*known, *by_grpc)))


def whose() -> pb.ForwardedFor:
    """Who asks what this task answers."""
    whose = pb.ForwardedFor(principal=str(principal()), serial=serial(), address=caller(), by_grpc=client_port().grpc)
    token = verified()
    if token is not None:
        whose.by_token, whose.token_expires_s, whose.api_token = True, token.expires_s, token.api_token
        whose.groups.extend(token.groups)
    return whose


def _refusal(batch: RefusedBatch) -> Said:
    result = pb.ProduceResult(correlation=batch.header.correlation, base_offset=-1, error=to_wire(batch.error))
    return Said(Kind.MESSAGE, pb.ProduceResponse(results=[result]).SerializeToString(), _EMPTY)
