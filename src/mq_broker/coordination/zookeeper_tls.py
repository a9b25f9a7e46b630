"""TLS towards ZooKeeper: what kazoo needs for it, and does not do by itself.

Kazoo's own connections trust every authority of the system beside the given one, and do not check the server's name
unless told to. These trust one authority, show the broker's certificate, and check the name. Files are read anew for
each connection, so replaced ones count from the next on.
"""

from __future__ import annotations

import socket
import ssl
from typing import Any, Final

from kazoo.handlers.threading import SequentialThreadingHandler

from mq_protocol.access.pem import Files, context, open_to_others, read, verdict
from mq_protocol.errors import InvalidSetting

_ENDING_S: Final = 1.0


class TlsHandler(SequentialThreadingHandler):  # type: ignore[misc]  # kazoo has no types
    """What a kazoo client over TLS connects with. `fault`: why the last connection was not made; empty if it was.

    Raises `InvalidSetting` for files that are of no use.
    """

    def __init__(self, files: Files) -> None:
        super().__init__()
        self.fault = ""
        self._files = files
        self._dialled: tuple[tuple[str, int], str] | None = None
        self._context()

    def _context(self) -> ssl.SSLContext:
        if fault := open_to_others(self._files.key):
            raise InvalidSetting(fault)
        return context(read(self._files), server=False)

    def create_connection(self, *, address: tuple[str, int], hostname: str, timeout: float, **_: Any) -> ssl.SSLSocket:
        """In kazoo's thread. Raises `OSError`, which makes kazoo try again."""
        self.fault = ""
        self._dialled = address, hostname
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

    def ending(self) -> str:
        """How the server that was dialled last ends a connection after its handshake; empty if it does not. In TLS 1.3
        a server refuses a certificate only then. Dials anew and waits for it, so in a thread."""
        if self._dialled is None:
            return ""
        address, hostname = self._dialled
        try:
            with self.create_connection(address=address, hostname=hostname, timeout=_ENDING_S) as connection:
                connection.settimeout(_ENDING_S)
                connection.recv(1)  # it says nothing before it is asked
                how = "says nothing more"
        except TimeoutError:
            return ""
        except ssl.SSLError as error:
            how = str(error.reason or error)
        except OSError as error:
            if self.fault or not isinstance(error, ConnectionResetError):
                return self.fault
            how = "reset"
        return (
            f"{hostname}:{address[1]} answers, and ends the connection over TLS ({how}). It does not take "
            f"{self._files.certificate}, or most of its ensemble is missing. If the authority that signed it is a new "
            "one, ZooKeeper must trust it: put it into the authorities of ZooKeeper, and start that again unless it "
            "takes files that are replaced"
        )

    def select(
        self, rlist: list[Any], wlist: list[Any], xlist: list[Any], timeout: float | None = None
    ) -> tuple[list[Any], list[Any], list[Any]]:
        """What is decrypted already is not seen by the system: kazoo would wait, and take the server for dead."""
        decrypted = [one for one in rlist if isinstance(one, ssl.SSLSocket) and one.pending()]
        readable, writable, failed = super().select(rlist, wlist, xlist, 0 if decrypted else timeout)
        return [*decrypted, *(one for one in readable if one not in decrypted)], writable, failed
