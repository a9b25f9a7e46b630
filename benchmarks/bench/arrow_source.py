"""The ceiling in Spark: a Python data source that yields one Arrow batch in memory again and again, and a sink that
drops them.

Nothing is read, converted or sent, so what it costs is Spark's own way to Python and back. As a stream it gives
`rowsPerTrigger` rows a micro-batch until there were `rows`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from benchmarks.bench.rows import BATCH_ROWS, DDL, batch_of

FORMAT: Final = "bench_arrow"


class ArrowSource(DataSource):
    """Options: `kind` of rows (a key of `DDL`), `rows` in all, `tasks` a read or micro-batch, `rowsPerTrigger`."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._kind = options.get("kind", "value")
        self._rows, self._tasks = int(options.get("rows", "0")), int(options.get("tasks", "2"))
        self._per_trigger = int(options.get("rowsPerTrigger", "0"))

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> str:
        return DDL[self._kind]

    def reader(self, schema: StructType) -> ArrowReader:
        return ArrowReader(self._kind, self._rows, self._tasks)

    def streamReader(self, schema: StructType) -> ArrowStreamReader:  # noqa: N802 - Spark's name
        return ArrowStreamReader(self._kind, self._rows, self._tasks, self._per_trigger)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DroppingWriter:  # noqa: N802
        return DroppingWriter()


class _Share(InputPartition):
    def __init__(self, rows: int) -> None:
        super().__init__(None)
        self.rows = rows


def _shares(rows: int, tasks: int) -> list[_Share]:
    return [_Share(rows // tasks + (1 if task < rows % tasks else 0)) for task in range(tasks)]


def _yielded(kind: str, rows: int) -> Iterator[pa.RecordBatch]:
    batch = batch_of(kind)
    for _ in range(rows // BATCH_ROWS):
        yield batch
    if rows % BATCH_ROWS:
        yield batch.slice(0, rows % BATCH_ROWS)


class ArrowReader(DataSourceReader):
    """One read of all the rows."""

    def __init__(self, kind: str, rows: int, tasks: int) -> None:
        self._kind, self._rows, self._tasks = kind, rows, tasks

    def partitions(self) -> Sequence[InputPartition]:
        return _shares(self._rows, self._tasks)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, _Share)
        return _yielded(self._kind, partition.rows)


class ArrowStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A stream whose offset is how many rows there were."""

    def __init__(self, kind: str, rows: int, tasks: int, per_trigger: int) -> None:
        self._kind, self._rows, self._tasks, self._per_trigger = kind, rows, tasks, per_trigger or rows

    def initialOffset(self) -> dict[str, int]:  # noqa: N802 - Spark's name
        return {"rows": 0}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        return ReadMaxRows(self._per_trigger)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """All there will be is there."""

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:  # noqa: N802
        step = limit.max_rows if isinstance(limit, ReadMaxRows) else self._rows
        return {"rows": min(self._rows, start["rows"] + step)}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        return _shares(end["rows"] - start["rows"], self._tasks) if end["rows"] > start["rows"] else []

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, _Share)
        return _yielded(self._kind, partition.rows)


class DroppingWriter(DataSourceStreamArrowWriter):
    """Takes the batches and forgets them."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        for _batch in iterator:
            pass
        return WriterCommitMessage()

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> Any:  # noqa: N803
        return None

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> Any:  # noqa: N803
        return None
