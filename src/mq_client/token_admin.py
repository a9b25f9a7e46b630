"""API tokens as an administrator sees them. `Admin` offers this as its methods.

A token is made here. Brokers are told its SHA-256, so that it is known to nobody but who has asked for it.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

from mq_client.acl_admin import AclAdministrator, AclChange
from mq_client.cluster.deadline import Deadline
from mq_protocol import mq_pb2 as pb
from mq_protocol.limits import API_TOKEN_VALID_S
from mq_protocol.secrets import Secret, api_token_id_in, digest_of, new_api_token


@dataclass(frozen=True, slots=True)
class NewApiToken:
    """`secret`: the token, which is shown nowhere unless `secret.reveal()` is asked for. `late`: addresses of brokers
    that have not said that they know it yet. `nowhere_taken`: no broker has a port for tokens now (--listen-token)."""

    user: str
    id: str
    secret: Secret
    expires_at: datetime
    late: tuple[str, ...] = ()
    nowhere_taken: bool = False


@dataclass(frozen=True, slots=True)
class ApiTokenDescription:
    """A token as it is kept: nobody can tell its text from that."""

    id: str
    created_at: datetime
    expires_at: datetime


@dataclass(frozen=True, slots=True)
class TokenUser:
    """A user with API tokens: those that are valid, and such as have expired."""

    name: str
    created_at: datetime
    tokens: tuple[ApiTokenDescription, ...] = ()


class TokenAdministrator(AclAdministrator):
    """A part of `Admin`."""

    def create_user(self, name: str, valid_s: int = API_TOKEN_VALID_S) -> NewApiToken:
        """Make a user who speaks with a token, and its first one. Its rights are those of `User:<name>`, none at first.
        Raises `InvalidRequest` for a user that is there, `PermissionDenied`."""
        return self._new_token(pb.AlterTokensRequest(create_user=name), name, valid_s)

    def create_token(self, user: str, valid_s: int = API_TOKEN_VALID_S) -> NewApiToken:
        """Make a further one. Two may be valid at once. Raises `InvalidRequest`, `PermissionDenied`."""
        return self._new_token(pb.AlterTokensRequest(user=user), user, valid_s)

    def delete_user(self, name: str) -> AclChange:
        """With all tokens. What they have open ends. Certificates in that name stay good: see `revoke`. Raises
        `InvalidRequest`, `PermissionDenied`."""
        return self._taken_away(pb.AlterTokensRequest(delete_user=name))

    def revoke_token(self, id: str) -> AclChange:  # noqa: A002 - the field's name
        """By its id, or by the whole token, of which no more than the id is sent. What it has open ends. Raises
        `InvalidSetting`, `InvalidRequest`, `PermissionDenied`."""
        return self._taken_away(pb.AlterTokensRequest(revoke_token=api_token_id_in(id)))

    def token_users(self, name: str = "") -> list[TokenUser]:
        """Who has tokens, or had: one, or all in order. Raises `PermissionDenied`."""
        deadline = Deadline(self._timeout_ms)
        answer = self._connection.ask_any("Tokens", pb.TokensRequest(user=name), pb.TokensResponse, deadline)
        return [
            TokenUser(
                user.name,
                _time(user.created_s),
                tuple(
                    ApiTokenDescription(token.id, _time(token.created_s), _time(token.expires_s))
                    for token in user.tokens
                ),
            )
            for user in answer.users
        ]

    def _new_token(self, request: pb.AlterTokensRequest, user: str, valid_s: int) -> NewApiToken:
        number, token = new_api_token()
        request.token.CopyFrom(pb.NewApiToken(id=number, sha256=digest_of(token.reveal()), valid_s=valid_s))
        deadline = Deadline(self._timeout_ms)
        answer = self._connection.ask_any("AlterTokens", request, pb.AlterTokensResponse, deadline)
        late, _ = self._in_force("*", answer.version, deadline)
        return NewApiToken(user, number, token, _time(answer.expires_s), late, answer.nowhere_taken)

    def _taken_away(self, request: pb.AlterTokensRequest) -> AclChange:
        deadline = Deadline(self._timeout_ms)
        answer = self._connection.ask_any("AlterTokens", request, pb.AlterTokensResponse, deadline)
        return AclChange(0, 1, *self._in_force("*", answer.version, deadline))


def _time(seconds: int) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)
