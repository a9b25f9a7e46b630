"""The service that brokers offer each other, on a port of its own: links, and what they ask of each other otherwise.

Nothing of it is served to clients. Every call but a link carries a proof in its metadata (peer_proof.py); a link proves itself.
"""

from __future__ import annotations

import functools
from typing import Any, Final, Protocol

import grpc

from mq_broker.rpc.links import SERVICE, Links
from mq_broker.rpc.peer_proof import PeerProof
from mq_broker.rpc.refusals import Refusals
from mq_broker.rpc.service import Unary, unary_handler
from mq_protocol import mq_pb2 as pb
from mq_protocol.errors import PeerRefused


class PeerService(Protocol):
    """What a broker answers to other brokers, each with a `deadline` of the running loop's clock; raises `TritonMQError`."""

    async def metadata(self, request: pb.MetadataRequest, deadline: float) -> pb.MetadataResponse: ...
    async def replica_status(self, request: pb.ReplicaStatusRequest, deadline: float) -> pb.ReplicaStatusResponse: ...
    async def publish(self, request: pb.PublishRequest, deadline: float) -> pb.PublishResponse: ...
    async def discard(self, request: pb.DiscardRequest, deadline: float) -> pb.DiscardResponse: ...
    async def are_staged(self, request: pb.AreStagedRequest, deadline: float) -> pb.AreStagedResponse: ...
    async def abort_key(self, request: pb.AbortKeyRequest, deadline: float) -> pb.AbortTransactionResponse: ...
    async def fence(self, request: pb.FenceRequest, deadline: float) -> pb.FenceResponse: ...
    async def transaction_status(self, request: pb.TransactionStatusRequest, deadline: float) -> pb.TransactionStatusResponse: ...


PEER_UNARY: Final[dict[str, Unary]] = {
    "Metadata": Unary("metadata", pb.MetadataRequest, pb.MetadataResponse),
    "ReplicaStatus": Unary("replica_status", pb.ReplicaStatusRequest, pb.ReplicaStatusResponse),
    "Publish": Unary("publish", pb.PublishRequest, pb.PublishResponse),
    "Discard": Unary("discard", pb.DiscardRequest, pb.DiscardResponse),
    "AreStaged": Unary("are_staged", pb.AreStagedRequest, pb.AreStagedResponse),
    "AbortKey": Unary("abort_key", pb.AbortKeyRequest, pb.AbortTransactionResponse),
    "Fence": Unary("fence", pb.FenceRequest, pb.FenceResponse),
    "TransactionStatus": Unary("transaction_status", pb.TransactionStatusRequest, pb.TransactionStatusResponse),
}


def peer_path(method: str) -> str:
    """The method's name on the wire."""
    return f"/{SERVICE}/{method}"


def peer_handlers(service: PeerService, links: Links, proof: PeerProof, refusals: Refusals) -> grpc.GenericRpcHandler[Any, Any]:
    """The Peer service, answered by `service` and `links`."""

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
        name: unary_handler(name, method, service, functools.partial(gate, peer_path(name))) for name, method in PEER_UNARY.items()
    }
    methods["Link"] = links.handler()
    return grpc.method_handlers_generic_handler(SERVICE, methods)
