"""Whether a late loop was held by the broker, or waited for a processor."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import pytest

from mq_broker.broker.runtime import loop_watch
from mq_broker.broker.runtime.loop_watch import MARK_S, TICK_S, LoopWatch
from mq_process.measures import Durations


class Clock:
    """A loop's timers and its thread's processor time, moved by hand."""

    def __init__(self) -> None:
        self.now = 100.0
        self.spent_s = 7.0
        self._due: list[tuple[float, Callable[[], object]]] = []

    def time(self) -> float:
        return self.now

    def call_at(self, when: float, callback: Callable[[], object], /) -> None:
        self._due.append((when, callback))

    def passes(self, seconds: float, *, at_work: float = 0.0) -> None:
        """Nothing else runs meanwhile; then all that is due, in its order."""
        self.now += seconds
        self.spent_s += at_work
        while due := sorted((each for each in self._due if each[0] <= self.now + 1e-9), key=lambda each: each[0]):
            self._due.remove(due[0])
            due[0][1]()


class Told(Durations):
    """Says when something is added."""

    def __init__(self) -> None:
        super().__init__("told", "")
        self.added = asyncio.Event()

    def add(self, seconds: float, value: str = "") -> None:
        super().add(seconds, value)
        self.added.set()


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> tuple[Told, Told]:
    late, held = Told(), Told()
    monkeypatch.setattr(loop_watch, "LOOP_LAG", late)
    monkeypatch.setattr(loop_watch, "LOOP_HELD", held)
    return late, held


def sums(told: tuple[Told, Told]) -> tuple[float, float]:
    late, held = (each.rows()[""].sum_s for each in told)
    return round(late, 6), round(held, 6)


BUSY = 0.03
UP_TO_THE_MARK = TICK_S - MARK_S


def test_a_loop_that_works_when_a_tick_is_due_has_held_it(told: tuple[Told, Told]) -> None:
    clock = Clock()
    LoopWatch(clock, lambda: clock.spent_s)
    clock.passes(UP_TO_THE_MARK)
    clock.passes(MARK_S + BUSY, at_work=MARK_S + BUSY)
    assert sums(told) == (BUSY, BUSY)


def test_a_loop_that_waits_for_a_processor_has_not_held_it(told: tuple[Told, Told]) -> None:
    clock = Clock()
    LoopWatch(clock, lambda: clock.spent_s)
    clock.passes(UP_TO_THE_MARK)
    clock.passes(MARK_S + BUSY, at_work=0.0005)
    assert sums(told) == (BUSY, 0.0005)


def test_work_that_was_over_before_the_mark_has_made_nothing_late(told: tuple[Told, Told]) -> None:
    clock = Clock()
    LoopWatch(clock, lambda: clock.spent_s)
    clock.passes(UP_TO_THE_MARK, at_work=UP_TO_THE_MARK)
    clock.passes(MARK_S + BUSY)
    assert sums(told) == (BUSY, 0)


def test_what_makes_the_mark_late_as_well_is_seen(told: tuple[Told, Told]) -> None:
    clock = Clock()
    LoopWatch(clock, lambda: clock.spent_s)
    clock.passes(TICK_S + BUSY, at_work=TICK_S + BUSY)
    assert sums(told) == (BUSY, BUSY)


def test_each_tick_counts_from_the_last(told: tuple[Told, Told]) -> None:
    clock = Clock()
    LoopWatch(clock, lambda: clock.spent_s)
    clock.passes(TICK_S + BUSY, at_work=TICK_S + BUSY)
    for _ in range(3):
        clock.passes(UP_TO_THE_MARK)
        clock.passes(MARK_S)
    assert (sums(told), told[0].rows()[""].counts[0]) == ((BUSY, BUSY), 3)


def test_a_running_loop_is_watched_until_the_watch_is_closed(told: tuple[Told, Told]) -> None:
    late, held = told

    def long_ones(durations: Durations) -> int:
        return sum(durations.rows()[""].counts[8:])  # above 50 ms

    def work(seconds: float) -> None:
        until = time.thread_time() + seconds
        while time.thread_time() < until:
            pass

    async def next_tick() -> None:
        late.added.clear()
        async with asyncio.timeout(30):
            await late.added.wait()

    async def scenario() -> None:
        watch = LoopWatch(asyncio.get_running_loop())
        for _ in range(2):
            time.sleep(0.1)  # noqa: ASYNC251 - the loop is to be held
            await next_tick()
        assert (long_ones(late) >= 2, long_ones(held)) == (True, 0)
        work(0.1)
        await next_tick()
        assert long_ones(held) == 1
        watch.close()
        ticks = sum(late.rows()[""].counts)
        await asyncio.sleep(3 * TICK_S)
        assert sum(late.rows()[""].counts) == ticks

    asyncio.run(scenario())
