"""What a client lends to programs of asyncio: blocks, and records as they come. The client itself has threads of its
own, and no loop: what blocks is done in the loop's executor, and what waits is woken from those threads."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from types import TracebackType
from typing import Any, Final, Generic, Protocol, Self, TypeVar

T = TypeVar("T")

TURN_RECORDS: Final = 100
"""After so many records without a wait other tasks get their turn."""


class Wakeable(threading.Condition):
    """A condition that tasks can wait for, too: whoever notifies also calls the wakers, with the lock held."""

    def __init__(self, lock: Any = None) -> None:
        super().__init__(lock)
        self.wakers: set[Callable[[], None]] = set()

    def notify_all(self) -> None:
        super().notify_all()
        for wake in list(self.wakers):
            wake()


class _Blocking(Protocol):
    def __enter__(self) -> Any: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> object: ...


class AsyncBlock:
    """Makes `async with` of `with`: begin and end are done in a thread, since they may wait for brokers."""

    async def __aenter__(self: _Blocking) -> Any:
        loop = asyncio.get_running_loop()
        entering = loop.run_in_executor(None, self.__enter__)
        try:
            return await asyncio.shield(entering)
        except asyncio.CancelledError as error:
            # The thread goes on with what it does; what it has begun is to be ended.
            loop.run_in_executor(None, self.__exit__, type(error), error, None)
            raise

    async def __aexit__(
        self: _Blocking,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await asyncio.get_running_loop().run_in_executor(None, self.__exit__, kind, error, trace)


class Taken(AsyncIterator[T], Generic[T]):
    """Items as they come. `take` gives the next one, or None while there is none; `over` says whether there will be
    none any more; both are called with the lock of `changed` held. A wait that is cancelled has taken nothing."""

    def __init__(
        self,
        changed: Wakeable,
        start: Callable[[], None],
        take: Callable[[], T | None],
        over: Callable[[], bool],
        idle_s: float | None,
    ) -> None:
        self._changed = changed
        self._start: Callable[[], None] | None = start
        self._take = take
        self._over = over
        self._idle_s = idle_s
        self._without_wait = 0

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> T:
        if self._start is not None:
            await asyncio.to_thread(self._start)
            self._start = None
        if self._without_wait >= TURN_RECORDS:
            await asyncio.sleep(0)
            self._without_wait = 0
        with self._changed:
            item = self._take()
        if item is None:
            self._without_wait = 0
            return await self._wait()
        self._without_wait += 1
        return item

    async def _wait(self) -> T:
        loop, came = asyncio.get_running_loop(), asyncio.Event()

        def wake() -> None:
            try:
                loop.call_soon_threadsafe(came.set)
            except RuntimeError:  # the loop has ended, and nobody waits
                self._changed.wakers.discard(wake)

        deadline = None if self._idle_s is None else loop.time() + self._idle_s
        try:
            while True:
                with self._changed:
                    item = self._take()
                    if item is not None:
                        return item
                    if self._over():
                        raise StopAsyncIteration
                    came.clear()
                    self._changed.wakers.add(wake)
                try:
                    async with asyncio.timeout_at(deadline):
                        await came.wait()
                except TimeoutError:
                    raise StopAsyncIteration from None
        finally:
            with self._changed:
                self._changed.wakers.discard(wake)
