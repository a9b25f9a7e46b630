"""TLS on a blocking socket whose messages are large: one call of the kernel receives many records of TLS.

Python's `SSLSocket` has OpenSSL receive by itself, which asks the kernel twice for each record of 16 KiB.
"""

from __future__ import annotations

import socket
import ssl
import threading
from typing import Any, Final

from mq_protocol.wire.envelope import Buffer

RECEIVED_BYTES: Final = 256 << 10
"""What is received at once, by each thread."""


class _Room(threading.local):
    def __init__(self) -> None:
        self.view = memoryview(bytearray(RECEIVED_BYTES))


_room: Final = _Room()


class SecuredSocket:
    """Owns a connection of a client, and its TLS. One thread at a time.

    As a socket it waits for as long as the connection's timeout says, and raises the same. The handshake is done when
    it is made. Raises `OSError` if there is none.
    """

    def __init__(self, connection: socket.socket, context: ssl.SSLContext, name: str) -> None:
        self._connection = connection
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_hostname=name)
        while True:
            try:
                self._tls.do_handshake()
            except ssl.SSLWantReadError:
                self._flush()
                if not self._receive():
                    raise ConnectionError("it was closed within the handshake") from None
            else:
                self._flush()
                return

    @property
    def is_empty(self) -> bool:
        """Whether nothing was received that has not been read."""
        return not (self._incoming.pending or self._tls.pending())

    def recv_into(self, buffer: memoryview) -> int:
        """How many bytes; 0 once the far side has ended. More than one record where more are there."""
        at, room = 0, len(buffer)
        read: Any = self._tls.read  # typeshed knows one of its two answers
        while True:
            try:
                while at < room:
                    count: int = read(room - at, buffer[at:] if at else buffer)
                    at += count
                    if not count or self.is_empty:
                        return at
            except ssl.SSLWantReadError:
                if self._outgoing.pending:  # TLS itself has answered
                    self._flush()
            if at or not self._receive():
                return at

    def sendall(self, data: Buffer) -> None:
        view, at = memoryview(data).cast("B"), 0
        while at < len(view):
            at += self._tls.write(view[at:])
        self._flush()

    def settimeout(self, seconds: float | None) -> None:
        self._connection.settimeout(seconds)

    def setsockopt(self, level: int, option: int, value: Any) -> None:
        self._connection.setsockopt(level, option, value)

    def fileno(self) -> int:
        return self._connection.fileno()

    def close(self) -> None:
        self._connection.close()

    # ------------------------------------------------------------------ private

    def _receive(self) -> int:
        count = self._connection.recv_into(_room.view)
        self._incoming.write(_room.view[:count])
        return count

    def _flush(self) -> None:
        if self._outgoing.pending:
            self._connection.sendall(self._outgoing.read())
