"""The versions in a link's hello: who is refused, and that nobody changes them on the way."""

from __future__ import annotations

import pytest

from mq_broker.rpc.links import _check_versions
from mq_broker.rpc.peer_proof import PeerProof
from mq_protocol import mq_pb2 as pb
from mq_protocol.errors import PeerRefused
from mq_protocol.versions import PROTOCOL, PROTOCOL_OLDEST, ours

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
    assert PROOF.of_dialler(old, hello(nonce=b"n")) == PROOF.of_dialler(old, hello(nonce=b"n", protocol=PROTOCOL + 1)), (
        "who says nothing of its version proves nothing about it"
    )


def test_a_version_that_was_changed_on_the_way_breaks_the_proof() -> None:
    one, other = hello(), hello(broker=1)
    for changed in ({"protocol": PROTOCOL + 1}, {"protocol_oldest": PROTOCOL}, {"release": "9.0.0"}):
        altered = pb.LinkHello()
        altered.CopyFrom(other)
        for name, value in changed.items():
            setattr(altered, name, value)
        assert PROOF.of_dialler(one, other) != PROOF.of_dialler(one, altered)
        assert PROOF.of_acceptor(one, other) != PROOF.of_acceptor(one, altered)
