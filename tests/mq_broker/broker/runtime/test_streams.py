"""Long lists leave other work on the loop its turn."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from mq_broker.broker.runtime.streams import asked_of_each, in_turns, side_by_side, until_one_ends
from mq_broker.rpc.turns import Turns
from mq_protocol.limits import YIELD_EVERY
from tests.coroutines import real_time


def test_long_work_on_a_request_rests_between_its_turns() -> None:
    class Told(Turns):
        async def others(self) -> None:
            had.append(None)

    had: list[None] = []

    async def scenario() -> None:
        assert [each async for each in in_turns(range(3 * YIELD_EVERY), Told())] == list(range(3 * YIELD_EVERY))

    asyncio.run(scenario())
    assert len(had) >= 3


@real_time
async def test_few_are_asked_at_once_and_answers_keep_their_places() -> None:
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


async def ended_slowly(ended: list[str], error: Exception | None = None) -> None:
    """Runs until it is cancelled, and takes a few turns to end then."""
    try:
        await asyncio.Event().wait()
    finally:
        for _ in range(3):
            await asyncio.sleep(0)
        ended.append("ended")
        if error is not None:
            raise error


async def raising(error: Exception | None) -> None:
    await asyncio.sleep(0)
    if error is not None:
        raise error


@real_time
async def test_the_first_side_that_ends_ends_the_others_which_have_ended_then() -> None:
    ended: list[str] = []
    await asyncio.wait_for(until_one_ends(raising(None), ended_slowly(ended)), 10)
    assert ended == ["ended"]


@pytest.mark.parametrize("together", [until_one_ends, side_by_side])
@pytest.mark.parametrize("later", [None, LookupError("as it ended")], ids=["ends", "fails as it ends"])
@real_time
async def test_the_first_error_ends_the_other_sides_and_is_raised_whatever_they_raise_then(
    together: Any, later: Exception | None
) -> None:
    ended: list[str] = []
    with pytest.raises(ZeroDivisionError):
        await asyncio.wait_for(together(raising(ZeroDivisionError()), ended_slowly(ended, later)), 10)
    assert ended == ["ended"]


@real_time
async def test_sides_that_run_together_all_run_to_their_end() -> None:
    over: list[int] = []

    async def side(number: int) -> None:
        for _ in range(number):
            await asyncio.sleep(0)
        over.append(number)

    await asyncio.wait_for(side_by_side(*map(side, range(4))), 10)
    assert over == [0, 1, 2, 3]
