"""The exactly-once sink: `df.writeStream.format("tritonmq")`.

1. Stage. Every task attempt sends its rows under fresh UUIDs, replicated and invisible (staging.py).
2. Decide. On the driver, `commit` sends the manifest to the transaction coordinator, which journals the decision
   (deciding.py).
3. Publish. The coordinator has every partition publish it, and goes on until all have, even if the driver is dead.

Neither a row nor a task can be the unit of deduplication, because Spark promises nothing about which rows land in which
task when a micro-batch is run again; so the micro-batch is, by the query's id, which Spark keeps in the checkpoint.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from mq_protocol.errors import InvalidRequest
from mq_spark.datasource.deciding import decide
from mq_spark.datasource.manifest import MicroBatch, manifest_of
from mq_spark.datasource.reading import QUERY_ID_PROPERTY
from mq_spark.datasource.staging import stage_rows
from mq_spark.planning.options import SinkOptions

_BATCH_ID_PROPERTY: Final = "streaming.sql.batchId"
_RUN_ID_PROPERTY: Final = "spark.jobGroup.id"


class StreamWriter(DataSourceStreamArrowWriter):
    """Owns the options and the rows' columns; can be pickled. Spark makes one for the tasks and another for each
    commit."""

    def __init__(self, options: SinkOptions, columns: StructType) -> None:
        self._options = options
        self._columns = columns

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        context = TaskContext.get()
        assert context is not None, "Spark calls this in a task"
        return stage_rows(
            self._options,
            self._columns,
            iterator,
            _micro_batch(context, self._options.topic or ""),
            context.partitionId(),
        )

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
