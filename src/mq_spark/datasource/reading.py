"""What a task does to read: fetch its offset ranges, merge small stored batches, hand Arrow to Spark.

Used by streams and batch reads alike. Nothing is kept between calls but the process's clients.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final, Protocol, TypeVar

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

from mq_protocol.errors import DataLoss, OffsetOutOfRange, SchemaMismatch, UnknownTopic
from mq_spark.datasource.cluster import Cluster, connect
from mq_spark.datasource.schemas import Projection, StoredRows, Topic
from mq_spark.planning.offsets import OffsetRange, plan
from mq_spark.planning.options import SourceOptions
from mq_spark.planning.positions import Bounds, data_loss

log = logging.getLogger(__name__)

MERGED_ROWS_MAX: Final = 10_000
MERGED_BYTES_MAX: Final = 1 << 20
"""Stored batches are merged up to both of these. One-row batches pass through Spark at 0.08 million rows a second,
these at 7."""

QUERY_ID_PROPERTY: Final = "sql.streaming.queryId"
DESCRIPTION_PROPERTY: Final = "spark.job.description"

_EXECUTION_PROPERTY: Final = "spark.sql.execution.id"
_ENDS_MAX: Final = 64
_ends: dict[tuple[str, str, int], Mapping[int, Bounds]] = {}

_P = TypeVar("_P")


class Converts(Protocol):
    """Makes of stored rows what Spark is given: a `Projection`."""

    def convert(self, partition: int, stored: Sequence[StoredRows]) -> pa.RecordBatch: ...


class Ranges(InputPartition):
    """One task's work: ranges in their order, the positions `(topic, partition, offset)` that are reached when it is
    done, and the ids of the topics that were meant.

    Spark plans a batch read once for each `load()` and runs it as often as its DataFrame is used. `tails`: positions
    from which the task reads on to where the partition ends when it runs. `from_earliest`: partitions that are read
    from whatever is kept first by then.
    """

    def __init__(
        self,
        ranges: tuple[OffsetRange, ...] = (),
        reached: tuple[tuple[str, int, int], ...] = (),
        topic_ids: Mapping[str, str] | None = None,
        tails: tuple[tuple[str, int, int], ...] = (),
        from_earliest: frozenset[tuple[str, int]] = frozenset(),
    ) -> None:
        super().__init__(None)
        self.ranges = ranges
        self.reached = reached
        self.topic_ids = dict(topic_ids or {})
        self.tails = tails
        self.from_earliest = from_earliest

    def __repr__(self) -> str:
        return f"Ranges({self.ranges!r})"


def planned_tasks(options: SourceOptions, parts: Sequence[OffsetRange]) -> list[tuple[OffsetRange, ...]]:
    """The ranges cut into tasks. The driver's cores stand for the cluster's, which nobody tells it: minPartitions asks
    for more."""
    cores = os.cpu_count() or 1
    return plan(parts, cores=cores, tasks_min=options.min_partitions, rows_max=options.max_records_per_partition)


def input_partitions(tasks: Iterable[tuple[OffsetRange, ...]], topic_ids: Mapping[str, str]) -> list[Ranges]:
    """The planned tasks as Spark takes them. A partition that several tasks share is reached when the last of them is
    done."""
    planned = list(tasks)
    last = {(each.topic, each.partition): each.end for task in planned for each in task}
    return [
        Ranges(
            task, tuple((r.topic, r.partition, r.end) for r in task if r.end == last[r.topic, r.partition]), topic_ids
        )
        for task in planned
    ]


def read_ranges(options: SourceOptions, wanted: StructType, work: Ranges) -> Iterator[pa.RecordBatch]:
    """The rows of the task as Arrow batches in exactly the form of `wanted`. Raises `DataLoss`, `SchemaMismatch`, …"""
    cluster = connect(options, options.read_from, options.rack)
    projections: dict[str, Projection | None] = {}
    for each in (*work.ranges, *_grown(cluster, options, work)):
        if each.topic not in projections:
            projections[each.topic] = topic_of(
                cluster, options, each.topic, work.topic_ids[each.topic], lambda topic: Projection(topic, wanted)
            )
        projection = projections[each.topic]
        if projection is not None:
            trimmed = (each.topic, each.partition) in work.from_earliest
            topic_id = work.topic_ids[each.topic]
            stored = fetched(cluster, options, each, topic_id, projection.columns, trimmed=trimmed)
            yield from merged(projection, each.partition, stored)
    _report(cluster, options, work)


def _grown(cluster: Cluster, options: SourceOptions, work: Ranges) -> Iterator[OffsetRange]:
    """What has been added since the read was planned. Asked for when all that was planned has been read."""
    for topic in sorted({topic for topic, _, _ in work.tails}):
        try:
            bounds = _bounds(cluster, topic)
        except UnknownTopic:
            _gone(options, topic)
            continue
        for name, partition, start in work.tails:
            bound = bounds.get(partition) if name == topic else None
            if bound is not None and bound.log_end_offset > start:
                first, *lost = OffsetRange(topic, partition, start, bound.log_end_offset).lives()
                if (lost or first.is_rest) and options.fail_on_data_loss:
                    raise data_loss(topic, partition, start, bound, options.subscription, first.end)
                yield from (first, *lost)


def _bounds(cluster: Cluster, topic: str) -> Mapping[int, Bounds]:
    """Asked once by this process for all tasks of one of Spark's executions, so that they see the same end."""
    context = TaskContext.get()
    execution = context.getLocalProperty(_EXECUTION_PROPERTY) if context is not None else None
    if execution is None:
        return cluster.bounds([topic])[topic]
    key = (execution, topic, id(cluster))
    if key not in _ends:
        while len(_ends) >= _ENDS_MAX:
            _ends.pop(next(iter(_ends)))
        _ends[key] = cluster.bounds([topic])[topic]
    return _ends[key]


def topic_of(
    cluster: Cluster, options: SourceOptions, name: str, topic_id: str, projected: Callable[[Topic], _P]
) -> _P | None:
    """What is made of the topic that was planned, `projected`. Raises `DataLoss` if it is gone, or another one by now;
    None if the user has said that losses are passed over."""
    try:
        topic = cluster.topic(name, topic_id)
        if topic.topic_id == topic_id:
            try:
                return projected(topic)
            except SchemaMismatch:  # a worker that is kept may remember the topic from before columns were added
                topic = cluster.topic_that_fits(name, projected)
        if topic.topic_id == topic_id:
            return projected(topic)
    except UnknownTopic:
        pass
    _gone(options, name)
    return None


def _gone(options: SourceOptions, name: str) -> None:
    """Raises `DataLoss` unless the user has said that losses are passed over."""
    if options.fail_on_data_loss:
        raise DataLoss(
            f"data was lost: topic {name} was deleted while it was read, and may have been made again; to go on "
            "without its rows, set option failOnDataLoss=false, or begin with a new checkpoint"
        )
    log.warning("topic %s was deleted while it was read: its rows are passed over", name)


def fetched(
    cluster: Cluster,
    options: SourceOptions,
    each: OffsetRange,
    topic_id: str,
    columns: list[str],
    *,
    trimmed: bool = False,
) -> Iterator[StoredRows]:
    """The range's stored rows, of that topic; what is removed meanwhile is an error, or passed over if the user has
    said so. `trimmed`: what retention has removed is not wanted."""
    try:
        yield from _fetched(cluster, options, each, topic_id, columns, trimmed)
    except UnknownTopic:
        _gone(options, each.topic)


def _fetched(
    cluster: Cluster, options: SourceOptions, each: OffsetRange, topic_id: str, columns: list[str], trimmed: bool
) -> Iterator[StoredRows]:
    at = each.start
    while at < each.end:
        try:
            rest = OffsetRange(each.topic, each.partition, at, each.end)
            for stored in cluster.fetch(rest, topic_id, columns, options.filter):
                at = stored.next_offset
                if stored.rows.num_rows:
                    yield stored
            return
        except OffsetOutOfRange as error:
            bound = cluster.bounds([each.topic], {each.topic: [each.partition]})[each.topic].get(each.partition)
            if each.is_rest and error.next_offset >= each.end:
                return
            goes_on = max(
                error.next_offset, bound.log_start_offset if bound is not None else -1
            )  # after a recovery: within the log
            allowed = not options.fail_on_data_loss or (trimmed and bound is not None and at < bound.log_start_offset)
            if not allowed or bound is None or goes_on <= at:
                raise data_loss(each.topic, each.partition, at, bound, options.subscription, goes_on) from error
            at = goes_on


def merged(projection: Converts, partition: int, stored: Iterable[StoredRows]) -> Iterator[pa.RecordBatch]:
    """Small batches joined, without passing a bound: one that is large by itself goes on as it came, uncopied."""
    waiting: list[StoredRows] = []
    rows = size = 0
    for each in stored:
        more_rows, more_bytes = each.rows.num_rows, each.rows.nbytes
        if waiting and (rows + more_rows > MERGED_ROWS_MAX or size + more_bytes > MERGED_BYTES_MAX):
            yield projection.convert(partition, waiting)
            waiting, rows, size = [], 0, 0
        waiting.append(each)
        rows += more_rows
        size += more_bytes
    if waiting:
        yield projection.convert(partition, waiting)


def _report(cluster: Cluster, options: SourceOptions, work: Ranges) -> None:
    """Tell the brokers what has been read, in the query's name, unless the driver does so in a name that the user gave.

    Only tasks know which query they work for: the process in which a source plans is told neither the query's id nor
    where its checkpoint is.
    """
    context = TaskContext.get()
    query_id = context.getLocalProperty(QUERY_ID_PROPERTY) if context is not None else None
    if context is not None and options.group_id is None and query_id and work.reached:
        name = query_name(context.getLocalProperty(DESCRIPTION_PROPERTY), query_id)
        cluster.report(f"{options.group_id_prefix}-{query_id}", work.reached, name)


def query_name(description: str | None, query_id: str) -> str:
    """The query's name in Spark's description of the micro-batch, which begins with it; empty if the query has none, or
    somebody has written another description. Spark tells a task the name in no other way."""
    name, identified, _ = (description or "").partition(f"\nid = {query_id}\n")
    return name if identified else ""
