"""One broker for all tests of a file that ask one: each test has topics of its own."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest

from mq_client import Admin
from mq_dev.local_cluster import LocalCluster


@pytest.fixture(scope="module")
def bootstrap(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with LocalCluster(tmp_path_factory.mktemp("broker")) as running:
        yield running.bootstrap


@pytest.fixture(scope="module")
def admin(bootstrap: str) -> Iterator[Admin]:
    with Admin(bootstrap) as opened:
        yield opened


@pytest.fixture
def name() -> str:
    """Of a topic that no other test has."""
    return f"t-{uuid.uuid4().hex[:12]}"
