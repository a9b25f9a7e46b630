"""Secrets that must not be shown, and the API tokens that brokers give to users.

An API token is `tmq_<id>_<secret>`: 16 hexadecimal digits by which it is listed and revoked, and 43 characters that
stand for 256 random bits. It is made where it is asked for. Brokers are given the SHA-256 of its whole text, and keep
no more.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from collections.abc import Callable
from typing import Final

from mq_protocol.errors import InvalidSetting

SHOWN: Final = "***"

API_TOKEN_PREFIX: Final = "tmq_"  # noqa: S105 - no secret
_API_TOKEN: Final = re.compile(r"tmq_([0-9a-f]{16})_([A-Za-z0-9_-]{43})")
_ID_BYTES: Final = 8
_SECRET_BYTES: Final = 32

_JWT: Final = re.compile(r"eyJ[\w-]+\.[\w-]+\.[\w-]*")

TOKEN_BYTES_MAX: Final = 6 << 10
"""Of any token. All headers of a call have 8 KiB."""

_TOKEN: Final = re.compile(r"[A-Za-z0-9._~+/-]+=*")


class Secret:
    """A text that is shown as `***`, whoever prints it. `reveal` gives it to who needs it. Two are compared in constant
    time."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def reveal(self) -> str:
        return self._text

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Secret):
            return NotImplemented
        return hmac.compare_digest(
            self._text.encode("utf-8", "surrogatepass"), other._text.encode("utf-8", "surrogatepass")
        )

    def __hash__(self) -> int:
        return hash((Secret, self._text))

    def __repr__(self) -> str:
        return f"Secret({SHOWN!r})"

    def __str__(self) -> str:
        return SHOWN

    def __format__(self, spec: str) -> str:
        return format(SHOWN, spec)

    def __reduce__(self) -> tuple[Callable[[bytes], Secret], tuple[bytes]]:
        """Spark's workers need it. Its bytes are inverted, so that no pickle which somebody prints shows it."""
        return _from_pickle, (_inverted(self._text.encode("utf-8", "surrogatepass")),)


def _from_pickle(data: bytes) -> Secret:
    return Secret(_inverted(data).decode("utf-8", "surrogatepass"))


def _inverted(data: bytes) -> bytes:
    return bytes(byte ^ 0xFF for byte in data)


def check_token(text: str) -> str:
    """The text without white space around it, if a token may look so: what a header can carry (RFC 6750). Raises
    `InvalidSetting`, which does not show it."""
    token = text.strip()
    if not token:
        raise InvalidSetting("the token is empty")
    if len(token) > TOKEN_BYTES_MAX:
        raise InvalidSetting(f"the token has {len(token)} characters, and at most {TOKEN_BYTES_MAX} are allowed")
    if not is_token(token):
        raise InvalidSetting("the token has characters that no token has: is it one, and nothing else?")
    return token


def is_token(text: str) -> bool:
    return len(text) <= TOKEN_BYTES_MAX and _TOKEN.fullmatch(text) is not None


def new_api_token() -> tuple[str, Secret]:
    """Its id, and the token."""
    number = secrets.token_hex(_ID_BYTES)
    return number, api_token(number, secrets.token_urlsafe(_SECRET_BYTES))


def api_token(number: str, secret: str) -> Secret:
    return Secret(f"{API_TOKEN_PREFIX}{number}_{secret}")


def api_token_id(text: str) -> str | None:
    """The id in it; None if the text is no API token."""
    found = _API_TOKEN.fullmatch(text)
    return found[1] if found else None


def api_token_id_in(text: str) -> str:
    """The id that the text is, or that the whole token has which it is. Raises `InvalidSetting`, which does not show
    the text: it may be a secret."""
    stripped = text.strip()
    number = stripped if is_api_token_id(stripped) else api_token_id(stripped)
    if number is None:
        raise InvalidSetting(
            "this is no token's id: give the 16 hexadecimal digits that `tritonmq token list` shows, or the whole token"
        )
    return number


def is_no_path(text: str) -> bool:
    """Whether what is given for a path is a key, a certificate or a token itself. Then no error may show it."""
    stripped = text.strip()
    pem = "-----BEGIN" in text or "\n" in text
    return pem or api_token_id(stripped) is not None or _JWT.fullmatch(stripped) is not None


def is_api_token_id(text: str) -> bool:
    return re.fullmatch("[0-9a-f]{16}", text) is not None


def digest_of(token: str) -> bytes:
    """SHA-256: random bits need no slow one."""
    return hashlib.sha256(token.encode()).digest()
