"""Who somebody is by a token: what verifies one, and what it proves.

An `Authenticator` knows one kind of token. They are asked in turn. Further ones come from packages that are installed
beside this one: an entry point of the group `tritonmq.authenticators`, which a broker loads only if it is named.
"""

from __future__ import annotations

import importlib.metadata
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from mq_broker.security.authority import Authority
from mq_broker.security.names import ANONYMOUS, Principal
from mq_broker.security.verified import Verified
from mq_protocol.access.secrets import API_TOKEN_PREFIX
from mq_protocol.errors import InvalidRequest, InvalidSetting, NotAuthenticated
from mq_protocol.names import did_you_mean, quoted

ENTRY_POINTS: Final = "tritonmq.authenticators"


class Authenticator(Protocol):
    async def authenticate(self, token: str) -> Verified | None:
        """Who it is that has this token; None if it is not of the kind that is known here. Raises `NotAuthenticated`
        for one that is and is not good: the text says why. It goes to the audit log, and must not show the token."""


@dataclass(frozen=True, slots=True)
class ApiTokens:
    """Those that `tritonmq token create` makes. `clock`: seconds since 1970."""

    authority: Authority
    clock: Callable[[], float] = time.time

    async def authenticate(self, token: str) -> Verified | None:
        if not token.startswith(API_TOKEN_PREFIX):
            return None
        found = self.authority.tokens.owner(token, self.clock())
        if isinstance(found, str):
            raise NotAuthenticated(found)
        number, known = found
        try:
            return Verified(Principal("User", known.user), float(known.expires_s), api_token=number)
        except InvalidRequest as error:
            raise NotAuthenticated(f"API token {number}: {error}") from error


def added(name: str) -> Authenticator:
    """The one of that name which another package brings: what its entry point names is called without arguments.
    Raises `InvalidSetting`."""
    found = {each.name: each for each in importlib.metadata.entry_points(group=ENTRY_POINTS)}
    if name not in found:
        known = f"there are {', '.join(sorted(found))}" if found else "no package that is installed brings any"
        raise InvalidSetting(f"--authenticators: there is no {quoted(name)}{did_you_mean(name, found)} ({known})")
    try:
        made: Authenticator = found[name].load()()
    except Exception as error:
        raise InvalidSetting(f"--authenticators: {quoted(name)} cannot be loaded: {error!r}") from error
    if not callable(getattr(made, "authenticate", None)):
        kind = type(made).__name__
        raise InvalidSetting(f"--authenticators: {quoted(name)} makes a {kind}, which authenticates nobody")
    return made


async def authenticated(authenticators: Sequence[Authenticator], token: str) -> Verified:
    """By the first that knows this kind of token. Raises `NotAuthenticated`, which is for the audit log."""
    for each in authenticators:
        found = await each.authenticate(token)
        if found is not None:
            if found.principal.kind != "User" or found.principal == ANONYMOUS:
                raise NotAuthenticated(f"a token is that of {found.principal}, who is no user")
            return found
    raise NotAuthenticated("the token is of a kind that is not known here")
