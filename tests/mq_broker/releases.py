"""A release that comes after this one, for tests of what two releases do together: it knows a level more."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

from mq_protocol import versions
from mq_protocol.versions import LEVEL, ours

NEXT = LEVEL + 1


@contextlib.contextmanager
def knowing(level: int) -> Iterator[None]:
    """Brokers that start meanwhile are of the release that knows this level. Their clusters were made by this one."""
    with pytest.MonkeyPatch.context() as release:
        release.setattr(versions, "LEVEL", level)
        ours.cache_clear()
        try:
            yield
        finally:
            ours.cache_clear()


@pytest.fixture
def next_level() -> Iterator[int]:
    """The one that all brokers know."""
    with knowing(NEXT):
        yield NEXT
