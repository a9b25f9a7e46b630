"""What is kept of API tokens: who has which, and which texts are theirs."""

from __future__ import annotations

import asyncio
import json

import pytest

from mq_broker.security.authenticating import ApiTokens
from mq_broker.security.authority import Authority
from mq_broker.security.revoked import Revoked
from mq_broker.security.rules import RuleBook
from mq_broker.security.tokens import Tokens, dump, load
from mq_protocol.access.secrets import digest_of, new_api_token
from mq_protocol.errors import CoordinationUnavailable, InvalidRequest, NotAuthenticated
from mq_protocol.limits import API_TOKEN_VALID_S_MAX

NOW, DAY = 1_800_000_000, 86_400


def made(tokens: Tokens, user: str, now: int = NOW, days: int = 90) -> tuple[Tokens, str, str]:
    number, token = new_api_token()
    return tokens.with_token(user, number, digest_of(token.reveal()), days * DAY, now), number, token.reveal()


def test_a_token_is_its_users_until_it_expires() -> None:
    tokens, number, text = made(Tokens().with_user("etl", NOW), "etl")
    found = tokens.owner(text, NOW)
    assert not isinstance(found, str)
    assert (found[0], found[1].user) == (number, "etl")
    assert not isinstance(tokens.owner(text, NOW + 90 * DAY - 1), str)
    assert "expired" in str(tokens.owner(text, NOW + 90 * DAY))


def test_another_secret_and_another_id_are_nobodys() -> None:
    tokens, number, text = made(Tokens().with_user("etl", NOW), "etl")
    last = "A" if text[-1] != "A" else "B"
    assert "another secret" in str(tokens.owner(text[:-1] + last, NOW))
    other = f"tmq_{'0' * 16}_{text[-43:]}"
    assert number != "0" * 16
    assert "not known" in str(tokens.owner(other, NOW))
    assert "no API token" in str(tokens.owner("x", NOW))


def test_two_may_be_valid_at_once_and_expired_ones_do_not_count() -> None:
    tokens, first, text = made(Tokens().with_user("etl", NOW), "etl", days=1)
    tokens, _, _ = made(tokens, "etl", NOW + 1)
    with pytest.raises(InvalidRequest, match=f"token revoke {first}"):
        made(tokens, "etl", NOW + 2)
    later, _, _ = made(tokens, "etl", NOW + DAY)
    assert first not in later.by_id
    assert "not known" in str(later.owner(text, NOW))
    revoked, _, _ = made(tokens.without_token(first), "etl", NOW + 2)
    assert len(revoked.by_id) == 2


def test_a_user_of_an_earlier_release_whose_name_has_a_star_is_nobody_and_can_be_deleted() -> None:
    tokens, number, text = made(Tokens().with_user("etl", NOW), "etl")
    kept = load(dump(tokens).replace(b'"etl"', b'"etl-*"'))
    authority = Authority()
    authority.take(0, RuleBook(), Revoked(), kept)
    with pytest.raises(NotAuthenticated, match=rf"API token {number}: no name of a user or group has a \*"):
        asyncio.run(ApiTokens(authority, lambda: NOW).authenticate(text))
    assert kept.without_user("etl-*").users == {}
    with pytest.raises(InvalidRequest, match=r"no name of a user or group has a \*, as 'User:\*' has"):
        Tokens().with_user("*", NOW)


def test_with_its_user_a_token_is_gone() -> None:
    tokens, _, text = made(Tokens().with_user("etl", NOW), "etl")
    tokens, _, other = made(tokens.with_user("bi", NOW), "bi")
    tokens = tokens.without_user("etl")
    assert isinstance(tokens.owner(text, NOW), str)
    assert not isinstance(tokens.owner(other, NOW), str)


def test_what_is_written_is_read_and_what_a_newer_version_wrote_is_kept() -> None:
    tokens, number, _ = made(Tokens().with_user("été", NOW), "été")
    document = json.loads(dump(tokens))
    document["new"] = 1
    document["users"]["été"]["new"] = 2
    document["users"]["été"]["tokens"][number]["new"] = 3
    again = load(json.dumps(document).encode())
    assert (again.by_id, again.users) == (tokens.by_id, tokens.users)
    kept = json.loads(dump(again.with_user("other", NOW)))
    assert (kept["new"], kept["users"]["été"]["new"], kept["users"]["été"]["tokens"][number]["new"]) == (1, 2, 3)


@pytest.mark.parametrize("name", ["", "ANONYMOUS", "a\nb", "x" * 300])
def test_nobody_has_a_token_whose_name_nobody_can_have(name: str) -> None:
    with pytest.raises(InvalidRequest):
        Tokens().with_user(name, NOW)


def test_what_no_token_can_be_is_refused() -> None:
    tokens = Tokens().with_user("etl", NOW)
    good = ("0" * 16, b"d" * 32, DAY)
    for number, digest, valid_s in (
        ("0" * 15, *good[1:]), ("G" * 16, *good[1:]), (good[0], b"d" * 31, DAY), (good[0], bytes(32), DAY),
        (*good[:2], 0), (*good[:2], -1), (*good[:2], API_TOKEN_VALID_S_MAX + 1),
    ):  # fmt: skip
        with pytest.raises(InvalidRequest):
            tokens.with_token("etl", number, digest, valid_s, NOW)
    with pytest.raises(InvalidRequest, match="no user"):
        tokens.with_token("nobody", *good, NOW)
    there = tokens.with_token("etl", *good, NOW).with_user("bi", NOW)
    for again in (lambda: there.with_token("bi", *good, NOW), lambda: there.with_user("etl", NOW)):
        with pytest.raises(InvalidRequest, match="already"):
            again()
    for gone in (lambda: there.without_token("1" * 16), lambda: there.without_user("x")):
        with pytest.raises(InvalidRequest, match="there is no"):
            gone()
    with pytest.raises(InvalidRequest, match="there is no token of such an id: `tritonmq token list`"):
        there.without_token(f"tmq_{'1' * 16}_{'s' * 43}")  # a client of another release sends it whole


@pytest.mark.parametrize(
    "data",
    [b"", b"{", b"[]", b"{}", b'{"users":[]}', b'{"users":{"a":{}}}', b'{"users":{"a":{"created":1,"tokens":[]}}}',
     b'{"users":{"ANONYMOUS":{"created":1,"tokens":{}}}}', b'{"users":{"a":{"created":"1","tokens":{}}}}',
     b'{"users":{"a":{"created":true,"tokens":{}}}}',
     b'{"users":{"a":{"created":1,"tokens":{"0123456789abcdef":{"sha256":"x","created":1,"expires":2}}}}}',
     b'{"users":{"a":{"created":1,"tokens":{"x":{"sha256":"' + b"0" * 64 + b'","created":1,"expires":2}}}}}',
     b"[" * 100_000],
)  # fmt: skip
def test_a_document_of_another_form_is_refused_whole(data: bytes) -> None:
    with pytest.raises(CoordinationUnavailable, match="tokens is not one that this version knows"):
        load(data)


def test_a_digest_of_zeros_in_the_document_is_no_way_in() -> None:
    """An unknown id is compared with zeros."""
    data = b'{"users":{"a":{"created":1,"tokens":{"0123456789abcdef":{"sha256":"' + b"0" * 64
    tokens = load(data + b'","created":1,"expires":99999999999}}}}}')
    assert isinstance(tokens.owner(new_api_token()[1].reveal(), NOW), str)
