"""A secret is shown to nobody who does not ask for it, and API tokens are of one form."""

from __future__ import annotations

import pickle

import pytest

from mq_protocol.access.secrets import (
    TOKEN_BYTES_MAX,
    Secret,
    api_token,
    api_token_id,
    api_token_id_in,
    check_token,
    digest_of,
    is_token,
    new_api_token,
)
from mq_protocol.errors import InvalidSetting

MARK = "marker-of-a-secret"


def test_no_way_of_printing_shows_a_secret() -> None:
    secret = Secret(MARK)
    shown = [repr(secret), str(secret), f"{secret}", f"{secret!r}", f"{secret:>40}", "%s" % secret, "%r" % (secret,)]  # noqa: UP031
    shown += [repr([secret]), repr({"token": secret}), "{}".format(secret)]  # noqa: UP032
    shown += [pickle.dumps(secret, protocol).decode("latin-1") for protocol in range(pickle.HIGHEST_PROTOCOL + 1)]
    assert not [text for text in shown if MARK in text]
    with pytest.raises(AttributeError):
        secret.__dict__  # noqa: B018 - there is none


def test_a_secret_survives_pickling_and_is_equal_to_itself_alone() -> None:
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        again = pickle.loads(pickle.dumps(Secret(MARK + "é"), protocol))
        assert again.reveal() == MARK + "é"
        assert again == Secret(MARK + "é")
        assert hash(again) == hash(Secret(MARK + "é"))
    assert Secret("a") != Secret("b")
    assert Secret("a") != "a"


def test_an_api_token_has_its_id_in_it_and_no_two_are_alike() -> None:
    number, token = new_api_token()
    assert api_token_id(token.reveal()) == number
    assert len(token.reveal()) == len("tmq_") + 16 + 1 + 43
    assert is_token(token.reveal())
    assert len({new_api_token()[1].reveal() for _ in range(100)}) == 100
    assert len(digest_of(token.reveal())) == 32
    assert api_token(number, token.reveal()[-43:]) == token


@pytest.mark.parametrize(
    "text",
    ["", "tmq_", "tmq_0123456789abcdef_", f"tmq_0123456789ABCDEF_{'a' * 43}", f"tmq_0123456789abcdef_{'a' * 42}",
     f"tmq_0123456789abcdef_{'a' * 44}", f"tmq_0123456789abcdef_{'a' * 43}\n", f" tmq_0123456789abcdef_{'a' * 43}",
     f"TMQ_0123456789abcdef_{'a' * 43}"],
)  # fmt: skip
def test_what_is_nearly_an_api_token_is_none(text: str) -> None:
    assert api_token_id(text) is None


def test_a_tokens_id_is_given_alone_or_in_the_whole_token_and_nothing_else_is_shown() -> None:
    number, token = new_api_token()
    assert api_token_id_in(number) == api_token_id_in(f" {token.reveal()}\n") == number
    for text in (token.reveal()[:-1], f"{token.reveal()}a", MARK, number[1:], ""):
        with pytest.raises(InvalidSetting, match="`tritonmq token list` shows") as refused:
            api_token_id_in(text)
        assert text == "" or text not in str(refused.value)


@pytest.mark.parametrize("text", ["", " ", "a b", "a\x00b", "a\nb", "ä", "a" * (TOKEN_BYTES_MAX + 1), "=a"])
def test_what_no_header_can_carry_is_no_token_and_is_not_shown(text: str) -> None:
    assert not is_token(text)
    with pytest.raises(InvalidSetting) as refused:
        check_token(MARK * bool(text.strip()) + text)
    assert MARK not in str(refused.value)


def test_white_space_around_a_token_is_taken_off() -> None:
    assert check_token(" abc.def\n") == "abc.def"
