"""Whose a call is: by a token, or by the word of a broker that passes it on, which is believed of one that proves it
alone."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mq_broker.rpc.callers import asker, caller, client_port, serial
from mq_broker.rpc.peer_proof import PeerProof, Refusals
from mq_broker.rpc.wire import entering
from mq_broker.rpc.wire.certificates import Certificates
from mq_broker.rpc.wire.entering import Entering, ForwardedDoor, TokenDoor
from mq_broker.security.authority import Authority
from mq_broker.security.client_port import ClientPort
from mq_broker.security.failures import DELAY_S, FAILURES
from mq_broker.security.names import Principal
from mq_broker.security.verified import Verified
from mq_protocol import mq_pb2 as pb
from mq_protocol.access.pem import context, read
from mq_protocol.errors import (
    InvalidRequest,
    NotAuthenticated,
    PeerRefused,
    PermissionDenied,
    TritonMQError,
    Unreachable,
)
from mq_protocol.methods import BROKER
from mq_protocol.wire.call import PREAMBLE
from tests.coroutines import real_time, virtual_time
from tests.mq_broker.rpc.streaming import Served, ask, asking, connected, server_tls
from tests.securing import HOST, Certs

SECRET = bytes(range(32))
PATH = BROKER.path("Metadata")
NOBODY = "User:ANONYMOUS"

Change = Callable[[pb.ForwardedFor], object]
Seen = tuple[str, str, str, ClientPort]


def proof(broker: int = 2, secret: bytes = SECRET, incarnation: int = 3, ahead_ms: int = 0) -> PeerProof:
    return PeerProof(broker, incarnation, "c", secret, lambda: time.time_ns() // 1_000_000 + ahead_ms)


class Telling:
    """A service of which each method says who asks."""

    def __init__(self) -> None:
        self.asked: list[Seen] = []

    def __getattr__(self, name: str) -> Callable[..., Any]:
        responses = {method.attribute: method.response for method in BROKER.methods.values()}

        async def answer(_request: Any, _deadline: float) -> Any:
            self.asked.append((asker().text, serial(), caller(), client_port()))
            return responses[name]()

        return answer


class Port:
    """Broker 1's. `tls`: what who asks has of its own."""

    def __init__(self, served: Served, refusals: Refusals) -> None:
        self.served, self.refusals = served, refusals

    @property
    def asked(self) -> list[Seen]:
        asked: list[Seen] = self.served.service.asked
        return asked

    async def refuses(self, opened: pb.CallOpen, tls: ssl.SSLContext | None = None) -> TritonMQError:
        with pytest.raises(TritonMQError) as refused:
            await ask(self.served.address, opened, tls=tls)
        return refused.value

    async def answers(self, opened: pb.CallOpen, tls: ssl.SSLContext | None = None) -> Seen:
        """Who was seen to ask."""
        await ask(self.served.address, opened, tls=tls)
        return self.asked[-1]


@contextlib.asynccontextmanager
async def started(entering: Entering, refusals: Refusals, authority: Authority | None, tls: Any) -> AsyncIterator[Port]:
    served = Served(authority, entering=entering, service=Telling(), tls=tls)
    served.server.start()
    try:
        yield Port(served, refusals)
    finally:
        await served.server.stop()


@contextlib.asynccontextmanager
async def for_brokers(authority: Authority | None = None, tls: Any = None) -> AsyncIterator[Port]:
    """It knows that broker 2 has been started for the third time."""
    refusals = Refusals()
    door = ForwardedDoor(
        proof(1), lambda broker, incarnation: broker == 2 and incarnation < 3, refusals, plain=tls is None
    )
    async with started(Entering(TokenDoor(()), door), refusals, authority, tls) as port:
        yield port


@contextlib.asynccontextmanager
async def for_clients(tls: Any = None, **options: Any) -> AsyncIterator[Port]:
    async with started(Entering(TokenDoor([Badges()]), **options), Refusals(), None, tls) as port:
        yield port


def signed(by: PeerProof | None = None, to: int = 1, method: str = "Metadata", **whose: Any) -> pb.CallOpen:
    """A call that broker 2 passes on to broker 1."""
    said = pb.ForwardedFor(**{"principal": NOBODY, "address": "ipv4:c:1", **whose})
    return pb.CallOpen(method=method, passed_on=(by or proof()).forwarded(BROKER.path(method), to, said))


def altered(change: Change) -> pb.CallOpen:
    """The same, in which something was changed on the way."""
    opened = signed()
    whose = pb.ForwardedFor.FromString(opened.passed_on.said)
    change(whose)
    opened.passed_on.said = whose.SerializeToString()
    return opened


def passed_on(**fields: Any) -> pb.CallOpen:
    return pb.CallOpen(method="Metadata", passed_on=pb.ForwardedCall(**fields))


# ---------------------------------------------------------------- what brokers pass on


@real_time
async def test_the_client_is_seen_whose_call_it_is() -> None:
    async with for_brokers() as there:
        seen = await there.answers(signed())
        assert seen == (NOBODY, "", "ipv4:c:1 by broker 2", ClientPort())
        assert not there.refusals.counts


FORGED: dict[str, Callable[[], pb.CallOpen]] = {
    "empty": passed_on,
    "no proof": lambda: passed_on(said=signed().passed_on.said),
    "the proof of another call": lambda: passed_on(said=signed().passed_on.said, proof=proof().call(PATH).proof),
    "no message": lambda: passed_on(said=b"\xff"),
    "of another method": lambda: pb.CallOpen(method="Metadata", passed_on=signed(method="Observe").passed_on),
    "of another cluster": lambda: signed(PeerProof(2, 3, "another", SECRET)),
    "without the secret": lambda: signed(proof(secret=bytes(32))),
    "another name": lambda: altered(lambda whose: setattr(whose, "principal", "User:admin")),
    "another broker": lambda: altered(lambda whose: setattr(whose, "to", 2)),
    "another time": lambda: altered(lambda whose: setattr(whose, "expires_ms", whose.expires_ms + 1)),
    "groups": lambda: altered(lambda whose: whose.groups.append("Group:admins")),
}


@pytest.mark.parametrize("forged", FORGED.values(), ids=FORGED.keys())
@real_time
async def test_what_nobody_has_signed_is_refused(forged: Callable[[], pb.CallOpen]) -> None:
    async with for_brokers() as there:
        error = await there.refuses(forged())
        assert isinstance(error, PeerRefused)
        assert error.why == pb.PEER_NO_PROOF
        assert there.asked == []
        assert there.refusals.counts.total() == 1


@real_time
async def test_what_is_old_or_of_a_former_life_or_for_another_broker_is_refused() -> None:
    async with for_brokers() as there:
        for by, why in (
            (proof(ahead_ms=-35_000), pb.PEER_EXPIRED),
            (proof(ahead_ms=35_000), pb.PEER_EXPIRED),
            (proof(incarnation=2), pb.PEER_FORMER_LIFE),
        ):
            error = await there.refuses(signed(by))
            assert isinstance(error, PeerRefused)
            assert error.why == why
        assert isinstance(await there.refuses(signed(to=3)), Unreachable), "so that the client asks again"
        assert there.asked == []


@real_time
async def test_in_plain_text_nobody_has_a_name() -> None:
    async with for_brokers() as there:
        error = await there.refuses(signed(principal="User:etl"))
        assert isinstance(error, PeerRefused)
        assert error.why == pb.PEER_NOT_ITSELF
        assert there.asked == []


@real_time
async def test_over_tls_a_broker_passes_on_names_and_a_user_does_not_though_it_knows_the_secret(tmp_path: Path) -> None:
    certs = Certs(tmp_path / "certs", 1, 2, 3)
    two, three = (Certificates(certs.path, broker).client_context() for broker in (2, 3))
    mallory = context(read(certs.user("mallory").files()), server=False)
    named = signed(principal="User:etl", serial="a1")
    async with for_brokers(tls=server_tls(certs)) as there:
        assert await there.answers(named, two) == ("User:etl", "a1", "ipv4:c:1 by broker 2", ClientPort(tls=True))
        by_token = signed(principal="User:etl", by_token=True, token_expires_s=1e12)
        assert (await there.answers(by_token, two))[3] == ClientPort(tls=True, token=True)
        for other in (mallory, three):
            error = await there.refuses(named, other)
            assert isinstance(error, PeerRefused)
            assert error.why == pb.PEER_NOT_ITSELF
        for nobody in ("Broker:2", "admin", ""):
            assert isinstance(await there.refuses(signed(principal=nobody), two), InvalidRequest)
        assert len(there.asked) == 2


@real_time
async def test_who_has_no_name_is_not_led_to_a_broker_that_serves_nobody_in_plain_text(tmp_path: Path) -> None:
    """While a cluster is being secured another one still does."""
    certs = Certs(tmp_path / "certs", 1, 2)
    async with for_brokers(tls=server_tls(certs)) as there:
        error = await there.refuses(signed(), Certificates(certs.path, 2).client_context())
        assert isinstance(error, NotAuthenticated)
        assert "plain text" in str(error)
        assert there.asked == []


@real_time
async def test_the_rights_are_judged_of_whoever_asks(tmp_path: Path) -> None:
    certs = Certs(tmp_path / "certs", 1, 2)
    two = Certificates(certs.path, 2).client_context()
    async with for_brokers(Authority(on=True), server_tls(certs)) as there:
        who: dict[str, Any] = {"method": "Upgrade", "principal": "User:etl"}
        assert isinstance(await there.refuses(signed(**who), two), PermissionDenied)
        over = signed(**who, by_token=True, token_expires_s=1e12, api_token="gone")
        assert isinstance(await there.refuses(over, two), NotAuthenticated)
        assert there.asked == []


@real_time
async def test_what_was_passed_on_is_answered_here_whoever_is_meant() -> None:
    async with for_brokers() as there:
        opened = signed()
        opened.forward = f"{HOST}:1"
        await there.answers(opened)


@real_time
async def test_a_connection_carries_calls_of_one_client_after_another_and_each_is_seen_as_its_own() -> None:
    async with for_brokers() as there, connected(there.served) as line:
        line.say([PREAMBLE])
        for port in (1, 2, 1):
            opened = signed(address=f"ipv4:c:{port}")
            line.say(asking("Metadata", protocol=1, passed_on=opened.passed_on))
            await line.hear_answer()
            await line.hear_end()
        line.say(asking("Metadata"))
        await line.hear_answer()
        *passed_on, last = [address for _, _, address, _ in there.asked]
        assert passed_on == [f"ipv4:c:{n} by broker 2" for n in (1, 2, 1)]
        assert "by broker" not in last, "the former call's proof is not this one's"


@real_time
async def test_nothing_is_passed_on_to_a_port_for_clients() -> None:
    async with for_clients() as there:
        assert isinstance(await there.refuses(signed()), PeerRefused)
        assert there.asked == []


def test_a_proof_of_this_kind_is_none_for_what_brokers_ask() -> None:
    """Nor the other way round: each says what it is for."""
    call = signed().passed_on
    assert proof(1).check_forwarded(PATH, call).principal == NOBODY
    whose = pb.ForwardedFor.FromString(call.said)
    with pytest.raises(PeerRefused):
        proof(1).check_call(PATH, pb.PeerCall(broker=2, incarnation=3, expires_ms=whose.expires_ms, proof=call.proof))


# ---------------------------------------------------------------- tokens


class Badges:
    """Knows tokens that say a user's name."""

    async def authenticate(self, token: str) -> Verified | None:
        if not token.startswith("badge-"):
            return None
        return Verified(Principal("User", token.removeprefix("badge-")), 1e12)


def badge(user: str) -> pb.CallOpen:
    return pb.CallOpen(method="Metadata", token=f"badge-{user}")


@real_time
async def test_each_call_is_that_of_the_token_which_it_shows_and_of_the_certificate_without_one(tmp_path: Path) -> None:
    certs = Certs(tmp_path / "certs", 1)
    tls = context(read(certs.user("ann").files()), server=False)
    async with for_clients(server_tls(certs)) as there, connected(there.served, tls) as client:
        client.say([PREAMBLE])
        for token in ("badge-etl", "", "badge-bob", ""):
            client.say(asking("Metadata", token=token))
            await client.hear_answer()
            await client.hear_end()
        seen = [(who, port) for who, _, _, port in there.asked]
        assert seen == [
            ("User:etl", ClientPort(tls=True, token=True)),
            ("User:ann", ClientPort(tls=True)),
            ("User:bob", ClientPort(tls=True, token=True)),
            ("User:ann", ClientPort(tls=True)),
        ]
        client.say(asking("Metadata", token="other"))
        assert str(await client.refused()) == NotAuthenticated.NO_MORE


@real_time
async def test_where_a_token_is_demanded_nobody_is_served_without_and_in_plain_text_none_is_believed(
    tmp_path: Path,
) -> None:
    certs = Certs(tmp_path / "certs", 1)
    tls = context(read(certs.user("ann").files()), server=False)
    async with for_clients(server_tls(certs), demands_token=True) as there:
        assert (await there.answers(badge("etl"), tls))[0] == "User:etl"
        for wrong in (pb.CallOpen(method="Metadata"), pb.CallOpen(method="Metadata", token="badge- \n")):
            assert str(await there.refuses(wrong, tls)) == NotAuthenticated.NO_MORE
    async with for_clients() as there:
        assert isinstance(await there.refuses(badge("etl")), NotAuthenticated)
        assert there.asked == []


@virtual_time
async def test_who_goes_while_its_refusal_waits_has_others_refusals_wait_still() -> None:
    door, loop = TokenDoor(()), asyncio.get_running_loop()
    call: Any = SimpleNamespace(auth_context=dict, peer=lambda: f"ipv4:{HOST}:1", opened=pb.CallOpen(token="no"))
    for _ in range(FAILURES):
        with pytest.raises(NotAuthenticated):
            await door.verify(call, "Metadata")
    gone = {loop.create_task(door.verify(call, "Metadata")) for _ in range(entering.WAITING_MAX)}
    assert await asyncio.wait(gone, timeout=DELAY_S / 2) == (set(), gone)
    for each in gone:
        each.cancel()
    await asyncio.wait(gone)
    began = loop.time()
    with pytest.raises(NotAuthenticated):
        await door.verify(call, "Metadata")
    assert loop.time() - began >= DELAY_S
