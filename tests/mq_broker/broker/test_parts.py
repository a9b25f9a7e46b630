"""Who tells whom in a broker: stand-ins note what they are told."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from mq_broker.broker import server
from mq_broker.broker.metadata.brokers import Hints
from mq_broker.coordination.interface import BrokerRegistration
from mq_broker.rpc.links import PeerAddress
from mq_protocol.limits import MESSAGE_OVERHEAD_BYTES


def test_what_the_coordination_service_says_is_heard_as_soon_as_there_is_somebody_who_hears_it() -> None:
    heard: list[str] = []
    hints, event = Hints(), "broker 2 has come"
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


@pytest.mark.parametrize(("missing", "told"), [(0, []), (1, ["t"])])
def test_a_message_has_room_for_a_batch_and_what_goes_with_it(
    missing: int, told: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    topic = SimpleNamespace(spec=SimpleNamespace(name="t"), settings=SimpleNamespace(batch_bytes_max=100))
    broker: Any = SimpleNamespace(
        _topics=SimpleNamespace(all=lambda: [topic]), _message_bytes_max=100 + MESSAGE_OVERHEAD_BYTES - missing
    )
    server._Broker._look_at_batches(broker)
    assert [message.split()[1] for message in caplog.messages] == told


def test_links_are_told_where_each_life_of_a_broker_is_to_be_reached() -> None:
    known: list[object] = []
    two = BrokerRegistration(2, 7, "clients:1", peer_address="brokers:1", link_address="links:1")
    ports = SimpleNamespace(
        peer_address_of=lambda known: known.peer_address, link_address_of=lambda known: known.link_address
    )
    broker: Any = SimpleNamespace(
        _shell=SimpleNamespace(level=1, brokers_seen=lambda _live: None),
        cluster=SimpleNamespace(level=1, live=(), brokers={2: two}),
        _links=SimpleNamespace(know=known.append),
        _ports=ports,
    )
    server._Broker._on_brokers(broker)
    assert known == [{2: PeerAddress("brokers:1", 7, "links:1")}]
