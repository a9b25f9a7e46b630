"""What gRPC serves is what the port of brokers and clients serves: every method, with the same answers and errors."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import grpc
import pytest
from google.protobuf.message import Message
from grpc import aio

from mq_broker.rpc.grpc_door import FORWARD_METADATA
from mq_broker.rpc.service import is_envelope
from mq_dev.embedded_zookeeper import free_port
from mq_protocol import mq_pb2 as pb
from mq_protocol.access.pem import read
from mq_protocol.access.secrets import digest_of, new_api_token
from mq_protocol.errors import TritonMQError
from mq_protocol.methods import BROKER, Kind, Method
from mq_protocol.wire.envelope import joined
from tests.by_grpc import from_call
from tests.coroutines import real_time
from tests.mq_broker.broker.by_token import Shown, over_tls
from tests.mq_broker.broker.cluster import DEADLINE_S, Broker, standalone, until
from tests.mq_broker.broker.test_rights import OTHER, TOPIC, request_of
from tests.securing import HOST, Certs

NAMES = {
    b"orders-": b"ordurs-",
    b"readers-": b"readurs-",
    b"work-": b"wurk-",
    b"lock-": b"luck-",
    b"nightly": b"nightlu",
}
"""What requests name, and what those name that come by gRPC: each way changes what is its own."""

COUNTED = {"Observe", "Log"}
"""What these tell depends on what was asked before."""


_UNWRITTEN: Final = "Internal error from Core"
"""What grpc.aio says of a write to a call that has just ended."""


class Way(NamedTuple):
    """One client, by both. `address`: where it is served by gRPC."""

    framed: Shown
    channel: aio.Channel
    address: str
    metadata: tuple[tuple[str, str], ...] = ()


async def first(way: Way, method: Method, data: bytes) -> bytes | TritonMQError | None:
    """What is answered first, by gRPC, as generated stubs call the method. A broker ends a call that it refuses before
    it has read anything, and who writes at that moment is told by its own library that the write failed, and not why:
    it asks again."""
    while _UNWRITTEN in str(found := await first_told(way, method, data)):
        pass
    return found


async def first_told(way: Way, method: Method, data: bytes) -> bytes | TritonMQError | None:
    path = BROKER.path(method.name)
    given: dict[str, Any] = {"timeout": DEADLINE_S, "metadata": way.metadata}
    call: Any
    try:
        match method.kind:
            case Kind.UNARY:
                answer = await way.channel.unary_unary(path, None, None)(data, **given)
                assert isinstance(answer, bytes)
                return answer
            case Kind.ANSWERS:
                call = way.channel.unary_stream(path, None, None)(data, **given)
            case Kind.CONVERSATION:
                call = way.channel.stream_stream(path, None, None)(**given)
                with contextlib.suppress(asyncio.InvalidStateError):  # it has ended: read says why
                    await call.write(data)
        answer = await call.read()
        if answer is not aio.EOF:  # type: ignore[attr-defined]
            call.cancel()
            assert isinstance(answer, bytes)
            return answer
        if await call.code() is not grpc.StatusCode.OK:
            raise aio.AioRpcError(await call.code(), await call.initial_metadata(), await call.trailing_metadata())
    except aio.AioRpcError as error:
        return from_call(error, way.address)
    return None


async def first_framed(way: Way, method: Method, data: bytes) -> bytes | TritonMQError | None:
    call = way.framed.channel.call(method.name, DEADLINE_S)
    try:
        await call.write(data)
        if method.kind is not Kind.CONVERSATION:
            await call.end()
        return await call.read()
    except TritonMQError as error:
        return error
    finally:
        call.cancel()


def shape(message: Message) -> Any:
    """Which fields are set, of all that is in it. Ids and times differ."""
    found: dict[str, Any] = {}
    for field, value in message.ListFields():
        entries = field.message_type is not None and field.message_type.GetOptions().map_entry
        if entries:
            found[field.name] = sorted(value)
        elif field.message_type is None:
            found[field.name] = value if field.type == field.TYPE_STRING and "id" not in field.name else None
        else:
            found[field.name] = [shape(each) for each in value] if field.is_repeated else shape(value)
    return found


def named_alike(data: bytes) -> bytes:
    for framed, by_grpc in NAMES.items():
        data = data.replace(by_grpc, framed)
    return data


def told(way: Way, method: Method, answer: bytes | TritonMQError | None) -> Any:
    match answer:
        case None:
            return None
        case TritonMQError():
            return type(answer), named_alike(str(answer).encode()).decode()
    data = answer.replace(way.address.encode(), way.framed.address.encode())
    data = named_alike(data)
    parsed = method.response()
    parsed.ParseFromString(answer if method.name in COUNTED else data)
    return method.response if method.name in COUNTED else shape(parsed)


def nonsense(method: Method) -> bytes:
    return joined(b"\xff\xff", ()) if is_envelope(method.request) else b"\xff\xff"


def asked(method: Method) -> bytes:
    request = request_of(method)
    if method.name == "Subscribe":  # else the first answer may tell of one partition, or of both
        request = pb.SubscribeRequest(open=pb.SubscribeOpen(partitions=[pb.SubscribePartition(topic=TOPIC)]))
    body: bytes = request.SerializeToString()
    return joined(body, (b"x",)) if is_envelope(method.request) else body


async def compared(way: Way, root: Broker | None = None) -> None:
    """Asks everything both ways. `root`: makes what is asked about, each time; None: nothing is changed by it."""
    wrong = []
    for method in BROKER.methods.values():
        for data in (nonsense(method), asked(method)):
            named = data
            for framed, by_grpc in NAMES.items():
                named = named.replace(framed, by_grpc)
            if root is not None:
                await _made(root)
            found = [
                told(way, method, await first_framed(way, method, data)),
                told(way, method, await first(way, method, named)),
            ]
            if found[0] != found[1]:
                wrong.append((method.name, data, found))
    assert wrong == [], "\n".join(map(str, wrong))


async def _made(root: Broker) -> None:
    for topic in (TOPIC, OTHER):
        for name in (topic, topic.replace("orders-", "ordurs-")):
            if not (await root.metadata(name)).topics:
                await root.create_topic(name)
            await until(lambda name=name: _led(root, name))  # type: ignore[misc]


async def _led(root: Broker, topic: str) -> bool:
    return await root.end(topic) == 0


async def names_grpc_addresses(way: Way) -> None:
    """Metadata tell a client where it is served as it came."""
    request = pb.MetadataRequest().SerializeToString()
    answer = await first(way, BROKER.methods["Metadata"], request)
    assert isinstance(answer, bytes)
    assert [broker.address for broker in pb.MetadataResponse.FromString(answer).brokers] == [way.address]
    [broker] = (await way.framed.metadata()).brokers
    assert broker.address == way.framed.address
    meant = way._replace(metadata=(*way.metadata, (FORWARD_METADATA, way.address)))
    assert isinstance(await first(meant, BROKER.methods["Metadata"], request), bytes)


@contextlib.asynccontextmanager
async def secured(certs: Certs, framed: Shown, address: str, user: str = "", token: str = "") -> AsyncIterator[Way]:
    pem = read(certs.user(user).files()) if user else None
    given = (pem.key, pem.certificate) if pem is not None else ()
    metadata = (("authorization", f"Bearer {token}"),) if token else ()
    async with framed, aio.secure_channel(address, grpc.ssl_channel_credentials(certs.ca, *given)) as channel:
        yield Way(framed, channel, address, metadata)


async def token_of(root: Broker, user: str) -> str:
    number, token = new_api_token()
    made = pb.NewApiToken(id=number, sha256=digest_of(token.reveal()), valid_s=3_600)
    await root.ask("AlterTokens", pb.AlterTokensRequest(create_user=user, token=made))
    return token.reveal()


@real_time
async def test_in_plain_text(tmp_path: Path) -> None:
    address = f"{HOST}:{free_port()}"
    async with standalone(tmp_path, grpc=address) as broker, aio.insecure_channel(address) as channel:
        way = Way(Shown(broker.address), channel, address)
        await compared(way, broker)
        await names_grpc_addresses(way)


@real_time
async def test_with_a_certificate(tmp_path: Path) -> None:
    address = f"{HOST}:{free_port()}"
    async with over_tls(tmp_path, grpc=address) as place, place.shown("admin") as root:
        await _made(root)
        for user in ("admin", "nobody"):
            async with secured(place.certs, place.shown(user), address, user) as way:
                await compared(way, root if user == "admin" else None)
                await names_grpc_addresses(way)
        with pytest.raises(AssertionError):  # whoever shows none is not let in by TLS itself
            async with secured(place.certs, place.shown(), address) as way:
                await names_grpc_addresses(way)


@real_time
async def test_with_a_token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mq_broker.security.failures.FAILURES", 10_000)  # nobody waits for a refusal
    address = f"{HOST}:{free_port()}"
    async with over_tls(tmp_path, grpc_token=address) as place, place.shown("admin") as root:
        await _made(root)
        tokens = {user: await token_of(root, user) for user in ("admin", "nobody")}
        for user, token in (*tokens.items(), ("", "tmq_none")):
            async with secured(place.certs, place.shown(token=token), address, token=token) as way:
                await compared(way, root if user == "admin" else None)
                if user:
                    await names_grpc_addresses(way)
