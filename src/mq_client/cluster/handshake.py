"""Why a secured connection cannot be made. gRPC says only that the socket was closed, so it is tried once without gRPC.

Takes two seconds at most, and is done once a minute at most for each address.
"""

from __future__ import annotations

import os
import socket
import ssl
import threading
import time
from collections.abc import Callable
from typing import Final

from mq_client.errors import InvalidSetting
from mq_client.security import Security
from mq_protocol.pem import (
    ALPN,
    WRONG_HOST,
    Files,
    authorities_context,
    context,
    examine,
    hosts_in,
    read,
    read_authorities,
    verdict,
)

AGAIN_S: Final = 60.0
_WAIT_S: Final = 1.0
_PLAIN_TEXT: Final = frozenset({"WRONG_VERSION_NUMBER", "HTTP_REQUEST", "UNEXPECTED_MESSAGE", "RECORD_LAYER_FAILURE"})
_NO_GRPC: Final = (
    "it speaks TLS and no gRPC, so it is another port: a broker's for streams, links or --http, the console's, or "
    "ZooKeeper's. Give the address of the broker's --listen"
)

_lock = threading.Lock()
_told: dict[tuple[str, Security | None], tuple[float, str | None]] = {}


def _after_fork() -> None:
    """The lock may have been held by a thread that the child does not have."""
    global _lock
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_after_fork)


def fault(address: str, security: Security | None) -> str | None:
    """What is wrong with the certificates, or with the kind of the port, at `HOST:PORT`; None if that is all right, or
    cannot be told now."""
    key = address, security
    with _lock:
        known = _told.get(key)
    if known is not None and time.monotonic() - known[0] < AGAIN_S:
        return known[1]
    try:
        if security is None:
            found = _of_plain(address)
        elif security.has_token:
            found = _of_token(address, read_authorities(security.authorities()))
        else:
            found = _of_secured(address, security.files())
    except InvalidSetting as error:
        found = str(error)
    except TimeoutError:
        found = None
    except OSError:  # nobody listens, and may again soon
        return None
    with _lock:
        _told[key] = time.monotonic(), found
    return found


def _of_plain(address: str) -> str | None:
    probe = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    probe.check_hostname = False
    probe.verify_mode = ssl.CERT_NONE  # nothing is sent, and nothing believed, but that somebody answers in TLS
    probe.set_alpn_protocols([ALPN])
    host = _host(address)
    try:
        with _connect(address) as plain, probe.wrap_socket(plain, server_hostname=host):
            pass
    except ssl.SSLError as error:
        if not (error.reason or "").startswith(("TLSV1", "SSLV3", "TLSV13")):  # not what another end says in TLS
            return None
    return (
        "it speaks TLS, and this client plain text: give the certificates by --certs DIR, TRITONMQ_CERTS, "
        "Security(certs=) or Spark's option certs"
    )


def _of_secured(address: str, files: Files) -> str | None:
    pem = read(files)

    def closed() -> str:
        try:
            examine(pem, server=False)
        except InvalidSetting as error:
            return f"{files.certificate}: {error}"
        return (
            f"the broker does not accept {files.certificate}: an authority signed it that is not in the broker's "
            "ca.crt (`tritonmq cert check` compares them)"
        )

    plain = "it speaks plain text, and this client TLS: use the port with TLS, or leave the certificates out"
    return _of_tls(address, context(pem, server=False), plain, closed)


def _of_token(address: str, ca: bytes) -> str | None:
    plain = "it speaks plain text, and a token is sent over TLS alone: use the port of --listen-token"
    closed = "it demands a certificate: use the port that takes tokens (--listen-token), or give a certificate"
    return _of_tls(address, authorities_context(ca), plain, lambda: closed)


def _of_tls(address: str, probe: ssl.SSLContext, plain_text: str, closed: Callable[[], str]) -> str | None:
    """`plain_text`: what to say of a port without TLS. `closed`: the same of a broker that has looked at what this
    client shows, and has closed the connection without a word."""
    probe.set_alpn_protocols([ALPN])
    try:
        with _connect(address) as plain, probe.wrap_socket(plain, server_hostname=_host(address)) as secured:
            if secured.selected_alpn_protocol() != ALPN:
                return _NO_GRPC
            secured.settimeout(_WAIT_S)
            try:
                if secured.recv(1):
                    return None
            except TimeoutError:
                return None
            except (ssl.SSLError, ConnectionError):
                pass
    except ssl.SSLCertVerificationError as error:
        if error.verify_code in WRONG_HOST:
            return _of_wrong_host(address, probe)
        return f"the broker's certificate is not accepted: {verdict(error)} ({_host(address)})"
    except ssl.SSLError as error:
        if error.reason not in _PLAIN_TEXT:
            return f"TLS failed: {error.reason or error}"
        return plain_text
    return closed()


def _of_wrong_host(address: str, probe: ssl.SSLContext) -> str:
    """Looks for which hosts the certificate is. An authority that is believed has signed it, and nothing is sent."""
    probe.check_hostname = False
    with _connect(address) as plain, probe.wrap_socket(plain) as secured:
        hosts = hosts_in(secured.getpeercert() or {})
    host = _host(address)
    return (
        f"the broker's certificate is not accepted: it is for another host ({', '.join(hosts) or 'none'}), and not for "
        f"{host}. Use an address that it is for, or make one for this host too: `tritonmq cert create-broker --id N "
        f"--host {host}`, with --host for each of the others"
    )


def _connect(address: str) -> socket.socket:
    return socket.create_connection((_host(address), int(address.rpartition(":")[2])), timeout=_WAIT_S)


def _host(address: str) -> str:
    return address.rpartition(":")[0].strip("[]")
