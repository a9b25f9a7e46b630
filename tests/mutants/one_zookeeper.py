"""One ZooKeeper for all mutants: to start one for each would take longer than most of their tests.

Run as a program it starts the server, writes `HOST:PORT`, and stops it when its input ends. As a plugin of pytest it
gives that address to the tests that ask for a ZooKeeper. Each takes a root of its own there.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

HOSTS = "TRITONMQ_MUTANTS_ZOOKEEPER"
"""The environment variable with the server's address."""


@contextlib.contextmanager
def one_zookeeper() -> Iterator[None]:
    """While it lasts, this plugin knows a server. That runs in a process of its own: this one must not import the
    product."""
    command = [sys.executable, "-m", "tests.mutants.one_zookeeper"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        os.environ[HOSTS] = server.stdout.readline().strip()
        try:
            yield
        finally:
            server.stdin.close()


@pytest.hookimpl(tryfirst=True)
def pytest_fixture_setup(fixturedef: Any, request: pytest.FixtureRequest) -> object | None:
    hosts = os.environ.get(HOSTS)
    if not hosts or fixturedef.argname != "zookeeper":
        return None  # pytest sets it up
    fixturedef.cached_result = (hosts, fixturedef.cache_key(request), None)
    return hosts


def main() -> None:
    from mq_dev.embedded_zookeeper import EmbeddedZooKeeper

    with tempfile.TemporaryDirectory(prefix="mutants-zookeeper-") as folder:
        server = EmbeddedZooKeeper(Path(folder))
        server.start()
        try:
            print(server.hosts, flush=True)
            sys.stdin.read()
        finally:
            server.stop()


if __name__ == "__main__":
    main()
