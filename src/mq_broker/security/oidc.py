"""Tokens of an OpenID Connect issuer: JWTs that it has signed, and the keys that it publishes.

What is believed of a token is what the issuer's signature covers, for this audience, until it expires. Which algorithm
is used says the key, and never the token: RS256, ES256 and EdDSA, no other. Signatures and JSON Web Keys are PyJWT's
(the extra `tritonmq[security]`). Keys are fetched here, from the issuer's own https address alone: bounded in size and
time, without redirects.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from mq_broker.security.names import Principal
from mq_broker.security.verified import Verified
from mq_protocol.errors import InvalidRequest, InvalidSetting, NotAuthenticated, shortened
from mq_protocol.names import quoted

if TYPE_CHECKING:
    from jwt import PyJWK

log = logging.getLogger(__name__)

SKEW_S: Final = 60.0
FRESH_S: Final = 3_600.0
"""So long keys are used before it is asked for newer ones."""
KEPT_S: Final = 86_400.0
"""So long they are used while the issuer does not answer."""
AGAIN_S: Final = 60.0
"""The issuer is asked no more often, whatever strangers show."""
WAIT_S: Final = 12.0
KEYS_MAX: Final = 100
GROUPS_MAX: Final = 200
REMEMBERED_MAX: Final = 4_096
"""Tokens whose signature is not checked again."""

_ALGORITHMS: Final[Mapping[tuple[str, str], str]] = {
    ("RSA", ""): "RS256",
    ("EC", "P-256"): "ES256",
    ("OKP", "Ed25519"): "EdDSA",
}
_RSA_BITS: Final = range(2_048, 8_193)
_KID_MAX: Final = 255
_SEGMENTS: Final = 3

Fetch = Callable[[str], bytes]
"""Gives what is at an https address. Blocks; raises `OSError` or `ValueError`."""


@dataclass(frozen=True, slots=True)
class Issuer:
    """Whose tokens are taken, and what is read of them. Raises `InvalidSetting`."""

    url: str
    audience: str
    user_claim: str = "sub"
    groups_claim: str = "groups"

    def __post_init__(self) -> None:
        parts = urlsplit(self.url)
        try:
            fine = parts.scheme == "https" and parts.hostname and parts.port != 0
        except ValueError:
            fine = False
        if not fine or "@" in parts.netloc or parts.query or parts.fragment:
            raise InvalidSetting(f"--oidc-issuer {quoted(self.url)}: give https://HOST[:PORT][/PATH]")
        if not self.audience:
            raise InvalidSetting("--oidc-issuer goes with --oidc-audience: tokens that are for others are not taken")
        if not self.user_claim:
            raise InvalidSetting("--oidc-user-claim is empty: name the claim that says who it is, such as sub")
        try:
            import jwt  # noqa: F401
        except ImportError as error:
            raise InvalidSetting(
                "--oidc-issuer needs PyJWT: pip install '.[security]' in a clone of TritonMQ"
            ) from error

    @property
    def discovery(self) -> str:
        return self.url.rstrip("/") + "/.well-known/openid-configuration"

    def is_its_own(self, address: str) -> bool:
        """Whether it is an https address of the same host and port."""
        mine, other = urlsplit(self.url), urlsplit(address)
        try:
            at = (other.scheme, other.hostname, other.port or 443)
        except ValueError:
            return False
        return at == ("https", mine.hostname, mine.port or 443) and "@" not in other.netloc


class Keys:
    """Owns the issuer's keys, by their ids, and when it was asked for them. `clock`: seconds that only grow."""

    def __init__(self, issuer: Issuer, fetch: Fetch, clock: Callable[[], float] = time.monotonic) -> None:
        self._issuer = issuer
        self._fetch = fetch
        self._clock = clock
        self._keys: dict[str, PyJWK] = {}
        self._fetched_at = self._asked_at = -KEPT_S
        self._told = ""
        self._asking: asyncio.Task[None] | None = None
        self.generation = 0
        """Grows when a key goes or is replaced."""

    async def find(self, kid: str) -> PyJWK | None:
        """The key of that id; None if the issuer has none, or does not say so in time."""
        now = self._clock()
        if self._keys and now - self._fetched_at >= KEPT_S:
            self._take({})
        if kid in self._keys:
            if now - self._fetched_at >= FRESH_S:
                self._ask(now)  # and go on with the former until there is an answer
            return self._keys[kid]
        asking = self._ask(now)
        if asking is not None:
            await asyncio.wait({asking}, timeout=WAIT_S)
        return self._keys.get(kid)

    def _ask(self, now: float) -> asyncio.Task[None] | None:
        """The question that is under way; None if it was asked too short a time ago."""
        if self._asking is not None and not self._asking.done():
            return self._asking
        if now - self._asked_at < AGAIN_S:
            return None
        self._asked_at = now
        self._asking = asyncio.get_running_loop().create_task(self._refresh(), name="keys of the token issuer")
        return self._asking

    async def _refresh(self) -> None:
        try:
            keys = await asyncio.to_thread(self._read)
        except Exception as error:  # noqa: BLE001 - of what another machine says anything may come; it is told below
            told = shortened(f"{type(error).__name__}: {error}", 300)
            if told != self._told:
                self._told = told
                url = self._issuer.url
                log.error("the keys of %s cannot be read, those that are known stay for a day: %s", url, told)  # noqa: TRY400
            return
        self._told, self._fetched_at = "", self._clock()
        self._take(keys)

    def _take(self, keys: dict[str, PyJWK]) -> None:
        before, self._keys = self._keys, keys
        if any(kid not in keys or keys[kid]._jwk_data != key._jwk_data for kid, key in before.items()):  # noqa: SLF001
            self.generation += 1

    def _read(self) -> dict[str, PyJWK]:
        """In a thread."""
        document = json.loads(self._fetch(self._issuer.discovery))
        if document["issuer"] != self._issuer.url:
            raise ValueError(f"its document is that of issuer {quoted(str(document['issuer']))}")
        address = document["jwks_uri"]
        if not isinstance(address, str) or not self._issuer.is_its_own(address):
            raise ValueError(f"its keys are said to be at {quoted(str(address))}, which is not its own https address")
        keys = json.loads(self._fetch(address))["keys"]
        found: dict[str, PyJWK] = {}
        for jwk in keys[:KEYS_MAX]:
            key = _key(jwk)
            if key is not None:
                found.setdefault(jwk["kid"], key)
        if not found:
            raise ValueError("it has no key for RS256, ES256 or EdDSA")
        return found


def _key(jwk: Any) -> PyJWK | None:
    """None for one that signs nothing here."""
    from jwt import PyJWK, PyJWTError

    if not isinstance(jwk, dict) or jwk.get("use", "sig") != "sig" or "d" in jwk:
        return None
    kind, kid = jwk.get("kty"), jwk.get("kid")
    algorithm = _ALGORITHMS.get((str(kind), "" if kind == "RSA" else str(jwk.get("crv"))))
    if algorithm is None or jwk.get("alg", algorithm) != algorithm or not _is_kid(kid):
        return None
    try:
        key = PyJWK(jwk, algorithm)
    except (PyJWTError, ValueError, TypeError):
        return None
    return key if kind != "RSA" or key.key.key_size in _RSA_BITS else None


def _is_kid(kid: object) -> bool:
    return isinstance(kid, str) and 0 < len(kid) <= _KID_MAX


class OidcTokens:
    """Verifies them. Owns which ones it has verified. `clock`: seconds since 1970."""

    def __init__(self, issuer: Issuer, keys: Keys, clock: Callable[[], float] = time.time) -> None:
        self._issuer = issuer
        self._keys = keys
        self._clock = clock
        self._known: OrderedDict[bytes, Verified] = OrderedDict()
        self._generation = keys.generation

    async def authenticate(self, token: str) -> Verified | None:
        """As `Authenticator`."""
        if token.count(".") != _SEGMENTS - 1:
            return None
        if self._generation != self._keys.generation:
            self._known.clear()
            self._generation = self._keys.generation
        digest = hashlib.sha256(token.encode()).digest()
        known = self._known.get(digest)
        if known is not None and known.expires_s > self._clock():
            return known
        found = await self._verified(token)
        if len(self._known) >= REMEMBERED_MAX:
            self._known.popitem(last=False)
        self._known[digest] = found
        return found

    async def _verified(self, token: str) -> Verified:
        import jwt

        try:
            header = jwt.get_unverified_header(token)
        except (jwt.PyJWTError, ValueError, RecursionError) as error:
            raise NotAuthenticated(f"it is no JWT: {type(error).__name__}") from error
        kid = header.get("kid")
        if not _is_kid(kid) or "crit" in header or "b64" in header:
            raise NotAuthenticated("the JWT's header has no kid, or what is not known here (crit, b64)")
        key = await self._keys.find(str(kid))
        if key is None:
            raise NotAuthenticated(f"the issuer has no key {quoted(str(kid))}, or does not answer")
        try:
            claims = jwt.decode(
                token,
                key,
                algorithms=[key.algorithm_name],
                audience=self._issuer.audience,
                issuer=self._issuer.url,
                leeway=SKEW_S,
                options={"require": ["exp", "iss", "aud"]},
            )
            return self._of(claims)
        except (jwt.PyJWTError, InvalidRequest, ValueError, TypeError, OverflowError, RecursionError) as error:
            raise NotAuthenticated(f"the JWT is not good: {shortened(str(error), 200)}") from error

    def _of(self, claims: Mapping[str, Any]) -> Verified:
        """Raises `InvalidRequest` and `ValueError` for claims that name nobody."""
        name = claims.get(self._issuer.user_claim)
        if not isinstance(name, str):
            raise ValueError(f"it has no text as claim {quoted(self._issuer.user_claim)}")  # noqa: TRY004
        return Verified(
            Principal("User", name),
            float(int(claims["exp"])) + SKEW_S,
            groups=_groups(claims.get(self._issuer.groups_claim)) if self._issuer.groups_claim else (),
        )


def _groups(claim: object) -> tuple[str, ...]:
    """A token with more groups than are looked at, or with a claim of another form, is refused: a rule may deny what
    one of them does. No rule names a group that nobody can name."""
    if claim is None:
        return ()
    names = [claim] if isinstance(claim, str) else claim
    if not isinstance(names, list) or len(names) > GROUPS_MAX or not all(isinstance(name, str) for name in names):
        raise ValueError(f"its groups are no list of up to {GROUPS_MAX} names")
    found = set()
    for name in names:
        with contextlib.suppress(InvalidRequest):
            found.add(str(Principal("Group", name)))
    return tuple(sorted(found))
