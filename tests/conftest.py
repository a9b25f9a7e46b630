"""What every test may use. Heavy things are started once and only if a test asks for them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import mq_client  # noqa: F401 - before anything imports gRPC, as applications are told to
from mq_broker.coordination.embedded import EmbeddedZooKeeper


@pytest.fixture(scope="session")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """`HOST:PORT` of a real ZooKeeper, one for all tests: each takes a root of its own, and none stops or pauses this server."""
    server = EmbeddedZooKeeper(tmp_path_factory.mktemp("zookeeper"))
    server.start()
    yield server.hosts
    server.stop()
