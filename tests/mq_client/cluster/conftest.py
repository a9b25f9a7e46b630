"""A clock and a cluster that the test moves."""

from __future__ import annotations

import pytest

from tests.mq_client.cluster.scripted import Clock, Scripted, played_clock


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return played_clock(monkeypatch)


@pytest.fixture
def scripted(clock: Clock) -> Scripted:
    """Brokers 1 to 3, asked through `b:1`."""
    return Scripted(clock)
