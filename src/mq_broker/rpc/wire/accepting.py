"""A socket that listens, and a task for each connection that is made to it."""

from __future__ import annotations

import asyncio
import logging
import math
import socket
import traceback
from abc import ABC, abstractmethod
from typing import Final

from mq_broker.rpc.wire.framed import Tls
from mq_protocol.addresses import origin
from mq_protocol.errors import InvalidSetting, Unreachable
from mq_protocol.limits import HANDSHAKE_TIMEOUT_MS

log = logging.getLogger(__name__)

STRANGERS_MAX: Final = 256
"""Connections that have not proved who they are. Each is given ten seconds (`HANDSHAKE_TIMEOUT_MS`). Of more than these
one ends: at the address (`origin`) that has most of them, the one that is there longest. A broker needs some
milliseconds and has one or two, so nobody at another address keeps it out, by staying or by coming often."""

ACCEPT_AGAIN_S: Final = 0.1
_BACKLOG: Final = 128


def bind(address: str, option: str) -> tuple[socket.socket, int]:
    """A socket that listens on `host:port` (port 0: a free one), and its port. Raises `InvalidSetting`, naming the
    option."""
    host, _, port = address.rpartition(":")
    try:
        family, *_, where = socket.getaddrinfo(
            host.strip("[]") or None, int(port), type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        both = family is socket.AF_INET6 and socket.has_dualstack_ipv6()
        listener = socket.create_server(where[:2], family=family, backlog=_BACKLOG, dualstack_ipv6=both)
    except OSError as error:
        raise InvalidSetting(
            f"cannot listen on {address}: it is taken, or no address of this machine; choose another {option}"
        ) from error
    listener.setblocking(False)
    return listener, listener.getsockname()[1]


class Accepting(ABC):
    """Owns a port, and a task for each connection that was made to it, of which `connections_max` are held at a time.
    `per_second`: so many are accepted at most; others wait in TCP."""

    def __init__(
        self,
        listener: socket.socket,
        name: str,
        *,
        connections_max: float = math.inf,
        per_second: float = math.inf,
        strangers_max: int | None = None,
    ) -> None:
        self._listener = listener
        self._name = name
        self._connections_max = connections_max
        self._strangers_max = STRANGERS_MAX if strangers_max is None else strangers_max
        self._pause_s = 1 / per_second
        self._tasks: set[asyncio.Task[None]] = set()
        self._strangers = Strangers()
        self._accepting: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._accepting = asyncio.create_task(self._accept(), name=f"accept {self._name}s")
        self._accepting.add_done_callback(self._accepts_no_more)

    def _accepts_no_more(self, accepting: asyncio.Task[None]) -> None:
        if not accepting.cancelled() and (error := accepting.exception()) is not None:
            log.critical("no more %ss are accepted: restart this broker", self._name, exc_info=error)

    async def stop(self) -> None:
        """No connection is made or held any more."""
        if self._accepting is not None:
            # First, and awaited: a task that is cancelled before it has begun would leave its socket open
            self._accepting.cancel()
            await asyncio.gather(self._accepting, return_exceptions=True)
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._listener.close()

    @abstractmethod
    async def _serve(self, connection: socket.socket) -> None:
        """One connection, from its handshake to its end. Calls `_known` once it is proved who is there."""

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            if self._pause_s:
                await asyncio.sleep(self._pause_s)
            try:
                connection, peer = await loop.sock_accept(self._listener)
            except OSError as error:
                log.warning("a %s cannot be accepted: %s", self._name, error)
                await asyncio.sleep(ACCEPT_AGAIN_S)
                continue
            if len(self._tasks) >= self._connections_max:
                connection.close()
                continue
            task = asyncio.create_task(self._serve(connection), name=self._name)
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            self._strangers.add(task, origin(str(peer[0])))
            task.add_done_callback(self._known)
            if len(self._strangers) > self._strangers_max:
                self._strangers.one_too_many().cancel()

    def _known(self, task: asyncio.Task[None]) -> None:
        self._strangers.discard(task)


class Strangers:
    """Owns which connections have not proved who they are, by address, each with its oldest first."""

    def __init__(self) -> None:
        self._address_of: dict[asyncio.Task[None], str] = {}
        self._at: dict[str, dict[asyncio.Task[None], None]] = {}

    def __len__(self) -> int:
        return len(self._address_of)

    def add(self, task: asyncio.Task[None], address: str) -> None:
        self._address_of[task] = address
        self._at.setdefault(address, {})[task] = None

    def discard(self, task: asyncio.Task[None]) -> None:
        address = self._address_of.pop(task, None)
        if address is not None:
            del self._at[address][task]
            if not self._at[address]:
                del self._at[address]

    def one_too_many(self) -> asyncio.Task[None]:
        """The oldest of the address that has most. There are so few that all are looked at."""
        most = max(self._at.values(), key=len)
        return next(iter(most))


async def begin(wire: asyncio.BaseProtocol, connection: socket.socket, tls: Tls | None) -> None:
    """The handshake of an accepted connection. Raises `Unreachable` if whoever connected has gone, or speaks no TLS."""
    try:
        await asyncio.get_running_loop().connect_accepted_socket(
            lambda: wire,
            connection,
            ssl=None if tls is None else tls(),
            ssl_handshake_timeout=None if tls is None else HANDSHAKE_TIMEOUT_MS / 1000,
        )
    except OSError as error:
        traceback.clear_frames(error.__traceback__)  # they hold the error: 320 KiB until the collector of cycles comes
        raise Unreachable(f"a connection ended before it began: {error}") from error
    except asyncio.CancelledError as error:
        traceback.clear_frames(error.__traceback__)
        raise
