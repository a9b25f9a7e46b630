"""What brokers ask of each other: only who proves that it is a broker of this cluster, now, is answered."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from mq_broker.rpc.calls import PEER_UNARY, Calls, peer_path, served_to_brokers
from mq_broker.rpc.peer_proof import LINES_A_MINUTE_MAX, PeerProof, Refusals
from mq_broker.rpc.service import UNARY
from mq_broker.rpc.wire.entering import Entering, ForwardedDoor, TokenDoor
from mq_broker.rpc.wire.lines import Dialling
from mq_broker.rpc.wire.links import Links, PeerAddress
from mq_protocol import mq_pb2 as pb
from mq_protocol.errors import InvalidRequest, OutcomeUnknown, PeerRefused, TritonMQError, Unreachable
from tests.coroutines import real_time
from tests.mq_broker.rpc import streaming
from tests.mq_broker.rpc.streaming import ask

SECRET = bytes(range(32))
DEADLINE_S = 30.0


def proof(
    broker: int = 2, incarnation: int = 3, cluster: str = "of-this-cluster", secret: bytes = SECRET, ahead_ms: int = 0
) -> PeerProof:
    """`ahead_ms`: by how much that broker's clock is."""
    return PeerProof(broker, incarnation, cluster, secret, lambda: time.time_ns() // 1_000_000 + ahead_ms)


class Answering:
    """A service that answers everything with an empty answer, and counts."""

    def __init__(self) -> None:
        self.answered = 0

    def __getattr__(self, name: str) -> Callable[..., Any]:
        responses = {method.attribute: method.response for method in PEER_UNARY.values()}

        async def answer(request: Any, deadline: float) -> Any:
            self.answered += 1
            if getattr(request, "topic_id", "") == "hang":
                await asyncio.sleep(60)
            return responses[name]()

        return answer


class Peer:
    """One broker's calls to others, and its port for theirs. `by`: who it is."""

    def __init__(self, by: PeerProof, dialling: Dialling | None = None, **options: Any) -> None:
        self.service, self.refusals = Answering(), Refusals()
        nobody: Any = None
        self.links = Links(by, nobody, lambda work, name: asyncio.create_task(work, name=name))
        self.calls = Calls(by, dialling)
        self.port = streaming.Served(
            entering=Entering(
                TokenDoor(()), ForwardedDoor(by, self.links.is_former, self.refusals, plain="tls" not in options)
            ),
            of_brokers=served_to_brokers(self.service, self.links, by, self.refusals),
            **options,
        )
        self.address = self.port.address

    async def ask(self, other: Peer, method: str = "Publish", within_s: float = DEADLINE_S, **fields: Any) -> Any:
        unary = PEER_UNARY[method]
        deadline = asyncio.get_running_loop().time() + within_s
        return await self.calls.ask(other.address, method, unary.request(**fields), unary.response, deadline)

    async def stop(self) -> None:
        await self.calls.close()
        await self.links.close()
        await self.port.server.stop()


@contextlib.asynccontextmanager
async def serving(*peers: Peer) -> AsyncIterator[None]:
    try:
        for peer in peers:
            peer.port.server.start()
        yield
    finally:
        for peer in peers:
            await peer.stop()


class Served(Peer):
    """Broker 1's port."""

    def __init__(self) -> None:
        super().__init__(proof(1, 1))

    async def asked_by(self, caller: PeerProof, method: str = "Publish", **how: Any) -> Any:
        """By another broker, with connections of its own."""
        other = Peer(caller)
        try:
            return await other.ask(self, method, **how)
        finally:
            await other.stop()

    async def refuses(self, method: str, call: pb.PeerCall) -> TritonMQError:
        with pytest.raises(TritonMQError) as refused:
            await ask(self.address, pb.CallOpen(method=method, proof=call))
        return refused.value


@contextlib.asynccontextmanager
async def served() -> AsyncIterator[Served]:
    made = Served()
    async with serving(made):
        yield made


@real_time
async def test_a_broker_of_the_cluster_is_answered() -> None:
    async with served() as there:
        for method in PEER_UNARY:
            await there.asked_by(proof(), method)
        await there.asked_by(proof(ahead_ms=25_000))
        await there.asked_by(proof(ahead_ms=-25_000))
        assert not there.refusals.counts


@pytest.mark.parametrize(
    ("caller", "why"),
    [
        (proof(secret=bytes(32)), pb.PEER_NO_PROOF),
        (proof(cluster="another"), pb.PEER_NO_PROOF),
        (proof(ahead_ms=-35_000), pb.PEER_EXPIRED),
        (proof(ahead_ms=35_000), pb.PEER_EXPIRED),
        (proof(incarnation=2), pb.PEER_FORMER_LIFE),
    ],
    ids=["secret", "cluster", "old", "of_the_future", "former_life"],
)
@real_time
async def test_any_other_is_refused_and_nothing_is_asked(caller: PeerProof, why: pb.PeerRefusal.ValueType) -> None:
    async with served() as there:
        there.links.know({2: PeerAddress("127.0.0.1:1", 3)})
        with pytest.raises(PeerRefused) as error:
            await there.asked_by(caller)
        assert error.value.why == why
        assert "of-this-cluster" not in str(error.value)
        assert there.service.answered == 0
        assert there.refusals.counts.total() == 1


@real_time
async def test_a_proof_is_for_one_method_and_one_caller() -> None:
    async with served() as there:
        mine = proof().call(peer_path("Metadata"))
        of_three = pb.PeerCall(broker=3, incarnation=3, expires_ms=mine.expires_ms, proof=mine.proof)
        for method, given in (("Publish", mine), ("Fence", of_three), ("Publish", pb.PeerCall())):
            error = await there.refuses(method, given)
            assert isinstance(error, PeerRefused)
            assert error.why == pb.PEER_NO_PROOF
        assert isinstance(await there.refuses("Fetch", mine), InvalidRequest), "which brokers pass on alone"
        assert there.service.answered == 0


@real_time
async def test_what_only_brokers_ask_is_no_method_for_clients() -> None:
    of_brokers = PEER_UNARY.keys() - UNARY.keys()
    assert {"Publish", "ReplicaStatus"} <= of_brokers
    clients = streaming.Served()
    clients.server.start()
    for method in of_brokers:
        for shown in (None, proof().call(peer_path(method))):
            opened = pb.CallOpen(method=method, proof=shown)
            with pytest.raises(InvalidRequest, match="there is no method"):
                await ask(clients.address, opened)
    await clients.server.stop()


@real_time
async def test_deadlines_reach_the_other_broker_and_nobody_there_is_unreachable() -> None:
    async with served() as there:
        within_s, told = 0.2, TritonMQError()
        while not isinstance(told, OutcomeUnknown):  # what comes there too late is not begun, and can be asked again
            with pytest.raises((OutcomeUnknown, Unreachable)) as raised:
                await there.asked_by(proof(), "ReplicaStatus", within_s=within_s, topic_id="hang")
            within_s, told = 2 * within_s, raised.value
    with pytest.raises(Unreachable):
        await there.asked_by(proof())


def test_the_secret_is_in_no_text() -> None:
    mine = proof()
    assert SECRET.hex() not in repr(mine) + str(mine)
    assert str(SECRET) not in repr(mine) + str(mine)
    with pytest.raises(ValueError, match="32 bytes") as error:
        PeerProof(1, 1, "c", b"too short")
    assert "too short" not in str(error.value)


def test_refusals_are_all_counted_and_the_log_is_not_flooded(caplog: pytest.LogCaptureFixture) -> None:
    now = 0.0
    refusals = Refusals(lambda: now)
    error = PeerRefused("no", pb.PEER_NONSENSE)
    for _ in range(1_000):
        refusals.note(error, 2)
    assert refusals.counts == {("PEER_NONSENSE", 2): 1_000}
    assert len(caplog.messages) == LINES_A_MINUTE_MAX
    refusals.note(error, 3)
    assert len(caplog.messages) == LINES_A_MINUTE_MAX + 1, "another broker has lines of its own"
    now = 61.0
    refusals.note(error, 2)
    assert f"{1_000 - LINES_A_MINUTE_MAX} more like it" in caplog.messages[-1]
