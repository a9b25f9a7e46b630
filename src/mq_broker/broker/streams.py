"""Two sides of one stream, reading and writing, run together until the conversation is over."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any


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
