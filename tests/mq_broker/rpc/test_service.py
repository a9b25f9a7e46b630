"""The service over a real gRPC server: messages arrive whole, errors come back as they were raised."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import weakref
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
from grpc import aio

from mq_broker.rpc import service
from mq_broker.rpc.gate import Gate
from mq_broker.rpc.server import dial, listen
from mq_broker.rpc.service import UNARY, Batches, ProduceRequests, Send, handlers, parse, path
from mq_broker.security.authority import Authority
from mq_protocol import limits
from mq_protocol import mq_pb2 as pb
from mq_protocol.envelope import Envelope, decode, encode
from mq_protocol.errors import (
    InternalError,
    InvalidRequest,
    InvalidSetting,
    NotLeader,
    OutcomeUnknown,
)
from mq_protocol.methods import BROKER
from mq_protocol.transport import from_call


class Answering:
    """A service that answers, fails or hangs as a test wants."""

    def __init__(self) -> None:
        self.error: Exception | None = None
        self.deadline = 0.0
        for name, method in UNARY.items():
            setattr(self, method.attribute, self._unary(name, method.response))

    def _unary(self, name: str, response: type[Any]) -> Any:
        async def answer(request: Any, deadline: float) -> Any:
            self.deadline = deadline
            if self.error is not None:
                raise self.error
            if name == "Staged" and request.topic == "hang":
                await asyncio.Event().wait()
            return response()

        return answer

    async def produce(self, requests: ProduceRequests, send: Send[pb.ProduceResponse]) -> None:
        async for request in requests:
            if self.error is not None:
                raise self.error
            result = pb.ProduceResult(correlation=request.header.correlation, base_offset=len(request.payload))
            await send(pb.ProduceResponse(results=[result]))

    async def fetch(self, request: pb.FetchRequest, send: Send[Batches]) -> None:
        if self.error is not None:
            raise self.error
        for n in range(request.start_offset, request.end_offset):
            batch = pb.StoredBatch(base_offset=n, payload_bytes=4)
            await send(Envelope(pb.BatchesHeader(batches=[batch]), (b"ab", b"cd")))

    async def subscribe(self, requests: AsyncIterator[pb.SubscribeRequest], send: Send[Batches]) -> None:
        async for request in requests:
            opened = [pb.PartitionOpened(topic=p.topic) for p in request.open.partitions]
            await send(Envelope(pb.BatchesHeader(opened=opened)))

    async def work(self, requests: AsyncIterator[pb.WorkRequest], send: Send[Envelope[pb.WorkHeader]]) -> None:
        async for _ in requests:
            await send(Envelope(pb.WorkHeader(), ()))

    async def lock(self, requests: AsyncIterator[pb.LockRequest], send: Send[pb.LockResponse]) -> None:
        async for request in requests:
            await send(pb.LockResponse(token=len(request.name)))

    async def watch_offsets(self, request: pb.WatchOffsetsRequest, send: Send[pb.WatchOffsetsResponse]) -> None:
        await send(pb.WatchOffsetsResponse(offsets=[pb.WatchedOffsets(topic=p.topic) for p in request.partitions]))


@contextlib.asynccontextmanager
async def served() -> AsyncIterator[tuple[Any, aio.Channel, str]]:
    service: Any = Answering()
    server, port = listen("127.0.0.1:0")
    server.add_generic_rpc_handlers((handlers(service, Gate(Authority())),))
    await server.start()
    address = f"127.0.0.1:{port}"
    try:
        async with dial(address) as channel:
            yield service, channel, address
    finally:
        await server.stop(0)


async def _unary(channel: aio.Channel, method: str, data: bytes, timeout: float = 10) -> bytes:  # noqa: ASYNC109 - gRPC's word
    call: Any = channel.unary_unary(f"/{BROKER.name}/{method}", None, None)  # a method that there is not, too
    answer: bytes = await call(data, timeout=timeout)
    return answer


async def asked(channel: aio.Channel, address: str, name: str, request: Any, timeout_s: float) -> Any:
    call: Any = channel.unary_unary(path(name), None, None)
    try:
        return parse(await call(request.SerializeToString(), timeout=timeout_s), UNARY[name].response)
    except aio.AioRpcError as error:
        raise from_call(error, address) from error


def test_every_method_answers() -> None:
    async def scenario() -> None:
        async with served() as (_, channel, address):
            for name, method in UNARY.items():
                await asked(channel, address, name, method.request(), 10)
            watch: Any = channel.unary_stream(path("WatchOffsets"), None, None)
            places = [pb.TopicPartition(topic="t")]
            answers = [a async for a in watch(pb.WatchOffsetsRequest(partitions=places).SerializeToString())]
            assert [parse(a, pb.WatchOffsetsResponse).offsets[0].topic for a in answers] == ["t"]

    asyncio.run(scenario())


def test_payloads_go_both_ways_untouched() -> None:
    async def scenario() -> None:
        async with served() as (_, channel, _address):
            produce: Any = channel.stream_stream(path("Produce"), None, None)
            call = produce()
            for n in (0, 5, 1_000_000):
                await call.write(encode(Envelope(pb.ProduceHeader(correlation=n), (b"x" * n,))))
                [result] = parse(await call.read(), pb.ProduceResponse).results
                assert (result.correlation, result.base_offset) == (n, n)
            await call.done_writing()
            assert await call.code() is grpc.StatusCode.OK
            fetch: Any = channel.unary_stream(path("Fetch"), None, None)
            answers = [
                decode(a, pb.BatchesHeader) async for a in fetch(pb.FetchRequest(end_offset=3).SerializeToString())
            ]
            assert [(a.header.batches[0].base_offset, bytes(a.payload)) for a in answers] == [
                (n, b"abcd") for n in range(3)
            ]

    asyncio.run(scenario())


@pytest.mark.parametrize(
    "text", ["x" * 100_000, "話題" * 2_000, "100 % " * 2_000, "\n" * 5_000, "\ud800" * 2_000, "😀" * 2_000]
)
def test_an_error_with_a_long_text_comes_back_as_itself_shortened(text: str) -> None:
    async def scenario() -> None:
        async with served() as (service, channel, address):
            service.error = InvalidSetting(text)
            with pytest.raises(aio.AioRpcError) as refused:
                await _unary(channel, "Metadata", b"")
            error = from_call(refused.value, address)
            assert type(error) is InvalidSetting, error
            assert str(error).endswith("...")
            assert text.encode("utf-8", "backslashreplace").decode().startswith(str(error)[:-3])
            assert 4_000 < len(str(error).encode()) <= limits.ERROR_BYTES_MAX
            assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
            assert (refused.value.details() or "").endswith("...")

    asyncio.run(scenario())


def test_an_error_comes_back_as_it_was_raised() -> None:
    async def scenario() -> None:
        async with served() as (service, channel, address):
            service.error = NotLeader("ask broker 3", 3, 17)
            with pytest.raises(aio.AioRpcError) as refused:
                await _unary(channel, "Metadata", b"")
            assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
            error = from_call(refused.value, address)
            assert isinstance(error, NotLeader)
            assert (str(error), error.leader, error.leader_epoch) == ("ask broker 3", 3, 17)
            fetch: Any = channel.unary_stream(path("Fetch"), None, None)
            with pytest.raises(aio.AioRpcError) as refused:
                await fetch(b"").read()
            assert isinstance(from_call(refused.value, address), NotLeader)

    asyncio.run(scenario())


def test_a_defect_is_logged_with_its_traceback_and_told_as_internal(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        async with served() as (service, channel, address):
            service.error = ZeroDivisionError("a defect")
            with caplog.at_level(logging.ERROR), pytest.raises(aio.AioRpcError) as refused:
                await _unary(channel, "Metadata", b"")
            error = from_call(refused.value, address)
            assert type(error) is InternalError
            assert "a defect" not in str(error)

    asyncio.run(scenario())
    assert "ZeroDivisionError: a defect" in caplog.text


@pytest.mark.parametrize("method", ["Metadata", "Decide"])
def test_bytes_that_are_no_message_are_an_invalid_request(method: str) -> None:
    async def scenario() -> None:
        async with served() as (_, channel, address):
            with pytest.raises(aio.AioRpcError) as refused:
                await _unary(channel, method, b"\xff\xff\xff")
            assert type(from_call(refused.value, address)) is InvalidRequest
            produce: Any = channel.stream_stream(path("Produce"), None, None)
            call = produce()
            await call.write(b"\x12\x00")
            with pytest.raises(aio.AioRpcError) as refused:
                await call.read()
            assert type(from_call(refused.value, address)) is InvalidRequest

    asyncio.run(scenario())


def test_a_method_that_does_not_exist_is_said_so() -> None:
    async def scenario() -> None:
        async with served() as (_, channel, address):
            with pytest.raises(aio.AioRpcError) as refused:
                await _unary(channel, "Nothing", b"")
            assert type(from_call(refused.value, address)) is InvalidRequest

    asyncio.run(scenario())


def test_deadlines_reach_the_service_and_end_the_wait() -> None:
    async def scenario() -> None:
        async with served() as (service, channel, address):
            now = asyncio.get_running_loop().time()
            await asked(channel, address, "Groups", pb.GroupsRequest(), 5)
            assert now + 3 < service.deadline < asyncio.get_running_loop().time() + 5.5
            with pytest.raises(OutcomeUnknown):
                await asked(channel, address, "Staged", pb.StagedRequest(topic="hang"), 0.2)

    asyncio.run(scenario())


def test_a_taken_port_is_refused_by_its_name() -> None:
    async def scenario() -> None:
        server, port = listen("127.0.0.1:0")
        await server.start()
        with pytest.raises(InvalidSetting, match=f"127.0.0.1:{port}"):
            listen(f"127.0.0.1:{port}")
        await server.stop(0)

    asyncio.run(scenario())


class Aborted:
    """A context that keeps what a call was aborted with, as gRPC's does."""

    kept: aio.AbortError | None = None

    def auth_context(self) -> dict[str, list[bytes]]:
        return {"transport_security_type": [b"insecure"]}

    def peer(self) -> str:
        return "ipv4:127.0.0.1:1"

    def time_remaining(self) -> None:
        return None

    async def abort(self, *_: Any, **__: Any) -> None:
        self.kept = aio.AbortError("Locally aborted.")
        raise self.kept


@pytest.mark.parametrize("fails", [NotLeader("not here"), RuntimeError("a defect")], ids=["refused", "a defect"])
def test_a_refused_request_leaves_no_circle_to_the_collector_of_cycles(
    fails: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    """Requests are large, and it comes after hundreds of them."""
    caplog.set_level(logging.CRITICAL, service.log.name)  # else the fixture keeps what was logged, and its frames

    async def refused(context: Any) -> None:
        answering: Any = Answering()
        answering.error = fails
        handler: Any = service.unary_handler(
            BROKER.methods["Staged"], answering, Gate(Authority()).door(BROKER.methods["Staged"])
        )
        answered = handler.unary_unary(pb.StagedRequest(topic="t").SerializeToString(), context)
        del context  # what is raised keeps this frame
        with pytest.raises(aio.AbortError):
            await answered

    context = Aborted()
    gone = weakref.ref(context)
    gc.collect()
    gc.disable()
    try:
        asyncio.run(refused(context))
        del context
        assert gone() is None
    finally:
        gc.enable()
