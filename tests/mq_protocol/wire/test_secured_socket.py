"""A blocking socket with TLS, and Python's own at the other end: every byte or an error, and no wait without an end."""

from __future__ import annotations

import contextlib
import random
import socket
import ssl
import struct
import threading
from collections.abc import Callable, Iterator

import pytest

from mq_dev.certificates import Authority, write_broker
from mq_protocol.access.pem import CA_FILE
from mq_protocol.wire.secured_socket import SecuredSocket

HOST = "127.0.0.1"
DEADLINE_S = 30.0


@pytest.fixture(scope="module")
def contexts(tmp_path_factory: pytest.TempPathFactory) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """Of a server, and of a client."""
    directory = tmp_path_factory.mktemp("tls")
    authority = Authority.create(directory / "certs", directory / "ca.key")
    own = write_broker(authority, directory / "certs", 1, [HOST])
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(own / "broker.crt", own / "broker.key")
    client = ssl.create_default_context(cafile=str(directory / "certs" / CA_FILE))
    for context in (server, client):
        context.minimum_version = ssl.TLSVersion.TLSv1_3
    return server, client


@contextlib.contextmanager
def served(serve: Callable[[socket.socket], None]) -> Iterator[socket.socket]:
    """A connection to what `serve` does with it, in a thread."""

    def accept() -> None:
        accepted, _ = listening.accept()
        accepted.settimeout(DEADLINE_S)
        with accepted:
            serve(accepted)

    with socket.create_server((HOST, 0)) as listening:
        thread = threading.Thread(target=accept)
        thread.start()
        try:
            with socket.create_connection(listening.getsockname(), DEADLINE_S) as connection:
                yield connection
        finally:
            thread.join(DEADLINE_S)
            assert not thread.is_alive()


def all_of(connection: SecuredSocket, room: int) -> bytes:
    """What comes until the end."""
    found, buffer = bytearray(), memoryview(bytearray(room))
    while count := connection.recv_into(buffer):
        found += buffer[:count]
    return bytes(found)


@pytest.mark.parametrize("room", [1_000, 16 << 10, 1 << 20])
def test_bytes_arrive_both_ways_as_they_were_written(
    contexts: tuple[ssl.SSLContext, ssl.SSLContext], room: int
) -> None:
    data = random.Random(room).randbytes(3 << 20)
    asked = bytearray()

    def serve(accepted: socket.socket) -> None:
        with contexts[0].wrap_socket(accepted, server_side=True) as far:
            while len(asked) < 100_000:
                asked.extend(far.recv(1 << 16))
            far.sendall(data)

    with served(serve) as plain:
        connection = SecuredSocket(plain, contexts[1], HOST)
        connection.sendall(data[:100_000])
        assert all_of(connection, room) == data
        assert connection.is_empty
    assert bytes(asked) == data[:100_000]


def test_what_was_received_and_not_read_is_told(contexts: tuple[ssl.SSLContext, ssl.SSLContext]) -> None:
    def serve(accepted: socket.socket) -> None:
        with contexts[0].wrap_socket(accepted, server_side=True) as far:
            far.sendall(b"more than was asked for")
            far.recv(1)

    with served(serve) as plain:
        connection = SecuredSocket(plain, contexts[1], HOST)
        assert connection.recv_into(memoryview(bytearray(4))) == 4
        assert not connection.is_empty


@pytest.mark.parametrize("by_kernel", [True, False])
def test_it_waits_no_longer_than_it_is_told(
    contexts: tuple[ssl.SSLContext, ssl.SSLContext], *, by_kernel: bool
) -> None:
    def serve(accepted: socket.socket) -> None:
        with contexts[0].wrap_socket(accepted, server_side=True) as far:
            far.recv(1)

    with served(serve) as plain:
        connection = SecuredSocket(plain, contexts[1], HOST)
        if by_kernel:
            connection.settimeout(None)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", 0, 50_000))
        else:
            connection.settimeout(0.05)
        with pytest.raises(BlockingIOError if by_kernel else TimeoutError):
            connection.recv_into(memoryview(bytearray(1)))


def test_an_altered_record_is_an_error_and_not_read(contexts: tuple[ssl.SSLContext, ssl.SSLContext]) -> None:
    def serve(accepted: socket.socket) -> None:
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        far = contexts[0].wrap_bio(incoming, outgoing, server_side=True)
        while True:
            try:
                far.do_handshake()
            except ssl.SSLWantReadError:
                accepted.sendall(outgoing.read())
                incoming.write(accepted.recv(1 << 16))
            else:
                break
        far.write(b"the truth")
        said = bytearray(outgoing.read())
        said[-1] ^= 1
        accepted.sendall(said)
        accepted.recv(1)

    with served(serve) as plain:
        connection = SecuredSocket(plain, contexts[1], HOST)
        buffer = memoryview(bytearray(100))
        with pytest.raises(ssl.SSLError):
            connection.recv_into(buffer)
        assert bytes(buffer) == bytes(100)


def test_no_handshake_is_an_error(contexts: tuple[ssl.SSLContext, ssl.SSLContext]) -> None:
    with served(lambda accepted: accepted.sendall(b"HTTP/1.1 400 no\r\n\r\n")) as plain, pytest.raises(ssl.SSLError):
        SecuredSocket(plain, contexts[1], HOST)
    with served(lambda accepted: None) as plain, pytest.raises(OSError):
        SecuredSocket(plain, contexts[1], HOST)

    def serve(accepted: socket.socket) -> None:
        with contextlib.suppress(OSError), contexts[0].wrap_socket(accepted, server_side=True) as far:
            far.recv(1)

    with served(serve) as plain, pytest.raises(ssl.SSLCertVerificationError):
        SecuredSocket(plain, contexts[1], "another.host")
