"""How far behind the running queries are, inside Spark: in records, in bytes, in seconds, by topic and partition.

A query's progress says where its checkpoint stands; the brokers say where the logs end and how old the next record is.
Both are put together here, after every micro-batch and at an interval between them: a query that hangs makes no
progress, and its lag grows. Not here: the reports of the tasks (datasource/cluster.py), which do without a listener
and tell what has been read, not committed.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Protocol

import pyarrow as pa
from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
    StreamingQueryProgress,
)

from mq_client import (
    Admin,
    BatchMetadata,
    GroupCursor,
    GroupDescription,
    InvalidRequest,
    InvalidSetting,
    Producer,
    TritonMQError,
    UnknownGroup,
)
from mq_client.cluster.connection import Connection
from mq_client.cluster.deadline import Deadline, positive_ms
from mq_client.cluster.requests import move_cursors
from mq_client.security import Security
from mq_client.shown.descriptions import CURSOR_HEADINGS, cursor_row
from mq_client.shown.html import table
from mq_protocol.names import did_you_mean, quoted, usable_label
from mq_protocol.sql.ddl import parse_schema
from mq_spark.planning.offsets import Offsets, canonical, from_json

if TYPE_CHECKING:
    from mq_spark.lag_metrics import LagMetrics, Registry, Running

log = logging.getLogger(__name__)


LAG_SCHEMA: Final = (
    "measured timestamp, query string, run string, name string, batch long, running boolean, "
    "topic string, partition int, offset long, log_end_offset long, records long, bytes long, seconds double"
)
"""Of a topic that a `LagListener` writes to: a row a partition and measurement."""

GROUP_KIND: Final = "spark"
SPACING_SECONDS: Final = 0.5
"""Measurements of quick micro-batches are at least so far apart."""

CLOSING_SECONDS: Final = 10.0
ENDED_QUERIES_MAX: Final = 100
"""So many queries that have ended are remembered by `latest`."""


@dataclass(frozen=True, slots=True)
class TopicLag:
    """What a query has not read of one topic: `records`, their stored size in `bytes`, and `seconds`, how old the
    oldest is."""

    topic: str
    partitions: tuple[GroupCursor, ...]

    @property
    def records(self) -> int:
        return sum(cursor.lag for cursor in self.partitions)

    @property
    def bytes(self) -> int:
        return sum(cursor.lag_bytes for cursor in self.partitions)

    @property
    def seconds(self) -> float:
        return max((cursor.lag_us for cursor in self.partitions), default=0) / 1e6


@dataclass(frozen=True, slots=True)
class QueryLag:
    """How far behind a query is. `group`: under which name `tritonmq group describe` shows the same.

    `batch_id`: the micro-batch after which it stood here. `running` False: measured once more after the query had
    ended; None: that is not known.
    """

    query_id: str
    run_id: str
    name: str | None
    group: str
    batch_id: int
    running: bool | None
    measured_us: int
    topics: tuple[TopicLag, ...]

    @property
    def records(self) -> int:
        return sum(topic.records for topic in self.topics)

    @property
    def bytes(self) -> int:
        return sum(topic.bytes for topic in self.topics)

    @property
    def seconds(self) -> float:
        return max((topic.seconds for topic in self.topics), default=0.0)

    def __str__(self) -> str:
        return (
            f"query {self.name or self.query_id} is {self.records} records, {self.bytes} bytes, {self.seconds:.1f} s "
            "behind"
        )

    def _repr_html_(self) -> str:
        rows = [cursor_row(cursor) for topic in self.topics for cursor in topic.partitions]
        ended = "" if self.running is not False else " when it had ended"
        return table(f"{self}{ended}", CURSOR_HEADINGS, rows)


@dataclass(slots=True)
class _Query:
    """Where a query stands: `positions` after micro-batch `batch_id`; `told` is what the brokers know of it, `labelled`
    where they know its name. `phases_ms`: how long each phase of that micro-batch took."""

    run_id: str
    name: str | None
    batch_id: int = -1
    positions: Offsets = field(default_factory=dict)
    told: dict[str, dict[int, int]] = field(default_factory=dict)
    labelled: set[tuple[str, int]] = field(default_factory=set)
    phases_ms: Mapping[str, int] = field(default_factory=dict)
    ended: bool = False
    news: bool = False


class LagListener(StreamingQueryListener):
    """`spark.streams.addListener(LagListener("host:7400"))`: measures how far behind every query with a TritonMQ source
    is.

    Owns a thread, clients, and the newest measurement of each query (`latest`). What is measured is logged at level
    INFO, given to `on_lag` in that thread, and written to `topic`, which must have `LAG_SCHEMA`. The brokers are told
    where Spark's checkpoint stands, under the group `<group_prefix>-<query id>`, of partitions that no task has read
    too: `tritonmq group describe` agrees, right after the last micro-batch as well. A query whose source has the option
    groupIdPrefix wants the same here. `registry`: a `prometheus_client.CollectorRegistry` that is to have the lag of
    the queries that run.

    `interval_s`: between measurements of a query that makes no progress. `timeout_ms`: for each question to the
    brokers; what fails is logged and measured again later. Raises `InvalidSetting`; for `topic` also `UnknownTopic`,
    `Unreachable`, `InvalidRequest`; `ValueError` if another listener has its metrics in `registry`.
    """

    def __init__(
        self,
        bootstrap: str,
        *,
        on_lag: Callable[[QueryLag], None] | None = None,
        topic: str | None = None,
        interval_s: float = 10.0,
        group_prefix: str = "spark",
        timeout_ms: float = 5_000,
        security: Security | None = None,
        registry: Registry | None = None,
        forward: bool | None = None,
    ) -> None:
        if not interval_s > 0:
            raise InvalidSetting(f"interval_s={interval_s} must be a positive number of seconds")
        self._timeout_ms = positive_ms("timeout_ms", timeout_ms)
        self._interval_s = interval_s
        self._group_prefix = group_prefix
        self._on_lag = on_lag
        self._changed = threading.Condition()
        self._queries: dict[str, _Query] = {}
        self._latest: dict[str, QueryLag] = {}
        self._closing = False
        self._thread: threading.Thread | None = None
        with ExitStack() as unless_made:
            self._metrics = None if registry is None else self._register(registry)
            if self._metrics is not None:
                unless_made.callback(self._metrics.close)
            self._connection = Connection(bootstrap, security=security, forward=forward)
            self._admin = Admin(bootstrap, timeout_ms, security, forward=forward)
            self._rows = None if topic is None else _LagTopic(bootstrap, topic, self._admin, security, forward)
            unless_made.pop_all()

    def _register(self, registry: Registry) -> LagMetrics:
        from mq_spark.lag_metrics import LagMetrics

        return LagMetrics(self._running, registry)

    def _running(self) -> list[Running]:
        from mq_spark.lag_metrics import Running

        with self._changed:
            return [
                Running(self._latest[query_id], query.phases_ms)
                for query_id, query in self._queries.items()
                if query_id in self._latest and not query.ended
            ]

    # -------------------------------------------------------------- for whoever asks

    def latest(self) -> dict[str, QueryLag]:
        """The newest measurement of each query, by the query's id; the last ones that have ended are among them."""
        with self._changed:
            return dict(self._latest)

    def close(self) -> None:
        """Measure once more what has news, and end the thread. Take the listener from Spark first
        (`removeListener`)."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
            thread = self._thread
        if thread is not None:
            thread.join(CLOSING_SECONDS)
        if self._metrics is not None:
            self._metrics.close()
            self._metrics = None
        if self._rows is not None:
            self._rows.close()

    def __enter__(self) -> LagListener:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # -------------------------------------------------------------- what Spark tells; none of it waits for a broker

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802 - Spark's name
        with self._changed:
            self._queries[str(event.id)] = _Query(str(event.runId), event.name)

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802
        progress = event.progress
        with self._changed:
            query = self._queries.setdefault(str(progress.id), _Query(str(progress.runId), progress.name))
            query.batch_id = progress.batchId
            query.positions = _positions(progress)
            query.phases_ms = dict(progress.durationMs)
            self._wake(query)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802
        """Nothing new: it is measured at the interval."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802
        with self._changed:
            query = self._queries.get(str(event.id))
            if query is not None and query.run_id == str(event.runId):
                query.ended = True
                self._wake(query)

    def _wake(self, query: _Query) -> None:
        query.news = True
        if self._thread is None and not self._closing:
            self._thread = threading.Thread(target=self._run, name="tritonmq-lag", daemon=True)
            self._thread.start()
        self._changed.notify_all()

    # -------------------------------------------------------------- the thread

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(self._due, self._interval_s)
                closing = self._closing
                chosen = {key: query for key, query in self._queries.items() if query.news or not closing}
                for query in chosen.values():
                    query.news = False
                self._queries = {key: query for key, query in self._queries.items() if not query.ended}
            for query_id, query in chosen.items():
                self._measure(query_id, query)
            with self._changed:
                if closing:
                    return
                self._changed.wait_for(lambda: self._closing or self._somebody_ended(), SPACING_SECONDS)

    def _due(self) -> bool:
        return self._closing or any(query.news for query in self._queries.values())

    def _somebody_ended(self) -> bool:
        return any(query.ended for query in self._queries.values())

    def _measure(self, query_id: str, query: _Query) -> None:
        if not query.positions:
            return  # no source of ours, or no micro-batch yet
        group = f"{self._group_prefix}-{query_id}"
        positions = query.positions
        try:
            self._tell(group, query, positions)
        except (
            TritonMQError
        ) as error:  # a partition without a leader: what the brokers knew before can be shown nevertheless
            log.info("the brokers were not told where query %s stands: %s", query.name or query_id, error)
        try:
            cursors = self._admin.describe_group(group).cursors
        except TritonMQError as error:
            log.warning("lag of query %s was not measured: %s", query.name or query_id, error)
            return
        _see_labels(query, cursors)
        measured = QueryLag(
            query_id=query_id,
            run_id=query.run_id,
            name=query.name,
            group=group,
            batch_id=query.batch_id,
            running=not query.ended,
            measured_us=time.time_ns() // 1000,
            topics=tuple(
                TopicLag(topic, tuple(c for c in cursors if c.topic == topic and c.partition in positions[topic]))
                for topic in positions
            ),
        )
        with self._changed:
            self._remember(measured)
        self._hand_out(measured)

    def _tell(self, group: str, query: _Query, positions: Offsets) -> None:
        news = {
            topic: changed
            for topic, inner in positions.items()
            if (changed := {p: offset for p, offset in inner.items() if query.told.get(topic, {}).get(p) != offset})
        }
        if news:
            deadline = Deadline(self._timeout_ms)
            move_cursors(self._connection, group, news, deadline, kind=GROUP_KIND, label=query.name or "")
            query.told = {topic: dict(inner) for topic, inner in positions.items()}

    def _remember(self, measured: QueryLag) -> None:
        self._latest.pop(measured.query_id, None)
        self._latest[measured.query_id] = measured
        ended = [query_id for query_id, lag in self._latest.items() if not lag.running]
        for query_id in ended[:-ENDED_QUERIES_MAX]:
            del self._latest[query_id]

    def _hand_out(self, measured: QueryLag) -> None:
        log.info("%s", measured)
        if self._rows is not None:
            self._rows.write(measured)
        if self._on_lag is not None:
            try:
                self._on_lag(measured)
            except Exception:  # the caller's own code, of which nothing is known: measuring goes on without it
                log.exception("on_lag failed; it is called again with the next measurement")


def _see_labels(query: _Query, cursors: Iterable[GroupCursor]) -> None:
    """A leader that has just begun knows no label: what its predecessor was told, it is told with the next
    measurement."""
    for cursor in cursors:
        place = cursor.topic, cursor.partition
        if cursor.label:
            query.labelled.add(place)
        elif cursor.leads and place in query.labelled:
            query.labelled.discard(place)
            query.told.get(cursor.topic, {}).pop(cursor.partition, None)


class _LagTopic:
    """Owns the producer that writes measurements as rows; never waits for an answer but when it is closed."""

    def __init__(
        self, bootstrap: str, topic: str, admin: Admin, security: Security | None, forward: bool | None
    ) -> None:
        self._schema = parse_schema(LAG_SCHEMA)
        # More columns may have been added
        if list(admin.describe_topic(topic).schema)[: len(self._schema)] != list(self._schema):
            raise InvalidRequest(
                f"topic {topic!r} cannot take lag: create one with the schema mq_spark.LAG_SCHEMA ({LAG_SCHEMA!r})"
            )
        self._topic = topic
        self._producer = Producer(bootstrap, security=security, forward=forward)
        self._last: Future[BatchMetadata] | None = None

    def write(self, measured: QueryLag) -> None:
        """What was handed over before and is still on its way keeps this one back: the next measurement says more.
        After the last one of a run there is none, so that is always written."""
        on_its_way = self._last is not None and not self._last.done()
        if on_its_way and measured.running:
            return
        if self._last is not None and not on_its_way and (error := self._last.exception()) is not None:
            log.warning("lag was not written to topic %s: %s", self._topic, error)
        table = pa.Table.from_pylist(_rows(measured), schema=self._schema)
        try:
            self._last = self._producer.publish_batch(self._topic, table)
        except TritonMQError as error:
            log.warning("lag was not written to topic %s: %s", self._topic, error)

    def close(self) -> None:
        self._producer.close()


def _rows(measured: QueryLag) -> list[dict[str, Any]]:
    about: Mapping[str, Any] = {
        "measured": datetime.fromtimestamp(measured.measured_us / 1e6, tz=UTC),
        "query": measured.query_id,
        "run": measured.run_id,
        "name": measured.name,
        "batch": measured.batch_id,
        "running": measured.running,
    }
    return [
        {
            **about,
            "topic": topic.topic,
            "partition": cursor.partition,
            "offset": cursor.offset,
            "log_end_offset": cursor.log_end_offset,
            "records": cursor.lag,
            "bytes": cursor.lag_bytes,
            "seconds": cursor.lag_us / 1e6,
        }
        for topic in measured.topics
        for cursor in topic.partitions
    ]


def _positions(progress: StreamingQueryProgress) -> Offsets:
    """Where the query's TritonMQ sources stand, all together; where two read the same partition, the one behind."""
    found: dict[str, dict[int, int]] = {}
    for source in progress.sources:
        for topic, inner in _offsets(source.description, source.endOffset).items():
            into = found.setdefault(topic, {})
            for partition, offset in inner.items():
                into[partition] = min(offset, into.get(partition, offset))
    return canonical(found)


def _offsets(description: str, end: str) -> Offsets:
    """Nothing for another source's: Spark names a Python source by its class only, so the form of its offsets
    decides."""
    if ".python." not in description:
        return {}
    try:
        return from_json(json.loads(end)).offsets
    except (ValueError, InvalidRequest):
        return {}


_NAMED_MAX: Final = 5
"""So many groups of one name are told in an error."""


class Query(Protocol):
    """A streaming query, Spark Connect's too."""

    @property
    def id(self) -> Any: ...
    @property
    def runId(self) -> Any: ...  # noqa: N802 - Spark's name
    @property
    def name(self) -> str | None: ...
    @property
    def isActive(self) -> bool: ...  # noqa: N802
    @property
    def lastProgress(self) -> Any: ...  # noqa: N802


def lag_of(
    query: Query | str,
    bootstrap: str,
    *,
    group_prefix: str = "spark",
    timeout_ms: float = 5_000,
    security: Security | None = None,
    forward: bool | None = None,
) -> QueryLag:
    """How far behind a query is: `lag_of(query, "host:7400").seconds`.

    `query`: a `StreamingQuery`, or the name of one (`queryName`), or of a group (`kafka.group.id`). By name it is found
    wherever it runs, and after it has ended; `run_id`, `batch_id` and `running` are not known then. What its tasks have
    read counts, which they tell at most twice a second. `group_prefix`: the source's option groupIdPrefix.

    Raises `UnknownGroup` if no broker has heard of it, `InvalidRequest` if several have that name, `Unreachable`.
    """
    with Admin(bootstrap, timeout_ms, security, forward=forward) as admin:
        if isinstance(query, str):
            return _measured(_named(query, admin.describe_groups()), group_prefix, name=query)
        found = admin.describe_group(f"{group_prefix}-{query.id}")
    progress = query.lastProgress
    return _measured(
        found, group_prefix, name=query.name, run_id=str(query.runId), running=query.isActive,
        batch_id=progress.batchId if progress is not None else -1,
    )  # fmt: skip


def _named(name: str, groups: list[GroupDescription]) -> GroupDescription:
    found = [group for group in groups if group.label and group.label == usable_label(name)]
    found = found or [group for group in groups if group.name == name]
    if not found:
        known = {group.label or group.name for group in groups}
        raise UnknownGroup(
            f"no broker has heard of a query called {quoted(name)}{did_you_mean(name, known)}: `tritonmq group list` "
            "shows those that brokers know; they learn a name with the first micro-batch that reads"
        )
    if len(found) > 1:
        names = ", ".join(group.name for group in found[:_NAMED_MAX])
        raise InvalidRequest(f"{len(found)} queries are called {quoted(name)}: give the group of one of them: {names}")
    return found[0]


def _measured(
    found: GroupDescription,
    group_prefix: str,
    *,
    name: str | None,
    run_id: str = "",
    running: bool | None = None,
    batch_id: int = -1,
) -> QueryLag:
    topics = sorted({cursor.topic for cursor in found.cursors})
    return QueryLag(
        query_id=found.name.removeprefix(f"{group_prefix}-"),
        run_id=run_id,
        name=name,
        group=found.name,
        batch_id=batch_id,
        running=running,
        measured_us=time.time_ns() // 1000,
        topics=tuple(TopicLag(topic, tuple(c for c in found.cursors if c.topic == topic)) for topic in topics),
    )
