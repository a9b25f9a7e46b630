"""The network of chaos runs: who dialled is known by the process, and each pair, each way, has its own rules."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Iterator

import pytest

from tests.chaos.network import CLIENTS, HOST, Network
from tests.cluster.harness import wait_until

SOON_S = 30.0
NOT_SOON_S = 0.2


class Echo:
    """Owns a server that sends back what it is sent, and remembers it."""

    def __init__(self) -> None:
        self.heard = b""
        self._listener = socket.create_server((HOST, 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._answer, args=(connection,), daemon=True).start()

    def _answer(self, connection: socket.socket) -> None:
        with connection:
            while True:
                try:
                    data = connection.recv(100)
                except OSError:
                    return
                if not data:
                    return
                self.heard += data
                connection.sendall(data)

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)  # else the thread that accepts keeps it open
        self._listener.close()


@pytest.fixture
def echo() -> Iterator[Echo]:
    server = Echo()
    yield server
    with contextlib.suppress(OSError):  # a test may have ended it
        server.close()


@pytest.fixture
def owners() -> dict[str, int | None]:
    """This process is broker 1; broker 3 does not run."""
    return {"1": os.getpid(), "3": None}


@pytest.fixture
def network(owners: dict[str, int | None]) -> Iterator[Network]:
    made = Network(lambda: owners)
    yield made
    made.close()


@pytest.fixture
def dialled(network: Network, echo: Echo) -> Iterator[socket.socket]:
    """A connection of broker 1 to broker 2, in use."""
    with socket.create_connection((HOST, network.listen("2", echo.port)), timeout=SOON_S) as connection:
        assert answer(connection, b"hello") == b"hello"
        yield connection


def answer(connection: socket.socket, data: bytes) -> bytes:
    """What comes back within the socket's time; nothing if nothing does."""
    connection.sendall(data)
    try:
        return connection.recv(100)
    except TimeoutError:
        return b""


def test_a_cut_pair_hears_nothing_of_each_other_until_it_is_mended_and_then_all_of_it(
    network: Network, dialled: socket.socket, echo: Echo
) -> None:
    network.cut("2", "1")
    dialled.settimeout(NOT_SOON_S)
    assert answer(dialled, b"late") == b""
    assert echo.heard == b"hello"
    network.mend("1", "2")
    dialled.settimeout(SOON_S)
    assert dialled.recv(100) == b"late"


def test_a_pair_cut_one_way_is_heard_and_does_not_hear(network: Network, dialled: socket.socket, echo: Echo) -> None:
    network.cut("2", "1", both_ways=False)
    dialled.settimeout(NOT_SOON_S)
    assert answer(dialled, b" you") == b""
    wait_until(lambda: echo.heard == b"hello you", "it is heard")
    network.mend_all()
    dialled.settimeout(SOON_S)
    assert dialled.recv(100) == b" you"


@pytest.mark.parametrize("pair", [("1", "3"), (CLIENTS, "2"), ("3", "2")])
def test_another_pair_is_not_touched(network: Network, dialled: socket.socket, pair: tuple[str, str]) -> None:
    network.cut(*pair)
    network.reset(*pair)
    assert answer(dialled, b"still") == b"still"


def test_a_reset_pair_loses_its_connections_and_gets_no_new_ones(
    network: Network, dialled: socket.socket, echo: Echo
) -> None:
    network.reset("1", "2")
    with pytest.raises(ConnectionResetError):
        dialled.recv(100)
    port = network.listen("2", echo.port)

    def refused() -> bool:
        with socket.create_connection((HOST, port), timeout=SOON_S) as again:
            try:
                return answer(again, b"again") == b""
            except OSError:
                return True

    assert refused()
    network.mend("1", "2")
    assert not refused()


def test_a_given_dialler_is_believed_and_one_who_does_not_answer_is_not_reached(network: Network, echo: Echo) -> None:
    port = network.listen("zookeeper", echo.port, dialler="3")
    network.cut("3", "zookeeper")
    with socket.create_connection((HOST, port), timeout=NOT_SOON_S) as connection:
        assert answer(connection, b"is it you?") == b""
    echo.close()
    with socket.create_connection((HOST, network.listen("2", echo.port)), timeout=SOON_S) as connection:
        assert connection.recv(100) == b"", "nobody listens there"
