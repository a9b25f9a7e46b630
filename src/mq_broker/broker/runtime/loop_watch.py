"""How late the loop comes to what is due, and whether this broker is why.

A tick is late because the loop's thread was busy with something else, or because it waited: for a processor that
another process had, or for the interpreter that another thread had. Only the first is mended by doing less at once. So
beside the lateness it is told how much of it the thread's own processor time can account for.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final, Protocol

from mq_broker.measured import LOOP_HELD, LOOP_LAG

TICK_S: Final = 0.02
MARK_S: Final = 0.002
"""So long before a tick the thread's processor time is noted. What it took before that made nothing late: a loop that
is busy with many short pieces of work comes in time."""


class Timers(Protocol):
    """Of the loop."""

    def time(self) -> float: ...
    def call_at(self, when: float, callback: Callable[[], object], /) -> Any: ...


class LoopWatch:
    """Owns a timer of the loop, from its making until it is closed. `spent_s`: the processor time of the thread that
    calls it, in seconds."""

    def __init__(self, timers: Timers, spent_s: Callable[[], float] = time.thread_time) -> None:
        self._timers = timers
        self._spent_s = spent_s
        self._begin()

    def close(self) -> None:
        """Nothing is measured from now on."""
        self._timer.cancel()

    def _begin(self) -> None:
        self._before_s = self._spent_s()
        self._due = self._timers.time() + TICK_S
        self._timer = self._timers.call_at(self._due - MARK_S, self._mark)

    def _mark(self) -> None:
        if self._timers.time() < self._due:  # else what made the mark late, and the tick with it, would not be seen
            self._before_s = self._spent_s()
        self._timer = self._timers.call_at(self._due, self._tick)

    def _tick(self) -> None:
        late_s = max(0.0, self._timers.time() - self._due)
        LOOP_LAG.add(late_s)
        LOOP_HELD.add(min(late_s, self._spent_s() - self._before_s))
        self._begin()
