"""TLS towards ZooKeeper: what kazoo needs for it, and does not do by itself.

Kazoo's own connections trust every authority of the system beside the given one, and do not check the server's name
unless told to. These trust one authority, show the broker's certificate, and check the name. Files are read anew for
each connection, so replaced ones count from the next on.
"""

from __future__ import annotations

import socket
import ssl
from typing import Any

from kazoo.handlers.threading import SequentialThreadingHandler

from mq_protocol.errors import InvalidSetting
from mq_protocol.pem import Files, context, open_to_others, read, verdict


class TlsHandler(SequentialThreadingHandler):  # type: ignore[misc]  # kazoo has no types
    """What a kazoo client over TLS connects with. `fault`: why the last connection was not made; empty if it was.

    Raises `InvalidSetting` for files that are of no use.
    """

    def __init__(self, files: Files) -> None:
        super().__init__()
        self.fault = ""
        self._files = files
        self._context()

    def _context(self) -> ssl.SSLContext:
        if fault := open_to_others(self._files.key):
            raise InvalidSetting(fault)
        return context(read(self._files), server=False)

    def create_connection(self, *, address: tuple[str, int], hostname: str, timeout: float, **_: Any) -> ssl.SSLSocket:
        """In kazoo's thread. Raises `OSError`, which makes kazoo try again."""
        self.fault = ""
        try:
            trusted = self._context()
            plain = socket.create_connection(address, timeout)
            try:
                plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                return trusted.wrap_socket(plain, server_hostname=hostname)
            except BaseException:
                plain.close()
                raise
        except ssl.SSLCertVerificationError as error:
            self.fault = f"the certificate of ZooKeeper at {hostname} is not good: {verdict(error)}"
            raise
        except ssl.SSLError as error:
            self.fault = f"ZooKeeper at {hostname}:{address[1]} does not speak TLS 1.3 there ({error.reason or error})"
            raise
        except InvalidSetting as error:
            self.fault = str(error)
            raise OSError(self.fault) from error

    def select(
        self, rlist: list[Any], wlist: list[Any], xlist: list[Any], timeout: float | None = None
    ) -> tuple[list[Any], list[Any], list[Any]]:
        """What is decrypted already is not seen by the system: kazoo would wait, and take the server for dead."""
        decrypted = [one for one in rlist if isinstance(one, ssl.SSLSocket) and one.pending()]
        readable, writable, failed = super().select(rlist, wlist, xlist, 0 if decrypted else timeout)
        return [*decrypted, *(one for one in readable if one not in decrypted)], writable, failed
