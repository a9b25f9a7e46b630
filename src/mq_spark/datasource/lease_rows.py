"""What a task does in lease mode: it reads the records that were lent, and no others, and says how often each was lent
and failed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyspark.sql import types as spark
from pyspark.sql.datasource import InputPartition

from mq_protocol.errors import SchemaMismatch
from mq_spark.datasource.cluster import connect
from mq_spark.datasource.reading import fetched, merged, topic_of
from mq_spark.datasource.schemas import Projection, StoredRows, Topic
from mq_spark.planning.leases import Run, WorkRange, spans
from mq_spark.planning.offsets import OffsetRange
from mq_spark.planning.options import SourceOptions

_COUNTS: Final = ("deliveries", "failures")


class Work(InputPartition):
    """One task's work: records in their order, and the ids of the topics that were meant."""

    def __init__(self, ranges: tuple[WorkRange, ...] = (), topic_ids: Mapping[str, str] | None = None) -> None:
        super().__init__(None)
        self.ranges = ranges
        self.topic_ids = dict(topic_ids or {})

    def __repr__(self) -> str:
        return f"Work({self.ranges!r})"


def count_columns(typed: bool) -> list[str]:
    """The names of the columns with each record's counts; an underscore before them in a typed topic, as of its other
    computed columns."""
    return [f"_{name}" if typed else name for name in _COUNTS]


def lease_schema(plain: spark.StructType, topic: Topic, *, include_metadata: bool) -> spark.StructType:
    """The columns of a stream in lease mode: those of any stream, and the counts beside a record's place."""
    if topic.typed and not include_metadata:
        return plain
    counts = count_columns(topic.typed)
    for name in counts:
        if any(field.name.lower() == name for field in plain):
            raise SchemaMismatch(
                f"includeMetadata adds the column {name} with lease.group, and topic {topic.name} has one itself: "
                "leave it out, or read by .schema(...)"
            )
    return spark.StructType([*plain, *(spark.StructField(name, spark.IntegerType()) for name in counts)])


class LeasedProjection:
    """As `Projection`, and fills the columns with counts. `runs` of the records that come must be told before."""

    def __init__(self, topic: Topic, wanted: spark.StructType) -> None:
        own = {name.lower() for name in topic.schema.names}
        counts = {name: number for number, name in enumerate(count_columns(topic.typed)) if name not in own}
        self._counts = [counts.get(field.name.lower()) for field in wanted]
        for field, count in zip(wanted, self._counts, strict=True):
            if count is not None and field.dataType != spark.IntegerType():
                raise SchemaMismatch(f"column {field.name!r} is int with lease.group: change .schema(...)")
        self._plain = Projection(
            topic,
            spark.StructType([f for f, count in zip(wanted, self._counts, strict=True) if count is None]),
        )
        self.columns = self._plain.columns
        self.runs: Sequence[Run] = ()
        self.schema = pa.schema(
            [
                pa.field(field.name, pa.int32(), nullable=field.nullable)
                if count is not None
                else self._plain.schema.field(field.name)
                for field, count in zip(wanted, self._counts, strict=True)
            ]
        )

    def convert(self, partition: int, stored: Sequence[StoredRows]) -> pa.RecordBatch:
        offsets = np.concatenate([_offsets(each) for each in stored])
        at = np.searchsorted(np.array([run.first for run in self.runs]), offsets, side="right") - 1
        counts = np.array([(run.deliveries, run.failures) for run in self.runs], dtype=np.int32)[at]
        plain = iter(self._plain.convert(partition, stored).columns)
        arrays = [next(plain) if count is None else pa.array(counts[:, count]) for count in self._counts]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)


def read_work(options: SourceOptions, wanted: spark.StructType, work: Work) -> Iterator[pa.RecordBatch]:
    """The task's records as Arrow batches in exactly the form of `wanted`. Raises `DataLoss`, `SchemaMismatch`, …"""
    cluster = connect(options, options.read_from, options.rack)
    projections: dict[str, LeasedProjection | None] = {}
    for name, partition, runs in spans(work.ranges):
        if name not in projections:
            projections[name] = topic_of(
                cluster, options, name, work.topic_ids[name], lambda topic: LeasedProjection(topic, wanted)
            )
        projection = projections[name]
        if projection is not None:
            projection.runs = runs
            span = OffsetRange(name, partition, runs[0].first, runs[-1].end)
            stored = fetched(cluster, options, span, work.topic_ids[name], projection.columns)
            yield from merged(projection, partition, lent(stored, runs))


def lent(found: Iterable[StoredRows], runs: Sequence[Run]) -> Iterator[StoredRows]:
    """The stored rows of these runs, without those between them."""
    firsts, ends = np.array([run.first for run in runs]), np.array([run.end for run in runs])
    for stored in found:
        offsets = _offsets(stored)
        at = np.searchsorted(firsts, offsets, side="right") - 1
        kept = (at >= 0) & (offsets < ends[at])
        if kept.any():
            rows = stored.rows if kept.all() else _chosen(stored.rows, kept)
            yield StoredRows(rows, stored.first_offset, stored.appended_us, offsets[kept], stored.end_offset)


def _chosen(rows: pa.RecordBatch, kept: NDArray[np.bool_]) -> pa.RecordBatch:
    if not rows.num_columns:  # only the number of rows counts, and a filter would lose it
        return rows.slice(0, int(np.count_nonzero(kept)))
    return rows.filter(pa.array(kept))


def _offsets(stored: StoredRows) -> NDArray[np.int64]:
    if stored.offsets is not None:
        return stored.offsets
    return np.arange(stored.first_offset, stored.first_offset + stored.rows.num_rows, dtype=np.int64)
