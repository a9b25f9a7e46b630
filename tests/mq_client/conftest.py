"""One real broker for the client's tests, and a topic name for each of them."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator

import pytest

from mq_client import Admin
from mq_dev.local_cluster import LocalCluster


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """A cluster of one broker, without ZooKeeper."""
    with LocalCluster(tmp_path_factory.mktemp("client")) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def bootstrap(request: pytest.FixtureRequest) -> str:
    """The broker's address. Who has one running already (tests/mutants) names it in TRITONMQ_TEST_BOOTSTRAP."""
    running = os.environ.get("TRITONMQ_TEST_BOOTSTRAP")
    if running is not None:
        return running
    broker: LocalCluster = request.getfixturevalue("broker")
    return broker.bootstrap


@pytest.fixture(scope="session")
def admin(bootstrap: str) -> Iterator[Admin]:
    with Admin(bootstrap) as opened:
        yield opened


@pytest.fixture
def topic() -> str:
    """A name that no other test has."""
    return f"t-{uuid.uuid4().hex[:12]}"
