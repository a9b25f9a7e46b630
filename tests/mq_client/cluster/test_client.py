"""Where a client's calls go, if one broker passes on what is meant for the others. Nothing here connects."""

from __future__ import annotations

import pytest

from mq_client import InvalidSetting
from mq_client.cluster.client import Client
from mq_client.cluster.connection import Connection


def clients(name: str) -> tuple[Client, Client]:
    """One that reaches all brokers, and one that reaches two. Of addresses that no other test has."""
    addresses = (f"{name}-a:1", f"{name}-b:1")
    return Client(addresses), Client(addresses, forward=True)


def test_who_is_reached_is_asked_and_who_is_not_is_asked_by_way_of_the_entry() -> None:
    direct, forwarding = clients("reached")
    assert not forwarding.passed_on("reached-b:1")
    assert forwarding.dialled("reached-b:1") == "reached-b:1"
    assert forwarding.passed_on("hidden:1")
    assert forwarding.dialled("hidden:1") == "reached-a:1"
    assert forwarding.shown("hidden:1") == "hidden:1 (passed on by reached-a:1)"
    assert not direct.passed_on("hidden:1")
    assert direct.dialled("hidden:1") == direct.shown("hidden:1") == "hidden:1"


def test_an_entry_that_cannot_be_reached_is_left_for_the_next_one() -> None:
    direct, forwarding = clients("left")
    for _ in range(2):
        forwarding.note_unreachable("left-a:1")  # many calls meet the same lost connection
    assert forwarding.dialled("hidden:1") == "left-b:1"
    forwarding.note_unreachable("left-b:1")
    assert forwarding.dialled("hidden:1") == "left-a:1"
    direct.note_unreachable("left-a:1")
    assert forwarding.dialled("hidden:1") == "left-a:1"


def test_the_environment_says_it_and_an_argument_says_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRITONMQ_FORWARD", raising=False)
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
