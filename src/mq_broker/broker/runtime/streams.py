"""What streams and long requests share: two sides that run together, and lists that leave others their turn."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Sequence
from typing import Any, Final, TypeVar

from mq_broker.rpc.turns import Turns
from mq_protocol.limits import YIELD_EVERY

T = TypeVar("T")
R = TypeVar("R")

TURN_S: Final = 0.0003
"""How long one list may be worked on before others have their turn, whatever its elements cost. A record comes in, is
written and is acknowledged in three or four turns, and each of them may be behind one of these."""


async def in_turns(elements: Iterable[T], turns: Turns | None = None) -> AsyncIterator[T]:
    """The elements; after `YIELD_EVERY` of them, or after `TURN_S`, other work on the loop gets its turn. `turns`: of
    work that may rest between two."""
    clock = asyncio.get_running_loop().time
    began = clock()
    for count, element in enumerate(elements, 1):
        yield element
        if count % YIELD_EVERY == 0 or clock() - began > TURN_S:
            await (asyncio.sleep(0) if turns is None else turns.others())
            began = clock()


async def asked_of_each(ask: Callable[[T], Awaitable[R]], elements: Sequence[T]) -> list[R]:
    """What `ask` answers for each of the elements, at its place. `YIELD_EVERY` are asked at once: more would be begun
    one after the other before anybody else had a turn."""
    answers: list[R] = []
    for first in range(0, len(elements), YIELD_EVERY):
        answers += await asyncio.gather(*map(ask, elements[first : first + YIELD_EVERY]))
    return answers


async def side_by_side(*sides: Coroutine[Any, Any, None]) -> None:
    """Run all to their end. The first error ends the others and is raised as it is (a `TaskGroup` would wrap it)."""
    await _run(sides, asyncio.FIRST_EXCEPTION)


async def until_one_ends(*sides: Coroutine[Any, Any, None]) -> None:
    """Run all until the first ends, which ends the others. What it raised is raised."""
    await _run(sides, asyncio.FIRST_COMPLETED)


async def _run(sides: Iterable[Coroutine[Any, Any, None]], return_when: str) -> None:
    tasks = [asyncio.create_task(side) for side in sides]
    try:
        done, _ = await asyncio.wait(tasks, return_when=return_when)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
