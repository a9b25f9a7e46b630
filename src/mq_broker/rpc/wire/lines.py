"""Connections to other brokers: how one is dialled, and those that are kept for the next call.

A connection cannot be given another certificate, so it is kept for one `Way`. One that was not used for long is to an
address at which there may be nobody any more.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Final, TypeAlias

from mq_broker.rpc.wire.certificates import Certificates
from mq_protocol.wire.connection import Connection, connect

Way: TypeAlias = int
"""0 is plain text; else the generation of the certificate. A connection is of use as long as this stays."""

CONNECT_S: Final = 2.0

UNUSED_S: Final = 30.0
"""Brokers close a connection after twice that without a call (`IDLE_MS`)."""

KEPT_MAX: Final = 16
"""To one address, without a call."""


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


class Lines:
    """Owns the connections to other brokers. Used on one loop."""

    def __init__(self, dialling: Dialling) -> None:
        self._dialling = dialling
        self._kept: dict[tuple[str, Way], list[tuple[float, Connection]]] = {}
        self._used: dict[Connection, None] = {}

    @contextlib.asynccontextmanager
    async def to(self, address: str) -> AsyncIterator[Connection]:
        """Around one call to the broker at that address. Raises `Unreachable`. What was not ended is broken off."""
        key = address, self._dialling.way(address)
        connection = self._take(key)
        if connection is None:
            connection = await self._dialling.dial(address)
        self._used[connection] = None
        try:
            yield connection
        finally:
            self._used.pop(connection, None)
            self._give_back(key, connection)

    async def reaches(self, address: str) -> bool:
        """Whether there is a connection to that address, or one can be made."""
        try:
            async with self.to(address):
                return True
        except Exception:  # noqa: BLE001 - whatever keeps it from being made
            return False

    def _take(self, key: tuple[str, Way]) -> Connection | None:
        now = asyncio.get_running_loop().time()
        kept = self._kept.get(key, [])
        while kept:
            since, connection = kept.pop()
            if connection.is_free and now - since < UNUSED_S:
                return connection
            connection.close()
        return None

    def _give_back(self, key: tuple[str, Way], connection: Connection) -> None:
        now = asyncio.get_running_loop().time()
        if connection.is_free and key[1] == self._dialling.way(key[0]):
            self._kept.setdefault(key, []).append((now, connection))
        else:
            connection.close()
        for other, kept in list(self._kept.items()):
            over = [each for each in kept if now - each[0] >= UNUSED_S] + (kept[:-KEPT_MAX] if other == key else [])
            for each in over:
                each[1].close()
            kept[:] = [each for each in kept if each not in over]
            if not kept:
                del self._kept[other]

    async def close(self) -> None:
        """End what is under way."""
        kept, self._kept = self._kept, {}
        for connections in kept.values():
            for _, connection in connections:
                connection.close()
        for connection in list(self._used):
            connection.close()
