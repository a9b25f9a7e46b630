"""The service that brokers offer each other, on a port of its own: links, and what they ask of each other otherwise.

Nothing of it is served to clients. Every call but a link carries a proof in its metadata (peer_proof.py); a link proves
itself.
"""

from __future__ import annotations

import functools
from typing import Any, Final

import grpc

from mq_broker.rpc.links import Links
from mq_broker.rpc.peer_proof import PeerProof
from mq_broker.rpc.refusals import Refusals
from mq_broker.rpc.service import unary_handler
from mq_protocol import mq_pb2 as pb
from mq_protocol.errors import PeerRefused
from mq_protocol.methods import PEER

PEER_UNARY: Final = PEER.unary
peer_path: Final = PEER.path


def peer_handlers(
    service: object, links: Links, proof: PeerProof, refusals: Refusals
) -> grpc.GenericRpcHandler[Any, Any]:
    """The Peer service, answered by `links` and by `service`, as the Broker service is (service.py)."""

    def gate(method: str, metadata: Any) -> None:
        try:
            call = proof.check_call(method, metadata)
        except PeerRefused as error:
            refusals.note(error)
            raise
        if links.is_former(call.broker, call.incarnation):
            former = PeerRefused(f"broker {call.broker} has been started again since this one", pb.PEER_FORMER_LIFE)
            refusals.note(former, call.broker)
            raise former

    methods = {
        name: unary_handler(method, service, functools.partial(gate, peer_path(name)))
        for name, method in PEER_UNARY.items()
    }
    methods["Link"] = links.handler()
    return grpc.method_handlers_generic_handler(PEER.name, methods)
