"""What a broker's gRPC port takes: connections, streams, messages, headers, and silence. Each below its bound
and above."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
from grpc import aio

from mq_broker.rpc import grpc_door, service
from mq_broker.rpc.gate import Gate
from mq_broker.rpc.grpc_door import client_options, listen
from mq_broker.rpc.service import path
from mq_broker.security.authority import Authority
from mq_protocol import mq_pb2 as pb
from mq_protocol.limits import CONNECTION_IDLE_MS, PRODUCE_HEADER_BYTES_MAX
from mq_protocol.wire.envelope import Envelope, encode
from tests.coroutines import real_time
from tests.mq_broker.rpc.streaming import Answering
from tests.mq_broker.rpc.test_service import by_grpc

WAIT_S = 30.0
MESSAGE_BYTES_MAX = 100_000


@contextlib.asynccontextmanager
async def served(connections_max: int = 100) -> AsyncIterator[str]:
    listening, port = listen("127.0.0.1:0", options=client_options(MESSAGE_BYTES_MAX, connections_max))
    listening.add_generic_rpc_handlers((by_grpc(Answering(), Gate(Authority())),))
    await listening.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await listening.stop(0)


def connect(address: str) -> aio.Channel:
    return aio.insecure_channel(address, options=[("grpc.use_local_subchannel_pool", 1)])


async def metadata(channel: aio.Channel, timeout_s: float = WAIT_S, headers: tuple[tuple[str, str], ...] = ()) -> None:
    call: Any = channel.unary_unary(path("Metadata"), None, None)
    await call(b"", timeout=timeout_s, metadata=headers)


async def open_produce(channel: aio.Channel) -> Any:
    call: Any = channel.stream_stream(path("Produce"), None, None)()
    await call.write(encode(Envelope(pb.ProduceHeader())))
    return call


async def until_one_is_taken(channel: aio.Channel) -> None:
    """Opens streams until one is answered. A refusal may come before the request is written, or after."""
    while True:
        try:
            call = await open_produce(channel)
            if await call.read():
                return
        except aio.AioRpcError as refused:
            if refused.code() is not grpc.StatusCode.RESOURCE_EXHAUSTED:
                raise


def test_who_greets_and_says_nothing_or_is_gone_has_a_bound_in_time() -> None:
    """gRPC keeps them. What it does at each was seen once."""
    options = dict(client_options())
    assert options.items() >= {
        ("grpc.server_handshake_timeout_ms", 10_000),
        ("grpc.keepalive_time_ms", 10_000),
        ("grpc.http2.ping_timeout_ms", 5_000),
        ("grpc.max_connection_idle_ms", CONNECTION_IDLE_MS),
    }
    assert all(options.get(name) for name in ("grpc.max_metadata_size", "grpc.max_allowed_incoming_connections"))


@real_time
async def test_connections_beyond_the_bound_are_refused_until_one_is_closed() -> None:
    async with served(connections_max=2) as address:
        first, second, third = (connect(address) for _ in range(3))
        await metadata(first)
        await metadata(second)
        with pytest.raises(aio.AioRpcError) as refused:
            await metadata(third, timeout_s=1.0)
        assert refused.value.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)
        await metadata(first)
        await first.close()
        async with asyncio.timeout(WAIT_S):
            while True:
                with contextlib.suppress(aio.AioRpcError):
                    await metadata(third, timeout_s=1.0)
                    break
        await second.close()
        await third.close()


@real_time
async def test_streams_beyond_the_bound_of_a_connection_wait_for_one_to_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grpc_door, "STREAMS_PER_CONNECTION_MAX", 3)
    async with served() as address, connect(address) as channel, connect(address) as other:
        await metadata(channel)  # its settings have come
        opened = [await open_produce(channel) for _ in range(3)]
        for call in opened:
            assert await asyncio.wait_for(call.read(), WAIT_S)
        waiting = asyncio.create_task(metadata(channel))
        await asyncio.wait({waiting}, timeout=0.3)
        assert not waiting.done()
        await metadata(other)
        opened[0].cancel()
        await asyncio.wait_for(waiting, WAIT_S)


@real_time
async def test_streams_of_all_clients_beyond_the_bound_are_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "STREAMS_MAX", 2)
    async with served() as address, connect(address) as one, connect(address) as other:
        first, second = await open_produce(one), await open_produce(other)
        for call in (first, second):
            assert await asyncio.wait_for(call.read(), WAIT_S)
        third: Any = other.stream_stream(path("Produce"), None, None)()
        assert await asyncio.wait_for(third.code(), WAIT_S) is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "has 2 streams open" in await third.details()
        first.cancel()
        await asyncio.wait_for(until_one_is_taken(other), WAIT_S)


@real_time
async def test_a_message_may_be_as_large_as_the_bound_and_no_larger() -> None:
    def padded(size: int) -> bytes:
        payload = bytes(size - 6)
        data = encode(Envelope(pb.ProduceHeader(), (payload,)))
        assert len(data) == size
        return data

    async with served() as address, connect(address) as channel:
        call: Any = channel.stream_stream(path("Produce"), None, None)()
        await call.write(padded(MESSAGE_BYTES_MAX))
        assert await asyncio.wait_for(call.read(), WAIT_S)
        await call.write(padded(MESSAGE_BYTES_MAX + 1))
        assert await asyncio.wait_for(call.code(), WAIT_S) is grpc.StatusCode.RESOURCE_EXHAUSTED


@real_time
async def test_what_stands_beside_a_batch_has_a_bound_of_its_own() -> None:
    """A header is parsed on the loop, and two of its bytes may become an object."""
    async with served() as address, connect(address) as channel:
        call: Any = channel.stream_stream(path("Produce"), None, None)()
        await call.write(encode(Envelope(pb.ProduceHeader(record_uuids=bytes(PRODUCE_HEADER_BYTES_MAX - 100)))))
        assert await asyncio.wait_for(call.read(), WAIT_S)
        await call.write(encode(Envelope(pb.ProduceHeader(record_uuids=bytes(PRODUCE_HEADER_BYTES_MAX)))))
        assert await asyncio.wait_for(call.code(), WAIT_S) is grpc.StatusCode.INVALID_ARGUMENT
