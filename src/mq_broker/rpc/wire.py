"""What a link speaks over: the same messages as a gRPC stream at the peer port, or on a connection to the link port
(framed.py)."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any, Final, Protocol, TypeAlias

from grpc import aio

from mq_broker.rpc.callers import principal
from mq_broker.rpc.service import EOF
from mq_broker.security.names import ANONYMOUS, Principal
from mq_protocol import mq_pb2 as pb
from mq_protocol.envelope import Envelope, decode, encode
from mq_protocol.errors import InvalidRequest, PeerRefused, Unreachable

LinkMessage: TypeAlias = Envelope[pb.LinkHeader]
Hear: TypeAlias = Callable[[LinkMessage], None]

HELLO_BYTES_MAX: Final = 1 << 10
"""Of each message before the far side has proved who it is: a hello has some hundred bytes. What is longer is not
parsed."""


class Wire(Protocol):
    """One connection to another broker, from its first message on."""

    def speaker(self) -> Principal:
        """Whom the connection has proved to be at the other end; `User:ANONYMOUS` if it has proved nothing. Raises
        `PeerRefused` if that has no name."""

    async def hello(self) -> pb.LinkHello:
        """The next message, which must be one. Raises `PeerRefused` if it is another one, or longer than a hello is."""

    async def send(self, message: LinkMessage) -> None:
        """Waits while the far side is slow. Raises `Unreachable` once the connection has ended."""

    async def listen(self, hear: Hear) -> None:
        """`hear` is called with each message that comes from now on, on the event loop. Returns or raises when the
        connection ends; raises what `hear` raised."""


def no_hello() -> PeerRefused:
    return PeerRefused(
        "a link begins with hello: this is for the cluster's brokers alone, clients use the address given by --listen",
        pb.PEER_NO_HELLO,
    )


class _Stream:
    """A stream of gRPC, by how it is read and written."""

    def __init__(
        self,
        read: Callable[[], Awaitable[Any]],
        write: Callable[[bytes], Awaitable[None]],
        speaker: Principal = ANONYMOUS,
    ) -> None:
        self._speaker = speaker
        self._read = read
        self._write = write

    def speaker(self) -> Principal:
        return self._speaker

    async def hello(self) -> pb.LinkHello:
        data = await self._read()
        if data is not EOF and len(data) <= HELLO_BYTES_MAX:
            with contextlib.suppress(InvalidRequest):
                header = decode(data, pb.LinkHeader).header
                if header.HasField("hello"):
                    return header.hello
        raise no_hello()

    async def send(self, message: LinkMessage) -> None:
        await self._write(encode(message))

    async def listen(self, hear: Hear) -> None:
        while (data := await self._read()) is not EOF:
            hear(decode(data, pb.LinkHeader))


class ServedStream(_Stream):
    """A call of the method `Link`, at its server."""

    def __init__(self, context: aio.ServicerContext[Any, Any]) -> None:
        super().__init__(context.read, context.write, principal())


class DialledStream(_Stream):
    """The same at its client, whom gRPC tells no name: only that the certificate is good, and for that host. Raises
    gRPC's `AioRpcError` for what the far side raised."""

    def __init__(self, call: Any) -> None:
        async def write(data: bytes) -> None:
            try:
                await call.write(data)
            except asyncio.InvalidStateError as error:  # the far side had ended the stream, and said that all was well
                raise Unreachable("the far side has ended the link") from error

        super().__init__(call.read, write)
