"""The versions in a link's hello: who is refused, and that nobody changes them on the way."""

from __future__ import annotations

import asyncio

import pytest

from mq_broker.rpc.peer_proof import PeerProof
from mq_protocol import mq_pb2 as pb
from mq_protocol.errors import PeerRefused
from mq_protocol.versions import PROTOCOL
from tests.coroutines import real_time
from tests.mq_broker.rpc.linked import DEADLINE_S, SECRET, Call, Node, Spoken, door, impostor, nodes

PROOF = PeerProof(2, 3, "cluster", bytes(32))


def hello(**fields: object) -> pb.LinkHello:
    made = PROOF.hello(1)
    for name, value in fields.items():
        setattr(made, name, value)
    return made


def test_a_version_that_was_changed_on_the_way_breaks_the_proof() -> None:
    one, other = hello(), hello(broker=1)
    for changed in ({"protocol": PROTOCOL + 1}, {"protocol_oldest": PROTOCOL + 1}, {"release": "9.0.0"}):
        altered = pb.LinkHello()
        altered.CopyFrom(other)
        for name, value in changed.items():
            setattr(altered, name, value)
        assert PROOF.of_dialler(one, other) != PROOF.of_dialler(one, altered)
        assert PROOF.of_acceptor(one, other) != PROOF.of_acceptor(one, altered)


class OtherRelease(PeerProof):
    """Proves itself as a broker of this cluster, and speaks no protocol that this release speaks."""

    def hello(self, to: int) -> pb.LinkHello:
        made = super().hello(to)
        made.protocol, made.protocol_oldest = PROTOCOL + 2, PROTOCOL + 1
        return made


@real_time
async def test_the_broker_that_is_dialled_refuses_one_that_speaks_no_common_protocol() -> None:
    two = Node(2)
    async with nodes(two), door(two) as there:
        two.knows_of(1)
        link = Spoken(there, OtherRelease(1, 1, "c", SECRET))
        with pytest.raises(PeerRefused, match="have no protocol in common: upgrade broker 2") as told:
            await link.greet()
        assert told.value.why == pb.PEER_INCOMPATIBLE
        assert two.heard.events == []


@real_time
async def test_the_broker_that_dials_refuses_one_that_speaks_no_common_protocol() -> None:
    newer = OtherRelease(2, 1, "c", SECRET)
    said: list[pb.LinkHeader | None] = []
    over = asyncio.Event()

    async def answer(call: Call) -> None:
        header = await call.hear()
        assert header is not None
        mine = newer.hello(1)
        mine.proof = newer.of_acceptor(header.hello, mine)
        await call.say(pb.LinkHeader(hello=mine))
        try:
            said.append(await call.hear())
        finally:
            over.set()

    one = Node(1)
    async with impostor(answer) as address, nodes(one):
        one.links.know({2: address})
        async with asyncio.timeout(DEADLINE_S):
            await over.wait()
        assert said == [None], "no proof for a broker of another protocol"
        assert one.heard.events == []
