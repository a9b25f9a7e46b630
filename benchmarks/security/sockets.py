"""What TLS costs by itself: two sockets of this process, Python's `ssl` on both, and nothing of ours between them."""

from __future__ import annotations

import socket
import ssl
import tempfile
import threading
import time
from pathlib import Path
from statistics import median
from typing import Final

from benchmarks.security.ground import Row
from mq_dev.certificates import Authority, write_broker
from mq_protocol.access.pem import CA_FILE

MIB: Final = 1 << 20
DEADLINE_S: Final = 60.0
HOST: Final = "127.0.0.1"


def alone(mebibytes: int, rounds: int) -> list[Row]:
    """Processor time of both ends; the same sockets without TLS are taken off."""
    with tempfile.TemporaryDirectory() as made:
        server, client = _contexts(Path(made))
        more_ms = median(
            1e3 * (_spent_s(mebibytes, server, client) - _spent_s(mebibytes, None, None)) / mebibytes
            for _ in range(rounds)
        )
    return [Row("TLS between two sockets, 1 MiB writes", f"{more_ms:+.2f} ms a MiB and hop", "nothing", None)]


def _contexts(directory: Path) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    certs = directory / "certs"
    authority = Authority.create(certs, directory / "ca.key")
    own = write_broker(authority, certs, 1, [HOST])
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(own / "broker.crt", own / "broker.key")
    client = ssl.create_default_context(cafile=str(certs / CA_FILE))
    for context in (server, client):
        context.minimum_version = ssl.TLSVersion.TLSv1_3
    return server, client


def _spent_s(mebibytes: int, server: ssl.SSLContext | None, client: ssl.SSLContext | None) -> float:
    """Processor time of this process while that much goes from one thread to another."""
    with socket.create_server((HOST, 0)) as listening:
        listening.settimeout(DEADLINE_S)
        receiving = threading.Thread(target=_receive, args=(listening, server, mebibytes * MIB))
        receiving.start()
        with socket.create_connection(listening.getsockname(), timeout=DEADLINE_S) as plain:
            sending = client.wrap_socket(plain, server_hostname=HOST) if client else plain
            data = bytes(MIB)
            began = time.process_time()
            for _ in range(mebibytes):
                sending.sendall(data)
            receiving.join(DEADLINE_S)
            spent = time.process_time() - began
            sending.close()
    return spent


def _receive(listening: socket.socket, context: ssl.SSLContext | None, expected: int) -> None:
    accepted, _ = listening.accept()
    accepted.settimeout(DEADLINE_S)
    with context.wrap_socket(accepted, server_side=True) if context else accepted as connection:
        room = bytearray(MIB)
        while expected > 0:
            received = connection.recv_into(room)
            if not received:
                raise ConnectionError(f"{expected} bytes are missing")
            expected -= received
