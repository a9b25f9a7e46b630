"""What brokers ask of each other: only who proves that it is a broker of this cluster, now, is answered."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from grpc import aio

from mq_broker.rpc.calls import Calls
from mq_broker.rpc.links import Links, PeerAddress
from mq_broker.rpc.peer_proof import METADATA, PeerProof
from mq_broker.rpc.peer_service import PEER_UNARY, peer_handlers, peer_path
from mq_broker.rpc.refusals import LINES_A_MINUTE_MAX, Refusals
from mq_broker.rpc.server import dial, listen
from mq_broker.rpc.service import UNARY
from mq_protocol import mq_pb2 as pb
from mq_protocol.errors import OutcomeUnknown, PeerRefused, TritonMQError, Unreachable
from mq_protocol.transport import from_call

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


class Served:
    def __init__(self, address: str, service: Answering, refusals: Refusals, links: Links) -> None:
        self.address, self.service, self.refusals, self.links = address, service, refusals, links

    async def ask(self, caller: PeerProof, method: str = "Publish", within_s: float = DEADLINE_S, **fields: Any) -> Any:
        calls = Calls(caller)
        unary = PEER_UNARY[method]
        try:
            deadline = asyncio.get_running_loop().time() + within_s
            return await calls.ask(self.address, method, unary.request(**fields), unary.response, deadline)
        finally:
            await calls.close()

    async def refuses(self, path: str, metadata: Any) -> TritonMQError:
        async with dial(self.address) as channel:
            call: Any = channel.unary_unary(path, None, None)
            try:
                await call(b"", metadata=metadata, timeout=DEADLINE_S)
            except aio.AioRpcError as error:
                return from_call(error, self.address)
        raise AssertionError("it was answered")


@contextlib.asynccontextmanager
async def served() -> AsyncIterator[Served]:
    server, port = listen("127.0.0.1:0")
    service, refusals = Answering(), Refusals()
    me = proof(1, 1)
    links = Links(me, Answering(), lambda work, name: asyncio.create_task(work, name=name))  # type: ignore[arg-type]
    server.add_generic_rpc_handlers((peer_handlers(service, links, me, refusals),))  # type: ignore[arg-type]
    await server.start()
    try:
        yield Served(f"127.0.0.1:{port}", service, refusals, links)
    finally:
        await server.stop(0)


def test_a_broker_of_the_cluster_is_answered() -> None:
    async def scenario() -> None:
        async with served() as there:
            for method in PEER_UNARY:
                await there.ask(proof(), method)
            await there.ask(proof(ahead_ms=25_000))
            await there.ask(proof(ahead_ms=-25_000))
            assert not there.refusals.counts

    asyncio.run(scenario())


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
def test_any_other_is_refused_and_nothing_is_asked(caller: PeerProof, why: pb.PeerRefusal.ValueType) -> None:
    async def scenario() -> None:
        async with served() as there:
            there.links.know({2: PeerAddress("127.0.0.1:1", 3)})
            with pytest.raises(PeerRefused) as error:
                await there.ask(caller)
            assert error.value.why == why
            assert "of-this-cluster" not in str(error.value)
            assert there.service.answered == 0
            assert there.refusals.counts.total() == 1

    asyncio.run(scenario())


def test_a_proof_is_for_one_method_and_one_caller() -> None:
    async def scenario() -> None:
        async with served() as there:
            metadata = proof().call(peer_path("Metadata"))
            call = pb.PeerCall.FromString(metadata[0][1])
            call.broker = 3
            for path, given in (
                (peer_path("Publish"), metadata),
                (peer_path("Metadata"), ((METADATA, call.SerializeToString()),)),
                (peer_path("Metadata"), ((METADATA, b"\xff"),)),
                (peer_path("Metadata"), ()),
            ):
                error = await there.refuses(path, given)
                assert isinstance(error, PeerRefused)
                assert error.why == pb.PEER_NO_PROOF
            assert there.service.answered == 0

    asyncio.run(scenario())


def test_what_only_brokers_ask_is_no_method_for_clients() -> None:
    assert not {"Publish", "ReplicaStatus"} & UNARY.keys()


def test_deadlines_reach_the_other_broker_and_nobody_there_is_unreachable() -> None:
    async def scenario() -> None:
        async with served() as there:
            with pytest.raises(OutcomeUnknown):
                await there.ask(proof(), "ReplicaStatus", 0.2, topic_id="hang")
        with pytest.raises(Unreachable):
            await there.ask(proof())

    asyncio.run(scenario())


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
