"""What an issuer of tokens answers: its discovery document and its keys, altered. It is another machine, so it may say
anything. What is taken of it verifies signatures, and a token by a key that is taken is what it says."""

from __future__ import annotations

import asyncio
import json
import logging
import random
from typing import Any, Final
from urllib.parse import urlsplit

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm

from mq_broker.security import oidc
from mq_broker.security.oidc import KEYS_MAX, Issuer, Keys, OidcTokens
from mq_protocol.errors import NotAuthenticated
from tests.fuzz.altering import altered, altered_document

_SEPARATOR: Final = b"\x00"
_TOLD_BYTES_MAX: Final = 1_000
_NOW_S: Final = 1_000.0
_ISSUER: Final = Issuer("https://issuer.example/realm", "tritonmq")
_DISCOVERY: Final[dict[str, Any]] = {
    "issuer": _ISSUER.url,
    "jwks_uri": f"{_ISSUER.url}/keys",
    "token_endpoint": f"{_ISSUER.url}/token",
    "claims_supported": ["sub", {"a": None}],
}
_EC: Final = ec.derive_private_key(0x7EA, ec.SECP256R1())
_RSA: Final = rsa.generate_private_key(65_537, 2_048)
_ED: Final = ed25519.Ed25519PrivateKey.from_private_bytes(bytes(32))
_PUBLISHED: Final[dict[str, Any]] = {
    "keys": [
        {**ECAlgorithm.to_jwk(_EC.public_key(), as_dict=True), "kid": "ec", "use": "sig", "alg": "ES256"},
        {**RSAAlgorithm.to_jwk(_RSA.public_key(), as_dict=True), "kid": "rsa", "key_ops": ["verify"]},
        {**OKPAlgorithm.to_jwk(_ED.public_key(), as_dict=True), "kid": "ed"},
        {"kty": "oct", "k": "c2VjcmV0", "kid": "shared"},
    ]
}
_CLAIMS: Final = {"iss": _ISSUER.url, "aud": "tritonmq", "sub": "etl", "exp": 2_000_000_000}
_TOKEN: Final = jwt.encode(_CLAIMS, _EC, "ES256", {"kid": "ec"})
_loop: Final = asyncio.new_event_loop()


class _Told(logging.Handler):
    """Owns what the log was told."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


_told: Final = _Told()
oidc.log.addHandler(_told)
oidc.log.propagate = False


def generate(chance: random.Random) -> bytes:
    parts = [json.dumps(each).encode() for each in (_DISCOVERY, _PUBLISHED)]
    for at, whole in enumerate((_DISCOVERY, _PUBLISHED)):
        if chance.random() < (0.2, 0.7)[at]:
            parts[at] = altered_document(whole, chance)
        if chance.random() < 0.1:
            parts[at] = altered(parts[at], chance, 3)
    return _SEPARATOR.join(part.replace(_SEPARATOR, b"") for part in parts)


def check(data: bytes) -> bool:
    discovery, separator, published = data.partition(_SEPARATOR)
    if not separator:
        return False
    asked: list[str] = []

    def fetch(address: str) -> bytes:
        asked.append(address)
        return published if len(asked) > 1 else discovery

    keys = Keys(_ISSUER, fetch, clock=lambda: _NOW_S)
    _told.lines.clear()
    _loop.run_until_complete(keys._refresh())
    assert asked[0] == _ISSUER.discovery
    for address in map(urlsplit, asked):
        assert (address.scheme, address.hostname, address.port or 443) == ("https", "issuer.example", 443)
    if _told.lines:
        [line] = _told.lines
        assert not keys._keys
        assert len(line.encode()) <= _TOLD_BYTES_MAX
        assert line.isprintable(), "what an issuer says forges no line"
        return False
    assert 0 < len(keys._keys) <= KEYS_MAX
    assert all(key.algorithm_name in ("RS256", "ES256", "EdDSA") for key in keys._keys.values())
    _verifies(keys)
    return True


def _verifies(keys: Keys) -> None:
    """A token that the issuer's own key has signed is taken while that key is published, and by no other."""
    known, ours = keys._keys.get("ec"), _EC.public_key().public_numbers()
    try:
        found = _loop.run_until_complete(OidcTokens(_ISSUER, keys, clock=lambda: _NOW_S).authenticate(_TOKEN))
    except NotAuthenticated:
        found = None
    key = None if known is None else known.key
    is_ours = isinstance(key, ec.EllipticCurvePublicKey) and key.public_numbers() == ours
    assert (found is not None) is is_ours
