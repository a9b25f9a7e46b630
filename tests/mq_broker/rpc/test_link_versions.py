"""The versions in a link's hello: who is refused, and that nobody changes them on the way."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from grpc import aio

from mq_broker.rpc.links import _check_versions
from mq_broker.rpc.peer_proof import PeerProof
from mq_protocol import mq_pb2 as pb
from mq_protocol.envelope import Envelope, decode, encode
from mq_protocol.errors import PeerRefused
from mq_protocol.versions import PROTOCOL, PROTOCOL_OLDEST, ours
from tests.mq_broker.rpc.linked import DEADLINE_S, SECRET, Node, Spoken, door, impostor, nodes, transport  # noqa: F401 - a fixture

PROOF = PeerProof(2, 3, "cluster", bytes(32))


def hello(**fields: object) -> pb.LinkHello:
    made = PROOF.hello(1)
    for name, value in fields.items():
        setattr(made, name, value)
    return made


def test_a_hello_says_the_versions() -> None:
    said = hello()
    assert (said.protocol, said.protocol_oldest, said.release) == (PROTOCOL, PROTOCOL_OLDEST, ours().release)


def test_brokers_without_a_common_protocol_refuse_each_other_and_name_both_releases() -> None:
    theirs = hello(broker=1, protocol=PROTOCOL + 4, protocol_oldest=PROTOCOL + 3, release="9.0.0")
    with pytest.raises(PeerRefused) as refused:
        _check_versions(hello(), theirs)
    assert refused.value.why == pb.PEER_INCOMPATIBLE
    assert "broker 1 (release 9.0.0, protocol" in str(refused.value)
    assert "upgrade broker 2" in str(refused.value)


def test_a_broker_of_the_last_release_says_nothing_and_is_talked_to() -> None:
    old = hello(broker=1, protocol=0, protocol_oldest=0, release="")
    _check_versions(hello(), old)
    assert PROOF.of_dialler(old, hello(nonce=b"n")) == PROOF.of_dialler(
        old, hello(nonce=b"n", protocol=PROTOCOL + 1)
    ), "who says nothing of its version proves nothing about it"


def test_a_version_that_was_changed_on_the_way_breaks_the_proof() -> None:
    one, other = hello(), hello(broker=1)
    for changed in ({"protocol": PROTOCOL + 1}, {"protocol_oldest": PROTOCOL}, {"release": "9.0.0"}):
        altered = pb.LinkHello()
        altered.CopyFrom(other)
        for name, value in changed.items():
            setattr(altered, name, value)
        assert PROOF.of_dialler(one, other) != PROOF.of_dialler(one, altered)
        assert PROOF.of_acceptor(one, other) != PROOF.of_acceptor(one, altered)


OF_0_2_0 = (
    "0e3772ed5c132944e4e70fe240efa69b69ab036d19d55dd12adec10cf76b05e5",
    "37e79b2114e4fc2d7128fb1db0e82a4edcd11bb367325a326129e2e5e090a43e",
)
"""What release 0.2.0 proves of the two hellos below, as the broker that dials and as the one that is dialled."""


def test_the_proofs_of_the_last_release_are_made_and_understood() -> None:
    dialler = pb.LinkHello(broker=1, incarnation=5, to=2, nonce=b"d" * 32)
    acceptor = pb.LinkHello(broker=2, incarnation=3, to=1, nonce=b"a" * 32)
    for one_is_new in (False, True):
        if one_is_new:  # and says so: the other one does not look at that
            dialler.protocol, dialler.protocol_oldest, dialler.release = PROTOCOL, PROTOCOL_OLDEST, "0.3.0"
        proofs = PROOF.of_dialler(dialler, acceptor).hex(), PROOF.of_acceptor(dialler, acceptor).hex()
        assert proofs == OF_0_2_0


class OtherRelease(PeerProof):
    """Proves itself as a broker of this cluster, and speaks no protocol that this release speaks."""

    def hello(self, to: int) -> pb.LinkHello:
        made = super().hello(to)
        made.protocol, made.protocol_oldest = PROTOCOL + 2, PROTOCOL + 1
        return made


def test_the_broker_that_is_dialled_refuses_one_that_speaks_no_common_protocol() -> None:
    async def scenario() -> None:
        two = Node(2)
        async with nodes(two), door(two) as there:
            two.knows_of(1)
            link = Spoken(there, OtherRelease(1, 1, "c", SECRET))
            with pytest.raises(PeerRefused, match="have no protocol in common: upgrade broker 2") as told:
                await link.greet()
            assert told.value.why == pb.PEER_INCOMPATIBLE
            assert two.heard.events == []

    asyncio.run(scenario())


def test_the_broker_that_dials_refuses_one_that_speaks_no_common_protocol() -> None:
    async def scenario() -> None:
        newer = OtherRelease(2, 1, "c", SECRET)
        said: list[Any] = []
        over = asyncio.Event()

        async def answer(context: Any) -> None:
            theirs = decode(await context.read(), pb.LinkHeader).header.hello
            mine = newer.hello(1)
            mine.proof = newer.of_acceptor(theirs, mine)
            await context.write(encode(Envelope(pb.LinkHeader(hello=mine))))
            try:
                said.append(await context.read())
            finally:
                over.set()

        one = Node(1)
        async with impostor(answer) as address, nodes(one):
            one.links.know({2: address})
            async with asyncio.timeout(DEADLINE_S):
                await over.wait()
            assert not [data for data in said if data is not aio.EOF], "no proof for a broker of another protocol"  # type: ignore[attr-defined]
            assert one.heard.events == []

    asyncio.run(scenario())
