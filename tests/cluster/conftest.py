"""Clusters for tests. When a test fails, the ends of the processes' logs are shown with it."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.harness import Cluster

CLUSTERS = pytest.StashKey[list[Cluster]]()
"""Whose logs are shown if the test fails."""


@pytest.fixture
def start_cluster(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[..., Cluster]]:
    """`start_cluster(brokers=3, **options)`: a cluster that serves; it is stopped when the test ends. `prepare`: is
    given it before it starts.

    It has a root of its own in the ZooKeeper of all tests. `zookeeper=True`: a ZooKeeper of its own, to be hurt.
    """
    clusters = request.node.stash.setdefault(CLUSTERS, [])

    def start(brokers: int = 3, prepare: Callable[[Cluster], object] = lambda _: None, **options: Any) -> Cluster:
        if "zookeeper" not in options:
            options["zookeeper"] = f"{request.getfixturevalue('zookeeper')}/{uuid.uuid4().hex}"
        cluster = Cluster(tmp_path / f"cluster-{len(clusters)}", brokers, **options)
        clusters.append(cluster)
        prepare(cluster)
        cluster.start()
        return cluster

    yield start
    for cluster in clusters:
        cluster.stop()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Any:
    report = yield
    if report.when == "call" and report.failed:
        for cluster in item.stash.get(CLUSTERS, []):
            report.sections.append((f"logs of {cluster.directory}", cluster.logs()))
    return report
