"""Threads for work that strangers ask for: bounded in number, and shared fairly among those who ask.

Checking a batch and filtering rows take long, and how long is decided by who asks. So callers take turns, and none has
more than half of the places, whatever it asks for: the other half is for those who come later.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, NamedTuple, TypeVar

T = TypeVar("T")


def _no_rest() -> float:
    return 0.0


class _Job(NamedTuple):
    work: Callable[[], Any]
    done: asyncio.Future[Any]
    rest: Callable[[], float]


class Places:
    """Owns the threads and who waits for one. Used on one loop.

    Invariant: at most `places` jobs run, and for one caller at most half as many (one at least).
    """

    def __init__(self, places: int, name: str) -> None:
        self._threads = ThreadPoolExecutor(places, thread_name_prefix=name)
        self._free = places
        self._each = max(1, places // 2)
        self._running: dict[str, int] = {}
        self._waiting: dict[str, deque[_Job]] = {}  # whose turn is next comes first

    def run(
        self, caller: str, work: Callable[..., T], *arguments: Any, rest: Callable[[], float] = _no_rest
    ) -> asyncio.Future[T]:
        """What the work returns or raises, once it was the caller's turn. Its jobs begin in their order. `rest`: asked
        when the work is done, for how many seconds its place is not given to this caller again; others may have the
        thread."""
        done: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(caller, deque()).append(_Job(partial(work, *arguments), done, rest))
        self._begin()
        return done

    def _begin(self) -> None:
        while self._free and (caller := self._next()) is not None:
            jobs = self._waiting.pop(caller)
            job = jobs.popleft()
            if jobs:
                self._waiting[caller] = jobs  # behind the others
            if job.done.cancelled():
                continue
            self._free -= 1
            self._running[caller] = self._running.get(caller, 0) + 1
            running = asyncio.get_running_loop().run_in_executor(self._threads, job.work)
            running.add_done_callback(partial(self._ended, caller, job))

    def _next(self) -> str | None:
        return next((caller for caller in self._waiting if self._running.get(caller, 0) < self._each), None)

    def _ended(self, caller: str, job: _Job, running: asyncio.Future[Any]) -> None:
        self._free += 1
        if (rest := job.rest()) > 0:
            asyncio.get_running_loop().call_later(rest, self._rested, caller)
        else:
            self._leave(caller)
        if running.cancelled():
            job.done.cancel()
        elif not job.done.done():
            if (error := running.exception()) is not None:
                job.done.set_exception(error)
            else:
                job.done.set_result(running.result())
        self._begin()

    def _rested(self, caller: str) -> None:
        self._leave(caller)
        self._begin()

    def _leave(self, caller: str) -> None:
        self._running[caller] -= 1
        if not self._running[caller]:
            del self._running[caller]

    def close(self) -> None:
        """What runs goes on to its end; what waits is given up."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        waiting, self._waiting = self._waiting, {}
        for jobs in waiting.values():
            for job in jobs:
                job.done.cancel()
