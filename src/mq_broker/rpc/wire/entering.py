"""Whose a call is, by what was shown when it was opened. It stands before every method, before anything of a request is
read.

- **A certificate**, shown by the connection, counts for all of its calls (callers.py).
- **A token**, shown by the call, over TLS. Without a good one a call ends with "not authenticated" and nothing more;
  the audit log says why. Who fails often waits for the answer (security/failures.py).
- **The word of a broker** that passes on what a client asks (broker/forwarding.py). It is believed only if a broker of
  this cluster has signed it, for this broker and this method (peer_proof.py). Over TLS the connection must be that
  broker's, too, and in plain text nobody has a name. Then the call goes through the same gate as if the client had come
  itself. What was passed on is never passed on again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Final

from mq_broker.measured import REQUESTS
from mq_broker.rpc.call import Call
from mq_broker.rpc.callers import Forwarded, check_is_broker, note_forwarded, note_nobody, note_verified
from mq_broker.rpc.peer_proof import PeerProof, Refusals
from mq_broker.security.audit import Audit
from mq_broker.security.authenticating import Authenticator, authenticated
from mq_broker.security.failures import Failures, host_of
from mq_broker.security.names import ANONYMOUS, Principal, check_tls, of_auth_context
from mq_broker.security.verified import Verified
from mq_protocol import mq_pb2 as pb
from mq_protocol.access.secrets import is_token
from mq_protocol.errors import InvalidRequest, NotAuthenticated, PeerRefused, TritonMQError, Unreachable
from mq_protocol.methods import BROKER
from mq_protocol.wire.error_messages import code_of

log = logging.getLogger(__name__)

VERIFY_S: Final = 15.0
"""For one token. An issuer may have to be asked."""

WAITING_MAX: Final = 1_000
"""Calls whose refusal waits at once. More are refused without a wait."""

ADDRESS_CHARACTERS_MAX: Final = 200
"""Of a client's address that is remembered and logged."""


class Entering:
    """Owns nothing. `demands_token`: a port at which there are no certificates of clients. `passed_on` None: nothing
    that a broker passes on is answered here."""

    def __init__(
        self, tokens: TokenDoor, passed_on: ForwardedDoor | None = None, *, demands_token: bool = False
    ) -> None:
        self._tokens = tokens
        self._passed_on = passed_on
        self._demands_token = demands_token

    async def enter(self, call: Call, method: str) -> None:
        """For the task that answers the call of that method, and all that it starts. Raises `TritonMQError` to refuse
        it."""
        note_nobody(by_grpc=call.is_by_grpc)
        try:
            if call.opened.HasField("passed_on"):
                note_forwarded(self._check_passed_on(call, method))
            elif self._demands_token or call.opened.token:
                note_verified(await self._tokens.verify(call, method))
        except TritonMQError as error:
            REQUESTS.add(method, pb.ErrorCode.Name(code_of(error)))
            raise

    def _check_passed_on(self, call: Call, method: str) -> Forwarded:
        if self._passed_on is None:
            raise PeerRefused("no broker passes anything on to this port", pb.PEER_NO_PROOF)
        return self._passed_on.check(call, method)


class TokenDoor:
    """Verifies the tokens of calls. Owns what is known of who fails."""

    def __init__(self, authenticators: Sequence[Authenticator], audit: Audit | None = None) -> None:
        self._authenticators = authenticators
        self._audit = audit
        self._failures = Failures()
        self._waiting = 0

    async def verify(self, call: Call, method: str) -> Verified:
        """Raises `NotAuthenticated`, as it is told."""
        try:
            check_tls(call.auth_context())
            async with asyncio.timeout(VERIFY_S):
                return await authenticated(self._authenticators, _token_of(call))
        except NotAuthenticated as error:
            why = str(error)
        except TimeoutError:
            why = f"it was not verified within {VERIFY_S:g} s"
        except Exception:
            log.exception("a token could not be verified")  # of an authenticator that was added
            why = "its verification failed, see the broker's log"
        if self._audit is not None:
            self._audit.stranger(call.peer(), method, why)
        delay = self._failures.delay(host_of(call.peer()), asyncio.get_running_loop().time())
        if delay and self._waiting < WAITING_MAX:
            self._waiting += 1
            try:
                await asyncio.sleep(delay)
            finally:
                self._waiting -= 1
        raise NotAuthenticated(NotAuthenticated.NO_MORE)


def _token_of(call: Call) -> str:
    """Raises `NotAuthenticated`, for the audit log: it does not show the token."""
    token = call.opened.token
    if not token:
        raise NotAuthenticated("no token")
    if not is_token(token):
        raise NotAuthenticated("the token has characters that no token has, or is too long")
    return token


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

    def check(self, call: Call, method: str) -> Forwarded:
        """Who asks. Raises `PeerRefused`, `NotAuthenticated`, `Unreachable` if another broker is meant, and
        `InvalidRequest`."""
        speaker = of_auth_context(call.auth_context())
        try:
            whose = self._proof.check_forwarded(BROKER.path(method), call.opened.passed_on)
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
    return Forwarded(who, whose.serial, address, token, whose.by_grpc)
