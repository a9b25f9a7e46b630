"""A part of ZooKeeper for each test."""

from __future__ import annotations

import pytest


@pytest.fixture
def root(request: pytest.FixtureRequest) -> str:
    """A part of ZooKeeper that no other test sees."""
    return "/" + "".join(c if c.isalnum() else "-" for c in request.node.nodeid)[-200:]
