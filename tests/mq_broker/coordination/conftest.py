"""A part of ZooKeeper for each test, and a coordination service of either kind in it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from mq_broker.coordination.file import FileStore
from mq_broker.coordination.service import CoordinationService
from mq_broker.coordination.zookeeper import ZooKeeperStore
from tests.mq_broker.coordination.wire import LASTING_MS, Heard, Opener


@pytest.fixture
def root(request: pytest.FixtureRequest) -> str:
    """A part of ZooKeeper that no other test sees."""
    return "/" + "".join(c if c.isalnum() else "-" for c in request.node.nodeid)[-200:]


@pytest.fixture(params=["zookeeper", "file"])
def opened(request: pytest.FixtureRequest, tmp_path: Path, root: str) -> Opener:
    """A service that has started, on the same stored state however often it is opened; it has stopped at the end of the
    block."""
    make: Callable[[], CoordinationService]
    if request.param == "file":
        make = lambda: CoordinationService(FileStore(tmp_path / "cluster"))  # noqa: E731
    else:
        hosts = request.getfixturevalue("zookeeper")
        make = lambda: CoordinationService(ZooKeeperStore(hosts, session_timeout_ms=LASTING_MS, root=root))  # noqa: E731

    @asynccontextmanager
    async def open_it(heard: Heard | None = None) -> AsyncIterator[CoordinationService]:
        service = make()
        await service.start(heard or Heard())
        try:
            yield service
        finally:
            await service.stop()

    return open_it
