"""Who tells whom in a broker: stand-ins note what they are told."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from mq_broker.broker import server


def test_what_the_coordination_service_says_is_heard_as_soon_as_there_is_somebody_who_hears_it() -> None:
    heard: list[str] = []
    hints, event = server._Hints(), "broker 2 has come"
    early: Any = "too early"
    hints(early)
    listener: Any = SimpleNamespace(hear=heard.append)
    hints.to = listener
    told: Any = event
    hints(told)
    assert heard == [event]


def test_a_link_that_meets_a_stranger_has_the_list_of_brokers_read_again() -> None:
    read: list[bool] = []
    broker: Any = SimpleNamespace(cluster=SimpleNamespace(read_again=lambda: read.append(True)))
    server._Broker._read_brokers(broker)
    assert read == [True]
