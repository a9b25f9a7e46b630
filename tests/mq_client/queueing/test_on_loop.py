"""Turns on an event loop that the test runs by hand."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from mq_client.queueing.on_loop import LoopTurns


class _Timer:
    def __init__(self, function: Callable[[], Any]) -> None:
        self.function = function
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


class _Loop:
    """In the place of `EventLoop`. `due`: what it would call in its next turn; `timers`: what it would call later."""

    def __init__(self) -> None:
        self.due: deque[Callable[[], Any]] = deque()
        self.timers: list[_Timer] = []

    def soon(self, function: Callable[[], Any]) -> None:
        self.due.append(function)

    def later(self, _seconds: float, function: Callable[[], Any]) -> _Timer:
        self.timers.append(_Timer(function))
        return self.timers[-1]

    def run(self) -> None:
        """All that is due."""
        while self.due:
            self.due.popleft()()


def played(*turns: Callable[[LoopTurns], None]) -> tuple[_Loop, LoopTurns, list[int]]:
    """These are done in the first turns. Third: grows by one with each turn."""
    loop, taken, script = _Loop(), list[int](), deque(turns)

    def run() -> None:
        taken.append(len(taken))
        if script:
            script.popleft()(made)

    stand_in: Any = loop
    made = LoopTurns(stand_in, run)
    return loop, made, taken


def test_what_is_notified_twice_before_a_turn_is_one_turn() -> None:
    loop, turns, taken = played()
    turns.notify()
    turns.notify()
    loop.run()
    assert len(taken) == 1
    turns.notify()
    loop.run()
    assert len(taken) == 2


def test_what_is_notified_during_a_turn_is_another_turn() -> None:
    loop, turns, taken = played(LoopTurns.notify)
    turns.notify()
    loop.run()
    assert len(taken) == 2


def test_a_turn_that_waits_is_taken_when_its_time_comes_or_somebody_notifies_and_only_once() -> None:
    loop, turns, taken = played(lambda turns: turns.wait(1.0), lambda turns: turns.wait(1.0))
    turns.notify()
    loop.run()
    assert (turns.waits, len(taken)) == (True, 1)
    [first] = loop.timers
    first.function()
    assert len(taken) == 2
    turns.notify()
    loop.run()
    assert (turns.waits, len(taken)) == (False, 3)
    assert loop.timers[1].cancelled
