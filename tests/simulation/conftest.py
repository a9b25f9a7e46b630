"""The simulator's tests leave the garbage collector as the simulator itself does when it runs many seeds."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from tests.simulation.loop import YOUNG_OBJECTS


@pytest.fixture(autouse=True)
def _seldom_collected() -> Iterator[None]:
    before = gc.get_threshold()
    gc.set_threshold(YOUNG_OBJECTS)
    yield
    gc.set_threshold(*before)
