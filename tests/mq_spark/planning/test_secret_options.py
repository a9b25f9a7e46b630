"""Options that hold a secret, and what is told of them when something is wrong: never their value."""

from __future__ import annotations

import pickle
import random
import re
import traceback
from collections.abc import Mapping
from typing import Any, Final

import pytest

from mq_client import Security
from mq_protocol.errors import InvalidSetting
from mq_spark.planning.option_table import OPTIONS
from mq_spark.planning.options import parse_sink, parse_source
from mq_spark.planning.security_options import _REFUSED, JAAS, PASSWORD, SECRETS, USERNAME, why_refused

MARKER: Final = "s3cr3t-marker"
PEM: Final = f"-----BEGIN PRIVATE KEY-----\n{MARKER}\n-----END PRIVATE KEY-----\n"

REDACTED: Final = re.compile(r"(?i)secret|password|token|access[.]?key|credential")
"""Spark's default of `spark.redaction.regex`: what it hides of configuration, and of options where it shows them."""

PATHS: Final = tuple(option.name for option in OPTIONS if option.name == "certs" or option.name.endswith("location"))
REFUSED: Final = (
    *_REFUSED,
    *(f"kafka.sasl.{name}" for name in ("password", "username", "jaas.config", "oauthbearer.client.secret")),
    "kafka.sasl.oauthbearer.token.endpoint.url",
)
"""Options of Kafka's client in which people keep secrets."""

TOKEN: Final = f"tmq_{'0' * 16}_{MARKER}{'x' * 30}"
JAAS_LINE: Final = (
    f'org.apache.kafka.common.security.plain.PlainLoginModule required username="{"0" * 16}" password="{TOKEN}";'
)
"""Tokens that are taken, and have the marker in them."""

WORDS: Final = ("", "x", "-1", "true", "{}", "latest", "SSL", "PLAINTEXT", "9" * 30, '{"t": {"0": 1}}')


def shown(error: BaseException) -> str:
    """All that a notebook, a log or a debugger makes of it."""
    notes = getattr(error, "__notes__", ())
    return "\n".join((str(error), repr(error), *notes, *traceback.format_exception(error)))


def wrong_options(chance: random.Random) -> dict[str, str]:
    """Some options with values that make no sense, and some with a secret, a few of them under misspelled names."""
    options = {"bootstrap.servers": "a:1", "subscribe": "t"}
    for option in chance.sample(OPTIONS, 4):
        options[option.name] = chance.choice(WORDS)
    for name in chance.sample((*REFUSED, *SECRETS, *PATHS), 2):
        written = name if chance.random() < 0.7 else name.replace(chance.choice("aeoks."), "", 1)
        options[chance.choice((written, written.upper()))] = PEM if name in PATHS else MARKER
    if chance.random() < 0.2:
        options |= {"certs": "certs", "kafka.sasl.username": "0" * 16, "kafka.sasl.password": TOKEN}
    elif chance.random() < 0.2:
        options |= {"certs": "certs", "kafka.sasl.jaas.config": JAAS_LINE}
    return options


def test_a_thousand_wrong_options_show_no_secret() -> None:
    chance = random.Random(1)
    refused = 0
    for _ in range(1_000):
        options = wrong_options(chance)
        for parse, more in ((parse_source, {}), (parse_sink, {"topic": "t"})):
            read: Any = parse
            try:
                told = repr(read({**options, **more}, streaming=chance.choice((True, False))))
            except InvalidSetting as error:
                refused += 1
                told = shown(error)
            assert MARKER not in told, options
    assert refused > 1_500


@pytest.mark.parametrize("name", PATHS)
def test_a_key_in_place_of_its_path_is_refused_and_not_shown(name: str) -> None:
    files = dict.fromkeys(
        ("kafka.ssl.ca.location", "kafka.ssl.certificate.location", "kafka.ssl.key.location"), "x.pem"
    )
    given: Mapping[str, str] = {"bootstrap.servers": "a:1", "topic": "t", **(files if name in files else {}), name: PEM}
    with pytest.raises(InvalidSetting, match="is no path: write the text into a file") as refused:
        parse_sink(given, streaming=True)
    assert MARKER not in shown(refused.value)


@pytest.mark.parametrize("token", [f"tmq_{'0' * 16}_{'x' * 43}", "eyJhbGciOiJSUzI1NiJ9.e30.c2lnbmF0dXJl"])
def test_a_token_in_place_of_its_file_is_refused_and_not_shown(token: str) -> None:
    with pytest.raises(InvalidSetting, match="token_file is no path: write the text into a file") as refused:
        Security("certs", token_file=token)
    assert token not in shown(refused.value)


@pytest.mark.parametrize(
    "given", [{"kafka.sasl.username": "0" * 16, "kafka.sasl.password": TOKEN}, {"kafka.sasl.jaas.config": JAAS_LINE}]
)
def test_a_token_that_is_taken_is_in_no_text(given: dict[str, str], caplog: pytest.LogCaptureFixture) -> None:
    taken = parse_sink({"bootstrap.servers": "a:1", "topic": "t", "certs": "c", **given}, streaming=True)
    assert taken.security is not None
    assert taken.security.token is not None
    assert MARKER in taken.security.token.reveal()
    assert MARKER not in f"{taken!r} {taken} {taken.security.token!r} {taken.security.token} {pickle.dumps(taken)!r}"
    assert MARKER not in caplog.text


def test_no_option_holds_a_secret_under_a_name_that_spark_would_show(caplog: pytest.LogCaptureFixture) -> None:
    for name in REFUSED:
        assert why_refused(name) or name in SECRETS or name == USERNAME, name
    assert {name for name in SECRETS if not REDACTED.search(name)} == {JAAS}
    parse_sink({"bootstrap.servers": "a:1", "topic": "t", "certs": "c", JAAS: JAAS_LINE}, streaming=True)
    assert PASSWORD in caplog.text, "who gives it under such a name is told a better one"
