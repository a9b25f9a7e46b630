"""What a task does to write: fit its rows to their topics, and stage them, invisible, under fresh UUIDs.

Used by streams and batch writes alike. What is staged here becomes visible only when the driver's decision names it
(writers.py); a task that is tried again stages anew, and what the first try staged is in no manifest. A commit runs in
another process than the tasks, in a fresh object: all that it knows is in their messages.

The driver checks before any task begins that the topic is there, and that the rows' columns fit it. The tasks check the
same again, since a topic may change while a query runs. But there each task tells its error by itself, tries again, and
Spark logs every try: the one line that says what to do is lost among a hundred.
"""

from __future__ import annotations

import re
import shlex
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.types import StructType

from mq_client.transactions import Stage
from mq_protocol import manifest
from mq_protocol.errors import InvalidRequest, SchemaMismatch, UnknownTopic
from mq_protocol.names import nearest
from mq_spark.datasource.cluster import Cluster, connect
from mq_spark.datasource.failpoints import reached
from mq_spark.datasource.rows import Fit, by_partition, by_topic, even_slices
from mq_spark.datasource.schemas import Topic
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
        self, cluster: Cluster, columns: StructType, micro_batch: MicroBatch, task: int, key_column: str | None
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

    def finish(self) -> tuple[manifest.StagedPart, ...]:
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


STREAM_AGE_S: Final = 5.0
"""A stream's micro-batches may follow each other by the hundred milliseconds: what was heard of the topic so long ago
will do."""

_PLAIN_NAME: Final = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_SCHEMA_CHARACTERS_MAX: Final = 500


def check_sink(options: SinkOptions, columns: StructType, *, age_s_max: float = 0.0) -> None:
    """Ask the brokers of the topic that is written to, and hold the rows' columns against it. Where each row names its
    own topic, only that there is such a column can be checked.

    `age_s_max`: what was heard of the topic within so many seconds is believed. Raises `UnknownTopic` with the command
    that makes the topic, `SchemaMismatch` naming the column and both types, `Unreachable`.
    """
    if options.topic is None:
        topic_column(columns)
        return
    cluster, name = connect(options), options.topic
    try:
        cluster.topic_that_fits(
            name, lambda topic: Fit(topic, columns, routed=False, key_column=options.key_column), age_s_max=age_s_max
        )
    except UnknownTopic:
        raise UnknownTopic(_create_it_first(cluster, name, columns)) from None


def topic_column(columns: StructType) -> int:
    """Where the rows say to which topic they go. Raises `SchemaMismatch` if they do not."""
    for at, column in enumerate(columns):
        if column.name.lower() == "topic":
            if column.dataType.typeName() != "string":
                raise SchemaMismatch(f"column 'topic' is {column.dataType.simpleString()}: make it a string")
            return at
    raise SchemaMismatch("no topic is named: set option topic, or give the rows a column 'topic'")


def _create_it_first(cluster: Cluster, name: str, columns: StructType) -> str:
    command = f"tritonmq topic create {shlex.quote(name)}{_schema_option(columns)}"
    near = nearest(name, cluster.topic_names())
    meant = f"; or did you mean {near!r}?" if near else ""
    return f"unknown topic {name!r}: create it first, `{command}` or Admin.create_topic{meant}{cluster.or_no_right}"


def _schema_option(columns: StructType) -> str:
    """For rows that are no records (without a column `value`): columns of the topic's own, as the rows have them."""
    if any(column.name.lower() == "value" for column in columns):
        return ""
    text = ", ".join(f"{column.name} {column.dataType.simpleString()}" for column in columns)
    if len(text) > _SCHEMA_CHARACTERS_MAX or not all(_PLAIN_NAME.fullmatch(column.name) for column in columns):
        return " --schema 'NAME TYPE, …'"
    return f" --schema '{text}'"


WRITE_PREFIX: Final = "write:"
"""How the query ids of batch writes begin that have no name of their own. Those of named ones begin with "app:"."""


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """The unit of deduplication: under the key `(query_id, sink)` batch ids only grow. `run_id` tells two drivers
    apart."""

    query_id: str
    sink: str
    batch_id: int
    run_id: str

    @property
    def once(self) -> bool:
        """The key was made for this write alone (a batch write without txnAppId): it need not be remembered for
        long."""
        return self.query_id.startswith(WRITE_PREFIX)


@dataclass(frozen=True)
class StagedMessage(WriterCommitMessage):
    """All that the driver will know of a task."""

    micro_batch: MicroBatch
    staged: tuple[manifest.StagedPart, ...]


def manifest_of(messages: Sequence[WriterCommitMessage | None]) -> tuple[MicroBatch, list[manifest.StagedPart]]:
    """The micro-batch that all messages belong to, and what they staged, a line for each partition: topics by name,
    partitions by number, batches in the order of the tasks. Raises `InvalidRequest` if a message is missing or they
    contradict each other.
    """
    given = [message for message in messages if isinstance(message, StagedMessage)]
    if messages and not any(messages):
        raise InvalidRequest(
            "Spark has handed no row to this sink, as it does under trigger(continuous=…), which no sink in Python can "
            "have: nothing is written; stop the query, and start it with trigger(processingTime=…)"
        )
    if len(given) < len(messages) or not given:
        raise InvalidRequest(
            f"{len(messages) - len(given)} of {len(messages)} tasks left no message: nothing can be committed"
        )
    micro_batches = {message.micro_batch for message in given}
    if len(micro_batches) > 1:
        named = "; ".join(sorted(map(str, micro_batches)))
        raise InvalidRequest(f"the tasks of one commit name several micro-batches, restart the query: {named}")
    lines = manifest.by_partition(part for message in given for part in message.staged)
    return given[0].micro_batch, sorted(lines, key=lambda line: (line.topic, line.partition, line.topic_id))
