"""Clients' calls that another broker has passed on, at the peer port: what stands before every method there.

A client that reaches one broker alone names the one that it means (`tritonmq-forward`, broker/forwarding.py). The
broker that it reaches judges the call, and passes it on with the name of whoever asks. Here that name is believed, and
only if a broker of this cluster has signed it, for this broker and this method (peer_proof.py). Over TLS the connection
must be that broker's, too, and in plain text nobody has a name. Who has none is answered only where clients in plain
text are. Then the call goes through the same gate as if the client had come itself.

What was passed on is never passed on again: the handlers here know no other broker.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import grpc
from grpc import aio

from mq_broker.measured import REQUESTS
from mq_broker.rpc.callers import Forwarded, check_is_broker, note_forwarded
from mq_broker.rpc.peer_proof import PeerProof
from mq_broker.rpc.refusals import Refusals
from mq_broker.rpc.status import abort
from mq_broker.rpc.token_port import held_as_stream
from mq_broker.security.names import ANONYMOUS, Principal, of_auth_context
from mq_broker.security.verified import Verified
from mq_protocol import mq_pb2 as pb
from mq_protocol.error_messages import code_of
from mq_protocol.errors import InvalidRequest, NotAuthenticated, PeerRefused, TritonMQError, Unreachable

ADDRESS_CHARACTERS_MAX: Final = 200
"""Of a client's address that is remembered and logged."""


class ForwardedDoor:
    """Owns nothing. `is_former`: whether a life of a broker is known to be over. `plain`: clients in plain text are
    served here."""

    def __init__(
        self, proof: PeerProof, is_former: Callable[[int, int], bool], refusals: Refusals, *, plain: bool
    ) -> None:
        self._proof = proof
        self._is_former = is_former
        self._refusals = refusals
        self._plain = plain

    def check(self, context: aio.ServicerContext[Any, Any], path: str) -> Forwarded:
        """Who asks. Raises `PeerRefused`, `NotAuthenticated`, `Unreachable` if another broker is meant, and
        `InvalidRequest`."""
        speaker = of_auth_context(context.auth_context())
        try:
            whose = self._proof.check_forwarded(path, context.invocation_metadata())
            check_is_broker(whose.broker, speaker)
            if speaker == ANONYMOUS and whose.principal != str(ANONYMOUS):  # whoever listens could send it once more
                raise PeerRefused("the name of a user is believed over TLS alone", pb.PEER_NOT_ITSELF)
        except PeerRefused as error:
            self._refusals.note(error)
            raise
        if self._is_former(whose.broker, whose.incarnation):
            former = PeerRefused(f"broker {whose.broker} has been started again since this one", pb.PEER_FORMER_LIFE)
            self._refusals.note(former, whose.broker)
            raise former
        if whose.to != self._proof.broker:
            raise Unreachable(
                f"broker {whose.broker} has passed this on to broker {whose.to}, and broker {self._proof.broker} is "
                "there: ask for the metadata again"
            )
        passed_on = _read(whose)
        if passed_on.principal == ANONYMOUS and not self._plain:  # while a cluster is being secured
            raise NotAuthenticated(
                f"broker {whose.to} serves nobody in plain text, which broker {whose.broker} still does: show a "
                "certificate or a token"
            )
        return passed_on


def _read(whose: pb.ForwardedFor) -> Forwarded:
    who = Principal.parse(whose.principal)
    if who.kind != "User":
        raise InvalidRequest(f"{who} is no user: a broker passes on what clients ask")
    address = f"{whose.address[:ADDRESS_CHARACTERS_MAX]} by broker {whose.broker}"
    token = None
    if whose.by_token:
        token = Verified(who, whose.token_expires_s, whose.api_token, tuple(whose.groups))
    return Forwarded(who, whose.serial, address, token)


class ForwardedHandlers(grpc.GenericRpcHandler):  # type: ignore[type-arg]
    """What the given handlers serve, behind the door. All are served as streams: gRPC reads no request then before the
    door is passed."""

    def __init__(self, handlers: grpc.GenericRpcHandler[Any, Any], door: ForwardedDoor) -> None:
        self._handlers = handlers
        self._door = door
        self._served: dict[str, grpc.RpcMethodHandler[Any, Any]] = {}

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[Any, Any] | None:
        path = details.method
        served = self._served.get(path)
        if served is None:
            found = self._handlers.service(details)
            if found is None:
                return None
            served = self._served[path] = _behind(self._door, path, found)
        return served


def _behind(door: ForwardedDoor, path: str, inner: grpc.RpcMethodHandler[Any, Any]) -> grpc.RpcMethodHandler[Any, Any]:
    async def handle(requests: Any, context: aio.ServicerContext[Any, Any]) -> None:
        try:
            note_forwarded(door.check(context, path))
        except TritonMQError as error:
            REQUESTS.add(path.rpartition("/")[2], pb.ErrorCode.Name(code_of(error)))
            await abort(context, error)
        await held_as_stream(inner, requests, context)

    return grpc.stream_stream_rpc_method_handler(handle)
