"""Over TLS a broker is whom its certificate names. To know the secret of the cluster is not enough."""

from __future__ import annotations

from pathlib import Path

import pytest

from mq_broker.rpc.peer_proof import PeerProof
from mq_broker.rpc.wire.certificates import Certificates
from mq_broker.rpc.wire.lines import Dialling
from mq_protocol import mq_pb2 as pb
from mq_protocol.access.pem import context, read
from mq_protocol.errors import PeerRefused, Unreachable
from mq_protocol.methods import PEER
from tests.coroutines import real_time
from tests.mq_broker.rpc.linked import SECRET
from tests.mq_broker.rpc.streaming import ask
from tests.mq_broker.rpc.test_peer_service import Peer, serving
from tests.securing import Certs


def peer(broker: int, certs: Certs, *, claims: int = 0) -> Peer:
    """`claims`: who it says that it is."""
    certificates = Certificates(certs.path, broker)
    proof = PeerProof(claims or broker, 1, "c", SECRET)
    return Peer(proof, Dialling(certificates), tls=certificates.server_context)


@real_time
async def test_a_broker_that_claims_anothers_id_is_refused(tmp_path: Path) -> None:
    certs = Certs(tmp_path / "certs", 1, 2, 3)
    one, two, lying = peer(1, certs), peer(2, certs), peer(3, certs, claims=2)
    async with serving(one, two, lying):
        with pytest.raises(PeerRefused, match="calls itself broker 2, and its certificate is that of Broker:3") as no:
            await lying.ask(one)
        assert no.value.why == pb.PEER_NOT_ITSELF
        assert one.service.answered == 0
        assert one.refusals.counts.total() == 1
        await two.ask(one)


@real_time
async def test_a_user_is_no_broker_in_any_method_though_it_knows_the_secret(tmp_path: Path) -> None:
    certs = Certs(tmp_path / "certs", 1)
    tls = context(read(certs.user().files()), server=False)
    lying, one = PeerProof(2, 1, "c", SECRET), peer(1, certs)
    async with serving(one):
        for name in PEER.unary:
            opened = pb.CallOpen(method=name, proof=lying.call(PEER.path(name)))
            with pytest.raises(PeerRefused) as refused:
                await ask(one.address, opened, b"\xff\xff no protobuf", tls)
            assert refused.value.why == pb.PEER_NOT_ITSELF, name
        assert one.service.answered == 0
        assert one.refusals.counts.total() == len(PEER.unary)


@real_time
async def test_a_broker_at_the_wrong_host_is_not_dialled(tmp_path: Path) -> None:
    certs = Certs(tmp_path / "certs", 1)
    certs.authority.broker(2, ["elsewhere.example"]).write(certs.path / "broker.2", "broker")
    (certs.path / "broker.2" / "ca.crt").write_bytes(certs.ca)
    one, two = peer(1, certs), peer(2, certs)
    async with serving(one, two):
        with pytest.raises(Unreachable):
            await one.ask(two)
        await two.ask(one)
