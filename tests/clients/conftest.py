"""Clusters for the tests of clients in other languages, and the Go client's programs."""

from __future__ import annotations

import os
import shutil
import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.cluster.conftest import CLUSTERS, pytest_runtest_makereport, start_cluster
from tests.cluster.harness import Cluster

__all__ = ["pytest_runtest_makereport", "start_cluster"]

CLIENT: Final = Path(__file__).parents[2] / "clients" / "go"
BUILD_S: Final = 900

_RACE: Final = [] if os.environ.get("TRITONMQ_GO_RACE") == "0" else ["-race"]
FLAGS: Final = [*_RACE, "-gcflags=all=-dwarf=false", "-ldflags=-w"]
"""For all that is compiled, so that nothing is compiled twice: with the race detector, and without what only a debugger
reads. The Makefile vets with the same."""

COMPILES: Final = {"GOGC": "off", "GOMEMLIMIT": "1500MiB"}
"""In the environment of what compiles: to collect the garbage of compilers, which end soon, is a quarter of their
work."""

RUN: Final = ["-exec", "env -u GOGC -u GOMEMLIMIT"]
"""The client's own tests run without these."""


@pytest.fixture(scope="session")
def _three(tmp_path_factory: pytest.TempPathFactory, zookeeper: str) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path_factory.mktemp("three"), 3, zookeeper=f"{zookeeper}/{uuid.uuid4().hex}", grpc=True)
    with cluster:
        yield cluster


@pytest.fixture
def cluster(request: pytest.FixtureRequest, _three: Cluster) -> Iterator[Cluster]:
    """Three brokers that all tests share: to start brokers is most of what a test costs. Each test has topics and
    groups of its own."""
    yield from shared(request, _three)


def shared(request: pytest.FixtureRequest, cluster: Cluster) -> Iterator[Cluster]:
    """For one test. What it kills or holds runs again for the next one."""
    request.node.stash.setdefault(CLUSTERS, []).append(cluster)
    yield cluster
    for number, broker in cluster.brokers.items():
        cluster.resume(number)
        if broker.pid is None:
            broker.kill()  # for what is left of it here
    cluster.restart_all()


@pytest.fixture(scope="session")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the client's programs are."""
    directory = tmp_path_factory.mktemp("go")
    command = [go(), "build", *FLAGS, "-o", directory, "./cmd/..."]
    subprocess.run(command, cwd=CLIENT, env={**os.environ, **COMPILES}, check=True, timeout=BUILD_S)
    return directory


def go() -> str:
    found = shutil.which("go") or "/usr/local/go/bin/go"
    assert Path(found).exists(), "there is no Go: install 1.26 or newer, or put it on the PATH"
    return found
