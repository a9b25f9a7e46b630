"""The client's end of a stream port: what is sent and heard, what is no such port, and a broker that has stopped. The
test is the broker."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from mq_client.cluster import streams
from mq_client.cluster.channels import NOBODY, Client
from mq_client.cluster.streams import Duplex, NoStreamPort, dial
from mq_client.errors import NotLeader, Unreachable
from mq_client.security import Security
from mq_protocol.error_messages import to_wire
from mq_protocol.framing import STREAM, Receiver, preamble
from mq_protocol.pem import CA_FILE, context, files_of_broker, read
from mq_protocol.secrets import new_api_token
from mq_protocol.streams import PREAMBLE, Kind, said, say
from tests.securing import Certs

HOST = "127.0.0.1"
WAIT_S = 30.0


class Port:
    """A port that takes one connection after another, and says `greeting` to each."""

    def __init__(self, greeting: bytes = PREAMBLE, tls: ssl.SSLContext | None = None) -> None:
        self._listener = socket.create_server((HOST, 0))
        self._tls = tls
        self.address = f"{HOST}:{self._listener.getsockname()[1]}"
        self._greeting = greeting
        self.connections: list[socket.socket] = []
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                accepted, _ = self._listener.accept()
                if self._tls is not None:
                    accepted = self._tls.wrap_socket(accepted, server_side=True)
                accepted.settimeout(WAIT_S)
                accepted.sendall(self._greeting)
                self.connections.append(accepted)

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(WAIT_S)
        for connection in self.connections:
            connection.close()


@pytest.fixture
def port() -> Iterator[Port]:
    made = Port()
    yield made
    made.close()


@pytest.fixture(autouse=True)
def _nothing_avoided(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "_avoided", {})
    monkeypatch.delenv(streams.VARIABLE, raising=False)


def connection(port: Port, client: Client = NOBODY) -> tuple[Duplex, socket.socket]:
    duplex = Duplex(*dial(port.address, client, WAIT_S), "b:1")
    until = time.monotonic() + WAIT_S
    while not port.connections:
        assert time.monotonic() < until
        time.sleep(0.001)
    return duplex, port.connections[-1]


def heard(broker: socket.socket, count: int) -> list[tuple[Kind, bytes, bytes]]:
    receiver = Receiver(1 << 20, 1 << 27, spoken=STREAM)
    found: list[tuple[Kind, bytes, bytes]] = []
    while len(found) < count:
        receiver.received(broker.recv_into(receiver.buffer()))
        while (message := receiver.next()) is not None:
            kind, body, payload = said(message)
            found.append((kind, body, bytes(payload)))
    return found


@pytest.mark.parametrize("secured", [False, True])
def test_what_tcp_does_not_take_at_once_is_sent_by_the_thread_that_receives(tmp_path: Path, secured: bool) -> None:
    client, tls = NOBODY, None
    if secured:
        certs = Certs(tmp_path / "certs", 1)
        client = Client((), certs.user("etl"))
        tls = context(read(files_of_broker(certs.path, 1)), server=True)
    port = Port(tls=tls)
    duplex, broker = connection(port, client)
    answers: list[bytes] = []

    def receive() -> None:
        with contextlib.suppress(Unreachable):
            while True:
                answers.append(duplex.receive().body)

    receiving = threading.Thread(target=receive, daemon=True)
    receiving.start()
    payloads = [bytes([number]) * (number * 100_000 + number) for number in range(20)]
    for payload in payloads:  # far more than TCP holds, and nobody reads yet
        duplex.send(say(Kind.MESSAGE, b"h", [payload]))
    found: list[tuple[Kind, bytes, bytes]] = []
    reading = threading.Thread(target=lambda: found.extend(heard(broker, len(payloads))), daemon=True)
    reading.start()
    reading.join(3 * WAIT_S)
    assert [payload for _, _, payload in found] == payloads
    broker.sendall(b"".join(say(Kind.MESSAGE, b"x" * 100_000)))
    until = time.monotonic() + WAIT_S
    while not answers:
        assert time.monotonic() < until
        time.sleep(0.001)
    assert answers == [b"x" * 100_000]
    duplex.close()
    receiving.join(WAIT_S)
    assert not receiving.is_alive()
    duplex.release()
    port.close()


def test_an_error_of_the_broker_is_raised_as_it_was(port: Port) -> None:
    duplex, broker = connection(port)
    broker.sendall(b"".join(say(Kind.ERROR, to_wire(NotLeader("ask 3", 3, 17)).SerializeToString())))
    with pytest.raises(NotLeader, match="ask 3") as raised:
        duplex.receive()
    assert raised.value.leader == 3
    duplex.release()


def test_a_connection_that_ends_is_unreachable_and_what_is_sent_then_raises_nothing(port: Port) -> None:
    duplex, broker = connection(port)
    broker.close()
    with pytest.raises(Unreachable, match="broker at b:1 cannot be reached"):
        duplex.receive()
    duplex.release()
    duplex.send(say(Kind.MESSAGE, b"h"))


def test_a_broker_that_has_stopped_is_noticed_and_one_that_answers_is_not(
    port: Port, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "PING_S", 0.1)
    monkeypatch.setattr(streams, "SILENCE_S", WAIT_S)
    duplex, broker = connection(port)
    pinged = 0
    receiver = Receiver(100, 100, spoken=STREAM)

    def play() -> None:
        nonlocal pinged
        while pinged < 3:
            receiver.received(broker.recv_into(receiver.buffer()))
            while (message := receiver.next()) is not None:
                assert said(message).kind is Kind.PING
                pinged += 1
                if pinged == 3:  # the last that is answered
                    monkeypatch.setattr(streams, "SILENCE_S", 0.5)
                broker.sendall(b"".join(say(Kind.PONG)))

    playing = threading.Thread(target=play, daemon=True)
    playing.start()
    with pytest.raises(Unreachable, match="said nothing"):
        duplex.receive()
    assert pinged == 3  # it asks again only once it has heard the answer
    duplex.release()


@pytest.mark.parametrize(
    "greeting",
    [b"\x00\x00\x06\x04\x00\x00\x00\x00\x00\x00\x05", b"HTTP/1.1 400 Bad Request\r\n\r\n", preamble(), b"", b"\x93TMS"],
)
def test_what_does_not_answer_as_a_stream_port_does_is_none(greeting: bytes) -> None:
    port = Port(greeting)
    with pytest.raises(NoStreamPort):
        dial(port.address, NOBODY, 0.3)
    port.close()


def test_a_port_that_refuses_and_one_of_another_kind_are_none(tmp_path: Path, port: Port) -> None:
    with socket.create_server((HOST, 0)) as taken:
        closed = f"{HOST}:{taken.getsockname()[1]}"
    with pytest.raises(NoStreamPort):
        dial(closed, NOBODY)
    certs = Certs(tmp_path / "certs", 1)
    with pytest.raises(NoStreamPort):  # it speaks plain text
        dial(port.address, Client((), certs.user("etl")), 1.0)


def test_a_token_is_sent_to_no_stream_port(tmp_path: Path, port: Port) -> None:
    certs = Certs(tmp_path / "certs", 1)
    security = Security(ca=certs.path / CA_FILE, token=new_api_token()[1].reveal())
    with pytest.raises(NoStreamPort, match="by gRPC alone"):
        dial(port.address, Client((), security), 1.0)
