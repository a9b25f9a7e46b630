"""A clock and a cluster that the test moves."""

from __future__ import annotations

import pytest

from mq_client.cluster import connection as connection_module
from mq_client.cluster import deadline as deadline_module
from tests.mq_client.cluster.scripted import Clock, Scripted


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Time passes only where the client waits for it."""
    made = Clock()
    monkeypatch.setattr(connection_module, "time", made)
    monkeypatch.setattr(deadline_module, "time", made)
    return made


@pytest.fixture
def scripted(clock: Clock) -> Scripted:
    """Brokers 1 to 3, asked through `b:1`."""
    return Scripted(clock)
