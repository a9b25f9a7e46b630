"""Threads for strangers' work: callers take turns, and none takes them all."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from mq_broker.broker.runtime.places import Places
from tests.coroutines import real_time

WAIT_S = 30.0


class Jobs:
    """Work that lasts until it is let go, and the order in which it began."""

    def __init__(self) -> None:
        self.began: list[str] = []
        self._let_go: dict[str, threading.Event] = {}
        self._some = threading.Condition()

    def job(self, name: str) -> Callable[[], str]:
        self._let_go[name] = threading.Event()

        def work() -> str:
            with self._some:
                self.began.append(name)
                self._some.notify_all()
            assert self._let_go[name].wait(WAIT_S)
            return name

        return work

    async def until_begun(self, count: int) -> None:
        def wait() -> None:
            with self._some:
                assert self._some.wait_for(lambda: len(self.began) >= count, WAIT_S)

        await asyncio.to_thread(wait)

    def let_go(self, *names: str) -> None:
        for name in names:
            self._let_go[name].set()

    def let_all_go(self) -> None:
        self.let_go(*self._let_go)


@asynccontextmanager
async def working(places: int = 2) -> AsyncIterator[tuple[Jobs, Places]]:
    jobs, threads = Jobs(), Places(places, "test")
    try:
        yield jobs, threads
    finally:
        jobs.let_all_go()
        threads.close()


@real_time
async def test_what_the_work_returns_or_raises_is_given_to_whoever_asked() -> None:
    async with working() as (_jobs, places):
        assert await places.run("a", max, 1, 2) == 2
        with pytest.raises(ZeroDivisionError):
            await places.run("a", divmod, 1, 0)
        assert await places.run("a", max, 1, 2) == 2, "the place of work that failed is free again"


@real_time
async def test_one_caller_has_half_of_the_places_though_nobody_else_asks() -> None:
    async with working(places=4) as (jobs, places):
        mine = [places.run("a", jobs.job(f"a{n}")) for n in range(5)]
        await jobs.until_begun(2)
        other = places.run("b", jobs.job("b"))
        await jobs.until_begun(3)
        assert sorted(jobs.began) == ["a0", "a1", "b"]
        for number in range(3):
            jobs.let_go(f"a{number}")
            await jobs.until_begun(number + 4)
            assert jobs.began[-1] == f"a{number + 2}", "in their order"
        jobs.let_all_go()
        assert await asyncio.gather(*mine, other) == ["a0", "a1", "a2", "a3", "a4", "b"]


@real_time
async def test_callers_take_turns_however_much_one_asks_for() -> None:
    async with working() as (jobs, places):
        done = [places.run("greedy", jobs.job(f"g{n}")) for n in range(10)]
        done += [places.run(name, jobs.job(name)) for name in ("b", "c")]
        await jobs.until_begun(2)
        assert sorted(jobs.began) == ["b", "g0"]
        jobs.let_go("b")
        await jobs.until_begun(3)
        assert jobs.began[2] == "c", "the second place is not the greedy one's"
        jobs.let_all_go()
        await asyncio.gather(*done)


@real_time
async def test_work_that_nobody_waits_for_any_more_is_not_begun() -> None:
    async with working() as (jobs, places):
        first, second, third = (places.run("a", jobs.job(name)) for name in ("first", "second", "third"))
        await jobs.until_begun(1)
        second.cancel()
        jobs.let_all_go()
        assert [await first, await third] == ["first", "third"]
        assert jobs.began == ["first", "third"]


@real_time
async def test_work_that_was_given_up_while_it_waited_takes_no_place() -> None:
    async with working() as (jobs, places):
        first = places.run("a", jobs.job("first"))
        await jobs.until_begun(1)
        for number in range(5):
            places.run("a", jobs.job(f"given up {number}")).cancel()
        jobs.let_go("first")
        await first
        done = [places.run(name, jobs.job(name)) for name in ("b", "c")]
        await jobs.until_begun(3)
        assert sorted(jobs.began) == ["b", "c", "first"], "both places are there"
        jobs.let_all_go()
        await asyncio.gather(*done)


@real_time
async def test_a_caller_whose_job_was_begun_waits_behind_the_others() -> None:
    async with working(places=1) as (jobs, places):
        done = [places.run("first", jobs.job("first"))]
        done += [places.run("greedy", jobs.job(f"g{number}")) for number in range(3)]
        done += [places.run(name, jobs.job(name)) for name in ("b", "c")]
        jobs.let_all_go()
        await asyncio.gather(*done)
        assert jobs.began == ["first", "g0", "b", "c", "g1", "g2"]


@real_time
async def test_nothing_is_kept_of_a_caller_whose_jobs_are_done() -> None:
    class Caller(str):
        __slots__ = ("__weakref__",)

    async with working() as (_jobs, places):
        caller = Caller("10.0.0.1:1234")
        kept = weakref.ref(caller)
        await asyncio.gather(*(places.run(caller, max, 1, 2) for _ in range(3)))
        del caller
        gc.collect()
        assert kept() is None, "or every connection would leave something behind"


@real_time
async def test_what_waits_at_the_end_is_given_up() -> None:
    async with working() as (jobs, places):
        running, waiting = places.run("a", jobs.job("running")), places.run("a", jobs.job("waiting"))
        await jobs.until_begun(1)
        places.close()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        jobs.let_all_go()
        assert await running == "running"


@real_time
async def test_places_are_no_more_after_many_jobs_than_before() -> None:
    async with working() as (jobs, places):
        for number in range(5):
            assert await places.run("a", max, 0, number) == number
        done = [places.run(name, jobs.job(name)) for name in ("a", "b", "c")]
        await jobs.until_begun(2)
        assert places._free == 0
        assert sorted(jobs.began) == ["a", "b"]
        jobs.let_all_go()
        await asyncio.gather(*done)


@real_time
async def test_who_rests_after_its_work_has_no_place_and_others_have_the_thread() -> None:
    async with working() as (jobs, places):
        first = places.run("a", jobs.job("a1"), rest=lambda: 3_600.0)
        second = places.run("a", jobs.job("a2"))
        jobs.let_go("a1", "a2")
        assert await first == "a1"
        for name in ("b1", "b2"):
            other = places.run("b", jobs.job(name))
            jobs.let_go(name)
            assert await other == name
        assert jobs.began == ["a1", "b1", "b2"]
        assert not second.done()


@real_time
async def test_who_has_rested_has_its_place_again() -> None:
    async with working() as (jobs, places):
        both = [places.run("a", jobs.job(name), rest=lambda: 0.01) for name in ("a1", "a2")]
        jobs.let_go("a1", "a2")
        assert await asyncio.gather(*both) == ["a1", "a2"]
