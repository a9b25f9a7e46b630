"""What one broker passes on to another: whose call it is, is believed of a broker that proves it alone."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc import aio

from mq_broker.rpc.callers import asker, caller, client_port, serial
from mq_broker.rpc.certificates import Certificates
from mq_broker.rpc.dialling import Dialling
from mq_broker.rpc.forwarded import ForwardedDoor, ForwardedHandlers
from mq_broker.rpc.gate import Gate
from mq_broker.rpc.peer_proof import FORWARDED, METADATA, PeerProof
from mq_broker.rpc.refusals import Refusals
from mq_broker.rpc.server import dial, dial_securely, listen, peer_options
from mq_broker.rpc.service import handlers
from mq_broker.security.authority import Authority
from mq_broker.security.client_port import ClientPort
from mq_client.cluster import credentials
from mq_protocol import mq_pb2 as pb
from mq_protocol.errors import (
    InvalidRequest,
    NotAuthenticated,
    PeerRefused,
    PermissionDenied,
    TritonMQError,
    Unreachable,
)
from mq_protocol.methods import BROKER
from mq_protocol.transport import FORWARD_METADATA, from_call
from tests.securing import HOST, Certs

SECRET = bytes(range(32))
DEADLINE_S = 30.0
PATH = BROKER.path("Metadata")
NOBODY = "User:ANONYMOUS"

Change = Callable[[pb.ForwardedFor], object]


def proof(broker: int = 2, secret: bytes = SECRET, incarnation: int = 3, ahead_ms: int = 0) -> PeerProof:
    return PeerProof(broker, incarnation, "c", secret, lambda: time.time_ns() // 1_000_000 + ahead_ms)


class Telling:
    """A service of which each method says who asks."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str, str, ClientPort]] = []

    def __getattr__(self, name: str) -> Callable[..., Any]:
        responses = {method.attribute: method.response for method in BROKER.methods.values()}

        async def answer(_request: Any, _deadline: float) -> Any:
            self.asked.append((asker().text, serial(), caller(), client_port()))
            return responses[name]()

        return answer


class Served:
    def __init__(self, address: str, service: Telling, refusals: Refusals) -> None:
        self.address, self.service, self.refusals = address, service, refusals

    async def refuses(self, metadata: Any, channel: aio.Channel | None = None, path: str = PATH) -> TritonMQError:
        """The error of a call with those metadata."""
        async with channel or dial(self.address) as used:
            call: Any = used.unary_unary(path, None, None)
            try:
                await call(b"", metadata=metadata, timeout=DEADLINE_S)
            except aio.AioRpcError as error:
                return from_call(error, self.address)
        raise AssertionError("it was answered")

    async def answers(self, metadata: Any, channel: aio.Channel | None = None) -> tuple[str, str, str, ClientPort]:
        """Who was seen to ask."""
        async with channel or dial(self.address) as used:
            call: Any = used.unary_unary(PATH, None, None)
            await call(b"", metadata=metadata, timeout=DEADLINE_S)
        return self.service.asked[-1]


@contextlib.asynccontextmanager
async def served(
    authority: Authority | None = None, credentials: grpc.ServerCredentials | None = None
) -> AsyncIterator[Served]:
    """The peer port of broker 1. It knows that broker 2 has been started for the third time."""
    server, port = listen(f"{HOST}:0", options=peer_options(), credentials=credentials)
    service, refusals = Telling(), Refusals()
    plain = credentials is None
    door = ForwardedDoor(proof(1), lambda broker, incarnation: broker == 2 and incarnation < 3, refusals, plain=plain)
    inner = handlers(service, Gate(authority or Authority()))
    server.add_generic_rpc_handlers((ForwardedHandlers(inner, door),))
    await server.start()
    try:
        yield Served(f"{HOST}:{port}", service, refusals)
    finally:
        await server.stop(0)


def signed(by: PeerProof | None = None, to: int = 1, path: str = PATH, **whose: Any) -> Any:
    """The metadata of a call that broker 2 passes on to broker 1."""
    return (by or proof()).forwarded(path, to, pb.ForwardedFor(**{"principal": NOBODY, "address": "ipv4:c:1", **whose}))


def altered(change: Change) -> Any:
    """The same, in which something was changed on the way."""
    call = pb.ForwardedCall.FromString(signed()[0][1])
    whose = pb.ForwardedFor.FromString(call.said)
    change(whose)
    return ((FORWARDED, pb.ForwardedCall(said=whose.SerializeToString(), proof=call.proof).SerializeToString()),)


def test_the_client_is_seen_whose_call_it_is() -> None:
    async def scenario() -> None:
        async with served() as there:
            seen = await there.answers(signed())
            assert seen == (NOBODY, "", "ipv4:c:1 by broker 2", ClientPort.PLAIN)
            assert not there.refusals.counts

    asyncio.run(scenario())


FORGED: dict[str, Callable[[], Any]] = {
    "nothing": tuple,
    "no message": lambda: ((FORWARDED, b"\xff"),),
    "empty": lambda: ((FORWARDED, b""),),
    "no proof": lambda: (
        (FORWARDED, pb.ForwardedCall(said=pb.ForwardedFor().SerializeToString()).SerializeToString()),
    ),
    "the proof of another call": lambda: proof().call(PATH),
    "the proof of another call as this one's": lambda: (
        (
            FORWARDED,
            pb.ForwardedCall(
                said=signed_said(), proof=pb.PeerCall.FromString(proof().call(PATH)[0][1]).proof
            ).SerializeToString(),
        ),
    ),
    "of another method": lambda: signed(path=BROKER.path("Observe")),
    "of another cluster": lambda: signed(PeerProof(2, 3, "another", SECRET)),
    "without the secret": lambda: signed(proof(secret=bytes(32))),
    "another name": lambda: altered(lambda whose: setattr(whose, "principal", "User:admin")),
    "another broker": lambda: altered(lambda whose: setattr(whose, "to", 2)),
    "another time": lambda: altered(lambda whose: setattr(whose, "expires_ms", whose.expires_ms + 1)),
    "groups": lambda: altered(lambda whose: whose.groups.append("Group:admins")),
}


def signed_said() -> bytes:
    said: bytes = pb.ForwardedCall.FromString(signed()[0][1]).said
    return said


@pytest.mark.parametrize("forged", FORGED.values(), ids=FORGED.keys())
def test_what_nobody_has_signed_is_refused(forged: Callable[[], Any]) -> None:
    async def scenario() -> None:
        async with served() as there:
            error = await there.refuses(forged())
            assert isinstance(error, PeerRefused)
            assert error.why == pb.PEER_NO_PROOF
            assert there.service.asked == []
            assert there.refusals.counts.total() == 1

    asyncio.run(scenario())


def test_what_is_old_or_of_a_former_life_or_for_another_broker_is_refused() -> None:
    async def scenario() -> None:
        async with served() as there:
            for by, why in (
                (proof(ahead_ms=-35_000), pb.PEER_EXPIRED),
                (proof(ahead_ms=35_000), pb.PEER_EXPIRED),
                (proof(incarnation=2), pb.PEER_FORMER_LIFE),
            ):
                error = await there.refuses(signed(by))
                assert isinstance(error, PeerRefused)
                assert error.why == why
            assert isinstance(await there.refuses(signed(to=3)), Unreachable), "so that the client asks again"
            assert there.service.asked == []

    asyncio.run(scenario())


def test_in_plain_text_nobody_has_a_name() -> None:
    async def scenario() -> None:
        async with served() as there:
            error = await there.refuses(signed(principal="User:etl"))
            assert isinstance(error, PeerRefused)
            assert error.why == pb.PEER_NOT_ITSELF
            assert there.service.asked == []

    asyncio.run(scenario())


def test_over_tls_a_broker_passes_on_names_and_a_user_does_not_though_it_knows_the_secret(tmp_path: Path) -> None:
    async def scenario() -> None:
        certs = Certs(tmp_path / "certs", 1, 2, 3)
        mine = Certificates(certs.path, 1).server_credentials()
        two, three = (Dialling(Certificates(certs.path, broker)) for broker in (2, 3))
        shown = credentials.current(certs.user("mallory")).channel
        assert shown is not None
        named = signed(principal="User:etl", serial="a1")
        async with served(credentials=mine) as there:
            seen = await there.answers(named, two.dial(there.address))
            assert seen == ("User:etl", "a1", "ipv4:c:1 by broker 2", ClientPort.TLS)
            seen = await there.answers(
                signed(principal="User:etl", by_token=True, token_expires_s=1e12), two.dial(there.address)
            )
            assert seen[3] is ClientPort.TOKEN
            for channel in (dial_securely(there.address, shown), three.dial(there.address)):
                error = await there.refuses(named, channel)
                assert isinstance(error, PeerRefused)
                assert error.why == pb.PEER_NOT_ITSELF
            for nobody in ("Broker:2", "admin", ""):
                error = await there.refuses(signed(principal=nobody), two.dial(there.address))
                assert isinstance(error, InvalidRequest)
            assert len(there.service.asked) == 2

    asyncio.run(scenario())


def test_who_has_no_name_is_not_led_to_a_broker_that_serves_nobody_in_plain_text(tmp_path: Path) -> None:
    """While a cluster is being secured another one still does."""

    async def scenario() -> None:
        certs = Certs(tmp_path / "certs", 1, 2)
        two = Dialling(Certificates(certs.path, 2))
        async with served(credentials=Certificates(certs.path, 1).server_credentials()) as there:
            error = await there.refuses(signed(), two.dial(there.address))
            assert isinstance(error, NotAuthenticated)
            assert "plain text" in str(error)
            assert there.service.asked == []

    asyncio.run(scenario())


def test_the_rights_are_judged_of_whoever_asks(tmp_path: Path) -> None:
    async def scenario() -> None:
        certs = Certs(tmp_path / "certs", 1, 2)
        mine = Certificates(certs.path, 1).server_credentials()
        two = Dialling(Certificates(certs.path, 2))
        authority = Authority(on=True)
        path = BROKER.path("Upgrade")
        async with served(authority, mine) as there:
            asked = signed(path=path, principal="User:etl")
            assert isinstance(await there.refuses(asked, two.dial(there.address), path), PermissionDenied)
            over = signed(path=path, principal="User:etl", by_token=True, token_expires_s=1e12, api_token="gone")
            assert isinstance(await there.refuses(over, two.dial(there.address), path), NotAuthenticated)
            assert there.service.asked == []

    asyncio.run(scenario())


def test_what_was_passed_on_is_answered_here_whoever_is_meant() -> None:
    async def scenario() -> None:
        async with served() as there:
            await there.answers((*signed(), (FORWARD_METADATA, "127.0.0.1:1")))
            assert len(there.service.asked) == 1

    asyncio.run(scenario())


def test_a_proof_of_this_kind_is_none_for_what_brokers_ask() -> None:
    """Nor the other way round: each says what it is for."""
    metadata = signed()
    with pytest.raises(PeerRefused):
        proof(1).check_call(PATH, ((METADATA, metadata[0][1]),))
    with pytest.raises(PeerRefused):
        proof(1).check_call(PATH, metadata)
    assert proof(1).check_forwarded(PATH, metadata).principal == NOBODY
