"""The service over a real gRPC server: messages arrive whole, errors come back as they were raised, and what metadata
say is said as in a call of this project's."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import weakref
from collections.abc import AsyncIterator, Sequence
from types import SimpleNamespace
from typing import Any

import grpc
import pytest
from grpc import aio

from mq_broker.rpc import grpc_door
from mq_broker.rpc.gate import Gate
from mq_broker.rpc.grpc_door import FORWARD_METADATA, GrpcHandlers, listen, opened_by
from mq_broker.rpc.service import UNARY, parse, path
from mq_broker.rpc.service import served as service_served
from mq_broker.rpc.wire.entering import Entering, TokenDoor
from mq_broker.security.authenticating import Authenticator
from mq_broker.security.authority import Authority
from mq_protocol import limits
from mq_protocol import mq_pb2 as pb
from mq_protocol.access.secrets import is_token
from mq_protocol.errors import (
    InternalError,
    InvalidRequest,
    InvalidSetting,
    NotLeader,
    OutcomeUnknown,
)
from mq_protocol.methods import BROKER
from mq_protocol.wire.envelope import Envelope, decode, encode
from tests.by_grpc import from_call
from tests.coroutines import real_time
from tests.mq_broker.rpc.streaming import Answering


def by_grpc(service: Any, gate: Gate, tokens: Sequence[Authenticator] = ()) -> GrpcHandlers:
    """The service at a gRPC port."""
    return GrpcHandlers(BROKER.name, service_served(service, gate), Entering(TokenDoor(tokens)).enter)


@contextlib.asynccontextmanager
async def served() -> AsyncIterator[tuple[Any, aio.Channel, str]]:
    service: Any = Answering()
    server, port = listen("127.0.0.1:0")
    server.add_generic_rpc_handlers((by_grpc(service, Gate(Authority())),))
    await server.start()
    address = f"127.0.0.1:{port}"
    try:
        async with aio.insecure_channel(address) as channel:
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


@real_time
async def test_every_method_answers() -> None:
    async with served() as (_, channel, address):
        for name, method in UNARY.items():
            await asked(channel, address, name, method.request(), 10)
        lock: Any = channel.stream_stream(path("Lock"), None, None)
        names = [pb.LockRequest(name="n" * size).SerializeToString() for size in (1, 5)]
        answers = [parse(a, pb.LockResponse).token async for a in lock(iter(names))]
        assert answers == [1, 5]
        watch: Any = channel.unary_stream(path("WatchOffsets"), None, None)
        watching = watch(pb.WatchOffsetsRequest(partitions=[pb.TopicPartition(topic="t")]).SerializeToString())
        assert parse(await watching.read(), pb.WatchOffsetsResponse).offsets[0].topic == "t"
        watching.cancel()


@real_time
async def test_payloads_go_both_ways_untouched() -> None:
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
            decode(a, pb.BatchesHeader)
            async for a in fetch(pb.FetchRequest(end_offset=3, chunk_bytes_max=4).SerializeToString())
        ]
        assert [(a.header.batches[0].base_offset, bytes(a.payload)) for a in answers] == [
            (n, b"a\0\0\0") for n in range(3)
        ]


@pytest.mark.parametrize(
    "text", ["x" * 100_000, "話題" * 2_000, "100 % " * 2_000, "\n" * 5_000, "\ud800" * 2_000, "😀" * 2_000]
)
@real_time
async def test_an_error_with_a_long_text_comes_back_as_itself_shortened(text: str) -> None:
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


@real_time
async def test_an_error_comes_back_as_it_was_raised() -> None:
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
@real_time
async def test_bytes_that_are_no_message_are_an_invalid_request(method: str) -> None:
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


@real_time
async def test_a_method_that_does_not_exist_is_said_so() -> None:
    async with served() as (_, channel, address):
        with pytest.raises(aio.AioRpcError) as refused:
            await _unary(channel, "Nothing", b"")
        assert type(from_call(refused.value, address)) is InvalidRequest


@real_time
async def test_deadlines_reach_the_service_and_end_the_wait() -> None:
    async with served() as (service, channel, address):
        now = asyncio.get_running_loop().time()
        await asked(channel, address, "Groups", pb.GroupsRequest(), 5)
        assert now + 3 < service.deadline < asyncio.get_running_loop().time() + 5.5
        with pytest.raises(OutcomeUnknown):
            await asked(channel, address, "Staged", pb.StagedRequest(topic="hang"), 0.2)


@real_time
async def test_a_taken_port_is_refused_by_its_name() -> None:
    server, port = listen("127.0.0.1:0")
    await server.start()
    with pytest.raises(InvalidSetting, match=f"127.0.0.1:{port}"):
        listen(f"127.0.0.1:{port}")
    await server.stop(0)


def test_what_metadata_say_is_said_when_the_call_is_opened() -> None:
    said = opened_by("Fetch", [("authorization", "bEARER t0ken"), (FORWARD_METADATA, "b:1"), ("other", b"\xff")])
    assert said == pb.CallOpen(method="Fetch", token="t0ken", forward="b:1")
    assert opened_by("Fetch", []) == pb.CallOpen(method="Fetch")


@pytest.mark.parametrize("wrong", [("Basic abc",), ("",), ("Bearer",), ("Bearer ",), (b"Bearer a",), ("Bearer a",) * 2])
def test_what_is_not_one_token_is_verified_as_one_that_nobody_has(wrong: tuple[Any, ...]) -> None:
    """So it is refused, and noted, in the same way."""
    opened = opened_by("Fetch", [("authorization", value) for value in wrong])
    assert opened.token
    assert not is_token(opened.token)


def test_a_call_means_one_broker() -> None:
    with pytest.raises(InvalidRequest, match="more than once"):
        opened_by("Fetch", [(FORWARD_METADATA, "b:1"), (FORWARD_METADATA, "b:1")])


def test_what_brokers_say_of_a_call_is_not_heard_by_grpc() -> None:
    """The names that it once had there mean nothing."""
    for field in pb.CallOpen.DESCRIPTOR.fields_by_name:
        for key in (field, f"tritonmq-{field}-bin"):
            assert opened_by("Fetch", [(key, b"x")]) == pb.CallOpen(method="Fetch")


class Aborted:
    """A context that keeps what a call was aborted with, as gRPC's does."""

    kept: aio.AbortError | None = None

    def auth_context(self) -> dict[str, list[bytes]]:
        return {"transport_security_type": [b"insecure"]}

    def peer(self) -> str:
        return "ipv4:127.0.0.1:1"

    def time_remaining(self) -> None:
        return None

    def invocation_metadata(self) -> tuple[()]:
        return ()

    async def read(self) -> bytes:
        return pb.StagedRequest(topic="t").SerializeToString()

    async def abort(self, *_: Any, **__: Any) -> None:
        self.kept = aio.AbortError("Locally aborted.")
        raise self.kept


@pytest.mark.parametrize("fails", [NotLeader("not here"), RuntimeError("a defect")], ids=["refused", "a defect"])
def test_a_refused_request_leaves_no_circle_to_the_collector_of_cycles(
    fails: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    """Requests are large, and it comes after hundreds of them."""
    caplog.set_level(logging.CRITICAL, grpc_door.log.name)  # else the fixture keeps what was logged, and its frames

    async def refused(context: Any) -> None:
        answering: Any = Answering()
        answering.error = fails
        details: Any = SimpleNamespace(method=BROKER.path("Staged"))
        handler: Any = by_grpc(answering, Gate(Authority())).service(details)
        answered = handler.stream_stream(None, context)
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
