"""What `durability=os` has written is synced about once a second, in a thread of its own.

The writer goes on appending meanwhile; only a truncation, a new segment or the close of the journal that is being
synced waits until it is. One journal is synced at a time; with more of them than the disk syncs in a second, each has
its turn later.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Final

from mq_broker.measured import FSYNC
from mq_broker.storage.files import Files
from mq_broker.storage.journal.segments import LogFiles, Outcome, OutcomeListener

JOIN_S: Final = 5.0


class BackgroundSyncs:
    """Owns which journals are to be synced, each with who hears of it, and the thread that does it.

    All methods are for who uses the files of the journals: the writer's thread, or the event loop (writer.py). `wake`
    is called by the other thread when a sync is done: `work` is to be called then.
    """

    def __init__(self, files: Files, interval_s: float, wake: Callable[[], None]) -> None:
        self.interval_s = interval_s
        self._files = files
        self._wake = wake
        self._unsynced: dict[LogFiles, OutcomeListener] = {}
        self._due: deque[LogFiles] = deque()  # the rest of the turn that is under way
        self._syncing: LogFiles | None = None
        self._next_turn = 0.0
        self._asked: queue.SimpleQueue[tuple[int, Future[None]] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="journal-syncs", daemon=True)

    def add(self, log: LogFiles, listener: OutcomeListener) -> None:
        """Something was written to it."""
        if not self._unsynced:
            self._next_turn = time.monotonic() + self.interval_s
        self._unsynced[log] = listener

    def forget(self, log: LogFiles) -> None:
        """It is closed."""
        self._unsynced.pop(log, None)

    @property
    def is_empty(self) -> bool:
        """Nothing is to be synced, so nothing is waited for."""
        return not self._unsynced

    @property
    def under_way(self) -> bool:
        """A journal is being synced."""
        return self._syncing is not None

    @property
    def wait_s(self) -> float | None:
        """Until there is something to do without being woken; None: there is not."""
        if self._syncing is not None or not self._unsynced:
            return None
        return max(0.0, self._next_turn - time.monotonic())

    def work(self) -> list[tuple[OutcomeListener, Outcome]]:
        """Take what a sync that is done has come to, and begin the next that is due. Where a journal stands, if that is
        news."""
        outcomes: list[tuple[OutcomeListener, Outcome]] = []
        if self._syncing is not None:
            if not self._syncing.synced_apart:
                return outcomes
            log, self._syncing = self._syncing, None
            self._look_at(log, log.settle_sync(), outcomes)
        now = time.monotonic()
        if not self._due:
            if not self._unsynced or now < self._next_turn:
                return outcomes
            self._due.extend(self._unsynced)
        while self._due and self._syncing is None:
            log = self._due.popleft()
            if log in self._unsynced and log.dirty and not log.owing:
                log.sync_apart(self._ask)
                self._syncing = log
            elif log in self._unsynced:
                self._sync_here(log, outcomes)
        if not self._due:
            self._next_turn = now + self.interval_s
        return outcomes

    def finish(self) -> list[tuple[OutcomeListener, Outcome]]:
        """Sync the rest here and now, and end the thread."""
        outcomes: list[tuple[OutcomeListener, Outcome]] = []
        for log in list(self._unsynced):
            self._sync_here(log, outcomes)
        self._asked.put(None)
        if self._thread.is_alive():
            self._thread.join(JOIN_S)
        return outcomes

    def _sync_here(self, log: LogFiles, outcomes: list[tuple[OutcomeListener, Outcome]]) -> None:
        """On the writer's thread; a truncation that is owed is made good, which lets what was kept be flushed."""
        owing = log.owing
        self._look_at(log, log.sync() and not owing, outcomes)

    def _look_at(self, log: LogFiles, as_expected: bool, outcomes: list[tuple[OutcomeListener, Outcome]]) -> None:
        listener = self._unsynced.get(log)
        if listener is None:
            return
        if not as_expected:
            outcomes.append((listener, log.outcome()))
        if not log.dirty:
            del self._unsynced[log]

    def _ask(self, fd: int) -> Future[None]:
        if not self._thread.is_alive():
            self._thread.start()
        done: Future[None] = Future()
        self._asked.put((fd, done))
        return done

    # -------------------------------------------------------------- on the thread

    def _run(self) -> None:
        while (asked := self._asked.get()) is not None:
            fd, done = asked
            try:
                with FSYNC.measuring("background"):
                    self._files.sync(fd)
            except BaseException as error:  # noqa: BLE001 - raised again where it is waited for
                done.set_exception(error)
            else:
                done.set_result(None)
            self._wake()
