"""The one thread of a broker that writes and syncs: many journals, many entries, few system calls.

Little that a journal of `durability=os` appends while the thread has nothing to do is written on the event loop itself:
into the kernel's cache that takes some microseconds, and the way to the thread and back some hundred. A disk that does
not answer must not hold up the loop, which speaks for all partitions. So that is left to the thread while a background
sync is under way, as one is within a second on a disk that hangs, and for a while after a write on the loop was slow.

A round takes all that waits in the queue, writes it (per journal one write of everything pending), then syncs each
journal that was written to (`durability=fsync`), and carries every result back to the event loop in one call. While a
round syncs, the next one gathers: that is the group commit. Journals of `durability=os` are synced about once a second
by another thread (background_syncs.py).

Only the event loop submits, and only the event loop hears. The queue is bounded by bytes and orders: `has_room` tells
when it is full, and what is appended nevertheless is refused (journal.py).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import queue
import threading
import time
from collections.abc import Callable
from typing import Final, NamedTuple, Protocol

from mq_broker.measured import WRITER_BYTES, WRITER_ROUND
from mq_broker.storage.files import Files, OsFiles
from mq_broker.storage.journal.background_syncs import BackgroundSyncs
from mq_broker.storage.journal.segments import Append, LogFiles, Order, Outcome, OutcomeListener
from mq_broker.storage.journal.unsealing import Unsealing
from mq_protocol.limits import JOURNAL_CACHES_BYTES_MAX, WRITER_PENDING_BYTES_MAX, WRITER_PENDING_ORDERS_MAX

ROUND_BYTES_MAX: Final = 32 << 20
"""What one round writes at most, so that the first of a long queue need not wait for the sync of the last."""

OPEN_LOGS_MAX: Final = 256
"""Journals whose files stay open for the next write, two descriptors each. Ten thousand idle ones would use up what a
process may have open; of more than these in use, some open theirs anew for a write, which is four system calls."""

STOP_DEADLINE_S: Final = 30.0

LOOP_BYTES_MAX: Final = 16 << 10
"""What one order may have that is written on the loop."""

LOOP_ORDERS_MAX: Final = 8
"""Orders that are written on the loop in one turn of it. When there are more, the thread writes those of a journal by
one call."""

LOOP_SLOW_S: Final = 0.01
"""A write on the loop that took longer says that the disk is busy."""

LOOP_PAUSE_S: Final = 10.0
"""For so long after such a write the thread writes everything."""

_logger = logging.getLogger(__name__)


class FrameCache(Protocol):
    """A journal, as seen from here."""

    def shed(self, bytes_wanted: int) -> None:
        """Give back so much, or as much as is in the files already. Reports it through `FrameCaches.changed`."""


class FrameCaches:
    """How much memory all journals of a broker may spend on recent frames together. Owns the count. Loop only.

    Each journal keeps its newest frames for followers and subscribers that keep up, within a bound of its own
    (journal.py). A broker may have thousands of journals, so here is the bound over all of them: those that were
    appended to least recently give back first. What they give back is read from their files.
    """

    def __init__(self, bytes_max: int) -> None:
        self.bytes = 0
        self._bytes_max = bytes_max
        self._sizes: dict[FrameCache, int] = {}  # least recently grown first

    def changed(self, cache: FrameCache, delta: int) -> None:
        """That journal's cache has grown, or shrunk."""
        self.bytes += delta
        size = self._sizes.get(cache, 0) + delta
        if delta > 0:
            self._sizes.pop(cache, None)
        self._sizes[cache] = size

    def forget(self, cache: FrameCache) -> None:
        """That journal is closed."""
        self.bytes -= self._sizes.pop(cache, 0)

    def keep_within(self) -> None:
        """Let journals give back until the bound holds, or nobody has anything in its files to give."""
        if self.bytes <= self._bytes_max:
            return
        for cache in list(self._sizes):
            cache.shed(self.bytes - self._bytes_max)
            if not self._sizes.get(cache):
                self._sizes.pop(cache, None)
            if self.bytes <= self._bytes_max:
                return


class _Job(NamedTuple):
    log: LogFiles
    journal: OutcomeListener
    order: Order
    nbytes: int


class _Woken(NamedTuple):
    """A background sync is done."""


class Writer:
    """Owns the thread, its queue, the background syncs, and the list of journals whose files are open.

    Made and started on the event loop. `on_loop`: little may be written there. `unsealing` has the threads of the
    journals' readers. `died` is done when the thread has ended: with an exception if it broke, after which nothing is
    flushed any more and the broker must stop.
    """

    def __init__(self, files: Files | None = None, *, sync_interval_s: float = 1.0, on_loop: bool = True) -> None:
        self.files: Files = files or OsFiles()
        self.caches = FrameCaches(JOURNAL_CACHES_BYTES_MAX)
        self.unsealing = Unsealing()
        self.pending_bytes = 0
        self.pending_orders = 0
        self.loop = asyncio.get_running_loop()
        self.died: asyncio.Future[None] = self.loop.create_future()
        self._queue: queue.Queue[_Job | _Woken | None] = queue.Queue()
        self.syncs = BackgroundSyncs(self.files, sync_interval_s, lambda: self._queue.put(_Woken()))
        self._thread = threading.Thread(target=self._run, name="journal-writer", daemon=True)
        self._open: dict[LogFiles, None] = {}  # least recently written first
        self._some_done = asyncio.Event()
        self._on_loop = on_loop
        self._at_thread = 0  # orders that it has, or whose outcome is on its way to the loop
        self._syncs_told = 0  # by the thread, with the files in use: outcomes of background syncs
        self._syncs_heard = 0  # by the loop
        self._here: list[tuple[OutcomeListener, Outcome, int]] = []  # written on the loop, and not told yet
        self._slow_until = 0.0
        # Around whatever is done with the files of a journal. The loop never waits for it
        self._files_in_use = threading.Lock()

    def start(self) -> None:
        self._thread.start()

    async def stop(self) -> None:
        """Carry out what is queued, then end the thread. Close the journals before, for their clean marks."""
        self._queue.put(None)
        self.unsealing.close()
        await asyncio.wait_for(asyncio.shield(self.died), STOP_DEADLINE_S)
        self._thread.join(STOP_DEADLINE_S)

    @property
    def has_room(self) -> bool:
        """False: the disk does not keep up; let producers wait until it does."""
        return self.pending_bytes < WRITER_PENDING_BYTES_MAX and self.pending_orders < WRITER_PENDING_ORDERS_MAX

    def gauges(self) -> dict[str, float]:
        """What waits, its bounds, and what journals keep in memory, by the names of metrics."""
        return {
            "writer_queue_bytes": self.pending_bytes,
            "writer_queue_bytes_max": WRITER_PENDING_BYTES_MAX,
            "writer_queue_orders": self.pending_orders,
            "writer_queue_orders_max": WRITER_PENDING_ORDERS_MAX,
            "frame_cache_bytes": self.caches.bytes,
        }

    async def room(self) -> None:
        """Wait until there is room. However many wait, none of them polls."""
        while not self.has_room:
            self._some_done.clear()
            await self._some_done.wait()

    def submit(self, log: LogFiles, journal: OutcomeListener, order: Order, nbytes: int = 0) -> None:
        """Loop only. The order is carried out after all that was submitted before it for that log."""
        self.pending_bytes += nbytes
        self.pending_orders += 1
        if not (self._on_loop and self._write_here(log, journal, order, nbytes)):
            self._at_thread += 1
            self._queue.put(_Job(log, journal, order, nbytes))

    # -------------------------------------------------------------- on the loop

    def _write_here(self, log: LogFiles, journal: OutcomeListener, order: Order, nbytes: int) -> bool:
        """Write it at once, if it is little and nothing is in the way. What came of it is told as after a round."""
        if self._at_thread or nbytes > LOOP_BYTES_MAX or len(self._here) >= LOOP_ORDERS_MAX:
            return False
        if not isinstance(order, Append) or self.died.done() or time.monotonic() < self._slow_until:
            return False
        if not self._files_in_use.acquire(blocking=False):
            return False
        try:
            if self.syncs.under_way or self._syncs_told != self._syncs_heard or not log.takes_at_once(order):
                return False
            began = time.monotonic()
            log.carry_out([order])
            if time.monotonic() - began > LOOP_SLOW_S:
                self._slow_until = time.monotonic() + LOOP_PAUSE_S
            wakes = self.syncs.is_empty
            self._note_written(log, journal)
            outcome = log.outcome()
            WRITER_BYTES.add(n=nbytes)
        finally:
            self._files_in_use.release()
        if wakes:
            self._queue.put(_Woken())  # it waits for nothing, and there is something to sync in a second
        if not self._here:
            self.loop.call_soon(self.tell)
        self._here.append((journal, outcome, nbytes))
        return True

    def tell(self) -> None:
        """Say now what came of what was written on the loop. Not from within a call of a journal."""
        here, self._here = self._here, []
        for journal, outcome, nbytes in here:
            self._settled([(journal, outcome)], 1, nbytes)

    def _deliver(self, outcomes: list[tuple[OutcomeListener, Outcome]], orders: int, nbytes: int) -> None:
        self._at_thread -= orders
        self._settled(outcomes, orders, nbytes)

    def _deliver_synced(self, outcomes: list[tuple[OutcomeListener, Outcome]]) -> None:
        self._syncs_heard += 1
        self._settled(outcomes, 0, 0)

    def _settled(self, outcomes: list[tuple[OutcomeListener, Outcome]], orders: int, nbytes: int) -> None:
        self.pending_orders -= orders
        self.pending_bytes -= nbytes
        if self.has_room:
            self._some_done.set()
        for journal, outcome in outcomes:
            journal.settle(outcome)

    def _ended(self, error: Exception | None) -> None:
        if self.died.done():
            return
        if error is None:
            self.died.set_result(None)
        else:
            self.died.set_exception(error)

    # -------------------------------------------------------------- on the thread

    def _run(self) -> None:
        try:
            self._rounds()
        except Exception as error:  # our own mistake, whatever it is: raised again on the loop, by `died`
            _logger.exception("the journal writer broke: nothing is flushed any more")
            self._post(self._ended, error)
        else:
            self._post(self._ended, None)

    def _rounds(self) -> None:
        while not self._round():
            pass

    def _round(self) -> bool:
        """Wait for something to do, do all that there is, and say what came of it. Whether it was the last round."""
        jobs, stopping = self._gather()
        with self._files_in_use:
            if jobs:
                with WRITER_ROUND.measuring():
                    outcomes = self._carry_out(jobs)
                WRITER_BYTES.add(n=sum(job.nbytes for job in jobs))
                self._post(self._deliver, outcomes, len(jobs), sum(job.nbytes for job in jobs))
            outcomes = self.syncs.finish() if stopping else self.syncs.work()
            if outcomes:
                self._syncs_told += 1
                self._post(self._deliver_synced, outcomes)
            self._keep_few_open()
        return stopping

    def _gather(self) -> tuple[list[_Job], bool]:
        """All that waits, up to the size of a round; waits for the first, but not past a background sync that is
        due."""
        jobs: list[_Job] = []
        nbytes = 0
        try:
            job = self._queue.get(timeout=self.syncs.wait_s)
            while job is not None:
                if isinstance(job, _Job):
                    jobs.append(job)
                    nbytes += job.nbytes
                    if nbytes >= ROUND_BYTES_MAX:
                        return jobs, False
                job = self._queue.get_nowait()
        except queue.Empty:
            return jobs, False
        return jobs, True

    def _carry_out(self, jobs: list[_Job]) -> list[tuple[OutcomeListener, Outcome]]:
        by_log: dict[LogFiles, list[Order]] = {}
        journals: dict[LogFiles, OutcomeListener] = {}
        for job in jobs:
            by_log.setdefault(job.log, []).append(job.order)
            journals[job.log] = job.journal
        for log, orders in by_log.items():
            log.carry_out(orders)
        for log in by_log:
            if log.closed:
                self.syncs.forget(log)
                self._open.pop(log, None)
                continue
            if log.sync_each_round:
                log.sync()
            self._note_written(log, journals[log])
        return [(journals[log], log.outcome()) for log in by_log]

    def _note_written(self, log: LogFiles, journal: OutcomeListener) -> None:
        """With the files in use, in either thread."""
        if log.dirty:
            self.syncs.add(log, journal)
        self._open.pop(log, None)
        self._open[log] = None

    def _keep_few_open(self) -> None:
        """Close the files of those least recently written. One that has something to sync keeps them until it has, and
        then those after it have too: so that many of them are not looked at in every round."""
        while len(self._open) > OPEN_LOGS_MAX:
            log = next(iter(self._open))
            del self._open[log]
            if not log.release():
                self._open[log] = None
                return

    def _post(self, callback: Callable[..., None], *args: object) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: there is nobody left to tell
            self.loop.call_soon_threadsafe(callback, *args)
