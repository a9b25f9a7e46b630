"""Bootstrap addresses, failover between them, and which of two tales about a leader is believed."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from mq_client.administration.admin import Admin
from mq_client.cluster.connection import Connection, parse_bootstrap
from mq_client.cluster.deadline import Deadline
from mq_client.cluster.listening import refuses
from mq_client.consumer import Consumer
from mq_client.errors import InvalidSetting, InvalidTopicName, NotLeader, UnknownTopic, Unreachable
from mq_client.producer import Producer
from mq_protocol import mq_pb2 as pb


@pytest.fixture
def refused() -> Iterator[str]:
    """An address that nobody listens on, nor can while it is held."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{held.getsockname()[1]}"


@pytest.fixture
def silent() -> Iterator[str]:
    """An address that takes connections and never says a word."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        yield f"127.0.0.1:{listening.getsockname()[1]}"


def test_addresses_are_read_in_order() -> None:
    assert parse_bootstrap(" a:1, b.example:65535 ,[::1]:7400") == ("a:1", "b.example:65535", "[::1]:7400")
    assert parse_bootstrap(["a:1", "b:2"]) == ("a:1", "b:2")


@pytest.mark.parametrize("bootstrap", ["", ",", "a", "a:", ":7400", "a:0", "a:65536", "a:b", "http://a:1", "a:1;b:2"])
def test_what_is_no_address_is_refused_and_shown(bootstrap: str) -> None:
    with pytest.raises(InvalidSetting, match="bootstrap"):
        parse_bootstrap(bootstrap)


@pytest.mark.parametrize("bootstrap", [7400, None, [7400], b"127.0.0.1:7400"])
def test_an_address_that_is_no_text_is_refused(bootstrap: Any) -> None:
    with pytest.raises(InvalidSetting, match=r"bootstrap=.* is no text: give e\.g\. '127"):
        parse_bootstrap(bootstrap)


def test_nobody_there_is_told_with_every_address_tried(refused: str, silent: str) -> None:
    with pytest.raises(Unreachable) as caught:
        Connection([refused, silent]).metadata(Deadline(3_000))
    assert refused in str(caught.value)
    assert silent in str(caught.value)
    assert "start one (`tritonmq dev`" in str(caught.value)


ASKED: list[Callable[[str], object]] = [
    lambda address: Admin(address).list_topics(),
    lambda address: Producer(address).publish("t", b"v"),
    lambda address: Consumer(address).subscribe("t"),
]


@pytest.mark.parametrize("ask", ASKED, ids=["admin", "producer", "consumer"])
def test_a_client_says_at_once_that_nobody_listens_and_what_to_do(
    ask: Callable[[str], object], refused: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("administration.admin", "producer", "consumer"):
        monkeypatch.setattr(f"mq_client.{module}.REFUSED_S", 0.1)
    with pytest.raises(Unreachable) as caught:
        ask(refused)
    assert f"no broker listens at {refused}: connection refused: start one (`tritonmq dev`" in str(caught.value)


def test_a_silent_address_does_not_count_as_refusing(refused: str, silent: str) -> None:
    assert refuses(refused)
    assert not refuses(silent)
    assert not refuses("nosuch.invalid:7400")


@pytest.mark.parametrize("refused_last", [False, True])
def test_a_host_of_which_one_address_is_silent_does_not_count_as_refusing(
    refused: str, refused_last: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def found(port: int) -> tuple[Any, ...]:
        return socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", port)

    with socket.create_server(("127.0.0.1", 0), backlog=0) as full, contextlib.ExitStack() as held:
        for _ in range(3):  # the queue is full: who comes next hears nothing
            waiting = held.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(full.getsockname())
        both = [found(full.getsockname()[1]), found(int(refused.rpartition(":")[2]))]
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: both if refused_last else both[::-1])
        assert not refuses("two.example:7400")
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: both[1:] * 2)
        assert refuses("two.example:7400")


def test_an_address_that_refuses_is_passed_over(bootstrap: str, refused: str) -> None:
    for _ in range(4):  # whichever is asked first
        assert Connection([refused, bootstrap]).metadata(Deadline(5_000)).brokers


def test_an_unknown_topic_is_named_with_the_nearest_one(bootstrap: str, admin: Admin, topic: str) -> None:
    admin.create_topic(topic)
    with pytest.raises(UnknownTopic, match=f"did you mean '{topic}'"):
        Connection(bootstrap).topic(topic[:-1], Deadline(5_000))
    with pytest.raises(InvalidTopicName):
        Connection(bootstrap).topic("a/b", Deadline(5_000))


def test_the_internal_topic_is_made_when_it_is_asked_for(bootstrap: str) -> None:
    assert Connection(bootstrap).topic("__transactions", Deadline(30_000)).partitions > 0


def _told(leader: int, epoch: int) -> pb.MetadataResponse:
    brokers = [pb.BrokerInfo(id=number, address=f"b:{number}") for number in (1, 2)]
    partition = pb.PartitionInfo(partition=0, leader=leader, leader_epoch=epoch, replicas=[1, 2])
    return pb.MetadataResponse(brokers=brokers, topics=[pb.TopicInfo(name="t", topic_id="x", partitions=[partition])])


def test_an_older_leadership_is_not_believed() -> None:
    connection = Connection("b:1")
    for leader, epoch, believed in ((1, 5, "b:1"), (2, 4, "b:1"), (2, 6, "b:2"), (0, 6, None), (1, 7, "b:1")):
        connection._learn(_told(leader, epoch))
        view = connection.known_topic("t")
        assert view is not None
        assert connection.leader_address(view, 0) == believed


def test_a_broker_that_says_who_leads_is_believed_if_it_is_news() -> None:
    connection = Connection("b:1")
    connection._learn(_told(1, 5))
    for leader, epoch, believed in ((2, 4, "b:1"), (9, 6, "b:1"), (0, 6, "b:1"), (2, 5, "b:2"), (1, 6, "b:1")):
        connection.note_leader("t", 0, NotLeader("ask there", leader, epoch))
        view = connection.known_topic("t")
        assert view is not None
        assert connection.leader_address(view, 0) == believed
