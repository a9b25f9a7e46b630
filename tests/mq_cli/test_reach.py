"""That nobody listens is said at once; that a broker is only late is not taken for it."""

from __future__ import annotations

import socket
import threading

import click
import pytest

from mq_cli import reach
from mq_cli.reach import check_somebody_listens


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
    monkeypatch.setattr(reach, "REFUSED_S", 60.0)  # a second may be over before the timer's thread runs
    bound, address = unused_address()
    with bound:
        refused = threading.Timer(0.2, bound.listen)
        refused.start()
        check_somebody_listens([address])
        refused.join()
