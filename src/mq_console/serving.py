"""The console as a process: a socket, the application, and how it ends."""

from __future__ import annotations

import asyncio
import contextlib
import math
import socket
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from mq_client import Admin, Reader, Security
from mq_client.security import given
from mq_console.access import App, Guard, Receive, Scope, Send
from mq_console.views import Settings, Views
from mq_console.watching import Watcher
from mq_console.web import Site

CONNECTIONS_MAX: Final = 64
WAITING_MAX: Final = CONNECTIONS_MAX // 2
"""Of these, that have not asked whole. Of more the first of the host that has most is ended: one host that begins
hundreds of requests leaves room for who asks."""

REQUEST_S: Final = 10.0
"""How long a request may take to come."""

KEEP_ALIVE_S: Final = 15
TIMEOUT_MS: Final = 5_000.0
"""For each question to the cluster."""


class Console:
    """An ASGI application. Owns the client and the thread that looks at the cluster."""

    def __init__(self, bootstrap: str, settings: Settings, security: Security | None = None) -> None:
        settings = replace(settings, secured=given(security) is not None)
        admin = Admin(bootstrap, TIMEOUT_MS, security)
        self.watcher = Watcher(admin.observe)
        self.views = Views(admin, Reader(bootstrap, TIMEOUT_MS, security=security), self.watcher, settings)
        self._app: App = Site(self.views).app()
        self.watcher.start()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request, by ASGI's rules."""
        await self._app(scope, receive, send)

    def close(self) -> None:
        """End the thread."""
        self.watcher.close()


@dataclass(frozen=True, slots=True)
class Serving:
    """How a console is served. `names`: by which it may be called beside addresses and `localhost`. `key`: what must be
    shown; None: nothing. `certificate`, `private_key`: files, for HTTPS."""

    names: Collection[str] = ()
    key: str | None = None
    certificate: Path | None = None
    private_key: Path | None = None


class Connection(H11Protocol):
    """One connection, which has a bounded time for each request, from its first byte to its last. uvicorn bounds none,
    and counts those that say half of one as it counts those that ask."""

    late: asyncio.TimerHandle | None = None
    """Set while a request is awaited or on its way."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._look()
        waiting = [each for each in self.connections if isinstance(each, Connection) and each.late is not None]
        if len(waiting) > WAITING_MAX:
            _one_too_many(waiting).cut()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._look()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._stop()

    def _look(self) -> None:
        if self.conn.their_state not in (h11.IDLE, h11.SEND_BODY):
            self._stop()
        elif self.late is None and not self.transport.is_closing():
            self.late = self.loop.call_later(REQUEST_S, self.cut)

    def cut(self) -> None:
        """End it now. It waits no more."""
        self._stop()
        self.transport.abort()

    def _stop(self) -> None:
        if self.late is not None:
            self.late.cancel()
            self.late = None


def _one_too_many(waiting: Sequence[Connection]) -> Connection:
    """The first of the host that has most."""
    hosts = Counter(each.client and each.client[0] for each in waiting)
    [(most, _)] = hosts.most_common(1)
    return min(
        (each for each in waiting if (each.client and each.client[0]) == most),
        key=lambda each: each.late.when() if each.late is not None else math.inf,
    )


class Server(uvicorn.Server):
    """Serves a console on a socket that listens, until `should_exit`."""

    def __init__(self, console: Console, listening: socket.socket, serving: Serving) -> None:
        guard = Guard(console, serving.names, serving.key, listening.getsockname()[1])
        super().__init__(
            uvicorn.Config(
                guard,
                http=Connection,
                ws="none",
                lifespan="off",
                log_config=None,
                log_level="warning",
                access_log=False,
                server_header=False,
                proxy_headers=False,
                limit_concurrency=CONNECTIONS_MAX,
                timeout_keep_alive=KEEP_ALIVE_S,
                timeout_graceful_shutdown=2,
                h11_max_incomplete_event_size=32 << 10,
                ssl_certfile=serving.certificate,
                ssl_keyfile=serving.private_key,
            )
        )
        self._listening = listening

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Signals are the command's."""
        yield

    def run_until_told(self) -> None:
        """In this thread."""
        self.run([self._listening])
