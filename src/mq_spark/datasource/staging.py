"""What a task does to write: fit its rows to their topics, and stage them, invisible, under fresh UUIDs.

Used by streams and batch writes alike. What is staged here becomes visible only when the driver's decision names it
(deciding.py); a task that is tried again stages anew, and what the first try staged is in no manifest.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Final

import pyarrow as pa
from pyspark.sql.types import StructType

from mq_client.transactions import Stage
from mq_protocol.manifest import StagedPart
from mq_spark.datasource.cluster import Cluster, connect
from mq_spark.datasource.failpoints import reached
from mq_spark.datasource.manifest import MicroBatch, StagedMessage
from mq_spark.datasource.rows import Fit, by_partition, by_topic, even_slices
from mq_spark.datasource.schemas import Topic
from mq_spark.datasource.sink_check import topic_column
from mq_spark.planning.options import SinkOptions

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
    reached("before_stage", micro_batch.batch_id)
    staging = _Staging(connect(options), columns, micro_batch, task, options.key_column)
    if options.topic is not None:
        into = staging.topic(options.topic, routed=False)
        for batch in rows:
            into.add(batch)
            staging.send_if_much_waits()
    else:
        at = topic_column(columns)
        for batch in rows:
            if batch.num_rows:
                for name, piece in by_topic(batch.column(at), batch):
                    staging.topic(name, routed=True).add(piece)
                staging.send_if_much_waits()
    staged = staging.finish()
    reached("after_stage", micro_batch.batch_id)
    return StagedMessage(micro_batch, staged)


class _Staging:
    """One task attempt's. Owns what waits to be sent; nothing outlives it."""

    def __init__(
        self, cluster: Cluster, columns: StructType, micro_batch: MicroBatch, task: int, key_column: str | None = None
    ) -> None:
        self._cluster = cluster
        self._key_column = key_column
        self._stage = cluster.stage(micro_batch)
        self._columns = columns
        self._batch_id = micro_batch.batch_id
        self._first = task + micro_batch.batch_id
        self._topics: dict[str, _IntoTopic] = {}

    def topic(self, name: str, *, routed: bool) -> _IntoTopic:
        into = self._topics.get(name)
        if into is None:
            topic = self._cluster.topic(name)
            fit = Fit(topic, self._columns, routed=routed, key_column=self._key_column)
            into = _IntoTopic(self._stage, topic, fit, self._first, self._batch_id)
            self._topics[name] = into
        return into

    def send_if_much_waits(self) -> None:
        if sum(into.waiting_bytes() for into in self._topics.values()) > WAITING_BYTES_MAX:
            for into in self._topics.values():
                into.send_all()

    def finish(self) -> tuple[StagedPart, ...]:
        """Send the rest and wait for every answer. Raises the first error."""
        for into in self._topics.values():
            into.send_all()
        return tuple(self._stage.finish())


class _IntoTopic:
    """The part of a task's rows that goes to one topic: owns what waits for each of its partitions.

    Rows that may go anywhere fill one partition at a time, in turn, so that a small micro-batch is one staged batch and
    a large one reaches all partitions; tasks and micro-batches begin at different ones.
    """

    def __init__(self, stage: Stage, topic: Topic, fit: Fit, first: int, batch_id: int) -> None:
        self._stage = stage
        self._topic = topic
        self._fit = fit
        self._batch_id = batch_id
        self._spread_to = first % topic.partitions
        self._waiting: dict[int, list[pa.RecordBatch]] = {}
        self._bytes: dict[int, int] = {}

    def add(self, rows: pa.RecordBatch) -> None:
        """Fit the rows, keep them until there are enough for a staged batch, and send that."""
        if not rows.num_rows:
            return
        chosen = self._fit.partitions(rows)
        fitted = self._fit.convert(rows, time.time_ns() // 1000)
        if chosen is None:
            for piece in even_slices(fitted, STAGED_BYTES):
                self._put(self._spread_to, piece)
        else:
            for partition, piece in by_partition(chosen, fitted, self._spread_to):
                self._put(partition, piece)

    def _put(self, partition: int, rows: pa.RecordBatch) -> None:
        self._waiting.setdefault(partition, []).append(rows)
        self._bytes[partition] = self._bytes.get(partition, 0) + rows.nbytes
        if self._bytes[partition] >= STAGED_BYTES:
            self._send(partition)
            if partition == self._spread_to:
                self._spread_to = (partition + 1) % self._topic.partitions

    def waiting_bytes(self) -> int:
        return sum(self._bytes.values())

    def send_all(self) -> None:
        for partition in list(self._waiting):
            self._send(partition)

    def _send(self, partition: int) -> None:
        """Blocks while too much is in flight."""
        self._stage.add(self._topic.name, partition, pa.Table.from_batches(self._waiting.pop(partition)))
        del self._bytes[partition]
        reached("during_stage", self._batch_id)
