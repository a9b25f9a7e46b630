"""The versions in a link's hello: who is refused, and that nobody changes them on the way."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from grpc import aio

from mq_broker.rpc.peer_proof import PeerProof
from mq_protocol import mq_pb2 as pb
from mq_protocol.envelope import Envelope, decode, encode
from mq_protocol.errors import PeerRefused
from mq_protocol.versions import PROTOCOL
from tests.mq_broker.rpc.linked import DEADLINE_S, SECRET, Node, Spoken, door, impostor, nodes

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


"""What release 0.2.0 proves of the two hellos below, as the broker that dials and as the one that is dialled."""


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
