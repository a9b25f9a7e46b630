"""Consumes topics: records are pushed by the brokers as they are committed; nothing is polled for.

Alone, a consumer is given every record of its topics. In a group, each partition is given to one member at a time, and
the group's place is kept by the brokers: at least once, each record again if its member is gone before it was done
with. In a broadcast group each member is given every record that comes while it is there: at most once, and nothing is
kept for who is away.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from datetime import datetime
from types import TracebackType
from typing import Final

from mq_client.awaiting import AsyncBlock, Taken
from mq_client.cluster.connection import Connection
from mq_client.cluster.deadline import Deadline, positive_ms
from mq_client.cluster.listening import REFUSED_S
from mq_client.consuming.record_queue import ConsumerRecord, RecordQueue, Skipped
from mq_client.consuming.subscription import SetStart, Subscriptions
from mq_client.errors import InvalidRequest, InvalidSetting
from mq_client.interceptors import ConsumerInterceptor, incoming
from mq_client.producing.batches import to_timestamp_us
from mq_client.security import Security
from mq_client.serializers import Deserializer, deserializer_of, record_deserializer
from mq_protocol import limits
from mq_protocol import mq_pb2 as pb
from mq_protocol.names import check_group_name, check_member_id, check_topic_name, did_you_mean
from mq_protocol.queues.settings import MEMBER_PRIORITY_MAX

_BUFFER_BYTES: Final = 16 << 20
_SETTLE_MS: Final = 200.0

__all__ = ["Consumer", "ConsumerRecord", "RecordQueue", "Skipped"]


class Consumer(AsyncBlock):
    """Subscribes to topics and yields their records. Thread-safe: iterate it (`for`, or `async for`), or take from the
    queues of `records()`.

    A record is settled when the next one is asked for.

    - `start`: where to begin in a partition in which the group has no cursor, or always without a group: "latest",
      "earliest", an offset, or a datetime. An offset outside the log is moved to its nearer end, and a warning says
      so, once for a topic. Partitions that are added later are found within seconds, and begin at
      their first record.
    - `idle_ms`: iteration ends when no record has arrived for this time. None: only `stop` ends it.
    - `buffer_bytes_max`: bytes that each broker may have pushed and that were not taken yet. Consumers of one process
      that are in no group and at the same place share a stream; one that becomes too slow for that may hold twice as
      much for a while.
    - `settle_ms`: how often the group's cursor is sent to the brokers. `timeout_ms`: for each request.
    - `member_id`: the id of this consumer in its group, random unless given. While another live process has it,
      `MemberInUse` is raised after 20 s at most.
    - `broadcast`: instead of a group, a broadcast group. It begins at the end, also when its connection was broken:
      `skipped` counts what it has missed. `priority`, 0 to 31: while a member of a higher priority is there, this one
      is given nothing.
    - `ephemeral`: the group and its cursors are deleted 30 s after its last member has left. All members must agree
      on it: a member that says otherwise is refused when a partition is opened (`InvalidRequest`).
    - `key_deserializer`, `value_deserializer`: turn the bytes of a record into keys and values: "json", "string",
      "bytes", a callable, or a name of the entry point group `tritonmq.serializers`. serializers.py describes each.
    - `interceptors`: functions that each record goes through before it is handed out. interceptors.py describes them.
    - `healthy`: a function without arguments that says whether this program can work. It is asked once a second, in a
      thread of its own. While it answers False, raises, or has not answered for 5 s, nothing is handed out, and brokers
      are given no credit. In a group, the other members get its partitions after 3 s. It goes on after a True.

    Raises `InvalidSetting` for a value that is not allowed.
    """

    def __init__(
        self,
        bootstrap: str | Sequence[str],
        group: str | None = None,
        start: str | int | datetime = "latest",
        *,
        idle_ms: float | None = None,
        timeout_ms: float = limits.REQUEST_TIMEOUT_MS,
        buffer_bytes_max: int = _BUFFER_BYTES,
        settle_ms: float = _SETTLE_MS,
        member_id: str | None = None,
        ephemeral: bool = False,
        broadcast: str | None = None,
        priority: int = 0,
        key_deserializer: str | Deserializer | None = None,
        value_deserializer: str | Deserializer | None = None,
        interceptors: Sequence[str | ConsumerInterceptor] = (),
        healthy: Callable[[], object] | None = None,
        security: Security | None = None,
        forward: bool | None = None,
    ) -> None:
        if ephemeral and group is None:
            raise InvalidSetting("ephemeral=True is about a group: name one, or leave it out")
        _check_broadcast(broadcast, priority, group, start)
        if group is not None:
            check_group_name(group)
            check_member_id(member_id or "-")
        if buffer_bytes_max < 1:
            raise InvalidSetting(f"buffer_bytes_max={buffer_bytes_max} must be positive")
        self._idle_ms = None if idle_ms is None else positive_ms("idle_ms", idle_ms)
        self._timeout_ms = positive_ms("timeout_ms", timeout_ms)
        self._connection = Connection(bootstrap, refused_s=REFUSED_S, security=security, forward=forward)
        self._subscriptions = Subscriptions(
            self._connection,
            group or "",
            member_id or uuid.uuid4().hex,
            _start_of(start),
            positive_ms("settle_ms", settle_ms) / 1000,
            buffer_bytes_max,
            ephemeral=ephemeral,
            broadcast=broadcast or "",
            priority=priority,
            healthy=healthy,
        )
        self._subscriptions.deserialize = incoming(
            interceptors,
            record_deserializer(
                deserializer_of("key_deserializer", key_deserializer),
                deserializer_of("value_deserializer", value_deserializer),
            ),
        )
        self._running = False
        self._stopped = False
        self._turn = 0

    # ------------------------------------------------------------------ what to consume

    def subscribe(self, topics: str | Iterable[str]) -> None:
        """Consume these too, from now on. On a started consumer it returns once every partition has been opened, so
        that what is published after it is delivered. Raises `UnknownTopic` with the nearest name, and subscribes to
        none then.
        """
        names = [topics] if isinstance(topics, str) else list(topics)
        for name in names:
            check_topic_name(name)
        self._check_not_stopped()
        deadline = Deadline(self._timeout_ms)
        # As it is now, and not a moment ago: partitions that turn up later count as added.
        views = [self._connection.refresh(name, deadline, age_ms_max=0, auto_create=True) for name in names]
        for view in views:
            self._subscriptions.add(view)
        if self._running:
            self._subscriptions.wait_opened(names, deadline)

    def unsubscribe(self, topics: str | Iterable[str]) -> None:
        """Consume these no longer. What was pushed and not taken is dropped; a group's place stays."""
        for name in [topics] if isinstance(topics, str) else list(topics):
            self._subscriptions.remove(name)

    def subscription(self) -> frozenset[str]:
        """The topics subscribed to; not one that has ended with an error (deleted, say), which can be subscribed to
        anew."""
        with self._subscriptions.changed:
            return frozenset(self._subscriptions.views)

    @property
    def skipped(self) -> Skipped:
        """In a broadcast group: how many records this member was not given of those that came since it was there first.
        Those that came while it stood by for a member of a higher priority are not counted."""
        with self._subscriptions.changed:
            return self._subscriptions.skipped

    # ------------------------------------------------------------------ running

    def start(self) -> None:
        """Open the subscriptions; returns once every partition has been opened. A second call does nothing.

        Raises `OutcomeUnknown` naming the partitions that did not answer within `timeout_ms`.
        """
        self._check_not_stopped()
        if self._running:
            return
        self._running = True
        topics = self.subscription()
        self._subscriptions.begin()
        self._subscriptions.wait_opened(topics, Deadline(self._timeout_ms))

    def stop(self, timeout_ms: float | None = None) -> None:
        """Settle what was handed out, and end. A second call does nothing; a stopped consumer cannot be started
        again."""
        self._stop(timeout_ms, last_is_done=True)

    def _stop(self, timeout_ms: float | None, *, last_is_done: bool) -> None:
        self._stopped = True
        deadline = Deadline(self._timeout_ms if timeout_ms is None else positive_ms("timeout_ms", timeout_ms))
        self._subscriptions.stop(deadline, last_is_done=last_is_done)

    # ------------------------------------------------------------------ records

    def records(self) -> dict[str, RecordQueue]:
        """`{topic: queue of ConsumerRecord}`, of what is subscribed now."""
        with self._subscriptions.changed:
            return dict(self._subscriptions.queues)

    def take(self, timeout_ms: float | None = None) -> ConsumerRecord | None:
        """The next record of any topic, waiting up to `timeout_ms` (None: until stopped). None if none came.

        Raises the error that ended a topic's subscription, once its records have been taken; `NotDeserialized` for a
        record that the deserializers cannot read, behind which the next call goes on.
        """
        record, deserialize = self._take(timeout_ms), self._subscriptions.deserialize
        return record if record is None or deserialize is None else deserialize(record)

    def _take(self, timeout_ms: float | None) -> ConsumerRecord | None:
        if not self._running:
            self.start()
        changed = self._subscriptions.changed
        deadline = None if timeout_ms is None else time.monotonic() + timeout_ms / 1000
        with changed:
            while True:
                record = self._take_any()
                if record is not None or self._stopped:
                    return record
                wait = None if deadline is None else deadline - time.monotonic()
                if wait is not None and not wait > 0:  # NaN has passed as well
                    return None
                # Bounded, so that a signal is seen in the main thread.
                changed.wait(threading.TIMEOUT_MAX if wait is None else min(wait, threading.TIMEOUT_MAX))

    def _take_any(self) -> ConsumerRecord | None:
        """Topics in turn, so that a busy one does not starve the others."""
        queues = list(self._subscriptions.queues.values())
        for waiting in queues:
            waiting.done_with_last()
        for step in range(len(queues)):
            chosen = queues[(self._turn + step) % len(queues)]
            record = chosen.take()
            if record is not None:
                self._turn += step + (1 if chosen.at_batch_end else 0)
                return record
        for waiting in queues:
            if waiting.error is not None:
                raise waiting.error
        return None

    def __iter__(self) -> Iterator[ConsumerRecord]:
        """Records as they come, until `stop`, or until nothing has come for `idle_ms`."""
        while (record := self.take(self._idle_ms)) is not None:
            yield record

    def __aiter__(self) -> AsyncIterator[ConsumerRecord]:
        """As `__iter__`, for a program of asyncio: who waits holds up no thread, and who is cancelled meanwhile has
        taken no record."""
        idle_s = None if self._idle_ms is None else self._idle_ms / 1000
        return Taken(self._subscriptions.changed, self.start, self._take_deserialized, lambda: self._stopped, idle_s)

    def _take_deserialized(self) -> ConsumerRecord | None:
        record, deserialize = self._take_any(), self._subscriptions.deserialize
        return record if record is None or deserialize is None else deserialize(record)

    def __enter__(self) -> Consumer:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # A block that failed did not finish its record: in a group it is given again.
        self._stop(None, last_is_done=error is None)

    def _check_not_stopped(self) -> None:
        if self._stopped:
            raise InvalidRequest("consumer is stopped: make a new one")


def _check_broadcast(broadcast: str | None, priority: int, group: str | None, start: object) -> None:
    """Raises `InvalidSetting` for what does not go together."""
    if broadcast is None:
        if priority != 0:
            raise InvalidSetting(
                f"priority={priority!r} is about a broadcast group: name one (broadcast=), or leave it out; members of "
                "a work queue have one too (Queue)"
            )
        return
    check_group_name(broadcast)
    if group is not None:
        raise InvalidSetting(
            f"group={group!r} and broadcast={broadcast!r}: a group shares the records and has a place, a broadcast "
            "group gives each member all that comes: give one of the two"
        )
    if start != "latest":
        raise InvalidSetting(
            f"start={start!r}: a member of a broadcast group is given what comes while it is there, and nothing of "
            "before: leave start out, or consume without broadcast"
        )
    if type(priority) is not int or not 0 <= priority <= MEMBER_PRIORITY_MAX:
        raise InvalidSetting(
            f"priority={priority!r} is not allowed: give a whole number from 0 to {MEMBER_PRIORITY_MAX}"
        )


def _start_of(start: str | int | datetime) -> SetStart:
    """Raises `InvalidSetting` for a start that is none."""
    if isinstance(start, datetime):
        timestamp_us = to_timestamp_us(start)

        def at_time(request: pb.SubscribePartition) -> None:
            request.timestamp_us = timestamp_us

        return at_time
    if isinstance(start, int) and start >= 0:

        def at_offset(request: pb.SubscribePartition) -> None:
            request.offset = start

        return at_offset
    match start:
        case "earliest":
            return _at_earliest
        case "latest":
            return _at_latest
        case _:
            hint = did_you_mean(str(start), ("earliest", "latest"))
            raise InvalidSetting(
                f"start={start!r} is not known{hint or ':'} give 'earliest', 'latest', an offset or a datetime"
            )


def _at_earliest(request: pb.SubscribePartition) -> None:
    request.earliest = True


def _at_latest(request: pb.SubscribePartition) -> None:
    request.latest = True
