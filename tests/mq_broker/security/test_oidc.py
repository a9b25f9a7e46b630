"""JWTs of an issuer that is really asked over https: which are believed, and how often it is asked for its keys."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
import math
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jwt
import pytest

from mq_broker.security import https, oidc
from mq_broker.security.oidc import AGAIN_S, FRESH_S, KEPT_S, OidcTokens
from mq_broker.security.oidc import Issuer as Trusted
from mq_broker.security.oidc import Keys as Fetched
from mq_broker.security.verified import Verified
from mq_protocol.errors import InvalidSetting, NotAuthenticated
from tests.coroutines import real_time
from tests.issuer import AUDIENCE, HOST, Issuer, Key


@pytest.fixture
def issuer(tmp_path: Path) -> Iterator[Issuer]:
    with Issuer(tmp_path / "issuer") as made:
        yield made


class Clock:
    def __init__(self, now: float = 1_000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


def verifying(issuer: Issuer, clock: Callable[[], float] = time.monotonic, **fields: str) -> OidcTokens:
    trusted = Trusted(issuer.url, AUDIENCE, **fields)
    tls = https.trusting(issuer.ca)
    return OidcTokens(trusted, Fetched(trusted, lambda address: https.get(address, tls), clock))


async def believed(tokens: OidcTokens, token: str) -> Verified:
    found = await tokens.authenticate(token)
    assert found is not None
    return found


async def refused(tokens: OidcTokens, token: str) -> str:
    with pytest.raises(NotAuthenticated) as error:
        await tokens.authenticate(token)
    assert token not in str(error.value)
    return str(error.value)


@pytest.mark.parametrize("algorithm", ["RS256", "ES256", "EdDSA"])
@real_time
async def test_a_token_of_the_issuer_is_its_users_until_it_expires(issuer: Issuer, algorithm: str) -> None:
    issuer.keys = [Key("k", algorithm), Key("other")]
    tokens = verifying(issuer)
    expires = int(time.time()) + 300
    for _ in range(2):  # the second time it is remembered
        found = await believed(tokens, issuer.token(exp=expires, groups=["night", "été", "night"]))
        assert (str(found.principal), found.groups) == ("User:etl", ("Group:night", "Group:été"))
        assert found.expires_s == expires + 60
    assert issuer.asked == ["/realm/.well-known/openid-configuration", "/realm/keys"]
    other = verifying(issuer, user_claim="email", groups_claim="roles")
    found = await believed(other, issuer.token(email="a@b.c", roles="one", groups=["x"], aud=["y", AUDIENCE]))
    assert (str(found.principal), found.groups) == ("User:a@b.c", ("Group:one",))
    assert (await believed(verifying(issuer, groups_claim=""), issuer.token(groups=["x"]))).groups == ()


BAD_CLAIMS: dict[str, dict[str, Any]] = {
    "expired": {"exp": time.time() - 120},
    "without an end": {"exp": None},
    "not yet": {"nbf": time.time() + 3_600},
    "made in the future": {"iat": time.time() + 3_600},
    "for others": {"aud": "others"},
    "for nobody": {"aud": None},
    "for many others": {"aud": ["others", f"{AUDIENCE}2"]},
    "of another issuer": {"iss": "https://evil.example/realm"},
    "of no issuer": {"iss": None},
    "nobody's": {"sub": None},
    "a number's": {"sub": 7},
    "with no name that is one": {"sub": "a\nb"},
    "of nobody in particular": {"sub": ""},
    "with groups of another form": {"groups": {"a": 1}},
    "with a group that is no text": {"groups": ["a", 1]},
    "in too many groups": {"groups": [f"g{n}" for n in range(oidc.GROUPS_MAX + 1)]},
    "until ever": {"exp": math.inf},
    "until never": {"exp": math.nan},
    "until a text": {"exp": "soon"},
}


@real_time
async def test_a_token_whose_claims_are_not_right_is_refused(issuer: Issuer) -> None:
    tokens = verifying(issuer)
    for what, claims in BAD_CLAIMS.items():
        assert await refused(tokens, issuer.token(**claims)), what


@real_time
async def test_clocks_may_differ_by_a_minute(issuer: Issuer) -> None:
    tokens, now = verifying(issuer), time.time()
    await believed(tokens, issuer.token(exp=now - 30, nbf=now - 100, iat=now - 100))
    await believed(tokens, issuer.token(nbf=now + 30, iat=now + 30))


def encoded(*parts: dict[str, Any]) -> str:
    return ".".join(base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=").decode() for part in parts)


def signed_by_hmac(issuer: Issuer, key: bytes, algorithm: str = "HS256") -> str:
    """With what is public as the secret: what a library believes that lets the token choose the algorithm."""
    body = encoded({"alg": algorithm, "kid": "one", "typ": "JWT"}, issuer.claims())
    mac = hmac.new(key, body.encode(), hashlib.sha256).digest()
    return f"{body}.{base64.urlsafe_b64encode(mac).rstrip(b'=').decode()}"


@real_time
async def test_what_the_issuer_has_not_signed_with_its_key_is_refused(issuer: Issuer) -> None:
    tokens, claims, mine = verifying(issuer), issuer.claims(), issuer.keys[0]
    good = mine.sign(claims)
    head, body, signature = good.split(".")
    forger = Key("one")
    rsa_signed = Key("one", "RS256")
    bad = {
        "none": f"{encoded({'alg': 'none', 'kid': 'one'}, claims)}.",
        "None": f"{encoded({'alg': 'None', 'kid': 'one'}, claims)}.{signature}",
        "hmac by the public key": signed_by_hmac(issuer, json.dumps(mine.public).encode()),
        "hmac by its point": signed_by_hmac(issuer, base64.urlsafe_b64decode(mine.public["x"] + "==")),
        "hmac by nothing": signed_by_hmac(issuer, b""),
        "another key under the id": forger.sign(claims),
        "another kind of key": rsa_signed.sign(claims),
        "its key in the header": jwt.encode(claims, forger.private, "ES256", {"kid": "one", "jwk": forger.public}),
        "where its key is": jwt.encode(claims, forger.private, "ES256", {"kid": "one", "jku": "https://evil/"}),
        "altered": f"{head}.{encoded(issuer.claims(sub='admin'))}.{signature}",
        "altered head": f"{encoded({'alg': 'ES256', 'kid': 'one', 'x': 1})}.{body}.{signature}",
        "cut": good[:-4],
        "no signature": f"{head}.{body}.",
        "no kid": jwt.encode(claims, mine.private, "ES256"),
        "a kid that is a path": jwt.encode(claims, mine.private, "ES256", {"kid": "../../etc/passwd"}),
        "a kid of no text": f"{encoded({'alg': 'ES256', 'kid': ['one']}, claims)}.{signature}",
        "critical": mine.sign(claims, crit=["exp"], exp=1),
        "detached": f"{encoded({'alg': 'ES256', 'kid': 'one', 'b64': False, 'crit': ['b64']}, claims)}.{signature}",
        "deep": f"{base64.urlsafe_b64encode(b'[' * 3_000).decode().rstrip('=')}.{body}.{signature}",
        "dots": "..",
    }
    await believed(tokens, good)
    for what, token in bad.items():
        assert await refused(tokens, token), what
    for other in ("abc", "a.b", "a.b.c.d", "tmq_x"):
        assert await tokens.authenticate(other) is None, "of another kind"


@pytest.mark.parametrize("algorithm", ["RS384", "RS512", "PS256"])
@real_time
async def test_a_key_is_used_with_its_own_algorithm_alone(algorithm: str, issuer: Issuer) -> None:
    key = Key("k", "RS256")
    issuer.keys = [key]
    tokens = verifying(issuer)
    await believed(tokens, key.sign(issuer.claims()))
    other = jwt.encode(issuer.claims(), key.private, algorithm, {"kid": "k"})
    assert "not good" in await refused(tokens, other)


@real_time
async def test_an_unknown_key_asks_at_most_once_a_minute_whoever_shows_it(issuer: Issuer) -> None:
    clock = Clock()
    tokens = verifying(issuer, clock)
    await believed(tokens, issuer.token())
    asked = len(issuer.asked)
    forged = [Key(f"forged-{number}").sign(issuer.claims()) for number in range(20)]
    await asyncio.gather(*(refused(tokens, each) for each in forged))
    assert len(issuer.asked) == asked, "it was asked just now"
    clock.now += AGAIN_S
    await asyncio.gather(*(refused(tokens, each) for each in forged))
    assert len(issuer.asked) == asked + 2, "once, for its document and its keys"
    issuer.keys.append(new := Key("new"))
    await refused(tokens, new.sign(issuer.claims()))
    clock.now += AGAIN_S
    await believed(tokens, new.sign(issuer.claims()))
    assert len(issuer.asked) == asked + 4


@real_time
async def test_keys_are_asked_for_anew_after_an_hour_and_one_that_is_gone_signs_no_more(issuer: Issuer) -> None:
    clock = Clock()
    tokens = verifying(issuer, clock)
    former = issuer.token()
    await believed(tokens, former)
    clock.now += FRESH_S - 1
    await believed(tokens, issuer.token(jti="2"))
    assert len(issuer.asked) == 2
    clock.now += 1
    gone, issuer.keys = issuer.keys[0], [Key("two")]
    await believed(tokens, gone.sign(issuer.claims(jti="3")))
    await until(lambda: tokens._keys.generation == 1)
    await believed(tokens, issuer.token())
    assert "has no key" in await refused(tokens, former), "not even one that was remembered"


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110 - of what tells nobody
            await asyncio.sleep(0.01)


@real_time
async def test_keys_are_kept_for_a_day_while_the_issuer_is_away(issuer: Issuer) -> None:
    clock = Clock()
    tokens = verifying(issuer, clock)
    await believed(tokens, issuer.token())
    issuer.answer["/realm/.well-known/openid-configuration"] = lambda handler: handler.say({}, 503)
    clock.now += KEPT_S - 1
    await believed(tokens, issuer.token(jti="2"))
    await until(lambda: tokens._keys._asking is not None and tokens._keys._asking.done())
    clock.now += 1
    assert "does not answer" in await refused(tokens, issuer.token(jti="3"))
    issuer.answer.clear()
    clock.now += AGAIN_S
    await believed(tokens, issuer.token(jti="4"))


DOCUMENT, KEYS = "/realm/.well-known/openid-configuration", "/realm/keys"


def moved(handler: Any) -> None:
    handler.send_response(302)
    handler.send_header("Location", "/realm/real")
    handler.end_headers()


def endless(handler: Any) -> None:
    handler.send_response(200)
    handler.end_headers()
    try:
        while True:
            handler.wfile.write(b" " * 65_536)
    except OSError:
        pass


def dripping(handler: Any) -> None:
    handler.send_response(200)
    handler.end_headers()
    try:
        for _ in range(200):
            handler.wfile.write(b" ")
            time.sleep(0.05)
    except OSError:
        pass


ANSWERS: dict[str, tuple[str, Callable[[Any], None]]] = {
    "of another issuer": (DOCUMENT, lambda handler: handler.say({"issuer": "https://x", "jwks_uri": "https://x/keys"})),
    "without keys": (DOCUMENT, lambda handler: handler.say({"issuer": "x"})),
    "a list": (DOCUMENT, lambda handler: handler.say([])),
    "no JSON": (DOCUMENT, lambda handler: handler.say(b"{")),
    "deep JSON": (DOCUMENT, lambda handler: handler.say(b"[" * 200_000)),
    "an error": (DOCUMENT, lambda handler: handler.say({}, 500)),
    "another place": (KEYS, moved),
    "endless": (KEYS, endless),
    "slow": (KEYS, dripping),
    "no keys": (KEYS, lambda handler: handler.say({"keys": []})),
    "keys of another form": (KEYS, lambda handler: handler.say({"keys": {"a": 1}})),
    "nothing": (KEYS, lambda handler: handler.connection.close()),
}


def test_an_issuer_that_answers_strangely_is_believed_nothing(issuer: Issuer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(https, "WITHIN_S", 1.0)
    for what, (path, answer) in ANSWERS.items():
        issuer.answer = {path: answer}
        assert asyncio.run(refused(verifying(issuer), issuer.token())), what
    assert "/realm/real" not in issuer.asked


@pytest.mark.parametrize(
    "address", ["http://{host}/keys", "https://{host}:1/keys", "https://elsewhere.example/keys", "file:///etc/passwd",
                "https://user@{host}/keys", "https://{host}.evil.example/keys", "//{host}/keys", "https://[", 7, None],
)  # fmt: skip
def test_keys_are_read_from_the_issuers_own_https_address_alone(address: Any, issuer: Issuer) -> None:
    host = issuer.url.removeprefix("https://").partition("/")[0]
    written = address.format(host=host) if isinstance(address, str) else address
    issuer.document["jwks_uri"] = written
    asyncio.run(refused(verifying(issuer), issuer.token()))
    assert issuer.asked == [DOCUMENT]


def test_an_issuer_whose_certificate_is_not_good_is_not_asked(issuer: Issuer, tmp_path: Path) -> None:
    async def main() -> None:
        trusted = Trusted(issuer.url, AUDIENCE)
        for tls in (https.trusting(None), https.trusting(other.ca)):
            fetched = Fetched(trusted, lambda address, tls=tls: https.get(address, tls))  # type: ignore[misc]
            await refused(OidcTokens(trusted, fetched), issuer.token())
        named = Trusted(issuer.url.replace(HOST, "localhost"), AUDIENCE)
        tls = https.trusting(issuer.ca)
        fetched = Fetched(named, lambda address: https.get(address, tls))
        await refused(OidcTokens(named, fetched), issuer.token(iss=named.url))
        assert issuer.asked == []

    with Issuer(tmp_path / "other") as other:
        asyncio.run(main())


@pytest.mark.parametrize(
    "url",
    ["http://a/b", "https://", "a", "https://a?x=1", "https://a#x", "https://u:p@a/", "https://a:0/", "https://a:x/"],
)
def test_an_issuer_is_an_https_address(url: str) -> None:
    with pytest.raises(InvalidSetting, match="--oidc-issuer"):
        Trusted(url, AUDIENCE)
    with pytest.raises(InvalidSetting, match="--oidc-audience"):
        Trusted("https://a/b", "")


@real_time
async def test_keys_that_sign_nothing_here_are_passed_over(issuer: Issuer) -> None:
    good, rsa = Key("good"), Key("small", "RS256")
    issuer.keys = [good]
    secret = base64.urlsafe_b64encode(b"s" * 32).decode()
    strange: list[Any] = [
        {"kty": "oct", "k": secret, "kid": "hmac", "alg": "HS256"},
        {**good.public, "kid": "encrypts", "use": "enc"},
        {**good.public, "kid": "other", "alg": "ES512"},
        {**good.public, "kid": "none", "alg": "none"},
        {**good.public, "kid": 7},
        {**good.public, "kid": ""},
        {**good.public, "kid": "off", "x": good.public["y"]},
        {**rsa.public, "kid": "tiny", "n": "AQAB"},
        {"kty": "RSA", "kid": "empty"},
        "text", None, [],
    ]  # fmt: skip
    body = json.dumps({"keys": [*strange, good.public]}).encode()
    issuer.answer["/realm/keys"] = lambda handler: handler.say(body)
    tokens = verifying(issuer)
    await believed(tokens, good.sign(issuer.claims()))
    for kid in ("encrypts", "other", "none", "off", "tiny", "empty"):
        token = jwt.encode(issuer.claims(), good.private, "ES256", {"kid": kid})
        assert "has no key" in await refused(tokens, token), kid
    made = encoded({"alg": "HS256", "kid": "hmac"}, issuer.claims())
    mac = base64.urlsafe_b64encode(hmac.new(b"s" * 32, made.encode(), hashlib.sha256).digest()).decode().rstrip("=")
    assert "has no key" in await refused(tokens, f"{made}.{mac}")
