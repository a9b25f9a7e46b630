"""All that the data source asks of the brokers, on top of mq_client. Owns this process's clients.

Spark's Python workers are kept and swap roles, and some are forked: clients are made on first use, kept at module level
and keyed by process id, so that a micro-batch finds those of the one before and a fork makes its own.
"""

from __future__ import annotations

import logging
import math
import os
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias

from mq_client.cluster.client import Client
from mq_client.cluster.connection import Connection, TopicView, parse_bootstrap
from mq_client.cluster.deadline import Deadline
from mq_client.cluster.offset_watch import OffsetWatch
from mq_client.cluster.requests import ask_offsets, measure_spans, move_cursors, topic_with
from mq_client.reader import Reader
from mq_protocol.errors import TritonMQError
from mq_protocol.manifest import StagedPart
from mq_protocol.names import INTERNAL_PREFIX
from mq_spark.datasource.schemas import StoredRows, Topic
from mq_spark.datasource.securing import on_this_machine
from mq_spark.datasource.worker import WORKER
from mq_spark.planning.offsets import OffsetRange, Size
from mq_spark.planning.option_values import ByPartition
from mq_spark.planning.positions import AllBounds, Bounds, Found

if TYPE_CHECKING:
    from mq_client.security import Security
    from mq_client.transactions import Stage, TransactionClient
    from mq_spark.datasource.leasing import Leasing
    from mq_spark.datasource.staging import MicroBatch
    from mq_spark.planning.lease_options import LeaseOptions
    from mq_spark.planning.security_options import SecurityOptions

log = logging.getLogger(__name__)


_REPORT_TIMEOUT_MS: Final = 5_000
_LAST_REPORT_SECONDS: Final = 1.0
_GROUP_KIND: Final = "spark"
_LABELS_MAX: Final = 1_000


class Reached(Protocol):
    """Says how a cluster is reached, as a source's options and a sink's do."""

    @property
    def bootstrap(self) -> str: ...
    @property
    def timeout_ms(self) -> int: ...
    @property
    def security(self) -> SecurityOptions | None: ...
    @property
    def forward(self) -> bool: ...


_lock = threading.Lock()
_clusters: dict[tuple[int, Client, int, str, str], Cluster] = {}


def connect(options: Reached, read_from: str = "leader", rack: str = "") -> Cluster:
    """This process's view of the cluster, at the beginning of each piece of work. Connects when it is first asked for
    something.

    `read_from`, `rack`: as a `Reader`'s. Raises `InvalidSetting` for certificates that this machine does not have."""
    WORKER.begins()
    bootstrap, timeout_ms = options.bootstrap, options.timeout_ms
    security = on_this_machine(options.security)
    key = (
        os.getpid(),
        Client(parse_bootstrap(bootstrap), security, forward=options.forward),
        timeout_ms,
        read_from,
        rack,
    )
    with _lock:
        found = _clusters.get(key)
        if found is None:
            found = _clusters[key] = Cluster(bootstrap, timeout_ms, read_from, rack, security, options.forward)
        return found


class Cluster:
    """Owns the clients of one bootstrap address list. Each question ends within `timeout_ms`, retries included."""

    def __init__(
        self,
        bootstrap: str,
        timeout_ms: int,
        read_from: str = "leader",
        rack: str = "",
        security: Security | None = None,
        forward: bool = False,
    ) -> None:
        self._timeout_ms = timeout_ms
        self._connection = Connection(bootstrap, security=security, forward=forward, from_environment=False)
        self._reader = Reader(self._connection, timeout_ms, read_from=read_from, rack=rack)
        self._reporter = Reporter(self._move_cursors)
        self._labels: dict[str, str] = {}  # of the groups that were reported last

    # -------------------------------------------------------------- what there is

    def topic(self, name: str, topic_id: str | None = None) -> Topic:
        """The topic as it is now, or as last heard of if that has `topic_id`: a worker that is kept may remember one
        that was deleted and made again. Raises `UnknownTopic` with the nearest name, `Unreachable`.
        """
        known = self._connection.known_topic(name)
        if known is not None and known.topic_id == topic_id:
            return _topic(known)
        return _topic(self._connection.refresh(name, self._deadline()))

    def topic_that_fits(self, name: str, check: Callable[[Topic], object], *, age_s_max: float = math.inf) -> Topic:
        """As `topic`, asked for again for about a second while `check` raises `SchemaMismatch` of it: columns may have
        just been added, and brokers learn of that at their own pace. Raises what `check` raised last, `UnknownTopic`,
        `Unreachable`.

        `age_s_max`: what was heard of the topic longer ago is asked for again.
        """

        def checked(view: TopicView) -> object:
            return check(_topic(view))

        return _topic(topic_with(self._connection, name, (), self._deadline(), check=checked, age_s_max=age_s_max))

    @property
    def or_no_right(self) -> str:
        """As `Connection.or_no_right`."""
        return self._connection.or_no_right

    def topic_names(self) -> list[str]:
        """Of all topics but the brokers' own, sorted. Raises `Unreachable`."""
        found = self._connection.metadata(self._deadline(), all_topics=True).topics
        return sorted(topic.name for topic in found if not topic.name.startswith(INTERNAL_PREFIX))

    def bounds(self, topics: Iterable[str], partitions: Mapping[str, Collection[int]] | None = None) -> AllBounds:
        """What the topics keep (of one in `partitions`: those only), asked of every partition's leader now, those that
        have just been added included.
        """
        found: dict[str, dict[int, Bounds]] = {}
        for topic in topics:
            # What was told a moment ago lacks those just added
            self._connection.refresh(topic, self._deadline(), age_ms_max=0)
            found[topic] = _bounds_of(self._connection, topic, (partitions or {}).get(topic), self._deadline())
        return found

    def topic_ids(self, topics: Iterable[str]) -> dict[str, str]:
        """Of the topics, as they were last heard of: `bounds` asks anew, and a `watch` every few seconds."""
        known = {name: self._connection.known_topic(name) for name in topics}
        return {name: view.topic_id for name, view in known.items() if view is not None}

    def watch(self, topics: Iterable[str], partitions: Mapping[str, Iterable[int]] | None = None) -> Watch:
        """What the topics keep, as the brokers push it from now on."""
        return Watch(OffsetWatch(self._connection, topics, partitions), self._timeout_ms)

    def find_times(self, times_us: ByPartition) -> Found:
        """Each partition's first offset at or after a time, by the brokers' clocks when they appended; None where all
        is older."""
        found: dict[str, dict[int, int | None]] = {}
        for topic, inner in times_us.items():
            found[topic] = {}
            for time_us in sorted(set(inner.values())):
                numbers = [number for number, wanted in inner.items() if wanted == time_us]
                asked = ask_offsets(self._connection, topic, self._deadline(), partitions=numbers, timestamp_us=time_us)
                for number in numbers:
                    offset = asked[number].offset_at_timestamp
                    found[topic][number] = offset if offset < asked[number].log_end_offset else None
        return found

    def measure(self, parts: Iterable[tuple[OffsetRange, int]]) -> Iterator[tuple[OffsetRange, Size, int]]:
        """Each range's stored bytes, and the end that so many bytes reach."""
        spans: dict[str, dict[int, tuple[OffsetRange, int]]] = {}
        for part, bytes_max in parts:
            spans.setdefault(part.topic, {})[part.partition] = part, bytes_max
        for topic, inner in spans.items():
            asked = {number: (part.start, part.end, bytes_max) for number, (part, bytes_max) in inner.items()}
            for number, measured in measure_spans(self._connection, topic, asked, self._deadline()).items():
                yield inner[number][0], Size(measured.first_bytes, measured.bytes), measured.end_offset

    # -------------------------------------------------------------- reading

    def fetch(self, part: OffsetRange, topic_id: str, columns: Sequence[str], filter_text: str) -> Iterator[StoredRows]:
        """The range's rows as they are stored, those columns, and of a filter's only those that it keeps. Raises
        `OffsetOutOfRange` for what is no longer kept, `UnknownTopic` if the topic is gone or another has its name.
        """
        pieces = self._reader.read_stored(
            part.topic, part.partition, part.start, part.end, columns=columns, filter=filter_text, topic_id=topic_id
        )
        for stored in pieces:
            yield StoredRows(stored.batch, stored.base_offset, stored.timestamp_us, stored.offsets, stored.end_offset)

    def leasing(self, lease: LeaseOptions, topics: Sequence[Topic], *, declare: bool = True) -> Leasing:
        """Be a member of a queue group of each of these topics. `declare`: it is declared if it is not there."""
        from mq_spark.datasource.leasing import Leasing

        return Leasing(self._connection, lease, topics, self._timeout_ms, declare=declare)

    def report(self, group: str, positions: Iterable[tuple[str, int, int]], label: str = "") -> None:
        """Let the brokers know `(topic, partition, next offset)` of a group, soon. Returns at once and never raises.
        `label`: the query's name, if it is known; what was said before stays."""
        if label:
            with _lock:
                self._labels.pop(group, None)
                self._labels[group] = label
                while len(self._labels) > _LABELS_MAX:
                    del self._labels[next(iter(self._labels))]
        self._reporter.report(group, positions)

    def flush_reports(self) -> None:
        """Wait a moment for what was handed over to be sent: the process is about to be ended."""
        self._reporter.flush(_LAST_REPORT_SECONDS)

    # -------------------------------------------------------------- writing

    def stage(self, micro_batch: MicroBatch) -> Stage:
        """Begin to stage what one task attempt writes."""
        return self._transactions.open_stage(
            (micro_batch.query_id, micro_batch.sink), micro_batch.batch_id, micro_batch.run_id
        )

    def decide(self, micro_batch: MicroBatch, manifest: Iterable[StagedPart], *, keep_on_mismatch: bool) -> None:
        """Decide and publish, once for all; asks again until the deadline."""
        self._transactions.decide(
            (micro_batch.query_id, micro_batch.sink),
            micro_batch.batch_id,
            micro_batch.run_id,
            manifest,
            keep_on_mismatch=keep_on_mismatch,
            once=micro_batch.once,
        )

    # -------------------------------------------------------------- private

    @cached_property
    def _transactions(self) -> TransactionClient:
        """Made and imported when something is written: most of Spark's workers only read, and pay for each import
        anew."""
        from mq_client.transactions import TransactionClient

        return TransactionClient(self._connection, self._timeout_ms)

    def _deadline(self) -> Deadline:
        return Deadline(self._timeout_ms)

    def _move_cursors(self, group: str, positions: Mapping[Place, int]) -> None:
        by_topic: dict[str, dict[int, int]] = {}
        for (topic, partition), offset in positions.items():
            by_topic.setdefault(topic, {})[partition] = offset
        label = self._labels.get(group, "")
        move_cursors(self._connection, group, by_topic, Deadline(_REPORT_TIMEOUT_MS), kind=_GROUP_KIND, label=label)


class Watch:
    """Owns the end offsets that the brokers push; reading them asks nobody."""

    def __init__(self, watch: OffsetWatch, timeout_ms: int) -> None:
        self._watch = watch
        self._timeout_ms = timeout_ms
        self._complete = False

    def topics(self, topics: Iterable[str]) -> None:
        """Watch these from now on, and no others."""
        self._watch.watch(topics)

    def bounds(self) -> AllBounds:
        """As last heard. The first time, waits until every partition has been heard of; one that turns up later is
        there once it has been, and nothing waits for it. Raises `OutcomeUnknown`, `UnknownTopic`.
        """
        latest = self._watch.latest() if self._complete else self._watch.wait_first(Deadline(self._timeout_ms))
        self._complete = True
        return {topic: {p: Bounds(*bound) for p, bound in inner.items()} for topic, inner in latest.items()}

    def close(self) -> None:
        self._watch.close()


def _topic(view: TopicView) -> Topic:
    return Topic(view.name, view.topic_id, view.schema, view.typed, view.partitions)


def _bounds_of(
    connection: Connection, topic: str, partitions: Collection[int] | None, deadline: Deadline
) -> dict[int, Bounds]:
    found = ask_offsets(connection, topic, deadline, partitions=partitions)
    return {
        partition: Bounds(found[partition].log_start_offset, found[partition].log_end_offset)
        for partition in sorted(found)
    }


INTERVAL_SECONDS: Final = 0.5
IDLE_SECONDS: Final = 30.0
"""A reporter with nothing to say ends its thread after this; the next report starts another."""

TRIED_SECONDS: Final = 60.0
"""Positions that could not be sent for so long are dropped."""

Place: TypeAlias = tuple[str, int]
"""`(topic, partition)`."""


class Reporter:
    """Tells the brokers how far a query has read, so that its lag can be seen there. The checkpoint stays the truth.
    Owns the newest position of each group in each partition, and the thread that sends it.

    Never in the way of the query: positions are handed over and sent by the thread, the newest only, at most twice a
    second. What cannot be sent is sent again for a while: after a query's last micro-batch no other report follows that
    would say more.

    `send(group, {(topic, partition): offset})` may block and may raise `TritonMQError`.
    """

    def __init__(
        self,
        send: Callable[[str, Mapping[Place, int]], None],
        interval_s: float = INTERVAL_SECONDS,
        tried_s: float = TRIED_SECONDS,
    ) -> None:
        self._send = send
        self._interval_s = interval_s
        self._tried_s = tried_s
        self._lock = threading.Lock()
        self._wake = threading.Condition(self._lock)
        self._waiting: dict[str, dict[Place, int]] = {}
        self._told: dict[str, dict[Place, int]] = {}
        self._refused: set[str] = set()
        self._thread: threading.Thread | None = None
        self._sending = False
        self._hurry = False
        self._failing_since_s: float | None = None

    def report(self, group: str, positions: Iterable[tuple[str, int, int]]) -> None:
        """Hand over `(topic, partition, offset)`, the next offset that the group wants. Returns at once."""
        with self._lock:
            told = self._told.setdefault(group, {})
            news = {(topic, p): offset for topic, p, offset in positions if told.get((topic, p)) != offset}
            if not news:
                return
            told |= news
            self._waiting.setdefault(group, {}).update(news)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="tritonmq-progress", daemon=True)
                self._thread.start()
            self._wake.notify_all()

    def flush(self, timeout_s: float) -> None:
        """Wait until what was handed over is sent or dropped, at most so long: for a process that is about to be
        ended."""
        with self._lock:
            self._hurry = True
            self._wake.notify_all()
            self._wake.wait_for(lambda: not (self._waiting or self._sending), timeout_s)
            self._hurry = False

    def _run(self) -> None:
        while True:
            with self._lock:
                if not self._wake.wait_for(lambda: bool(self._waiting), IDLE_SECONDS):
                    self._thread = None
                    return
                waiting, self._waiting = self._waiting, {}
                self._sending = True
            for group, positions in waiting.items():
                self._tell(group, positions)
            with self._lock:
                self._sending = False
                self._wake.notify_all()
                self._wake.wait_for(lambda: self._hurry and self._failing_since_s is None, self._interval_s)

    def _tell(self, group: str, positions: Mapping[Place, int]) -> None:
        try:
            self._send(group, positions)
        except TritonMQError as error:
            told_before = error.retriable or group in self._refused
            log.log(
                logging.DEBUG if told_before else logging.WARNING,
                "progress of group %s was not reported: %s",
                group,
                error,
            )
            if not error.retriable:
                self._refused.add(group)
            with self._lock:
                self._failed(group, positions, again=error.retriable)
        else:
            self._failing_since_s = None

    def _failed(self, group: str, positions: Mapping[Place, int], *, again: bool) -> None:
        """Have the positions wait again, those that no newer report has replaced; or forget them, so that they may come
        again."""
        now_s = time.monotonic()
        if self._failing_since_s is None:
            self._failing_since_s = now_s
        again = again and now_s - self._failing_since_s < self._tried_s
        told = self._told[group]
        for place, offset in positions.items():
            if told.get(place) == offset:
                if again:
                    self._waiting.setdefault(group, {})[place] = offset
                else:
                    del told[place]
        if not again:
            self._failing_since_s = None
