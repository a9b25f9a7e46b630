"""Long lists leave other work on the loop its turn."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator

import pytest

from mq_broker.broker.runtime.streams import TURN_S, asked_of_each, in_turns
from mq_protocol.limits import YIELD_EVERY


def quick(count: int) -> Iterator[int]:
    yield from range(count)


def slow(count: int) -> Iterator[int]:
    for number in range(count):
        time.sleep(1.5 * TURN_S)
        yield number


@pytest.mark.parametrize(
    ("elements", "turns"),
    [(quick(3 * YIELD_EVERY), 3), (slow(4), 4)],
    ids=["after so many", "after a while, however few"],
)
def test_others_have_their_turn_while_a_list_is_worked_on(elements: Iterator[int], turns: int) -> None:
    async def scenario() -> None:
        had = 0

        async def other() -> None:
            nonlocal had
            while True:
                had += 1
                await asyncio.sleep(0)

        task = asyncio.create_task(other())
        found = [element async for element in in_turns(elements)]
        task.cancel()
        assert found == list(range(len(found)))
        assert had >= turns

    asyncio.run(scenario())


def test_few_are_asked_at_once_and_answers_keep_their_places() -> None:
    async def scenario() -> None:
        under_way = most = 0

        async def ask(number: int) -> int:
            nonlocal under_way, most
            under_way += 1
            most = max(most, under_way)
            await asyncio.sleep(0)
            under_way -= 1
            return -number

        numbers = range(3 * YIELD_EVERY + 1)
        assert await asked_of_each(ask, numbers) == [-number for number in numbers]
        assert most == YIELD_EVERY

    asyncio.run(scenario())
