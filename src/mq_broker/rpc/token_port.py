"""The port for clients that show a token: what stands before every method there.

The broker shows a certificate, and the client none. Each call carries `authorization: Bearer TOKEN`, once. Without a
good token a call ends before anything of its request is read, with "not authenticated" and nothing more; the audit log
says why. Who fails often waits for the answer (security/failures.py).

All methods are served as streams, of one request where it is a single one: gRPC reads no request then before it is
asked to. On the wire it is the same.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Sequence
from typing import Any, Final

import grpc
from grpc import aio

from mq_broker.measured import REQUESTS
from mq_broker.rpc.callers import note_verified
from mq_broker.rpc.status import abort
from mq_broker.security.audit import Audit
from mq_broker.security.authenticating import Authenticator, authenticated
from mq_broker.security.failures import Failures, host_of
from mq_broker.security.names import check_tls
from mq_broker.security.verified import Verified
from mq_protocol import mq_pb2 as pb
from mq_protocol.errors import NotAuthenticated
from mq_protocol.secrets import is_token

log = logging.getLogger(__name__)

HEADER: Final = "authorization"
_SCHEME: Final = "bearer "
VERIFY_S: Final = 15.0
"""For one token. An issuer may have to be asked."""

WAITING_MAX: Final = 1_000
"""Calls whose refusal waits at once. More are refused without a wait."""

_EOF: Final = aio.EOF  # type: ignore[attr-defined]  # the stubs lack it


class TokenDoor:
    """Verifies the tokens of calls. Owns what is known of who fails."""

    def __init__(self, authenticators: Sequence[Authenticator], audit: Audit | None = None) -> None:
        self._authenticators = authenticators
        self._audit = audit
        self._failures = Failures()
        self._waiting = 0

    async def verify(self, context: aio.ServicerContext[Any, Any], method: str) -> Verified:
        """Raises `NotAuthenticated`, as it is told."""
        try:
            check_tls(context.auth_context())
            async with asyncio.timeout(VERIFY_S):
                return await authenticated(self._authenticators, token_of(tuple(context.invocation_metadata() or ())))
        except NotAuthenticated as error:
            why = str(error)
        except TimeoutError:
            why = f"it was not verified within {VERIFY_S:g} s"
        except Exception:
            log.exception("a token could not be verified")  # of an authenticator that was added
            why = "its verification failed, see the broker's log"
        if self._audit is not None:
            self._audit.stranger(context.peer(), method, why)
        delay = self._failures.delay(host_of(context.peer()), asyncio.get_running_loop().time())
        if delay and self._waiting < WAITING_MAX:
            self._waiting += 1
            try:
                await asyncio.sleep(delay)
            finally:
                self._waiting -= 1
        raise NotAuthenticated(NotAuthenticated.NO_MORE)


def token_of(metadata: Iterable[tuple[str, Any]]) -> str:
    """The token that a call carries. Raises `NotAuthenticated`, for the audit log: it does not show it."""
    values = [value for key, value in metadata if key == HEADER]
    if len(values) != 1:
        raise NotAuthenticated("no token" if not values else f"{len(values)} tokens in one call")
    value = values[0]
    if not isinstance(value, str) or not value[: len(_SCHEME)].lower() == _SCHEME:
        raise NotAuthenticated("the authorization header is not Bearer and a token")
    token = value[len(_SCHEME) :]
    if not is_token(token):
        raise NotAuthenticated("the token has characters that no token has, or is too long")
    return token


class TokenHandlers(grpc.GenericRpcHandler):  # type: ignore[type-arg]
    """What the given handlers serve, behind the door."""

    def __init__(self, handlers: Sequence[grpc.GenericRpcHandler[Any, Any]], door: TokenDoor) -> None:
        self._handlers = handlers
        self._door = door
        self._served: dict[str, grpc.RpcMethodHandler[Any, Any]] = {}

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[Any, Any] | None:
        path = details.method
        served = self._served.get(path)
        if served is None:
            found = next((one for one in (each.service(details) for each in self._handlers) if one is not None), None)
            if found is None:
                return None
            served = self._served[path] = _behind(self._door, path.rpartition("/")[2], found)
        return served


def _behind(door: TokenDoor, name: str, inner: grpc.RpcMethodHandler[Any, Any]) -> grpc.RpcMethodHandler[Any, Any]:
    async def handle(requests: Any, context: aio.ServicerContext[Any, Any]) -> None:
        try:
            note_verified(await door.verify(context, name))
        except NotAuthenticated as error:
            REQUESTS.add(name, pb.ErrorCode.Name(pb.NOT_AUTHENTICATED))
            await abort(context, error)
        await held_as_stream(inner, requests, context)

    return grpc.stream_stream_rpc_method_handler(handle)


async def held_as_stream(inner: grpc.RpcMethodHandler[Any, Any], requests: Any, context: Any) -> None:
    """What that handler does, of whatever kind it is, for a call whose requests are not read yet."""
    if inner.request_streaming:
        await inner.stream_stream(requests, context)  # type: ignore[misc]
        return
    request = await context.read()
    if request is _EOF:
        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "the call has no request")
    if inner.response_streaming:
        await inner.unary_stream(request, context)  # type: ignore[misc]
    else:
        await context.write(await inner.unary_unary(request, context))  # type: ignore[misc]
