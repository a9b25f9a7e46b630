"""One call on the loop of pushes, over a broker's stream port where that can be reached, else by gRPC."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractContextManager
from typing import Any, Final, Generic, Protocol, TypeVar

import grpc
from google.protobuf.message import Message
from grpc import aio

from mq_client.cluster import forwarding, stream_calls, streams
from mq_client.cluster.channels import Client, Made, made, meaning
from mq_client.cluster.stream_calls import StreamCall
from mq_client.cluster.streams import NoStreamPort
from mq_client.errors import TritonMQError, Unreachable
from mq_protocol.envelope import Envelope, decode
from mq_protocol.methods import BROKER
from mq_protocol.streams import Kind, parsed, say

log = logging.getLogger(__name__)

EOF: Final = aio.EOF  # type: ignore[attr-defined]  # the stubs lack it


H = TypeVar("H", bound=Message)


class PushCall(Protocol[H]):
    """A call whose answers have a header and a payload."""

    async def read(self) -> Envelope[H] | None:
        """The next answer; None after the last one. Raises why there is none."""

    async def write(self, request: Message) -> None:
        """Waits while the broker reads nothing. That the call is over shows where it is read."""

    async def done_writing(self) -> None:
        """Nothing more is said."""

    def cancel(self) -> None:
        """It is over."""


CALLS_MAX: Final = 200
"""Over one stream port from a process: each takes a connection, of which a broker has 2,000 by default. By gRPC
hundreds share one."""


class Channels(Protocol):
    """The loop of pushes: where gRPC's channels come from, and how many calls are open over each stream port."""

    stream_calls: Counter[str]

    def channel(self, address: str, client: Client) -> AbstractContextManager[aio.Channel]: ...


class _ByGrpc(Generic[H]):
    """`on_answer` is told of the first one."""

    def __init__(self, call: Any, address: str, client: Client, made_with: Made, on_answer: Callable[[], None]) -> None:
        self._call = call
        self._address = address
        self._client = client
        self._made_with = made_with
        self._on_answer: Callable[[], None] | None = on_answer

    async def read(self) -> Envelope[H] | None:
        try:
            message = await self._call.read()
        except grpc.RpcError as error:
            raise meaning(error, self._address, self._client, self._made_with) from None
        if self._on_answer is not None:
            self._on_answer()
            self._on_answer = None
        return None if message is EOF else message

    async def write(self, request: Message) -> None:
        with contextlib.suppress(grpc.RpcError, asyncio.InvalidStateError):
            await self._call.write(request)

    async def done_writing(self) -> None:
        with contextlib.suppress(grpc.RpcError, asyncio.InvalidStateError):
            await self._call.done_writing()

    def cancel(self) -> None:
        self._call.cancel()


class _ByStreamPort(Generic[H]):
    def __init__(self, call: StreamCall, stream_address: str, header: type[H]) -> None:
        self._call = call
        self._stream_address = stream_address
        self._header = header

    async def read(self) -> Envelope[H] | None:
        try:
            message = await self._call.read()
        except TritonMQError as error:
            if streams.is_for_grpc(error, self._stream_address):
                raise Unreachable(f"{error}; gRPC is tried") from error
            raise
        if message is None:
            return None
        if message.kind is not Kind.MESSAGE:
            raise Unreachable(f"the broker has said {message.kind.name} within a call")
        return Envelope(parsed(message.body, self._header), (message.payload,))

    async def write(self, request: Message) -> None:
        await self._call.write(say(Kind.MESSAGE, request.SerializeToString()))

    async def done_writing(self) -> None:
        self._call.end()

    def cancel(self) -> None:
        self._call.cancel()


@contextlib.asynccontextmanager
async def opened(
    channels: Channels, method: str, header: type[H], address: str, client: Client, stream_address: str = ""
) -> AsyncIterator[PushCall[H]]:
    """Around a call to the broker at `address`. `header`: of its answers. Raises `TritonMQError`."""
    tried = streams.usable(stream_address) and (
        channels.stream_calls[stream_address] < CALLS_MAX or streams.is_required()
    )
    if tried:
        channels.stream_calls[stream_address] += 1
        try:
            call = await stream_calls.dial(stream_address, address, client)
        except NoStreamPort as error:
            log.debug("%s; gRPC is tried", error)
        else:
            try:
                call.open(method)
                yield _ByStreamPort(call, stream_address, header)
            finally:
                call.cancel()
            return
        finally:
            channels.stream_calls[stream_address] -= 1

    def answered() -> None:
        if tried:
            streams.avoid(stream_address)

    made_with = made(address, client)
    with channels.channel(address, client) as channel:
        by_grpc: _ByGrpc[H] = _ByGrpc(
            _stream_of(channel, method, header, forwarding.metadata(address, client)),
            address,
            client,
            made_with,
            answered,
        )
        try:
            yield by_grpc
        finally:
            by_grpc.cancel()


def _stream_of(channel: aio.Channel, method: str, header: type[Message], metadata: Any) -> Any:
    encode = BROKER.methods[method].request.SerializeToString
    stream: Any = channel.stream_stream(BROKER.path(method), encode, lambda data: decode(data, header))
    return stream(metadata=metadata)
