"""Reads the rows of what was lent, in a thread of its own: a partition whose rows are slow to come holds up neither
outcomes nor extensions."""

from __future__ import annotations

import threading
from typing import Final

from mq_client.cluster.connection import TopicView
from mq_client.cluster.deadline import Backoff
from mq_client.consuming.slices import StoredSlice
from mq_client.errors import InternalError, OffsetOutOfRange, TritonMQError, UnknownTopic
from mq_client.queueing.keeper import Keeper
from mq_client.queueing.leases import DONE, HeldLease, Indexes
from mq_client.queueing.offsets import spans
from mq_client.queueing.settling import failed
from mq_client.queueing.shelf import Rows, rows_of
from mq_client.reader import Reader

_GAP_MAX: Final = 256
"""Records that are read and left out rather than asked for separately."""

_TIMEOUT_MS: Final = 5_000.0
"""For one attempt: then another lease's rows get their turn."""

_LOOK_S: Final = 1.0


class RowReader:
    """Owns the thread. It ends with the keeper's."""

    def __init__(self, keeper: Keeper) -> None:
        self._keeper = keeper
        self._reader = Reader(keeper.connection, _TIMEOUT_MS)
        self._backoff = Backoff()
        self._thread: threading.Thread | None = None

    def ensure_started(self) -> None:
        """Under the keeper's lock."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="tritonmq-queue-rows", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        keeper = self._keeper
        try:
            while (found := self._next()) is not None:
                self._read(*found)
        except BaseException as error:
            with keeper.lock:
                keeper.fail(InternalError(f"the queue's reading thread failed ({type(error).__name__}: {error})"))
            raise

    def _next(self) -> tuple[HeldLease, int] | None:
        """The next lease to read, and the place from which on. None at the end."""
        keeper, holdings = self._keeper, self._keeper.holdings
        with keeper.lock:
            holdings.reading = False
            keeper.wake()  # it may have waited for more to come of this
            while not keeper.over:
                if holdings.unread:
                    holdings.reading = True
                    return holdings.unread.popleft()
                keeper.unread.wait(_LOOK_S)
            return None

    def _read(self, lease: HeldLease, first: int) -> None:
        """Put the rows on the shelf. What could not be read now is tried again behind the others."""
        keeper, topic = self._keeper, self._keeper.terms.topic
        with keeper.lock:
            wanted = lease.waiting()
        wanted = wanted[wanted >= first]
        view = keeper.connection.known_topic(topic)
        upto = first
        try:
            for start, end in spans(lease.offsets[wanted], _GAP_MAX):
                for piece in self._reader.read_stored(topic, lease.partition, start, end):
                    upto = self._shelve(lease, piece, view)
        except TritonMQError as error:
            self._not_read(lease, upto, error)
        else:
            self._backoff.reset()

    def _shelve(self, lease: HeldLease, piece: StoredSlice, view: TopicView | None) -> int:
        """The place behind the last that is on the shelf now."""
        keeper = self._keeper
        now = keeper.connection.known_topic(keeper.terms.topic)
        if view is None or now is None or now.topic_id != keeper.topic_id:
            raise UnknownTopic(f"topic {keeper.terms.topic!r} was deleted while its records were read")
        first, batch = rows_of(lease, piece.base_offset, piece.batch)
        with keeper.lock:
            if batch.num_rows and not keeper.closing:
                each = piece.sent_bytes / max(1, piece.batch.num_rows)
                keeper.note_size(lease, each)
                keeper.holdings.put(Rows(lease, first, batch, piece.timestamp_us, keeper.terms.topic, now.typed))
                keeper.changed.notify_all()
        return first + int(batch.num_rows)

    def _not_read(self, lease: HeldLease, upto: int, error: TritonMQError) -> None:
        keeper = self._keeper
        wait_s = 0.0
        with keeper.lock:
            left = lease.waiting()
            left = left[left >= upto]
            if keeper.closing or not len(left):
                return
            if isinstance(error, OffsetOutOfRange) and error.next_offset >= 0:
                # Dropped by retention or a purge, which settles them
                dropped: Indexes = left[lease.offsets[left] < error.next_offset]
                keeper.drop(lease, dropped if len(dropped) else left, DONE)
                keeper.holdings.unread.appendleft((lease, upto))
            elif error.retriable:
                wait_s = self._backoff.next_ms() / 1000
                keeper.holdings.read_later(lease, upto)
            elif isinstance(error, UnknownTopic):
                keeper.fail(error)
            elif keeper.terms.accept:
                keeper.drop(lease, left, DONE)
                keeper.fail(error)
            else:
                keeper.say(lease, left, failed(f"cannot be read: {error}"))
            if wait_s:
                keeper.unread.wait(wait_s)
