"""What becomes of a client whose tunnel is dead, silent, full, refuses, or is none: the tunnel is named, with what to
do, and no broker is blamed. The test is the tunnel."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import Callable, Iterator

import pytest

from mq_client import Admin, Producer, Reader, Unreachable
from mq_client.cluster import tunnels
from mq_client.cluster.connection import Connection
from mq_client.cluster.deadline import Deadline
from mq_client.cluster.tunnels import (
    TunnelFault,
    What,
    checked_via,
    connect,
    connect_on_loop,
    fault,
    fault_of_all,
    given_via,
)
from mq_client.errors import InvalidSetting

HOST = "127.0.0.1"
BROKER = "broker-1.hidden:7400"
"""Nobody here knows it: whoever dials it directly is found out."""

"""Its stream port."""

WAIT_S = 30.0


class Listener:
    """Answers each request for a connection in the same way. `asked`: what came."""

    def __init__(self, answer: bytes | None) -> None:
        self._listener = socket.create_server((HOST, 0))
        self.via = f"{HOST}:{self._listener.getsockname()[1]}"
        self._answer = answer
        self.asked: list[bytes] = []
        self.kept: list[socket.socket] = []
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    def _accept(self) -> None:
        while True:
            try:
                accepted, _ = self._listener.accept()
            except OSError:
                return
            accepted.settimeout(WAIT_S)
            self.kept.append(accepted)
            if self._answer is not None:
                threading.Thread(target=self._serve, args=(accepted, self._answer), daemon=True).start()

    def _serve(self, accepted: socket.socket, answer: bytes) -> None:
        with contextlib.suppress(OSError), accepted:
            self.asked.append(accepted.recv(4096))
            accepted.sendall(answer)
            accepted.shutdown(socket.SHUT_WR)
            while accepted.recv(4096):
                pass

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(WAIT_S)
        for each in self.kept:
            each.close()


@pytest.fixture
def listen() -> Iterator[Callable[[bytes | None], Listener]]:
    made: list[Listener] = []

    def start(answer: bytes | None) -> Listener:
        made.append(Listener(answer))
        return made[-1]

    yield start
    for each in made:
        each.close()


@pytest.fixture
def nowhere() -> str:
    with socket.create_server((HOST, 0)) as closed:
        return f"{HOST}:{closed.getsockname()[1]}"


ANSWERS = [
    (b"HTTP/1.1 403 Forbidden\r\n\r\n", What.REFUSED, f"refuses {BROKER}"),
    (b"HTTP/1.1 407 Proxy Authentication Required\r\n\r\n", What.OTHER, "wants a password"),
    (b"HTTP/1.1 405 Method Not Allowed\r\n\r\n", What.OTHER, "with HTTP 405"),
    (b"HTTP/1.0 503 Service Unavailable\r\n\r\n", What.FULL, "takes no more connections"),
    (b"HTTP/1.1 502 Bad Gateway\r\n\r\n", What.BROKER, f"does not reach the broker at {BROKER}"),
    (b"HTTP/1.1 504 Gateway Timeout\r\n\r\n", What.BROKER, f"does not reach the broker at {BROKER}"),
    (b"\x00\x00\x06\x04\x00\x00\x00\x00\x00", What.OTHER, "is none that speaks HTTP CONNECT"),
    (b"HTTP/1.1 two hundred\r\n\r\n", What.OTHER, "is none that speaks HTTP CONNECT"),
    (b"HTTP/1.1 200 OK\r\n\r\nhello", What.OTHER, "it speaks before the broker is spoken to"),
    (b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 2_000, What.OTHER, "its answer does not end"),
    (b"HTTP/1.1 200 OK\r\n", What.OTHER, "is none that speaks HTTP CONNECT"),
    (b"", What.OTHER, "without an answer"),
]


@pytest.mark.parametrize(("answer", "what", "text"), ANSWERS, ids=lambda each: repr(each)[:40])
def test_what_an_answer_means(listen: Callable[[bytes | None], Listener], answer: bytes, what: What, text: str) -> None:
    there = listen(answer)
    found = fault(BROKER, there.via, WAIT_S)
    assert found is not None
    assert (found.what, text in str(found)) == (what, True), str(found)
    assert str(found).startswith(f"the tunnel at {there.via} ")
    with pytest.raises(TunnelFault) as on_loop:
        asyncio.run(connect_on_loop(BROKER, there.via, WAIT_S))
    assert (on_loop.value.what, str(on_loop.value)) == (what, str(found))
    assert there.asked == [f"CONNECT {BROKER} HTTP/1.1\r\nHost: {BROKER}\r\n\r\n".encode()] * 2


def test_one_that_is_dead_one_of_no_host_and_one_that_is_silent(
    listen: Callable[[bytes | None], Listener], nowhere: str
) -> None:
    dead = fault(BROKER, nowhere)
    assert dead is not None
    assert dead.what is What.DEAD
    assert "connection refused. Start it (`tritonmq proxy" in str(dead)
    unknown = fault(BROKER, "nosuch.invalid:7490")
    assert unknown is not None
    assert unknown.what is What.DEAD
    silent = fault(BROKER, listen(None).via, 0.2)
    assert silent is not None
    assert silent.what is What.SILENT
    assert "something listens there, and has not answered" in str(silent)


def test_brokers_are_blamed_if_the_tunnel_says_so_and_else_the_tunnel_once(
    listen: Callable[[bytes | None], Listener], nowhere: str
) -> None:
    others = "broker-2.hidden:7400"
    assert fault_of_all([BROKER, others], listen(b"HTTP/1.1 502 x\r\n\r\n").via) is None
    told = fault_of_all([BROKER, others], nowhere)
    assert told is not None
    assert told.count("connection refused") == 1
    told = fault_of_all([BROKER, others], listen(b"HTTP/1.1 403 x\r\n\r\n").via)
    assert told is not None
    assert BROKER in told
    assert others in told
    assert fault_of_all([BROKER], listen(None).via, silence=False) is None


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (b"HTTP/1.1 403 Forbidden\r\n\r\n", f"refuses {BROKER}"),
        (b"HTTP/1.1 405 Method Not Allowed\r\n\r\n", "is none that speaks HTTP CONNECT"),
        (b"\x00\x00\x06\x04\x00\x00\x00\x00\x00", "is none that speaks HTTP CONNECT"),
        (None, "is silent"),
    ],
    ids=["refuses", "a web server", "a broker", "silent"],
)
def test_a_client_says_that_no_broker_was_asked(
    listen: Callable[[bytes | None], Listener], answer: bytes | None, text: str
) -> None:
    via = listen(answer).via
    with Admin(BROKER, 6_000, via=via) as admin, pytest.raises(Unreachable) as raised:
        admin.describe_cluster()
    assert str(raised.value).startswith(f"no broker was asked: the tunnel at {via} ")
    assert text in str(raised.value)


def test_every_client_names_a_tunnel_that_is_dead(nowhere: str) -> None:
    with Producer(BROKER, timeout_ms=10_000, via=nowhere) as producer, pytest.raises(Unreachable) as first:
        producer.publish("t", b"x").result()
    with Reader(BROKER, via=nowhere) as reader, pytest.raises(Unreachable) as second:
        list(reader.read("t", 0))
    for raised in (first, second):
        assert str(raised.value).startswith(f"no broker was asked: the tunnel at {nowhere} cannot be reached: ")


def test_where_it_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(tunnels.VARIABLE, " gateway:7490 ")
    assert given_via(None) == "gateway:7490"
    assert given_via("other:1") == "other:1"
    assert given_via("") == ""
    assert Connection("b:1").client.via == "gateway:7490"
    assert Connection("b:1", via="").client.via == ""
    assert Connection("b:1", from_environment=False).client.via == ""
    monkeypatch.delenv(tunnels.VARIABLE)
    assert given_via(None) == ""


@pytest.mark.parametrize("wrong", ["gateway", "gateway:0", "http://gateway:1", "a:1,b:2", "gateway:70000", 7, "unix:1"])
def test_what_is_no_address_is_refused(wrong: object) -> None:
    with pytest.raises(InvalidSetting, match="via"):
        checked_via(wrong)


def test_a_question_ends_in_time_though_the_tunnel_is_silent(listen: Callable[[bytes | None], Listener]) -> None:
    connection = Connection(BROKER, via=listen(None).via)
    with pytest.raises(Unreachable):
        connection.metadata(Deadline(500))
    with pytest.raises(TunnelFault):
        connect(BROKER, connection.client.via, 0.1)
