"""Where a client's calls go, if one broker passes on what is meant for the others. Nothing here connects."""

from __future__ import annotations

from typing import Any

import grpc
import pytest

from mq_client import InvalidSetting
from mq_client.cluster import forwarding
from mq_client.cluster.channels import Client
from mq_client.cluster.connection import Connection
from mq_protocol.transport import ERROR_METADATA, FORWARD_METADATA

DIRECT = Client(("a:1", "b:1"))
FORWARDING = Client(("a:1", "b:1"), forward=True)


@pytest.fixture(autouse=True)
def at_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forwarding, "_entries", {})
    monkeypatch.delenv("TRITONMQ_FORWARD", raising=False)


class Failed:
    """A call that has failed."""

    def __init__(self, code: grpc.StatusCode = grpc.StatusCode.UNAVAILABLE, *keys: str) -> None:
        self._code, self._keys = code, keys

    def code(self) -> grpc.StatusCode:
        return self._code

    def trailing_metadata(self) -> Any:
        return [(key, b"") for key in self._keys]


def test_who_is_reached_is_asked_and_who_is_not_is_named_to_the_entry() -> None:
    assert forwarding.entry("b:1", FORWARDING) == "b:1"
    assert forwarding.metadata("b:1", FORWARDING) is None
    assert forwarding.entry("hidden:1", FORWARDING) == "a:1"
    assert forwarding.metadata("hidden:1", FORWARDING) == ((FORWARD_METADATA, "hidden:1"),)
    assert forwarding.entry("hidden:1", DIRECT) == "hidden:1"
    assert forwarding.metadata("hidden:1", DIRECT) is None


def test_an_entry_that_cannot_be_reached_is_left_for_the_next_one() -> None:
    forwarding.note_failure(Failed(), FORWARDING, "a:1")
    forwarding.note_failure(Failed(), FORWARDING, "a:1")  # many calls meet the same lost connection
    assert forwarding.entry("hidden:1", FORWARDING) == "b:1"
    forwarding.note_unreachable(FORWARDING, "b:1")
    assert forwarding.entry("hidden:1", FORWARDING) == "a:1"


@pytest.mark.parametrize(
    "failed", [Failed(grpc.StatusCode.UNAVAILABLE, ERROR_METADATA), Failed(grpc.StatusCode.UNKNOWN)]
)
def test_what_a_broker_says_is_no_reason_to_leave_it(failed: Failed) -> None:
    forwarding.note_failure(failed, FORWARDING, "a:1")
    assert forwarding.entry("hidden:1", FORWARDING) == "a:1"


def test_the_environment_says_it_and_an_argument_says_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not Connection("a:1").client.forward
    assert Connection("a:1", forward=True).client.forward
    for text in ("1", "true", "Yes", " on "):
        monkeypatch.setenv("TRITONMQ_FORWARD", text)
        assert Connection("a:1").client.forward
    assert not Connection("a:1", forward=False).client.forward
    assert not Connection("a:1", from_environment=False).client.forward
    monkeypatch.setenv("TRITONMQ_FORWARD", "perhaps")
    with pytest.raises(InvalidSetting, match="TRITONMQ_FORWARD"):
        Connection("a:1")


def test_a_wrong_value_is_refused() -> None:
    with pytest.raises(InvalidSetting, match="forward="):
        Connection("a:1", forward="yes")  # type: ignore[arg-type]


def test_a_forwarding_client_uses_no_stream_port() -> None:
    for forward, expected in ((False, "s:1"), (True, "")):
        connection = Connection("a:1", forward=forward)
        connection._stream_addresses = {"hidden:1": "s:1"}
        assert connection.stream_address("hidden:1") == expected
