"""Every port on which a broker's process listens, as the kernel knows them: what speaks TLS alone, what does not."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from mq_client import Admin, InvalidRequest, Security
from mq_dev.certificates import ADMIN
from mq_dev.embedded_zookeeper import free_port
from mq_dev.local_cluster import HOST
from mq_protocol.access.pem import CA_FILE, files_of_broker
from mq_protocol.wire.call import PREAMBLE
from mq_protocol.wire.framing import preamble
from tests.cluster.harness import Cluster

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

ANSWER_S = 30.0
ALERT = b"\x15\x03"
"""A record of TLS that says why a handshake failed begins so."""

HTTP_2 = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\x00\x00\x00\x04\x00\x00\x00\x00\x00"
IN_PLAIN_TEXT = {
    "gRPC": HTTP_2,
    "HTTP": b"GET /metrics HTTP/1.1\r\nHost: broker\r\nConnection: close\r\n\r\n",
    "links": preamble(),
    "streams": PREAMBLE,
}


def listening(process: psutil.Process) -> set[int]:
    return {each.laddr.port for each in process.net_connections("inet") if each.status == psutil.CONN_LISTEN}


def heard_in_plain_text(port: int, said: bytes) -> bytes:
    """What a port answers, until it closes."""
    heard = b""
    with socket.create_connection((HOST, port), ANSWER_S) as stranger:
        try:
            stranger.sendall(said)
            stranger.shutdown(socket.SHUT_WR)
            while more := stranger.recv(65_536):
                heard += more
        except ConnectionError:  # it was closed with bytes unread
            pass
    return heard


def speaks_plain_text(port: int) -> bool:
    answers = [heard_in_plain_text(port, said) for said in IN_PLAIN_TEXT.values()]
    return any(heard and not heard.startswith(ALERT) for heard in answers)


def trusting(certs: Path, certificate: Path | None = None, key: Path | None = None) -> ssl.SSLContext:
    made = ssl.create_default_context(cafile=certs / CA_FILE)
    made.minimum_version = ssl.TLSVersion.TLSv1_3
    made.set_alpn_protocols(["h2"])
    if certificate is not None:
        made.load_cert_chain(certificate, key)
    return made


def lets_in(port: int, shown: ssl.SSLContext) -> bool:
    """Whether the broker goes on after the handshake. Over TLS 1.3 a client's end of it is done before the broker has
    looked at its certificate."""
    with socket.create_connection((HOST, port), ANSWER_S) as plain:
        try:
            with shown.wrap_socket(plain, server_hostname=HOST) as secured:
                secured.sendall(HTTP_2)  # what serves HTTP answers that it is no request
                return bool(secured.recv(1))
        except (ssl.SSLError, ConnectionError):
            return False


def takes_older_tls(port: int, shown: ssl.SSLContext) -> bool:
    """Whether the broker ends a handshake of TLS 1.2 well."""
    with socket.create_connection((HOST, port), ANSWER_S) as plain:
        try:
            shown.wrap_socket(plain, server_hostname=HOST).close()
        except (ssl.SSLError, ConnectionError):
            return False
    return True


def test_every_port_of_a_secure_broker_speaks_tls_alone_and_any_other_port_keeps_the_floor_down(
    start_cluster: Callable[..., Cluster], tmp_path: Path
) -> None:
    certs = tmp_path / "certs"
    cluster = start_cluster(1, certs=certs)
    broker = cluster.brokers[1]
    own = files_of_broker(certs, 1)
    stranger, known = trusting(certs), trusting(certs, own.certificate, own.key)
    ours, *chosen = list(broker.arguments), *(free_port(HOST) for _ in range(5))
    of_grpc, of_tokens, of_flight, plain, http = chosen

    def open_ports(*options: str) -> set[int]:
        broker.terminate()
        assert broker.wait(ANSWER_S), broker.last_words()
        broker.arguments[:] = [*ours, *options]
        cluster.restart(1)
        assert broker.pid is not None
        return listening(psutil.Process(broker.pid))

    with Admin(broker.address, security=Security(certs, ADMIN)) as admin:
        beside = ("--flight", f"{HOST}:{of_flight}", "--http", f"{HOST}:{http}")
        ports = open_ports("--grpc", f"{HOST}:{of_grpc}", "--grpc-token", f"{HOST}:{of_tokens}", *beside)
        assert ports == {broker.port, of_grpc, of_tokens, of_flight, http}
        assert [port for port in ports if speaks_plain_text(port)] == []
        assert {port for port in ports if lets_in(port, stranger)} == {broker.port, of_tokens, http}
        assert {port for port in ports if lets_in(port, known)} == ports
        older = trusting(certs, own.certificate, own.key)
        older.minimum_version = older.maximum_version = ssl.TLSVersion.TLSv1_2
        assert [port for port in ports if takes_older_tls(port, older)] == []
        assert admin.raise_security_floor("tls").demands == ("tls",)
        admin.lower_security_floor("tls")
        ports = open_ports("--also-plaintext", f"{HOST}:{plain}")
        assert {port for port in ports if speaks_plain_text(port)} == {plain}
        with pytest.raises(InvalidRequest, match="broker 1 does not offer tls"):
            admin.raise_security_floor("tls")
