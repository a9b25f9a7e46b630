"""What every test may use, and which tests start processes. Dear things are started once, and only if a test asks for
them."""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

import mq_client  # noqa: F401 - before anything imports gRPC, as applications are told to
from mq_dev.embedded_zookeeper import EmbeddedZooKeeper
from mq_dev.local_cluster import BrokerProcess
from tests import switch
from tests.forking.processes import started
from tests.spark.quick_start import quick_spark

CLUSTERS = {"broker", "bootstrap", "cluster", "start_cluster", "spark", "kernel"}
"""Fixtures that start brokers as processes."""

STARTED = {"zookeeper", *CLUSTERS}
"""Fixtures that start processes."""

STARTING = {"LocalCluster", "EmbeddedZooKeeper"}
"""What starts processes in a test that makes one itself."""

COMPUTING_BESIDE = 0.8
"""The share of the tests that compute which run between those that wait."""

SPARK = Path(__file__).parent / "spark"
SPARK_S = 900
"""Of a test with Spark: streams end and drivers start within `ENDS_S` (tests/spark/sink_driver.py), two or three of
them."""

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell starts its background jobs so. Every process that a test starts and interrupts would ignore Ctrl-C as
    # well.
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_itemcollected(item: pytest.Item) -> None:
    """Mark what starts processes, and keep together what shares something dear.

    `make test` runs several processes of pytest side by side. The tests of one group stay in one of them: all that use
    the Spark session, and all of a file that shares a fixture of its module. This hook comes before the one in which
    xdist reads groups.
    """
    if SPARK in item.path.parents:
        item.add_marker("spark")
        if item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(SPARK_S))
    if _starts_processes(item):
        item.add_marker("processes")
    if group := _group(item):
        item.add_marker(pytest.mark.xdist_group(group))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Put first what takes long; then let tests that wait for processes and tests that compute take turns, so that
    neither the processors nor the processes are idle. Within a rank the order of the files stays."""
    if switch.selects():
        config.hook.pytest_deselected(items=[item for item in items if not _starts_brokers(item)])
        items[:] = [item for item in items if _starts_brokers(item)]
    ranks: list[list[pytest.Item]] = [[], [], [], []]
    for item in items:
        ranks[_rank(item)].append(item)
    first, second, waiting, computing = ranks
    items[:] = [*first, *second, *_in_turns(waiting, computing)]


def pytest_collection_finish() -> None:
    """What was imported and collected stays to the end: the garbage collector need not walk over it again and again."""
    gc.collect()
    gc.freeze()


def _fixtures(item: pytest.Item) -> list[str]:
    return item.fixturenames if isinstance(item, pytest.Function) else []


def _starts_processes(item: pytest.Item) -> bool:
    return _starts_brokers(item) or _uses(item, STARTED, STARTING)


def _starts_brokers(item: pytest.Item) -> bool:
    if item.get_closest_marker("cluster") or item.get_closest_marker("spark"):
        return True
    return _uses(item, CLUSTERS, {"LocalCluster"})


def _uses(item: pytest.Item, fixtures: set[str], names: set[str]) -> bool:
    if not isinstance(item, pytest.Function):
        return False
    parameters = item.callspec.params.values() if hasattr(item, "callspec") else ()
    named = {value for value in parameters if isinstance(value, str)}  # a fixture that the test asks for by its name
    return bool(fixtures & {*item.fixturenames, *named} or names & set(item.function.__code__.co_names))


def _group(item: pytest.Item) -> str | None:
    if "spark" in _fixtures(item):
        return "spark"
    definitions = item._fixtureinfo.name2fixturedefs.values() if isinstance(item, pytest.Function) else ()
    return str(item.path) if any(each[-1].scope == "module" for each in definitions) else None


def _rank(item: pytest.Item) -> int:
    """0: the Spark session's, which are one group and so the longest way. 1: other long groups. 2: other processes. 3:
    the rest."""
    if "spark" in _fixtures(item):
        return 0
    if item.get_closest_marker("processes"):
        return 1 if item.get_closest_marker("spark") and item.get_closest_marker("xdist_group") else 2
    return 3


def _in_turns(waiting: list[pytest.Item], computing: list[pytest.Item]) -> Iterator[pytest.Item]:
    """All of both. Some that compute are left for the end, where one that waits would be waited for by itself."""
    each = int(COMPUTING_BESIDE * len(computing)) // max(len(waiting), 1)
    for number, item in enumerate(waiting):
        yield item
        yield from computing[number * each : (number + 1) * each]
    yield from computing[len(waiting) * each :]


@pytest.fixture(scope="session", autouse=True)
def _secured(tmp_path_factory: pytest.TempPathFactory) -> None:
    if switch.is_on():
        switch.turn_on(tmp_path_factory.mktemp("secured") / "certs")


@pytest.fixture(scope="session", autouse=True)
def _quick_brokers() -> None:
    BrokerProcess.popen = staticmethod(started)  # type: ignore[assignment]


@pytest.fixture(scope="session", autouse=True)
def _quick_spark(tmp_path_factory: pytest.TempPathFactory) -> None:
    """For every Spark that this process or a child of it starts."""
    os.environ.update(quick_spark(tmp_path_factory.mktemp("quick-spark")).environment())


@pytest.fixture(scope="session")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """`HOST:PORT` of a real ZooKeeper, one for all tests: each takes a root of its own, and none stops or pauses this
    server."""
    server = EmbeddedZooKeeper(tmp_path_factory.mktemp("zookeeper"))
    server.start()
    yield server.hosts
    server.stop()
