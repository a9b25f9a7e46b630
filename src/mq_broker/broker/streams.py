"""What streams and long requests share: two sides that run together, and lists that leave others their turn."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine, Iterable
from typing import Any, TypeVar

from mq_protocol.limits import YIELD_EVERY

T = TypeVar("T")


async def in_turns(elements: Iterable[T], every: int = YIELD_EVERY) -> AsyncIterator[T]:
    """The elements; after so many of them other work on the loop gets its turn."""
    for count, element in enumerate(elements, 1):
        yield element
        if count % every == 0:
            await asyncio.sleep(0)


async def side_by_side(*sides: Coroutine[Any, Any, None]) -> None:
    """Run all to their end. The first error ends the others and is raised as it is (a `TaskGroup` would wrap it)."""
    tasks = [asyncio.create_task(side) for side in sides]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
