"""An asyncio event loop without threads and sockets, whose time is virtual, and the processes that live on it.

Time stands still while callbacks run, and jumps to the next timer when none is ready. Ready callbacks run in the order
in which they became ready, as asyncio promises. What happens when is decided by those who set timers (messages, disks,
jobs of threads), each with a delay from one seeded `Random`. So a seed is a run.

A simulated process (`Process`) is whatever runs in a context that names it: its tasks, and all callbacks that they
schedule. A process that is killed runs no callback any more, as after SIGKILL: no `finally`, no `except`. One that is
paused runs none until it is resumed, as after SIGSTOP.
"""

from __future__ import annotations

import asyncio
import heapq
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import Context, ContextVar
from random import Random
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from tests.simulation.real.disk import Disk

STEP_S: Final = 10e-6
"""What one round of the loop takes, so that whoever polls without waiting gets on."""


class Killed(BaseException):
    """The process was killed in the middle of what it does."""


class Process:
    """One life of a program on one machine."""

    def __init__(self, name: str, broker: int = 0, disk: Disk | None = None) -> None:
        self.name = name
        self.broker = broker
        self.disk = disk
        self.oracle: Any = None
        """Told of every step of its replicas."""
        self.shell: Any = None
        """The broker's, once it has one."""
        self.power_lost = False
        self.alive = True
        self.paused = False
        self.woke_at = 0.0
        """When it went on after it had stood still for long."""
        self.clock_ahead_s = 0.0
        self.believable_s = 0.0  # how far ahead its clock may be that it believes: not by a jump, within an hour
        self.least_ahead_s = 0.0  # and at least
        self.deferred: deque[asyncio.Handle] = deque()
        self.at_death: list[Callable[[], None]] = []
        self.context = Context()
        self.context.run(PROCESS.set, self)

    def __repr__(self) -> str:
        return self.name

    def kill(self) -> None:
        """It is gone; the machine closes its files and its connections."""
        if self.alive:
            self.alive = False
            for undo in self.at_death:
                undo()


PROCESS: ContextVar[Process | None] = ContextVar("process", default=None)
"""Whose code runs; None for the world around."""


class NumberedTask(asyncio.Task[Any]):
    """Hashed by its number, so that sets of tasks have one order whatever their addresses are."""

    def __init__(self, coroutine: Coroutine[Any, Any, Any], *, loop: VirtualLoop, **options: Any) -> None:
        self.number = loop.next_number()
        context = options.get("context")
        self.process = PROCESS.get() if context is None else context.get(PROCESS)
        super().__init__(coroutine, loop=loop, **options)

    def __hash__(self) -> int:
        return self.number


class NumberedFuture(asyncio.Future[Any]):
    """As `NumberedTask`."""

    def __init__(self, *, loop: VirtualLoop) -> None:
        self.number = loop.next_number()
        super().__init__(loop=loop)

    def __hash__(self) -> int:
        return self.number


class Stuck(Exception):
    """Nothing is ready and no timer is set: everybody waits for somebody else."""


class VirtualLoop(asyncio.BaseEventLoop):
    """Owns the time, the ready callbacks and the timers. `random` is the only chance there is."""

    def __init__(self, random: Random) -> None:
        super().__init__()
        self.random = random
        self.rounds = 0
        self.calls = 0
        self.job_s: Callable[[], float] = lambda: 0.0005
        """How long a thread takes to begin what it is given, and to tell that it is done."""
        self._now = 0.0
        self._number = 0
        self._graveyard: list[asyncio.Handle] = []
        self._timers: list[tuple[float, int, asyncio.TimerHandle]] = []
        """Of two that are due at the same time, the one that was set first comes first."""
        self.network: Any = None
        """Where byte streams are made (wires.py)."""
        self._clock_resolution = 1e-9
        self.set_task_factory(lambda loop, coroutine, **options: NumberedTask(coroutine, loop=self, **options))

    def next_number(self) -> int:
        self._number += 1
        return self._number

    # ------------------------------------------------------------------ what asyncio asks of a loop

    def time(self) -> float:
        return self._now

    def create_future(self) -> NumberedFuture:
        return NumberedFuture(loop=self)

    def call_soon_threadsafe(
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        return self.call_soon(callback, *args, context=context)

    def call_at(
        self, when: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        timer = asyncio.TimerHandle(when, callback, args, self, context)
        heapq.heappush(self._timers, (when, self.next_number(), timer))
        timer._scheduled = True
        return timer

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:
        """There are no threads: the job is done at once, some time after it was asked for, and its result comes some
        time later."""
        done = self.create_future()

        def told(result: Any, error: BaseException | None) -> None:
            if not done.done():
                if error is None:
                    done.set_result(result)
                else:
                    done.set_exception(error)

        def work() -> None:
            if done.cancelled():
                return
            result, error = None, None
            try:
                result = func(*args)
            except Killed:
                return
            except BaseException as raised:  # noqa: BLE001 - it is raised where the job is waited for
                error = raised
            self.call_later(self.job_s(), told, result, error)

        self.call_later(self.job_s(), work)
        return done

    async def sock_accept(self, listener: Any) -> tuple[Any, tuple[str, int]]:
        end = await listener.accept()
        return end, end.get_extra_info("peername")

    async def connect_accepted_socket(self, factory: Callable[[], Any], sock: Any, **options: Any) -> tuple[Any, Any]:
        assert options.get("ssl") is None, "TLS is not simulated"
        protocol = factory()
        sock.begin(protocol)
        return sock, protocol

    async def create_connection(  # type: ignore[override]
        self, factory: Callable[[], Any], host: str, port: int, **options: Any
    ) -> tuple[Any, Any]:
        assert options.get("ssl") is None, "TLS is not simulated"
        return await self.network.connect(factory, host, port)  # type: ignore[no-any-return]

    def _write_to_self(self) -> None:
        pass

    def close(self) -> None:
        self._timers.clear()
        super().close()

    def _run_once(self) -> None:
        self.rounds += 1
        self._now += STEP_S
        timers = self._timers
        while timers and timers[0][2]._cancelled:
            heapq.heappop(timers)[2]._scheduled = False
        if not self._ready:
            if not timers:
                if self._stopping:
                    return
                raise Stuck("nothing is ready, and no timer is set")
            self._now = max(self._now, timers[0][0])
        while timers and timers[0][0] <= self._now:
            handle = heapq.heappop(timers)[2]
            handle._scheduled = False
            self._ready.append(handle)
        for _ in range(len(self._ready)):
            handle = self._ready.popleft()
            if handle._cancelled:
                continue
            process = handle._context.get(PROCESS)
            if process is not None and not process.alive:
                # Kept, or what it holds would be cleaned up: nobody cleans up after SIGKILL
                self._graveyard.append(handle)
            elif process is not None and process.paused:
                process.deferred.append(handle)
            else:
                self.calls += 1
                handle._run()

    # ------------------------------------------------------------------ processes

    def resume(self, process: Process) -> None:
        """What was due while it was paused is done now, in that order."""
        process.paused = False
        self._ready.extendleft(reversed(process.deferred))
        process.deferred.clear()

    def spawn(self, process: Process | None, coroutine: Coroutine[Any, Any, Any], name: str) -> asyncio.Task[Any]:
        """A task of that process; of the world around if there is none."""
        context = process.context.copy() if process is not None else Context()
        return self.create_task(coroutine, name=name, context=context)

    # ------------------------------------------------------------------ chance

    def chance(self, probability: float) -> bool:
        return probability > 0 and self.random.random() < probability

    def often_short(self, shortest: float, longest: float) -> float:
        """Mostly near the shortest, seldom near the longest; of the same magnitude each as likely."""
        return float(shortest * (longest / shortest) ** (self.random.random() ** 3))
