"""Over TLS a broker is whom its certificate names. To know the secret of the cluster is not enough."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from grpc import aio

from mq_broker.rpc.calls import Calls
from mq_broker.rpc.certificates import Certificates
from mq_broker.rpc.dialling import Dialling
from mq_broker.rpc.links import Links
from mq_broker.rpc.peer_proof import PeerProof
from mq_broker.rpc.peer_service import peer_handlers
from mq_broker.rpc.refusals import Refusals
from mq_broker.rpc.server import dial_securely, listen
from mq_client.cluster import credentials
from mq_protocol import mq_pb2 as pb
from mq_protocol.errors import PeerRefused, Unreachable
from mq_protocol.methods import PEER
from mq_protocol.transport import from_call
from tests.mq_broker.rpc.linked import DEADLINE_S, SECRET, Heard
from tests.mq_broker.rpc.test_peer_service import Answering
from tests.securing import HOST, Certs


class Peer:
    """One broker's links and calls, served over TLS."""

    def __init__(self, broker: int, certs: Path) -> None:
        self.broker = broker
        self.certificates = Certificates(certs, broker)
        dialling = Dialling(self.certificates)
        proof, self.refusals = PeerProof(broker, 1, "c", SECRET), Refusals()
        self.heard, self.service = Heard(), Answering()
        self.tasks: list[asyncio.Task[None]] = []
        self.links = Links(proof, self.heard, self._spawn, lambda: None, self.refusals)
        self.calls = Calls(proof, dialling)
        self.server, port = listen(f"{HOST}:0", credentials=self.certificates.server_credentials())
        self.server.add_generic_rpc_handlers((peer_handlers(self.service, self.links, proof, self.refusals),))
        self.address = f"{HOST}:{port}"

    def _spawn(self, work: Any, name: str) -> asyncio.Task[None]:
        self.tasks.append(asyncio.create_task(work, name=name))
        return self.tasks[-1]

    async def ask(self, other: Peer) -> None:
        deadline = asyncio.get_running_loop().time() + DEADLINE_S
        await self.calls.ask(other.address, "Publish", pb.PublishRequest(), pb.PublishResponse, deadline)


@contextlib.asynccontextmanager
async def peers(certs: Certs, *brokers: int) -> AsyncIterator[list[Peer]]:
    made = [Peer(broker, certs.path) for broker in brokers]
    try:
        for peer in made:
            await peer.server.start()
        yield made
    finally:
        for peer in made:
            await peer.links.close()
            await peer.calls.close()
        for peer in made:
            await peer.server.stop(0)


def test_a_broker_that_claims_anothers_id_is_refused(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with peers(Certs(tmp_path / "certs", 1, 2, 3), 1, 2, 3) as (one, _, three):
            lying = PeerProof(2, 1, "c", SECRET)
            calls = Calls(lying, Dialling(three.certificates))
            deadline = asyncio.get_running_loop().time() + DEADLINE_S
            with pytest.raises(
                PeerRefused, match="calls itself broker 2, and its certificate is that of Broker:3"
            ) as no:
                await calls.ask(one.address, "Publish", pb.PublishRequest(), pb.PublishResponse, deadline)
            await calls.close()
            assert no.value.why == pb.PEER_NOT_ITSELF
            assert one.service.answered == 0
            assert one.refusals.counts.total() == 1

    asyncio.run(scenario())


def test_a_user_is_no_broker_in_any_method_though_it_knows_the_secret(tmp_path: Path) -> None:
    async def scenario() -> None:
        certs = Certs(tmp_path / "certs", 1, 2)
        shown = credentials.current(certs.user()).channel
        assert shown is not None
        async with peers(certs, 1, 2) as (one, _):
            lying = PeerProof(2, 1, "c", SECRET)
            async with dial_securely(one.address, shown) as channel:
                for name in PEER.unary:
                    ask: Any = channel.unary_unary(PEER.path(name), None, None)
                    with pytest.raises(aio.AioRpcError) as refused:
                        await ask(b"\xff\xff no protobuf", metadata=lying.call(PEER.path(name)))
                    error = from_call(refused.value, "")
                    assert isinstance(error, PeerRefused), name
                    assert error.why == pb.PEER_NOT_ITSELF, name
            assert one.service.answered == 0
            assert one.refusals.counts.total() == len(PEER.unary)

    asyncio.run(scenario())


def test_a_broker_at_the_wrong_host_is_not_dialled(tmp_path: Path) -> None:
    async def scenario() -> None:
        certs = Certs(tmp_path / "certs", 1)
        certs.authority.broker(2, ["elsewhere.example"]).write(certs.path / "broker.2", "broker")
        (certs.path / "broker.2" / "ca.crt").write_bytes(certs.ca)
        async with peers(certs, 1, 2) as (one, two):
            with pytest.raises(Unreachable):
                await one.ask(two)
            await two.ask(one)

    asyncio.run(scenario())
