"""Takes the turns of a keeper on the event loop of this process. With a thread for each, a process with many members
would spend itself on handing the interpreter's lock from one to the next.

Futures' callbacks are an application's own, and may take their time: they have a thread.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
from collections.abc import Callable
from typing import Any, Final

from mq_client.cluster.loop import EventLoop

log = logging.getLogger(__name__)


class LoopTurns:
    """`run`: takes all turns that are due, up to one that waits.

    `notify` from any thread, under the keeper's lock; the rest on the loop.
    """

    def __init__(self, loop: EventLoop, run: Callable[[], None]) -> None:
        self._loop = loop
        self._run = run
        self._due = False
        self._timer: asyncio.TimerHandle | None = None
        self.waits = False

    def notify(self) -> None:
        if not self._due:
            self._due = True
            self._loop.soon(self._turn)

    def wait(self, seconds: float) -> None:
        """The next turn is due after so long, unless somebody notifies before."""
        self.waits = True
        self._timer = self._loop.later(seconds, self._turn)

    def _turn(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._due = self.waits = False
        self._run()


class Callbacks:
    """Owns the thread that calls the callbacks of futures which end on a loop. It begins with the first."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._calls: queue.SimpleQueue[tuple[Callable[[Any], object], Any]] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def call(self, function: Callable[[Any], object], future: Any) -> None:
        with self._lock:
            if self._thread is None or not self._thread.is_alive():  # as in a process that was forked
                self._calls = queue.SimpleQueue()
                self._thread = threading.Thread(target=self._serve, name="tritonmq-callbacks", daemon=True)
                self._thread.start()
        self._calls.put((function, future))

    def _serve(self) -> None:
        while True:
            function, future = self._calls.get()
            try:
                function(future)
            except Exception:
                log.exception("a callback of a record's outcome failed")


callbacks: Final = Callbacks()
