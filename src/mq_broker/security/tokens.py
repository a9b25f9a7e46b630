"""API tokens as the cluster keeps them: who has which, by digest. Pure.

One document, `{"users": {name: {"created": s, "tokens": {id: {"sha256": hex, "created": s, "expires": s}}}}}`. Times
are seconds since 1970. It is read whole or not at all. What a newer version writes beside the keys that are
known is kept.
"""

from __future__ import annotations

import copy
import hmac
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from mq_broker.security.names import ANONYMOUS, Principal, kind_of_kept
from mq_protocol.access.secrets import api_token_id, digest_of, is_api_token_id
from mq_protocol.errors import CoordinationUnavailable, InvalidRequest, TritonMQError, shortened
from mq_protocol.limits import API_TOKEN_VALID_S_MAX, API_TOKENS_MAX
from mq_protocol.names import quoted

DOCUMENT: Final = "tokens"

DIGEST_BYTES: Final = 32
_DIGEST: Final = re.compile("[0-9a-f]{64}")
_TIME_MAX: Final = 1 << 40
_ERROR_BYTES_MAX: Final = 500
_NO_DIGEST: Final = bytes(DIGEST_BYTES)


@dataclass(frozen=True, slots=True)
class Token:
    """`digest`: SHA-256 of its text."""

    user: str
    digest: bytes
    created_s: int
    expires_s: int


@dataclass(frozen=True, slots=True)
class Tokens:
    """`users`: when each was made. `by_id`: all tokens, expired ones as well. `document`: what they were read from."""

    users: Mapping[str, int] = field(default_factory=dict)
    by_id: Mapping[str, Token] = field(default_factory=dict)
    document: Mapping[str, Any] = field(default_factory=lambda: {"users": {}})

    def owner(self, text: str, now_s: float) -> tuple[str, Token] | str:
        """The id and the token, if that is the text of one that is valid now. Else why not, which is for the audit log
        alone."""
        number = api_token_id(text)
        if number is None:
            return "it is no API token"
        token = self.by_id.get(number)
        if not hmac.compare_digest(digest_of(text), _NO_DIGEST if token is None else token.digest):
            return f"API token {number} is not known" if token is None else f"API token {number} has another secret"
        assert token is not None  # nothing has the digest of zeros
        if token.expires_s <= now_s:
            return f"API token {number} of User:{token.user} has expired"
        return number, token

    def of(self, user: str) -> dict[str, Token]:
        return {number: token for number, token in self.by_id.items() if token.user == user}

    # ------------------------------------------------------------------ changes: each gives what is to be written

    def with_user(self, user: str, now_s: int) -> Tokens:
        """Raises `InvalidRequest` for a name that nobody can have."""
        if Principal("User", user) == ANONYMOUS:
            raise InvalidRequest(f"{ANONYMOUS} is everybody without a name: choose another")
        if user in self.users:
            raise InvalidRequest(f"user {quoted(user)} is there already: `tritonmq token create {user}` adds a token")
        changed = self._copy()
        changed["users"][user] = {"created": now_s, "tokens": {}}
        return _of(changed)

    def with_token(self, user: str, number: str, digest: bytes, valid_s: int, now_s: int) -> Tokens:
        """Expired ones of the user are forgotten. Raises `InvalidRequest` for a user that there is not, for one who
        has two already, and for a token that nobody can have."""
        if user not in self.users:
            raise InvalidRequest(f"there is no user {quoted(user)}: `tritonmq user create` makes one")
        if not is_api_token_id(number) or len(digest) != DIGEST_BYTES or digest == _NO_DIGEST:
            raise InvalidRequest("a token has an id of 16 hexadecimal digits, and a SHA-256")
        if not 1 <= valid_s <= API_TOKEN_VALID_S_MAX:
            raise InvalidRequest(f"a token is valid for 1 to {API_TOKEN_VALID_S_MAX} seconds, not {valid_s}")
        if number in self.by_id:
            raise InvalidRequest(f"there is a token {number} already: make another")
        changed = self._copy()
        tokens = changed["users"][user]["tokens"]
        for each, token in self.of(user).items():
            if token.expires_s <= now_s:
                del tokens[each]
        if len(tokens) >= API_TOKENS_MAX:
            raise InvalidRequest(
                f"user {quoted(user)} has {len(tokens)} tokens, which is as many as may be valid at once: "
                f"`tritonmq token revoke {min(tokens, key=lambda each: self.by_id[each].created_s)}` ends the older one"
            )
        tokens[number] = {"sha256": digest.hex(), "created": now_s, "expires": now_s + valid_s}
        return _of(changed)

    def without_user(self, user: str) -> Tokens:
        """Raises `InvalidRequest` for one that there is not."""
        if user not in self.users:
            raise InvalidRequest(f"there is no user {quoted(user)}: `tritonmq user list` shows who is there")
        changed = self._copy()
        del changed["users"][user]
        return _of(changed)

    def without_token(self, number: str) -> Tokens:
        """Raises `InvalidRequest` for one that there is not."""
        token = self.by_id.get(number)
        if token is None:
            shown = quoted(number) if is_api_token_id(number) else "of such an id"  # else it may be a secret
            raise InvalidRequest(f"there is no token {shown}: `tritonmq token list` shows their ids")
        changed = self._copy()
        del changed["users"][token.user]["tokens"][number]
        return _of(changed)

    def _copy(self) -> Any:
        return copy.deepcopy(dict(self.document))


def load(data: bytes) -> Tokens:
    """Raises `CoordinationUnavailable`, which says what is wrong with the document."""
    try:
        return _of(json.loads(data))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, TritonMQError) as error:
        raise CoordinationUnavailable(
            f"the security document {DOCUMENT} is not one that this version knows "
            f"({shortened(repr(error), _ERROR_BYTES_MAX)}): put back what was there, or start a release that knows it"
        ) from error


def dump(tokens: Tokens) -> bytes:
    return json.dumps(tokens.document, separators=(",", ":"), sort_keys=True, ensure_ascii=False).encode()


def _of(document: Any) -> Tokens:
    users: dict[str, int] = {}
    by_id: dict[str, Token] = {}
    for name, user in document["users"].items():
        kind_of_kept(f"User:{name}")
        if name == ANONYMOUS.name:
            raise ValueError(f"{ANONYMOUS} has no tokens")
        users[name] = _time(user["created"])
        for number, token in user["tokens"].items():
            if not is_api_token_id(number) or number in by_id or not _DIGEST.fullmatch(token["sha256"]):
                raise ValueError(f"{quoted(number)} is no token's id, or is there twice, or has no digest")
            digest = bytes.fromhex(token["sha256"])
            by_id[number] = Token(name, digest, _time(token["created"]), _time(token["expires"]))
    return Tokens(users, by_id, document)


def _time(value: Any) -> int:
    if type(value) is not int or not 0 <= value <= _TIME_MAX:
        raise ValueError("a time is no number of seconds since 1970")
    return value
