"""A call on which one thread sends and another one receives: what is sent and heard, and a broker that has stopped. The
test is the broker."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from mq_client.cluster import duplex as duplex_module
from mq_client.cluster.client import NOBODY, Client
from mq_client.cluster.duplex import Duplex
from mq_client.errors import NotLeader, TritonMQError, Unreachable
from mq_protocol import mq_pb2 as pb
from mq_protocol.access.pem import context, files_of_broker, read
from mq_protocol.wire import call
from mq_protocol.wire.call import Kind, say
from tests.cluster.harness import wait_until
from tests.played_broker import WAIT_S, Handed, PlayedBroker, Spoken, played
from tests.securing import Certs


@pytest.fixture
def handed() -> Iterator[Handed]:
    made = Handed()
    yield made
    made.let_go()


@pytest.fixture
def broker(handed: Handed) -> Iterator[PlayedBroker]:
    with played(handed) as made:
        yield made
        handed.let_go()


def called(at: PlayedBroker, handed: Handed, client: Client = NOBODY) -> tuple[Duplex, Spoken]:
    duplex = Duplex(at.address, "Produce", client)
    spoken = handed.next()
    assert spoken.hear() is not None
    assert spoken.opened == pb.CallOpen(method="Produce", protocol=1, protocol_oldest=1)
    return duplex, spoken


@pytest.mark.parametrize("secured", [False, True])
def test_what_tcp_does_not_take_at_once_is_sent_by_the_thread_that_receives(
    tmp_path: Path, handed: Handed, secured: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(duplex_module, "LOOK_S", 1_000.0)  # it is woken for it, and does not just look now and then
    client, tls = NOBODY, None
    if secured:
        certs = Certs(tmp_path / "certs", 1)
        client = Client((), certs.user("etl"))
        tls = context(read(files_of_broker(certs.path, 1)), server=True)
    with played(handed, tls=tls) as at:
        duplex, spoken = called(at, handed, client)
        answers: list[bytes] = []

        def receive() -> None:
            first = duplex.receive()
            assert first is not None
            answers.append(first.body)
            with pytest.raises(Unreachable, match="it was closed here"):
                duplex.receive()
            duplex.release()

        receiving = threading.Thread(target=receive, daemon=True)
        receiving.start()
        payloads = [bytes([number]) * (number * 100_000 + number) for number in range(20)]
        for payload in payloads:  # far more than TCP holds, and nobody reads yet
            duplex.send(b"h", [payload])
        for payload in payloads:
            message = spoken.hear()
            assert message is not None
            assert message.payload == payload
        spoken.say(Kind.MESSAGE, b"x" * 100_000)
        wait_until(lambda: answers == [b"x" * 100_000], "the answer came")
        duplex.close()
        receiving.join(WAIT_S)
        assert not receiving.is_alive()
        handed.let_go()


def test_an_error_of_the_broker_is_raised_as_it_was(broker: PlayedBroker, handed: Handed) -> None:
    duplex, spoken = called(broker, handed)
    spoken.close_with(NotLeader("ask 3", 3, 17))
    with pytest.raises(NotLeader, match="ask 3") as raised:
        duplex.receive()
    assert raised.value.leader == 3
    duplex.release()


def test_the_last_answer_ends_it(broker: PlayedBroker, handed: Handed) -> None:
    duplex, spoken = called(broker, handed)
    duplex.end()
    assert spoken.hear() == (Kind.END, b"", b"")
    spoken.say(Kind.MESSAGE, b"one")
    spoken.say(Kind.END)
    message = duplex.receive()
    assert message is not None
    assert message.body == b"one"
    assert duplex.receive() is None
    duplex.release()


@pytest.mark.parametrize(
    "said", [b"", b"".join(say(Kind.MESSAGE, b"x" * 100))[:50], b"\xff" * 8, b"\0\0\0\1\0\0\0\0\x63"]
)
def test_a_connection_that_breaks_or_says_what_is_none_is_unreachable_and_what_is_sent_then_raises_nothing(
    broker: PlayedBroker, handed: Handed, said: bytes
) -> None:
    duplex, spoken = called(broker, handed)
    spoken.socket.sendall(said)
    handed.let_go()
    with pytest.raises(Unreachable, match=f"broker at {broker.address} cannot be reached"):
        duplex.receive()
    duplex.release()
    duplex.send(b"h")


def test_a_broker_that_has_stopped_is_noticed_and_one_that_answers_is_not(
    broker: PlayedBroker, handed: Handed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(duplex_module, "LOOK_S", 0.05)
    monkeypatch.setattr(call, "PING_S", 0.1)
    duplex, spoken = called(broker, handed)
    ended: list[TritonMQError] = []

    def receive() -> None:
        try:
            duplex.receive()
        except TritonMQError as error:
            ended.append(error)

    receiving = threading.Thread(target=receive, daemon=True)
    receiving.start()
    ping, pong = b"".join(say(Kind.PING)), b"".join(say(Kind.PONG))
    for _ in range(3):
        heard = b""
        while len(heard) < len(ping):
            heard += spoken.socket.recv(len(ping) - len(heard))
        assert heard == ping
        spoken.socket.sendall(pong)
        assert not ended
    monkeypatch.setattr(call, "SILENCE_S", 0.5)
    receiving.join(WAIT_S)
    assert "said nothing" in str(ended[0])
    duplex.release()
