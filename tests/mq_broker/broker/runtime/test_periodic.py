"""When what a broker does again and again is done next. Time is virtual."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Sequence
from typing import Any

import pytest

from mq_broker.broker.runtime.periodic import AGAIN_S, ASKED_AT_ONCE, Periodic, Sweep
from mq_protocol.errors import CoordinationUnavailable, StorageFailed
from tests.coroutines import virtual_time
from tests.virtual.world import in_virtual_time


class Looks:
    """When it was looked, in whole milliseconds from the beginning, and what each look returns or raises."""

    def __init__(self, *answers: Any) -> None:
        self.at_ms: list[int] = []
        self._answers = list(answers)
        self._began = asyncio.get_running_loop().time()

    def __call__(self) -> Any:
        self.at_ms.append(round(1_000 * (asyncio.get_running_loop().time() - self._began)))
        answer = self._answers.pop(0) if self._answers else None
        if isinstance(answer, Exception):
            raise answer
        return answer


async def looked(looks: Looks, seconds: float, **how: Any) -> list[int]:
    """When it was looked within so long, with a look every two seconds where nothing else is said."""
    running = asyncio.create_task(Periodic("looks", how.pop("every_s", 2.0), looks, **how).run())
    await asyncio.wait({running}, timeout=seconds)
    running.cancel()
    await asyncio.wait({running})
    return looks.at_ms


@virtual_time
async def test_it_is_looked_so_long_after_the_last_look_or_when_that_said() -> None:
    assert await looked(Looks(), 7) == [2_000, 4_000, 6_000]
    assert await looked(Looks(), 3, at_once=True) == [0, 2_000]
    assert await looked(Looks(0.5, 0.1), 6) == [2_000, 2_500, 2_600, 4_600]
    assert await looked(Looks(asyncio.sleep(1.5), asyncio.sleep(0, 0.5)), 7) == [2_000, 5_500, 6_000]


@virtual_time
async def test_it_ends_once_a_look_says_that_there_is_none_after_it() -> None:
    looks = Looks(None, math.inf)
    await Periodic("looks", 2.0, looks).run()
    assert looks.at_ms == [2_000, 4_000]


@virtual_time
async def test_a_hint_makes_it_look_at_once_and_one_that_came_during_a_look_once_more() -> None:
    for every_s, expected in ((2.0, [2_000, 3_000, 3_500, 5_500]), (math.inf, [3_000, 3_500])):
        hint = asyncio.Event()
        loop = asyncio.get_running_loop()
        for at_s in (3.0, 3.25):
            loop.call_later(at_s, hint.set)
        answers = (asyncio.sleep(0.5),) if math.isinf(every_s) else (None, asyncio.sleep(0.5))
        assert await looked(Looks(*answers), 6, every_s=every_s, hint=hint) == expected


@virtual_time
async def test_what_the_coordination_service_did_not_answer_is_said_once_and_asked_again_soon(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING)
    away, lost = CoordinationUnavailable("away"), CoordinationUnavailable("lost")
    hint = asyncio.Event()
    hint.set()
    looks = Looks(away, away, lost, None, away)
    again_ms = round(1_000 * AGAIN_S)
    times = [0, again_ms, 2 * again_ms, 3 * again_ms, 3 * again_ms + 2_000]
    assert (await looked(looks, 4, hint=hint, unread="nobody answers"))[:5] == times
    assert caplog.messages == [f"nobody answers: {told}" for told in ("away", "lost", "away")]


@pytest.mark.parametrize("error", [StorageFailed("no room"), CoordinationUnavailable("away")])
def test_what_nothing_is_said_about_is_raised(error: Exception) -> None:
    with pytest.raises(type(error), match=str(error)):
        in_virtual_time(_raising(error))


async def _raising(error: Exception) -> None:
    await Periodic("looks", 2.0, Looks(error)).run()


@virtual_time
async def test_what_looks_at_partitions_gets_those_that_it_wants_and_others_have_their_turn_meanwhile() -> None:
    found: list[list[int]] = []
    turns = 0

    class Seen:
        def which(self, each: int) -> object:
            return each % ASKED_AT_ONCE == 1

        def look(self, wanted: Sequence[int]) -> float:
            found.append([*wanted])
            return math.inf

    async def another() -> None:
        nonlocal turns
        while not found:
            turns += 1
            await asyncio.sleep(0)

    many = range(5 * ASKED_AT_ONCE)
    sweep = Sweep("sweep", 0.0, lambda: many, Seen())
    await asyncio.gather(sweep.run(), another())
    assert found == [[each for each in many if each % ASKED_AT_ONCE == 1]]
    assert turns >= 5
