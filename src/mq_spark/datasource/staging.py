"""What a task does to write: fit its rows to their topics, and stage them, invisible, under fresh UUIDs.

Used by streams and batch writes alike. What is staged here becomes visible only when the driver's decision names it (deciding.py);
a task that is tried again stages anew, and what the first try staged is in no manifest.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa
from pyspark.sql.types import StructType

from mq_protocol.errors import SchemaMismatch
from mq_spark.datasource.cluster import Cluster, connect
from mq_spark.manifest import MicroBatch, Staged, StagedMessage
from mq_spark.options import SinkOptions
from mq_spark.rows import Fit, by_partition, by_topic, pieces
from mq_spark.schemas import Topic

STAGED_BYTES: Final = 1 << 20
"""A staged batch is sent when it has about this many bytes: large enough to be moved and read cheaply."""

WAITING_BYTES_MAX: Final = 32 << 20
"""What a task keeps back while its batches fill, all partitions together; above it everything is sent."""


def stage_rows(
    options: SinkOptions, columns: StructType, rows: Iterator[pa.RecordBatch], micro_batch: MicroBatch, task: int
) -> StagedMessage:
    """Stage all rows of a task; returns when they are as durable as their topics promise.

    Whether the columns fit is settled before the first row is asked for, if the option topic names the topic. Raises
    `SchemaMismatch`, `UnknownTopic`, …
    """
    staging = _Staging(connect(options.bootstrap, options.timeout_ms), columns, micro_batch, task)
    if options.topic is not None:
        into = staging.topic(options.topic, routed=False)
        for batch in rows:
            into.add(batch)
    else:
        at = _topic_column(columns)
        for batch in rows:
            if batch.num_rows:
                for name, piece in by_topic(batch.column(at), batch):
                    staging.topic(name, routed=True).add(piece)
    return StagedMessage(micro_batch, staging.finish())


def _topic_column(columns: StructType) -> int:
    for at, column in enumerate(columns):
        if column.name.lower() == "topic":
            if column.dataType.typeName() != "string":
                raise SchemaMismatch(f"column 'topic' is {column.dataType.simpleString()}: make it a string")
            return at
    raise SchemaMismatch("no topic is named: set option topic, or give the rows a column 'topic'")


@dataclass
class _Filling:
    """A partition's rows that wait to become a staged batch, and what has been staged there so far."""

    waiting: list[pa.RecordBatch] = field(default_factory=list)
    waiting_bytes: int = 0
    uuids: list[bytes] = field(default_factory=list)
    row_count: int = 0


class _Staging:
    """One task attempt's. Owns what waits to be sent; nothing outlives it."""

    def __init__(self, cluster: Cluster, columns: StructType, micro_batch: MicroBatch, task: int) -> None:
        self._cluster = cluster
        self._stage = cluster.stage(micro_batch)
        self._columns = columns
        self._first = task + micro_batch.batch_id
        self._topics: dict[str, _IntoTopic] = {}

    def topic(self, name: str, *, routed: bool) -> _IntoTopic:
        into = self._topics.get(name)
        if into is None:
            topic = self._cluster.topic(name)
            into = _IntoTopic(self, topic, Fit(topic, self._columns, routed=routed), self._first)
            self._topics[name] = into
        return into

    def send(self, topic: str, partition: int, filling: _Filling) -> None:
        """Stage what waits for this partition. Blocks while too much is in flight."""
        (rows,) = pa.Table.from_batches(filling.waiting).combine_chunks().to_batches()
        for piece in pieces(rows, 2 * STAGED_BYTES):
            batch_uuid = uuid.uuid4().bytes
            self._stage.send(topic, partition, piece, batch_uuid)
            filling.uuids.append(batch_uuid)
            filling.row_count += piece.num_rows
        filling.waiting, filling.waiting_bytes = [], 0

    def send_if_much_waits(self) -> None:
        if sum(into.waiting_bytes() for into in self._topics.values()) > WAITING_BYTES_MAX:
            for into in self._topics.values():
                into.send_all()

    def finish(self) -> tuple[Staged, ...]:
        """Send the rest and wait for every answer. Raises the first error."""
        for into in self._topics.values():
            into.send_all()
        self._stage.finish()
        return tuple(staged for into in self._topics.values() for staged in into.staged())


class _IntoTopic:
    """The part of a task's rows that goes to one topic. Rows that may go anywhere fill one partition at a time, in turn, so that a
    small micro-batch is one staged batch and a large one reaches all partitions; tasks and micro-batches begin at different ones.
    """

    def __init__(self, staging: _Staging, topic: Topic, fit: Fit, first: int) -> None:
        self._staging = staging
        self._topic = topic
        self._fit = fit
        self._spread_to = first % topic.partitions
        self._filling: dict[int, _Filling] = {}

    def add(self, rows: pa.RecordBatch) -> None:
        if not rows.num_rows:
            return
        chosen = self._fit.partitions(rows)
        for partition, piece in by_partition(chosen, self._fit.convert(rows, time.time_ns() // 1000), self._spread_to):
            filling = self._filling.setdefault(partition, _Filling())
            filling.waiting.append(piece)
            filling.waiting_bytes += piece.nbytes
            if filling.waiting_bytes >= STAGED_BYTES:
                self._staging.send(self._topic.name, partition, filling)
                if partition == self._spread_to:
                    self._spread_to = (partition + 1) % self._topic.partitions
        self._staging.send_if_much_waits()

    def waiting_bytes(self) -> int:
        return sum(filling.waiting_bytes for filling in self._filling.values())

    def send_all(self) -> None:
        for partition, filling in self._filling.items():
            if filling.waiting:
                self._staging.send(self._topic.name, partition, filling)

    def staged(self) -> Iterator[Staged]:
        for partition, filling in self._filling.items():
            yield Staged(self._topic.name, partition, tuple(filling.uuids), filling.row_count)
