"""The exactly-once sinks: `df.writeStream.format("tritonmq")` and `df.write.format("tritonmq").mode("append")`.

1. Stage. Every task attempt sends its rows under fresh UUIDs, replicated and invisible (staging.py).
2. Decide. On the driver, `commit` sends the manifest to the transaction coordinator, which journals the decision.
3. Publish. The coordinator has every partition publish it, and goes on until all have, even if the driver is dead.

Neither a row nor a task can be the unit of deduplication, because Spark promises nothing about which rows land in which
task when a micro-batch is run again; so the micro-batch is, by the query's id, which Spark keeps in the checkpoint. Of
a batch write with txnAppId and txnVersion the key is the application's and the version is the batch: written again with
the same version, nothing is written twice. Without them the key is new each time: all rows or none, and twice if run
twice.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from typing import Final

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from mq_protocol.errors import InvalidRequest
from mq_protocol.manifest import StagedPart
from mq_spark.datasource.cluster import connect
from mq_spark.datasource.failpoints import reached
from mq_spark.datasource.reading import QUERY_ID_PROPERTY
from mq_spark.datasource.staging import WRITE_PREFIX, MicroBatch, manifest_of, stage_rows
from mq_spark.planning.options import SinkOptions

_BATCH_ID_PROPERTY: Final = "streaming.sql.batchId"
_RUN_ID_PROPERTY: Final = "spark.jobGroup.id"


class BatchWriter(DataSourceArrowWriter):
    """Owns the options, the rows' columns and this write's key; can be pickled. Raises `InvalidRequest` for
    mode("overwrite")."""

    def __init__(self, options: SinkOptions, columns: StructType, *, overwrite: bool) -> None:
        if overwrite:
            raise InvalidRequest(
                'mode("overwrite") is not possible: a topic is a log and is only added to; write mode("append")'
            )
        self._options = options
        self._columns = columns
        self._micro_batch = _key_of(options)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        context = TaskContext.get()
        assert context is not None, "Spark calls this in a task"
        return stage_rows(self._options, self._columns, iterator, self._micro_batch, context.partitionId())

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        if messages:
            decide(self._options, *manifest_of(messages))
        elif self._options.txn_app_id is not None:
            decide(self._options, self._micro_batch, [])  # no task, no row; the version is used up nevertheless

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Marks nothing and never raises: see the stream's."""


def _key_of(options: SinkOptions) -> MicroBatch:
    """The key in the manner of a query's id, and unlike any: those are UUIDs."""
    run_id = str(uuid.uuid4())
    if options.txn_app_id is not None and options.txn_version is not None:
        return MicroBatch(f"app:{options.txn_app_id}", options.topic or "", options.txn_version, run_id)
    return MicroBatch(f"{WRITE_PREFIX}{run_id}", options.topic or "", 0, run_id)


class StreamWriter(DataSourceStreamArrowWriter):
    """Owns the options and the rows' columns; can be pickled. Spark makes one for the tasks and another for each
    commit."""

    def __init__(self, options: SinkOptions, columns: StructType) -> None:
        self._options = options
        self._columns = columns

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        context = TaskContext.get()
        assert context is not None, "Spark calls this in a task"
        micro_batch = _micro_batch(context, self._options.topic or "")
        return stage_rows(self._options, self._columns, iterator, micro_batch, context.partitionId())

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        micro_batch, manifest = manifest_of(messages)
        if micro_batch.batch_id != batchId:
            raise InvalidRequest(
                f"the tasks wrote micro-batch {micro_batch.batch_id} and Spark commits {batchId}: restart the query"
            )
        decide(self._options, micro_batch, manifest)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Marks nothing and never raises. Spark calls it also after a decision whose answer was lost, so it must not
        undo one; what was staged in vain the brokers discard when the micro-batch is decided.
        """


def _micro_batch(context: TaskContext, sink: str) -> MicroBatch:
    """Which micro-batch the task works for, as Spark says in its properties: what is missing there is never made up."""
    query_id, batch_id, run_id = (
        _property(context, name) for name in (QUERY_ID_PROPERTY, _BATCH_ID_PROPERTY, _RUN_ID_PROPERTY)
    )
    return MicroBatch(query_id, sink, int(batch_id), run_id)


def _property(context: TaskContext, name: str) -> str:
    value = context.getLocalProperty(name)
    if not value:
        raise InvalidRequest(
            f"Spark names no streaming query in this task ({name} is not set), and without one a write cannot be "
            "exactly once: use writeStream with a checkpointLocation, or df.write"
        )
    return value


def decide(options: SinkOptions, micro_batch: MicroBatch, manifest: Sequence[StagedPart]) -> None:
    """Have the micro-batch decided and published: returns when every partition has published it, here or long ago.

    Asks again until the deadline (the same key gives the same answer), and then raises. Raises `ReplayMismatch`,
    `StaleMicroBatch`, `FencedRun`, `StagedBatchMissing` for what asking again cannot mend.
    """
    reached("before_decide", micro_batch.batch_id)
    connect(options).decide(micro_batch, manifest, keep_on_mismatch=options.keep_on_mismatch)
    reached("after_decide", micro_batch.batch_id)
