"""What brokers ask of each other, on a port of its own.

Nothing of it is served to clients. Every call carries a proof in its metadata (peer_proof.py). Over TLS the certificate
must be that of the broker, too.
"""

from __future__ import annotations

from typing import Any, Final

import grpc
from google.protobuf.message import Message
from grpc import aio

from mq_broker.rpc.callers import check_is_broker, note_caller
from mq_broker.rpc.gate import Grant, UnderWay
from mq_broker.rpc.links import Links
from mq_broker.rpc.pacing import Present
from mq_broker.rpc.peer_proof import PeerProof
from mq_broker.rpc.refusals import Refusals
from mq_broker.rpc.service import unary_handler
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

    def greet(self, context: aio.ServicerContext[Any, Any]) -> Asker:
        speaker = note_caller(context)
        try:
            call = self._proof.check_call(self._path, context.invocation_metadata())
            check_is_broker(call.broker, speaker)
        except PeerRefused as error:
            self._refusals.note(error)
            raise
        if self._links.is_former(call.broker, call.incarnation):
            former = PeerRefused(f"broker {call.broker} has been started again since this one", pb.PEER_FORMER_LIFE)
            self._refusals.note(former, call.broker)
            raise former
        return NOBODY_ASKS

    async def admit(self, _asker: Asker, _request: Message) -> dict[Grant, None]:
        return {}

    def lasts(self, _request: Message) -> bool:
        return False

    def under_way(self, asker: Asker) -> UnderWay:
        return UnderWay(set(), asker, self._path)

    def present(self, asker: Asker) -> Present:
        return Present(None, asker.address, stream=False)

    async def hold_back(self, _asker: Asker, _request: Message | None) -> None:
        """Nobody: brokers have no quota."""


def peer_handlers(
    service: object, links: Links, proof: PeerProof, refusals: Refusals
) -> grpc.GenericRpcHandler[Any, Any]:
    """The Peer service, answered by `service`, as the Broker service is (service.py)."""
    methods = {
        name: unary_handler(method, service, _ProofDemanded(name, links, proof, refusals))
        for name, method in PEER_UNARY.items()
    }
    return grpc.method_handlers_generic_handler(PEER.name, methods)
