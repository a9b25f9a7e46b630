"""How a command finds the brokers, and that it says at once if nobody listens. One that is late is waited for."""

from __future__ import annotations

import shlex
import socket
import threading

import click
import pytest
from click.testing import CliRunner

from mq_cli import connection
from mq_cli.commands import command
from mq_cli.connection import CONNECTION, SECURITY, Connection, check_somebody_listens
from mq_client import Security
from mq_client.security import given
from mq_protocol.errors import InvalidSetting


def unused_address() -> tuple[socket.socket, str]:
    """A port that is ours and on which nobody listens."""
    bound = socket.socket()
    bound.bind(("127.0.0.1", 0))
    return bound, f"127.0.0.1:{bound.getsockname()[1]}"


def test_addresses_that_all_refuse_are_named_with_what_to_do() -> None:
    bound, address = unused_address()
    with bound, pytest.raises(click.ClickException) as caught:
        check_somebody_listens([address, "nosuch.invalid:7400"])
    assert f"{address}: connection refused" in caught.value.message
    assert "nosuch.invalid:7400: " in caught.value.message
    assert "tritonmq dev" in caught.value.message
    assert "--bootstrap" in caught.value.message


def test_one_address_that_answers_is_enough() -> None:
    bound, address = unused_address()
    with bound, socket.create_server(("127.0.0.1", 0)) as server:
        check_somebody_listens([address, f"127.0.0.1:{server.getsockname()[1]}"])


def test_a_broker_that_comes_back_within_the_second_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "REFUSED_S", 60.0)  # a second may be over before the timer's thread runs
    bound, address = unused_address()
    with bound:
        refused = threading.Timer(0.2, bound.listen)
        refused.start()
        check_somebody_listens([address])
        refused.join()


def test_what_options_say_goes_to_clients_and_to_children_and_not_to_the_next_command(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TRITONMQ_USER", "before")
    for name in ("CERTS", "TOKEN_FILE", "FORWARD", "BOOTSTRAP"):
        monkeypatch.delenv(f"TRITONMQ_{name}", raising=False)
    seen = []

    @command()
    def asking(connection: Connection = CONNECTION) -> None:
        seen.append((connection.for_client(), connection.environment(), connection.timeout_s))

    for words in ("--certs some --user ann --bootstrap a:1,b:2 --timeout 3", "--forward --certs c"):
        CliRunner().invoke(asking, shlex.split(words), catch_exceptions=False)
    usual = {"bootstrap": ["127.0.0.1:7400"], "security": None, "forward": False}
    assert seen == [
        (
            {**usual, "bootstrap": ["a:1", "b:2"], "security": Security("some", "ann")},
            {"TRITONMQ_CERTS": "some", "TRITONMQ_USER": "ann"},
            3.0,
        ),
        (
            {**usual, "security": Security("c", "before"), "forward": True},
            {"TRITONMQ_CERTS": "c", "TRITONMQ_USER": "before", "TRITONMQ_FORWARD": "1"},
            30.0,
        ),
    ]


def test_an_empty_directory_of_certificates_that_was_typed_goes_before_the_variable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TRITONMQ_CERTS", "some")
    assert Connection.of({"certs": ""}).for_client()["security"] is None
    assert given(None) is None


def test_a_token_without_certificates_is_refused() -> None:
    with pytest.raises(InvalidSetting, match="a token is sent over TLS alone"):
        Connection(token_file="t").for_client()


@pytest.mark.parametrize(
    ("words", "variables", "told"),
    [
        ("--user etl --certs c --token-file t", {}, "--user belongs to a certificate, and a token is given"),
        ("--user etl --certs c", {"TOKEN_FILE": "t"}, "--user belongs to a certificate, and a token is given"),
        ("--token-file t --user etl", {"CERTS": "c"}, "--user belongs to a certificate, and a token is given"),
        ("--user etl", {}, "--user chooses among the certificates in a directory: give --certs"),
        ("--user etl", {"CERTS": "c"}, ""),
        ("--user etl --certs c", {}, ""),
        ("--user '' --token-file t --certs c", {}, ""),
        ("--token-file t", {"CERTS": "c", "USER": "etl"}, ""),
        ("", {"USER": "etl"}, ""),
    ],
)
def test_a_user_that_was_typed_and_would_not_count_is_refused(words: str, variables: dict[str, str], told: str) -> None:
    @command()
    def asking(connection: Connection = SECURITY) -> None:
        pass

    environment = {f"TRITONMQ_{name}": variables.get(name) for name in ("CERTS", "USER", "TOKEN_FILE")}
    said = CliRunner().invoke(asking, shlex.split(words), standalone_mode=False, env=environment)
    if told:
        assert isinstance(said.exception, click.UsageError)
        assert told in said.exception.message
    else:
        assert said.exception is None
