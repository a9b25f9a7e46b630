"""How another broker is reached at an address: in plain text, or over TLS with the certificate in force."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeAlias

from mq_broker.rpc.wire.certificates import Certificates
from mq_protocol.wire.connection import Connection, connect

Way: TypeAlias = int
"""0 is plain text; else the generation of the certificate. A connection is of use as long as this stays."""

CONNECT_S: Final = 2.0


class Dialling:
    """Owns nothing. With `certificates` every address is dialled over TLS, unless `is_plain` says otherwise: while a
    cluster is being secured, some brokers serve in plain text alone."""

    def __init__(
        self, certificates: Certificates | None = None, is_plain: Callable[[str], bool] = lambda _address: False
    ) -> None:
        self._certificates = certificates
        self._is_plain = is_plain

    def way(self, address: str) -> Way:
        if self._certificates is None or self._is_plain(address):
            return 0
        return self._certificates.generation

    async def dial(self, address: str) -> Connection:
        """A connection to that address. Raises `Unreachable`."""
        if self._certificates is None or self._is_plain(address):
            return await connect(address, address, CONNECT_S)
        return await connect(address, address, CONNECT_S, self._certificates.client_context())
