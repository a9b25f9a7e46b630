"""Works off a topic as a queue: records are lent to this member, worked on in any order, and settled one by one."""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import threading
import time
import uuid
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Final, Literal, TypeVar

from mq_client.cluster.connection import Connection, TopicView
from mq_client.cluster.deadline import Backoff, Deadline, a_number, positive_ms
from mq_client.cluster.listening import REFUSED_S
from mq_client.cluster.loop import this_process
from mq_client.consuming.record_queue import ConsumerRecord
from mq_client.consuming.slices import StoredSlice
from mq_client.errors import (
    InternalError,
    InvalidRequest,
    InvalidSetting,
    NotDeserialized,
    OffsetOutOfRange,
    TritonMQError,
    UnknownTopic,
)
from mq_client.producing.staging import Stager
from mq_client.queueing.administration import ensure_declared, peek, pop
from mq_client.queueing.holdings import Credit, Terms
from mq_client.queueing.keeper import Keeper
from mq_client.queueing.leases import DONE, HeldLease, Indexes, spans
from mq_client.queueing.outputs import Outputs
from mq_client.queueing.records import LeasedBatch, LeasedRecord
from mq_client.queueing.settling import failed
from mq_client.queueing.shelf import Rows, rows_of
from mq_client.reader import Reader
from mq_client.security import Security
from mq_client.serializers import Deserializer, deserializer_of, record_deserializer
from mq_protocol import limits
from mq_protocol import mq_pb2 as pb
from mq_protocol.names import check_group_name, check_member_id, check_topic_name
from mq_protocol.queues.settings import MEMBER_PRIORITY_MAX

_KEY_BYTES: Final = 32
_LEASE_MS_MIN, _LEASE_MS_MAX = 1_000, 12 * 3_600_000
_EXIT_MS: Final = 2_000.0
"""How long the end of the process waits for queues that were left open."""

log = logging.getLogger(__name__)

T = TypeVar("T")

_opened: weakref.WeakSet[Keeper] = weakref.WeakSet()

__all__ = ["LeasedBatch", "LeasedRecord", "Queue"]


class Queue:
    """One member of a queue group. Thread-safe: several threads may take records of one `Queue`.

        with Queue(bootstrap, "jobs", "workers") as queue:
            for record in queue:
                with record:
                    work_on(record.value)

    The members of a group are lent different records, whatever the number of partitions. A record stays lent until it
    has an outcome or its lease runs out; then it is lent again, to any member: at least once. If the group is not
    declared yet, it is, with the default settings, and begins at the topic's first record. One line is logged then: a
    warning if another queue of the topic has nearly the same name.

    - `in_flight_max`, `in_flight_bytes_max`: what this member may hold at once, over all partitions, what waits in its
      buffer included. With 1 it is lent a record when the one before has its outcome. One record may be larger.
    - `working`: how many records the application works on at a time. If the process ends without a word, so many of its
      records count as failed in each partition, and the rest does not; in order, the first record of each key.
    - `priority`: 0 to 31. While a member of a higher one is there, lower ones are lent nothing, or with the group's
      setting `spill` what is left once those of a higher one have as many records as they may hold.
    - `filter`: this member is lent what matches, such as "carrier = 'UA' AND delay > 60"; of records without columns
      `key` and `timestamp` can be compared. The rest waits for others. Only where the group's order is none.
    - `ack`: "explicit", or "auto": a record is settled by being lent, so it is delivered at most once.
    - `lease_ms`: how long one record may be worked on before it is lent to others, 1 s to 12 h; None: as the group
      says. The time runs from when the record is handed out, or from `extend()`.
    - `member_id`: the name of this member in its group, random unless given. One live process may have it: where
      another takes it, the older one is told `MemberInUse`, and what it holds is given back.
    - `idle_ms`: iteration ends when no record has come for this time. None: only `close` ends it.
    - `timeout_ms`: for opening, for `pop`, `peek` and `close`.
    - `key_deserializer`, `value_deserializer`: as `Consumer`'s. They do not change the rows of `batches()`.

    Changes of leaders are survived: what is held stays held, and outcomes without an answer are sent again for as long
    as the queue is open. Raises `InvalidSetting`, `InvalidRequest` for a value that is not allowed.
    """

    def __init__(
        self,
        bootstrap: str | Sequence[str],
        topic: str,
        group: str,
        *,
        in_flight_max: int = 1_000,
        in_flight_bytes_max: int = 16 << 20,
        working: int = 1,
        priority: int = 0,
        filter: str | None = None,  # noqa: A002
        ack: Literal["explicit", "auto"] = "explicit",
        lease_ms: int | None = None,
        member_id: str | None = None,
        idle_ms: float | None = None,
        timeout_ms: float = limits.REQUEST_TIMEOUT_MS,
        key_deserializer: str | Deserializer | None = None,
        value_deserializer: str | Deserializer | None = None,
        security: Security | None = None,
        forward: bool | None = None,
    ) -> None:
        check_topic_name(topic)
        check_group_name(group)
        if member_id is not None:
            check_member_id(member_id)
        credit = Credit(
            _positive("in_flight_max", in_flight_max), _positive("in_flight_bytes_max", in_flight_bytes_max)
        )
        if ack not in ("explicit", "auto"):
            raise InvalidSetting(f"ack={ack!r} is not known: give 'explicit' or 'auto'")
        if lease_ms is not None and not _LEASE_MS_MIN <= a_number("lease_ms", lease_ms) <= _LEASE_MS_MAX:
            raise InvalidSetting(f"lease_ms={lease_ms}: give milliseconds from {_LEASE_MS_MIN} to {_LEASE_MS_MAX}")
        self.topic, self.group, self.member_id = topic, group, member_id or uuid.uuid4().hex
        self._timeout_ms = positive_ms("timeout_ms", timeout_ms)
        self._idle_ms = None if idle_ms is None else positive_ms("idle_ms", idle_ms)
        self._deserialize = record_deserializer(
            deserializer_of("key_deserializer", key_deserializer),
            deserializer_of("value_deserializer", value_deserializer),
            "settle it by `error.record.reject()` and take the next one, or it is lent again once its lease runs out",
        )
        self._connection = Connection(bootstrap, refused_s=REFUSED_S, security=security, forward=forward)
        terms = Terms(
            topic,
            group,
            self.member_id,
            os.urandom(_KEY_BYTES),
            credit,
            _positive("working", working),
            lease_ms or 0,
            ack == "auto",
            _priority(priority),
            _filter(filter),
        )
        self._keeper = Keeper(self._connection, terms)
        self._rows = RowReader(self._keeper, Reader(self._connection, _ROWS_TIMEOUT_MS))
        self._opening = threading.Lock()
        self._in_hand = threading.local()
        self._stager: Stager | None = None
        weakref.finalize(self, _give_back, self._keeper).atexit = False

    # ------------------------------------------------------------------ being lent records

    def take(self, timeout_ms: float | None = None) -> LeasedRecord | None:
        """The next record, waiting up to `timeout_ms` (None: until closed). None if none came.

        Raises what ended the queue: `UnknownQueue` if its group was deleted, `WrongGroupKind` if the group reads the
        topic as a stream, `UnknownTopic`, `IncompatibleVersion`. Raises `NotDeserialized` for a record that the
        deserializers cannot read; its `record` is lent, and has no outcome yet.
        """
        keeper = self._open()
        with keeper.lock:
            found = self._wait(timeout_ms, lambda: keeper.holdings.shelf.take())
            if found is None:
                return None
            held, index, record = found
            if keeper.terms.accept:
                keeper.holdings.finish(held, index)
            else:
                held.begin(index)
            keeper.want_more()
        leased = LeasedRecord.of(record, keeper, held, index)
        self._in_hand.record = leased
        return leased if self._deserialize is None else self._deserialized(leased)

    def __iter__(self) -> Iterator[LeasedRecord]:
        """Records as they come, until `close`, or until none has come for `idle_ms`."""
        while (record := self.take(self._idle_ms)) is not None:
            yield record

    def batches(self, max_records: int = 1_000) -> Iterator[LeasedBatch]:
        """Rows as they come, as many together as wait here of one lease, up to `max_records`. Ends as iteration does.

        The application counts as working on a whole batch: see `working`. Give the queue twice `in_flight_max`, so
        that the next rows are fetched meanwhile.
        """
        rows_max = _positive("max_records", max_records)
        while (batch := self._take_batch(rows_max)) is not None:
            yield batch

    def _take_batch(self, rows_max: int) -> LeasedBatch | None:
        keeper = self._open()
        with keeper.lock:
            working = min(rows_max, keeper.terms.credit.records)
            if working > keeper.terms.working:
                keeper.terms = replace(keeper.terms, working=working)
                keeper.wake()
            lent = self._wait(self._idle_ms, lambda: keeper.holdings.shelf.take_rows(rows_max))
            if lent is None:
                return None
            if keeper.terms.accept:
                keeper.holdings.end(lent.lease, lent.indexes, DONE)
            else:
                lent.lease.begin_all(lent.indexes)
            keeper.want_more()
        return LeasedBatch(keeper, lent.lease, lent.indexes, lent.rows)

    def pop(self, n: int = 1) -> list[ConsumerRecord]:
        """Up to `n` records that are ready now, settled by being taken: at most once. Waits for none. What this member
        holds already is not among them."""
        self._check_not_closed()
        self._open()
        return pop(
            self._connection,
            self.topic,
            self.group,
            _positive("n", n),
            Deadline(self._timeout_ms),
            self._deserialize,
            self._keeper.terms.filter,
        )

    def outputs(self) -> Outputs:
        """What is to be published with the next `ack`, empty so far: both happen, or neither.

        outputs = queue.outputs()
        outputs.publish("done", result, key=record.key)
        record.ack(outputs=outputs)
        """
        self._check_not_closed()
        self._open()
        with self._opening:
            if self._stager is None:
                self._stager = Stager(self._connection, self._timeout_ms)
        return Outputs(self._stager, self._timeout_ms)

    def peek(self, n: int = 10) -> list[ConsumerRecord]:
        """Up to `n` records that are ready, by partition and offset. Nothing is lent or counted."""
        self._check_not_closed()
        self._open()
        found = peek(
            self._connection, self.topic, self.group, _positive("n", n), pb.RECORD_READY, Deadline(self._timeout_ms)
        )
        return found if self._deserialize is None else [self._deserialize(record) for record in found]

    def _wait(self, timeout_ms: float | None, take: Callable[[], T | None]) -> T | None:
        """What `take` finds, under the keeper's lock; None once the time is over or the queue closed."""
        keeper = self._keeper
        ends = None if timeout_ms is None else time.monotonic() + timeout_ms / 1000
        while True:
            if keeper.closing:
                return None
            if keeper.error is not None:
                raise keeper.error
            found = take()
            if found is not None:
                return found
            keeper.want_more()  # nothing waits any more
            wait = threading.TIMEOUT_MAX if ends is None else ends - time.monotonic()
            if not wait > 0:  # NaN has passed as well
                return None
            keeper.changed.wait(min(wait, threading.TIMEOUT_MAX))

    def configure(
        self,
        *,
        in_flight_max: int | None = None,
        filter: str | None = None,  # noqa: A002
        priority: int | None = None,
    ) -> None:
        """Change how this member is lent records from now on; what is not given stays as it is. What it holds already
        stays its own.

        `in_flight_max`: 0 pauses it; records on their way still come. `filter`: "" for none. Raises `InvalidSetting`
        for a value that is not allowed. A filter that does not fit the topic ends the queue, as when it is opened.
        """
        self._check_not_closed()
        keeper = self._keeper
        with keeper.lock:
            terms = keeper.terms
            if in_flight_max is not None:
                records = 0 if in_flight_max == 0 else _positive("in_flight_max", in_flight_max)
                terms = replace(terms, credit=replace(terms.credit, records=records))
            if filter is not None:
                terms = replace(terms, filter=_filter(filter or None))
            if priority is not None:
                terms = replace(terms, priority=_priority(priority))
            keeper.terms = terms
            keeper.wake()

    @property
    def active(self) -> bool:
        """Whether this member is lent records. With the group's setting `order=all` one member of each partition is,
        and the others wait until it has gone: True if this one is it somewhere."""
        return self._keeper.active

    # ------------------------------------------------------------------ opening and closing

    def _open(self) -> Keeper:
        """The keeper, at work. Declares the group if it is not declared. Raises what the cluster says to that."""
        keeper = self._keeper
        keeper.check_process()
        if keeper.started or keeper.closing:
            return keeper
        with self._opening:
            if not keeper.started and not keeper.closing:
                deadline = Deadline(self._timeout_ms)
                view = self._connection.topic(self.topic, deadline, auto_create=True)
                ensure_declared(self._connection, self.topic, self.group, deadline)
                with keeper.lock:
                    keeper.ensure_started(view.topic_id, this_process())
                    self._rows.ensure_started()
                _opened.add(keeper)
        return keeper

    def close(self, timeout_ms: float | None = None) -> None:
        """Give back what has no outcome, which is not charged, and return once all outcomes are committed, or after
        `timeout_ms` (None: the queue's). The futures of outcomes that are not known by then end with `OutcomeUnknown`.
        A second call does nothing."""
        self._keeper.check_process()
        deadline = Deadline(self._timeout_ms if timeout_ms is None else positive_ms("timeout_ms", timeout_ms))
        in_hand = self._keeper.close_soon(deadline)
        if in_hand:
            log.warning(
                "topic %s: queue %s was closed while %d of its records were handed out and had no outcome: they are "
                "given back, and lent again; settle each record before the queue is closed",
                self.topic,
                self.group,
                in_hand,
            )
        self._keeper.join()
        with self._opening:
            stager, self._stager = self._stager, None
        if stager is not None:
            stager.close()

    def __enter__(self) -> Queue:
        self._check_not_closed()
        self._open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """An error that leaves the block fails the record that this thread took last, if it has no outcome."""
        record: LeasedRecord | None = getattr(self._in_hand, "record", None)
        if record is not None and error is not None:
            record.fails_with(error)
        self.close()

    def _check_not_closed(self) -> None:
        if self._keeper.closing:
            raise InvalidRequest(f"this queue {self.group!r} of topic {self.topic!r} was closed: open another one")

    def _deserialized(self, leased: LeasedRecord) -> LeasedRecord:
        assert self._deserialize is not None
        try:
            return leased.with_fields(self._deserialize(leased))
        except NotDeserialized as error:
            error.record = leased
            raise


def _positive(name: str, value: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 < value < 1 << 31:
        raise InvalidSetting(f"{name}={value!r}: give a whole number from 1 to {(1 << 31) - 1}")
    return value


def _priority(value: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MEMBER_PRIORITY_MAX:
        raise InvalidSetting(f"priority={value!r}: give a whole number from 0 to {MEMBER_PRIORITY_MAX}")
    return value


def _filter(text: str | None) -> str:
    """Whether it fits the topic is the leaders' to say."""
    if text is None:
        return ""
    if not isinstance(text, str) or not text.strip():
        raise InvalidSetting(f"filter={text!r}: give comparisons as text, or None for no filter")
    if len(text) > limits.FILTER_CHARACTERS_MAX:
        raise InvalidSetting(f"filter has {len(text)} characters: at most {limits.FILTER_CHARACTERS_MAX} are allowed")
    return text


def _give_back(keeper: Keeper) -> None:
    """Of a queue that was neither closed nor kept: its records are not to be held for ever."""
    with contextlib.suppress(InvalidRequest):
        keeper.check_process()
        keeper.close_soon(Deadline(_EXIT_MS))


@atexit.register
def _close_all() -> None:
    """What a process that ends has not begun must not count as failed."""
    keepers = list(_opened)
    for keeper in keepers:
        _give_back(keeper)
    for keeper in keepers:
        keeper.join()


_GAP_MAX: Final = 256
"""Records that are read and left out rather than asked for separately."""

_ROWS_TIMEOUT_MS: Final = 5_000.0
"""For one attempt: then another lease's rows get their turn."""

_LOOK_S: Final = 1.0


class RowReader:
    """Owns the thread. It ends with the keeper's."""

    def __init__(self, keeper: Keeper, reader: Reader) -> None:
        self._keeper = keeper
        self._reader = reader
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
