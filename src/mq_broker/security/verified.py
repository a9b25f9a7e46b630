"""What a token has proved. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from mq_broker.security.names import Principal


@dataclass(frozen=True, slots=True)
class Verified:
    """`principal`: a user. `expires_s`: when the token does, in seconds since 1970. `api_token`: its id, if it is one
    that the cluster keeps: it is good for as long as it is kept. `groups`: principals whose rules count as well, in
    order."""

    principal: Principal
    expires_s: float
    api_token: str = ""
    groups: tuple[str, ...] = ()
