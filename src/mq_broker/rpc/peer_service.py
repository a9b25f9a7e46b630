"""What brokers ask of each other.

Nothing of it is served to clients. Every call carries a proof when it is opened (peer_proof.py). Over TLS the
certificate must be that of the broker, too.
"""

from __future__ import annotations

from typing import Final

from google.protobuf.message import Message

from mq_broker.rpc.call import Call, Conversation
from mq_broker.rpc.callers import check_is_broker, note_caller
from mq_broker.rpc.gate import Grant, UnderWay
from mq_broker.rpc.pacing import Present
from mq_broker.rpc.peer_proof import PeerProof
from mq_broker.rpc.refusals import Refusals
from mq_broker.rpc.service import asked
from mq_broker.rpc.wire.links import Links
from mq_broker.security.authority import NOBODY_ASKS, Asker
from mq_protocol import mq_pb2 as pb
from mq_protocol.errors import PeerRefused
from mq_protocol.methods import PEER

PEER_UNARY: Final = PEER.unary
peer_path: Final = PEER.path


class _ProofDemanded:
    """What stands before a method that brokers call. What a broker asks needs no right."""

    def __init__(self, method: str, links: Links, proof: PeerProof, refusals: Refusals) -> None:
        self._path = peer_path(method)
        self._links = links
        self._proof = proof
        self._refusals = refusals

    def greet(self, call: Call) -> Asker:
        speaker, said = note_caller(call), call.opened.proof
        try:
            self._proof.check_call(self._path, said)
            check_is_broker(said.broker, speaker)
        except PeerRefused as error:
            self._refusals.note(error)
            raise
        if self._links.is_former(said.broker, said.incarnation):
            former = PeerRefused(f"broker {said.broker} has been started again since this one", pb.PEER_FORMER_LIFE)
            self._refusals.note(former, said.broker)
            raise former
        return NOBODY_ASKS

    async def admit(self, _asker: Asker, _request: Message) -> dict[Grant, None]:
        return {}

    def lasts(self, _request: Message) -> bool:
        return False

    def under_way(self, asker: Asker) -> UnderWay:
        return UnderWay(set(), asker, self._path)

    def present(self, asker: Asker, *, stream: bool = False) -> Present:
        return Present(None, asker.address, stream=stream)

    async def hold_back(self, _asker: Asker, _request: Message | None) -> None:
        """Nobody: brokers have no quota."""


def served_to_brokers(service: object, links: Links, proof: PeerProof, refusals: Refusals) -> dict[str, Conversation]:
    """What answers a call of each method of the Peer service: `service`, as it does the Broker service's
    (service.py)."""
    return {
        name: asked(method, getattr(service, method.attribute), _ProofDemanded(name, links, proof, refusals))
        for name, method in PEER_UNARY.items()
    }
