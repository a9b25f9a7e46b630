"""Coroutines in virtual time: a pause costs nothing, and what happens when is always the same."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from random import Random
from typing import Any

from tests.simulation.real.loop import VirtualLoop


def in_virtual_time(main: Coroutine[Any, Any, None]) -> None:
    """Run it to its end on a loop whose clock goes on by itself as soon as nothing is left to do."""
    with asyncio.Runner(loop_factory=lambda: VirtualLoop(Random(1))) as runner:
        runner.run(main)
