"""What comes closely together is asked together: what a broker's start, or a lost broker, makes necessary is thousands.

A lone question goes out at once. While as many as may be are unanswered, or many were asked just now (`Pace`), what
comes waits and leaves together. A question costs a broker about as much processor time for one node as for ten.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Final, Generic, Protocol, TypeVar

PERIOD_S: Final = 0.025
AT_ONCE: Final = 8


class Pace:
    """Owns when the next question may go: a few at once, then one in each period. Pure: the time is an argument, in
    seconds of any clock that does not go back."""

    def __init__(self, period_s: float = PERIOD_S, at_once: int = AT_ONCE) -> None:
        self._period_s = period_s
        self._ahead_s = period_s * (at_once - 1)
        self._free_at = float("-inf")

    def delay_s(self, now: float) -> float:
        """0 if a question may go now. It counts as gone then. Else how long to wait before asking here again."""
        free_at = max(self._free_at, now)
        if free_at - now > self._ahead_s:
            return free_at - now - self._ahead_s
        self._free_at = free_at + self._period_s
        return 0.0


class Waits(Protocol):
    """What is asked. `weight`: of `together` in one question."""

    @property
    def weight(self) -> int: ...

    @property
    def answer(self) -> asyncio.Future[Any]: ...


W = TypeVar("W", bound=Waits)


class Gathering(Generic[W]):
    """Owns what waits, and the questions in flight. `ask`: puts one question, and answers all that it is for.
    `together`: what it may weigh, unless it is for one alone; that many do not wait for the pace."""

    def __init__(self, ask: Callable[[list[W]], Awaitable[None]], together: int, in_flight: int) -> None:
        self._ask = ask
        self._together = together
        self._in_flight = in_flight
        self._waiting: deque[W] = deque()
        self._asked: set[asyncio.Task[None]] = set()
        self._pace = Pace()
        self._paused = False

    def add(self, questions: Iterable[W]) -> None:
        self._waiting += questions
        self._send()

    def _send(self) -> None:
        if self._paused and len(self._waiting) < self._together:
            return
        if self._waiting and len(self._asked) < self._in_flight:
            loop = asyncio.get_running_loop()
            delay_s = self._pace.delay_s(loop.time()) if len(self._waiting) < self._together else 0.0
            if delay_s:
                self._paused = True
                loop.call_later(delay_s, self._go_on)
                return
            task = asyncio.create_task(self._carry_out(), name="gathered questions")
            self._asked.add(task)
            task.add_done_callback(self._next)

    def _go_on(self) -> None:
        self._paused = False
        self._send()

    def _next(self, task: asyncio.Task[None]) -> None:
        self._asked.discard(task)
        if not task.cancelled():
            task.result()  # nothing is expected here; what comes is our own mistake and must be seen
        self._send()

    async def _carry_out(self) -> None:
        batch = self._take()  # all that came in this turn of the loop
        if not batch:
            return
        self._send()
        try:
            await self._ask(batch)
        finally:
            for each in batch:
                each.answer.cancel()  # does nothing to what is answered

    def _take(self) -> list[W]:
        batch: list[W] = []
        weight = 0
        while self._waiting and (not batch or weight + self._waiting[0].weight <= self._together):
            each = self._waiting.popleft()
            if not each.answer.done():  # else its caller has stopped waiting, and it need not happen
                weight += each.weight
                batch.append(each)
        return batch
