"""What another machine says over https: of a bounded size, within a bounded time, and from that address alone."""

from __future__ import annotations

import contextlib
import http.client
import socket
import ssl
import threading
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from mq_protocol.errors import InvalidSetting

BYTES_MAX: Final = 256 << 10
WITHIN_S: Final = 10.0
_STEP_S: Final = 5.0
_PIECE: Final = 16 << 10


def trusting(ca: Path | None) -> ssl.SSLContext:
    """TLS of version 1.2 or newer that believes the machine's authorities, or those in the file. Raises
    `InvalidSetting`."""
    try:
        made = ssl.create_default_context(cafile=None if ca is None else str(ca))
    except (OSError, ssl.SSLError) as error:
        raise InvalidSetting(f"{ca} cannot be read as certificates in PEM: {error}") from error
    made.minimum_version = ssl.TLSVersion.TLSv1_2
    return made


def get(address: str, tls: ssl.SSLContext) -> bytes:
    """What is there. Redirects are not followed, and no proxy is asked. Raises `OSError` and `ValueError`."""
    parts = urlsplit(address)
    if parts.scheme != "https" or parts.hostname is None:
        raise ValueError("only https is spoken")
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    host, port = parts.hostname, parts.port or 443
    with socket.create_connection((host, port), timeout=_STEP_S) as plain:
        secured = tls.wrap_socket(plain, server_hostname=host, do_handshake_on_connect=False)
    with secured:
        over = threading.Timer(WITHIN_S, _end, (secured,))  # each step alone has a bound, and there may be many
        over.daemon = True
        over.start()
        try:
            secured.do_handshake()
            connection = http.client.HTTPSConnection(host, port)
            connection.sock = secured
            connection.request("GET", path, headers={"Accept": "application/json", "Connection": "close"})
            with connection.getresponse() as answer:
                return _body(answer)
        except http.client.HTTPException as error:
            raise ValueError(f"it does not speak HTTP: {type(error).__name__}") from error
        finally:
            over.cancel()


def _body(answer: http.client.HTTPResponse) -> bytes:
    if answer.status != http.client.OK:
        raise ValueError(f"it answers with status {answer.status}")
    data = bytearray()
    while piece := answer.read1(_PIECE):
        data += piece
        if len(data) > BYTES_MAX:
            raise ValueError(f"it answers with more than {BYTES_MAX} bytes")
    return bytes(data)


def _end(open_: socket.socket) -> None:
    with contextlib.suppress(OSError):
        open_.shutdown(socket.SHUT_RDWR)
