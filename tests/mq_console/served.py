"""A console that serves in a thread, and a client that asks it as a browser does."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx

from mq_console.serving import Console, Server, Serving
from mq_console.views import Settings
from tests.cluster.harness import wait_until


@contextmanager
def served(bootstrap: str, serving: Serving | None = None, **settings: Any) -> Iterator[httpx.Client]:
    """`settings`: of `Settings`."""
    console = Console(bootstrap, Settings(**settings))
    listening = socket.create_server(("127.0.0.1", 0))
    server = Server(console, listening, serving or Serving())
    thread = threading.Thread(target=server.run_until_told)
    thread.start()
    address = f"http://127.0.0.1:{listening.getsockname()[1]}"
    try:
        wait_until(lambda: server.started, "it serves")
        with httpx.Client(base_url=address, headers={"origin": address}, timeout=30, trust_env=False) as client:
            yield client
    finally:
        server.should_exit = True
        thread.join(20)
        console.close()
        listening.close()
    assert not thread.is_alive()
