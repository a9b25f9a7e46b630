"""Tests that are coroutines: a decorator runs each on a loop of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any, ParamSpec

from tests.virtual.world import in_virtual_time

P = ParamSpec("P")
Test = Callable[P, Coroutine[Any, Any, None]]


def real_time(test: Test[P]) -> Callable[P, None]:
    @wraps(test)
    def run(*args: P.args, **fixtures: P.kwargs) -> None:
        asyncio.run(test(*args, **fixtures))

    return run


def virtual_time(test: Test[P]) -> Callable[P, None]:
    @wraps(test)
    def run(*args: P.args, **fixtures: P.kwargs) -> None:
        in_virtual_time(test(*args, **fixtures))

    return run
