"""API tokens and their users: what is kept is changed here, and acls.py puts it in force.

A token itself is never seen here. Whoever asks for one makes it, and tells its SHA-256.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from mq_broker.broker.administration.rights.acls import Acls
from mq_broker.coordination.service import CoordinationService
from mq_broker.rpc.callers import asker
from mq_broker.security.audit import Audit
from mq_broker.security.authority import Authority
from mq_broker.security.names import Principal
from mq_broker.security.tokens import Tokens, dump
from mq_protocol import mq_pb2 as pb
from mq_protocol.errors import InvalidRequest, PermissionDenied


class TokenSettings:
    """Owns nothing. `acls` reads what has changed. `clock`: seconds since 1970."""

    def __init__(
        self,
        coordination: CoordinationService,
        authority: Authority,
        acls: Acls,
        audit: Audit | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._coordination = coordination
        self._authority = authority
        self._acls = acls
        self._audit = audit
        self._clock = clock

    async def tokens(self, request: pb.TokensRequest, _deadline: float) -> pb.TokensResponse:
        """Users in order, with their tokens: what is kept now, which is in force here as well."""
        await self._acls.refresh()
        found = await self._coordination.security.read()
        kept = self._acls.tokens.kept(found)[1]
        answer = pb.TokensResponse(version=found.version, in_force=self._authority.version, judged=self._authority.on)
        told = {name: answer.users.add(name=name, created_s=kept.users[name])
                for name in sorted(kept.users) if request.user in ("", name)}  # fmt: skip
        for number, token in sorted(kept.by_id.items(), key=lambda each: (each[1].created_s, each[0])):
            if token.user in told:
                told[token.user].tokens.add(id=number, created_s=token.created_s, expires_s=token.expires_s)
        return answer

    async def alter_tokens(self, request: pb.AlterTokensRequest, _deadline: float) -> pb.AlterTokensResponse:
        """All of it or nothing; in force at this broker when it is answered, at the others within 2 s."""
        self._check(request)
        taken = not request.HasField("token") or await self._has_port()
        before, after, version = await self._acls.tokens.edit(
            self._coordination.security, "tokens", lambda kept: self._changed(kept, request), dump
        )
        self._note(request)
        await self._acls.refresh()
        made = after.by_id.get(request.token.id)
        expires_s = made.expires_s if made is not None else 0
        return pb.AlterTokensResponse(
            version=version, expires_s=expires_s, changed=after != before, nowhere_taken=not taken
        )

    def _check(self, request: pb.AlterTokensRequest) -> None:
        """Raises `InvalidRequest` unless it is one change, and `PermissionDenied` for a name that is above the asker's:
        who may make users is not thereby a superuser."""
        named = [request.create_user, request.user, request.delete_user, request.revoke_token]
        if sum(map(bool, named)) != 1:
            raise InvalidRequest("name one user to create or to delete, one whose token it is, or one token to revoke")
        owner = request.create_user or request.user
        if bool(owner) != request.HasField("token"):
            raise InvalidRequest("a token goes with the user who is to have it, and a user with a token")
        who = asker()
        if owner and not who.superuser and self._authority.is_superuser(str(Principal("User", owner))):
            raise PermissionDenied(f"{who.text} may make no token of a superuser: let a superuser do it")
        of_asker = who.token.api_token if who.token is not None else ""
        if of_asker and (request.revoke_token == of_asker or f"User:{request.delete_user}" == who.text):
            raise InvalidRequest("this would lock out whoever asks for it: do it as another administrator")

    async def _has_port(self) -> bool:
        """Whether a broker that is registered takes tokens. Whoever makes one is warned if none does."""
        return any(each.tls_address for each in (await self._coordination.brokers()).values())

    def _changed(self, before: Tokens, request: pb.AlterTokensRequest) -> Tokens:
        """`before` itself if all of it was done already. Raises `InvalidRequest`."""
        now_s, token = int(self._clock()), request.token
        if request.delete_user:
            return before.without_user(request.delete_user)
        if request.revoke_token:
            return before.without_token(request.revoke_token)
        owner = request.create_user or request.user
        known = before.by_id.get(token.id)
        if known is not None and (known.user, known.digest) == (owner, token.sha256):
            return before  # an answer was lost
        there = before.with_user(owner, now_s) if request.create_user else before
        return there.with_token(owner, token.id, token.sha256, token.valid_s, now_s)

    def _note(self, request: pb.AlterTokensRequest) -> None:
        if self._audit is not None:
            what = next(
                name for name in ("create_user", "user", "delete_user", "revoke_token") if getattr(request, name)
            )
            of = f"{getattr(request, what)} {request.token.id}".strip()
            operation = "create_token" if what == "user" else what
            self._audit.allowed(asker(), "AlterTokens", operation, of, often=False)
