"""Virtual time and chance: the only clock and the only source of randomness that a simulated cluster has.

Not asyncio: one heap of calls, one `random.Random`. Given the same seed, the same calls happen in the same order,
whatever the machine, its speed, or how Python hashes strings.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Generator
from typing import Any, TypeAlias

YOUNG_OBJECTS = 200_000
"""A simulated cluster is one large graph that lives until its seed ends: whoever runs many looks through it less often
for garbage, and saves a quarter of the time."""

Process: TypeAlias = Generator["float | Promise", Any, Any]
"""What a client or a fault is written as. It yields milliseconds to sleep, or a `Promise` to wait for, and may return
something."""


class Promise:
    """A value that is not there yet. Kept once; whoever keeps it a second time is ignored (a late answer)."""

    __slots__ = ("_waiting", "kept", "value")

    def __init__(self) -> None:
        self.kept = False
        self.value: Any = None
        self._waiting: list[Callable[[Any], None]] = []

    def keep(self, value: Any) -> None:
        if not self.kept:
            self.kept, self.value = True, value
            for call in self._waiting:
                call(value)
            self._waiting.clear()

    def then(self, call: Callable[[Any], None]) -> None:
        if self.kept:
            call(self.value)
        else:
            self._waiting.append(call)


class Loop:
    """Owns the virtual clock (microseconds since the start), the queue of calls, and chance."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.now_us = 0
        self.calls_made = 0
        self._queue: list[tuple[int, int, Callable[..., object], tuple[Any, ...]]] = []
        self._pushed = 0

    @property
    def now_ms(self) -> int:
        return self.now_us // 1000

    def after(self, ms: float, call: Callable[..., object], *args: Any) -> None:
        """Call it that much later; calls due at the same microsecond happen in the order in which they were asked
        for."""
        self._pushed += 1
        heapq.heappush(self._queue, (self.now_us + int(ms * 1000), self._pushed, call, args))

    def run(self, until_ms: int, stop: Callable[[], bool] | None = None, stop_every_ms: int = 100) -> bool:
        """Let time pass to `until_ms`, or until `stop()`, asked now and then, is true. Returns whether it was."""
        queue = self._queue
        end_us = until_ms * 1000
        ask_us = self.now_us
        while queue and queue[0][0] <= end_us:
            if stop is not None and queue[0][0] >= ask_us:
                ask_us = queue[0][0] + stop_every_ms * 1000
                if stop():
                    return True
            self.now_us, _, call, args = heapq.heappop(queue)
            self.calls_made += 1
            call(*args)
        self.now_us = max(self.now_us, end_us)
        return stop is not None and stop()

    def spawn(self, process: Process) -> None:
        """Run it from now on, until it ends."""
        self._resume(process, None)

    def _resume(self, process: Process, value: object) -> None:
        try:
            wanted = process.send(value)
        except StopIteration:
            return
        if isinstance(wanted, Promise):
            wanted.then(lambda kept: self._resume(process, kept))
        else:
            self.after(wanted, self._resume, process, None)

    # -- chance

    def chance(self, probability: float) -> bool:
        return probability > 0 and self.random.random() < probability

    def between(self, low: float, high: float) -> float:
        return low + (high - low) * self.random.random()

    def often_short(self, low: float, high: float) -> float:
        """Mostly near `low`, now and then near `high`: how delays are in practice."""
        return low + (high - low) * self.random.random() ** 4
