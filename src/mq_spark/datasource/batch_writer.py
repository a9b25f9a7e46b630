"""The batch sink: `df.write.format("tritonmq").mode("append")`, atomic always, idempotent with txnAppId and txnVersion.

The same three steps as the stream's. With the two options the key is the application's and the version is the batch:
written again with the same version, nothing is written twice. Without them the key is new each time: all rows or none,
and twice if run twice.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from mq_protocol.errors import InvalidRequest
from mq_spark.datasource.deciding import decide
from mq_spark.datasource.manifest import WRITE_PREFIX, MicroBatch, manifest_of
from mq_spark.datasource.staging import stage_rows
from mq_spark.planning.options import SinkOptions


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
        self._micro_batch = _micro_batch(options)

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


def _micro_batch(options: SinkOptions) -> MicroBatch:
    """The key in the manner of a query's id, and unlike any: those are UUIDs."""
    run_id = str(uuid.uuid4())
    if options.txn_app_id is not None and options.txn_version is not None:
        return MicroBatch(f"app:{options.txn_app_id}", options.topic or "", options.txn_version, run_id)
    return MicroBatch(f"{WRITE_PREFIX}{run_id}", options.topic or "", 0, run_id)
