"""Fixtures that start real brokers on loopback addresses. pytest loads this module in every suite of an environment
that has TritonMQ.

So nothing of ours is imported before a fixture is used.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from mq_pytest.running import Running, RunningCluster

_OPTION = "--tritonmq-bootstrap"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.getgroup("tritonmq").addoption(
        _OPTION,
        default="",
        metavar="HOST:PORT,…",
        help="Brokers that run already. The fixture tritonmq gives them instead of a broker of its own.",
    )


@pytest.fixture(scope="session")
def tritonmq(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A broker for this run of pytest: `tritonmq.bootstrap`, `tritonmq.admin`, `tritonmq.create_topic()`.

    It is started when a test first asks for it, and needs no Java. Each worker of pytest-xdist has one of its own.
    With --tritonmq-bootstrap it stands for brokers that run already: topics that tests make there stay.
    """
    from mq_dev.local_cluster import LocalCluster
    from mq_pytest.running import Running

    bootstrap: str = request.config.getoption(_OPTION)
    if bootstrap:
        with Running(bootstrap) as running:
            yield running
        return
    with LocalCluster(tmp_path_factory.mktemp("tritonmq")) as cluster, Running(cluster.bootstrap) as running:
        yield running


@pytest.fixture
def tritonmq_topic() -> str:
    """A name for a topic that no other test has. The topic is not created yet."""
    return f"test-{uuid.uuid4().hex[:12]}"


@pytest.fixture(scope="session")
def _tritonmq_cluster(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunningCluster]:
    if request.config.getoption(_OPTION):
        pytest.skip(f"tritonmq_cluster kills brokers, and those of {_OPTION} are not its own: run it without")
    from mq_dev.local_cluster import LocalCluster
    from mq_pytest.running import RunningCluster

    with LocalCluster(tmp_path_factory.mktemp("tritonmq-cluster"), 3) as cluster, RunningCluster(cluster) as running:
        yield running


@pytest.fixture
def tritonmq_cluster(_tritonmq_cluster: RunningCluster) -> Iterator[RunningCluster]:
    """Three brokers and a ZooKeeper, to be killed: `.kill(2)`, `.restart(2)`, and what `tritonmq` has.

    They are started when a test first asks for them, and need Java 17 and PySpark, whose ZooKeeper is used. After each
    test the brokers that it killed are started again.
    """
    yield _tritonmq_cluster
    _tritonmq_cluster.mend()
