"""What is on its way to a broker: who has how much room."""

from __future__ import annotations

import asyncio
import random

from mq_broker.broker.runtime.arrivals import Arrivals
from mq_broker.broker.runtime.memory import Held
from tests.coroutines import virtual_time

HIGH = 1_000


@virtual_time
async def test_one_account_has_half_of_the_mark_and_another_begins_all_the_same() -> None:
    held = Held(HIGH)
    arrivals = Arrivals(held)
    assert [arrivals.add_at_once("greedy", 200) for _ in range(4)] == [True, True, False, False]
    assert arrivals.add_at_once("modest", 200)
    waiting = asyncio.create_task(arrivals.receive("greedy", 200))
    await asyncio.sleep(0)
    assert held.bytes == arrivals.bytes == 600
    arrivals.free("greedy", 200)
    await waiting
    assert held.bytes == 600


@virtual_time
async def test_who_reads_nothing_stops_nobody_who_sends() -> None:
    held = Held(HIGH)
    arrivals = Arrivals(held)
    held.add("slow readers", 2 * HIGH)
    assert arrivals.add_at_once("modest", 800)
    assert not arrivals.add_at_once("modest", 1)


@virtual_time
async def test_whatever_comes_goes_and_is_given_up_the_counts_are_right_and_nobody_waits_for_ever() -> None:
    async def one(arrivals: Arrivals, chance: random.Random, number: int) -> None:
        account, count = f"user {chance.randrange(4)}", chance.randrange(1, 900)
        for _ in range(chance.randrange(3)):
            await asyncio.sleep(0)
        if not arrivals.add_at_once(account, count):
            waiting = asyncio.ensure_future(arrivals.receive(account, count))
            for _ in range(chance.randrange(4)):
                await asyncio.sleep(0)
            if number % 5 == 0:
                waiting.cancel()
                await asyncio.gather(waiting, return_exceptions=True)
                if waiting.cancelled():
                    return
            await waiting
        assert arrivals.bytes <= HIGH + HIGH // 2 + 900
        for _ in range(chance.randrange(5)):
            await asyncio.sleep(0)
        arrivals.free(account, count)

    for seed in range(50):
        chance, held = random.Random(seed), Held(HIGH)
        arrivals = Arrivals(held)
        async with asyncio.timeout(60):
            await asyncio.gather(*(one(arrivals, chance, number) for number in range(100)))
        assert arrivals.bytes == held.bytes == 0
