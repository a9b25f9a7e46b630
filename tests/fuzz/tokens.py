"""Tokens of an OpenID Connect issuer, altered before and after they were signed. What is accepted has a signature that
holds, by another reader of it."""

from __future__ import annotations

import asyncio
import base64
import json
import random
from typing import Any, Final

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature, encode_dss_signature
from cryptography.hazmat.primitives.hashes import SHA256

from mq_broker.security.oidc import Issuer, Keys, OidcTokens
from mq_protocol.errors import NotAuthenticated
from tests.fuzz.altering import altered, altered_document
from tests.fuzz.telling import check_told

NOW_S: Final = 1_000.0
_BYTES: Final = 32
_KEY: Final = ec.derive_private_key(0x7EA, ec.SECP256R1())
_ISSUER: Final = Issuer("https://issuer.example", "tritonmq")
_HEADER: Final = {"alg": "ES256", "kid": "one", "typ": "JWT"}
_CLAIMS: Final = {
    "iss": "https://issuer.example", "aud": "tritonmq", "sub": "etl", "exp": 2_000_000_000, "nbf": 5, "iat": 5,
    "groups": ["readers", "writers"],
}  # fmt: skip


def _text(data: bytes) -> bytes:
    return base64.urlsafe_b64encode(data).rstrip(b"=")


def _bytes(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


def _published(address: str) -> bytes:
    """What the issuer answers."""
    if address.endswith("openid-configuration"):
        return json.dumps({"issuer": _ISSUER.url, "jwks_uri": f"{_ISSUER.url}/keys"}).encode()
    numbers = _KEY.public_key().public_numbers()
    x, y = (_text(number.to_bytes(_BYTES, "big")).decode() for number in (numbers.x, numbers.y))
    return json.dumps({"keys": [{"kty": "EC", "crv": "P-256", "kid": "one", "x": x, "y": y}]}).encode()


_keys: Final = Keys(_ISSUER, _published, clock=lambda: NOW_S)
_keys._fetched_at = _keys._asked_at = NOW_S
_keys._take(_keys._read())
_tokens: Final = OidcTokens(_ISSUER, _keys, clock=lambda: NOW_S)
_loop: Final = asyncio.new_event_loop()


def generate(chance: random.Random) -> bytes:
    header: Any = json.dumps(_HEADER).encode() if chance.random() < 0.7 else altered_document(_HEADER, chance)
    claims = json.dumps(_CLAIMS).encode() if chance.random() < 0.4 else altered_document(_CLAIMS, chance)
    signed = b".".join((_text(header), _text(claims)))
    numbers = decode_dss_signature(_KEY.sign(signed, ec.ECDSA(SHA256())))
    token = signed + b"." + _text(b"".join(number.to_bytes(_BYTES, "big") for number in numbers))
    return altered(token, chance, 3) if chance.random() < 0.3 else token


def check(data: bytes) -> bool:
    try:
        token = data.decode("ascii")  # a header of a call holds nothing else
    except UnicodeDecodeError:
        return False
    try:
        found = _loop.run_until_complete(_tokens.authenticate(token))
    except NotAuthenticated as error:
        check_told(error)
        return False
    if found is None:
        return False
    assert found.principal.kind == "User"
    assert found.expires_s > NOW_S
    assert _is_signed(token)
    return True


def _is_signed(token: str) -> bool:
    signed, _, signature = token.rpartition(".")
    raw = _bytes(signature)
    numbers = (int.from_bytes(half, "big") for half in (raw[:_BYTES], raw[_BYTES:]))
    try:
        _KEY.public_key().verify(encode_dss_signature(*numbers), signed.encode(), ec.ECDSA(SHA256()))
    except InvalidSignature:
        return False
    return True
