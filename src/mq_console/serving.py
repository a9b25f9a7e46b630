"""The console as a process: a socket, the application, and how it ends."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import uvicorn

from mq_client import Admin, Reader, Security
from mq_client.security import given
from mq_console.access import App, Guard, Receive, Scope, Send
from mq_console.views import Settings, Views
from mq_console.watching import Watcher
from mq_console.web import Site

CONNECTIONS_MAX: Final = 64
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


class Server(uvicorn.Server):
    """Serves a console on a socket that listens, until `should_exit`."""

    def __init__(self, console: Console, listening: socket.socket, serving: Serving) -> None:
        guard = Guard(console, serving.names, serving.key, listening.getsockname()[1])
        super().__init__(
            uvicorn.Config(
                guard,
                http="h11",
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
