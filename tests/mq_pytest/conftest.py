"""One real broker for a suite that is told of brokers which run already."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from mq_dev.local_cluster import LocalCluster


@pytest.fixture(scope="session")
def bootstrap(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with LocalCluster(tmp_path_factory.mktemp("running")) as cluster:
        yield cluster.bootstrap
