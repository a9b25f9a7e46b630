"""The sources in lease mode: records that a queue group lends (leasing.py), to a stream or to one batch read.

Of a stream, a micro-batch is what the leaders have lent for it. Spark keeps the leases in its checkpoint as the offset,
so a micro-batch that is run again has the same rows. What Spark has committed is settled: by `commit`, and by
`latestOffset`, whose start is always committed. Spark tells no query of its last micro-batch, so a query that was
killed settles that one when it starts again.

A batch read is lent its records when the columns are asked for, once for each `load()`, and they are then a part of the
data source. So every evaluation of the DataFrame has the same rows. The columns carry the leases too: by them `settle`
finds what a DataFrame was made of. Each read is a member of its own. Nothing keeps its leases alive: what is not
settled in time comes again.
"""

from __future__ import annotations

import json
import logging
import os
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyspark.sql import types as spark
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructField, StructType

from mq_protocol.arrow import column_of
from mq_protocol.errors import InvalidRequest, InvalidSetting, LeaseLost, SchemaMismatch, TritonMQError
from mq_spark.datasource.cluster import Cluster, Watch, connect
from mq_spark.datasource.leasing import Leasing
from mq_spark.datasource.reading import fetched, merged, topic_of
from mq_spark.datasource.schemas import Projection, StoredRows, Topic
from mq_spark.datasource.subscribed import topics_meant
from mq_spark.planning.lease_options import LeaseOptions
from mq_spark.planning.leases import (
    Lease,
    LeaseKey,
    Run,
    WorkRange,
    from_json,
    new_leases,
    planned_work,
    spans,
    to_json,
)
from mq_spark.planning.offsets import OffsetRange
from mq_spark.planning.options import SourceOptions
from mq_spark.planning.security_options import TOKEN_LOCATION, SecurityOptions

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

log = logging.getLogger(__name__)


METADATA: Final = "tritonmq.lease"
"""Of each column: what was lent, as JSON."""


@dataclass(frozen=True, slots=True)
class Lent:
    """What one read was lent, and by whom. Goes with the data source to wherever Spark plans."""

    bootstrap: str
    timeout_ms: int
    options: LeaseOptions
    leases: tuple[Lease, ...]
    topic_ids: Mapping[str, str]
    security: SecurityOptions | None = None
    forward: bool = False

    @classmethod
    def lend(cls, options: SourceOptions, topics: Sequence[Topic]) -> Lent:
        """Be lent what is ready, as a member of its own. Raises `TritonMQError`."""
        assert options.lease is not None
        if options.security is not None and options.security.token is not None:
            raise InvalidSetting(
                "a batch read of a queue group notes with its columns how brokers are reached, and a plan shows that: "
                f"give {TOKEN_LOCATION} instead of the token"
            )
        lease = replace(options.lease, member=f"spark-read-{uuid.uuid4().hex}")
        with closing(connect(options).leasing(lease, topics)) as leasing:
            leases = leasing.lease(lease.rows)
        topic_ids = {topic.name: topic.topic_id for topic in topics}
        return cls(
            options.bootstrap, options.timeout_ms, lease, tuple(leases), topic_ids, options.security, options.forward
        )

    def marked(self, columns: StructType) -> StructType:
        """The columns, each with the leases."""
        told = {
            "bootstrap": self.bootstrap,
            "timeout_ms": self.timeout_ms,
            "lease_ms": self.options.lease_ms,
            "forward": self.forward,
            "security": asdict(self.security) if self.security is not None else None,  # paths alone: see lend
            **to_json(self.options.group, self.options.member, self.leases),
        }
        mark = {METADATA: json.dumps(told, separators=(",", ":"))}
        return StructType([StructField(c.name, c.dataType, c.nullable, {**c.metadata, **mark}) for c in columns])

    @classmethod
    def of(cls, mark: str) -> Lent:
        """What a column says. Raises `InvalidRequest` for what nobody wrote."""
        try:
            told = json.loads(mark)
            group, member = told["group"], told["member"]
            bootstrap, timeout_ms, lease_ms = told["bootstrap"], int(told["timeout_ms"]), int(told["lease_ms"])
            security = SecurityOptions(**told["security"]) if told.get("security") else None
            forward = bool(told["forward"])
        except (KeyError, TypeError, ValueError):
            raise InvalidRequest(f"a column has {METADATA}={mark[:100]!r}, which no batch read has written") from None
        leases = tuple(from_json(told, group, member))
        ids = {lease.key.topic: lease.key.topic_id for lease in leases}
        lease = LeaseOptions(group, member, lease_ms, skip_lost=False)
        return cls(bootstrap, timeout_ms, lease, leases, ids, security, forward)

    def leasing(self) -> Leasing:
        """The member that was lent it. Close it."""
        cluster = connect(self)
        topics = [cluster.topic(name, topic_id) for name, topic_id in self.topic_ids.items()]
        return cluster.leasing(self.options, topics, declare=False)

    def give_back(self) -> None:
        """Nobody will work on it."""
        with closing(self.leasing()) as leasing:
            leasing.release(self.leases)


class LeaseBatchReader(DataSourceReader):
    """`spark.read.format("tritonmq").option("lease.group", ...)`. Can be pickled."""

    def __init__(self, options: SourceOptions, wanted: StructType, lent: Lent) -> None:
        self._options = options
        self._wanted = wanted
        self._lent = lent

    def partitions(self) -> Sequence[InputPartition]:
        """The tasks. The leases have their whole time again from now on. Raises `LeaseLost`."""
        lent = self._lent
        cluster = connect(self._options)
        for name, topic_id in lent.topic_ids.items():
            LeasedProjection(cluster.topic(name, topic_id), self._wanted)
        with closing(lent.leasing()) as leasing:
            lost = leasing.claim(lent.leases)
        if lost and not lent.options.skip_lost:
            raise _lost(lost, "Set leaseLost=skip to read the others")
        return _tasks(self._options, lent.leases, lost, lent.topic_ids)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Work)
        return read_work(self._options, self._wanted, partition)


def _tasks(
    options: SourceOptions,
    leases: Iterable[Lease],
    lost: Mapping[LeaseKey, Sequence[int]],
    topic_ids: Mapping[str, str],
) -> Sequence[InputPartition]:
    """Of the leases without what is lost; one without work if nothing is left: Spark would make one of its own."""
    tasks = planned_work(
        [lease.without(lost.get(lease.key, ())) for lease in leases],
        cores=os.cpu_count() or 1,
        tasks_min=options.min_partitions,
        rows_max=options.max_records_per_partition,
    )
    return [Work(task, topic_ids) for task in tasks] or [Work()]


def lent_to(columns: StructType) -> list[Lent]:
    """What the batch reads were lent of which these columns are, each once."""
    marks: Iterable[Any] = (column.metadata.get(METADATA) for column in columns)
    return [Lent.of(mark) for mark in dict.fromkeys(marks) if isinstance(mark, str)]


def settle_all(reads: Iterable[Lent]) -> int:
    """These records are done, for good: how many there were. Raises `LeaseLost`, once all others are settled."""
    count, lost = 0, dict[LeaseKey, list[int]]()
    for lent in reads:
        if not lent.leases:
            continue
        with closing(lent.leasing()) as leasing:
            gone = leasing.settle(lent.leases)
        lost |= gone
        count += sum(lease.records for lease in lent.leases) - sum(map(len, gone.values()))
    if lost:
        raise _lost(lost, f"The other {count} are settled. Give a longer lease.ms, or settle sooner")
    return count


def _lost(lost: Mapping[LeaseKey, Sequence[int]], advice: str) -> TritonMQError:
    places = [f"topic {key.topic} partition {key.partition} from offset {gone[0]} on" for key, gone in lost.items()]
    count = sum(map(len, lost.values()))
    return LeaseLost(
        f"{count} records that were read are not this read's any more: {'; '.join(places[:10])}. Their lease ran "
        f"out, and others may have them. {advice}"
    )


_ASKED_AGAIN_S: Final = 1.0
"""An idle query asks for what came back at most so often; for what is new when the brokers have pushed that there is
something."""


@dataclass(slots=True)
class _OnDriver:
    """What only the driver's copy has. `left`: how many records a query that ends by itself is still to work on; None
    before it has asked. `idle_at`, `idle_since`: where the logs ended when nothing was lent, and when that was."""

    cluster: Cluster
    leasing: Leasing
    watch: Watch
    topic_ids: dict[str, str]
    left: int | None = None
    idle_at: Any = None
    idle_since: float = 0.0
    known: dict[LeaseKey, Lease] = field(default_factory=dict)


class LeaseReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """`spark.readStream.format("tritonmq").option("lease.group", ...)`. Every method retries inside, within the option
    requestTimeoutMs, and then raises: an error that gets out ends the query."""

    def __init__(self, options: SourceOptions, lease: LeaseOptions, wanted: StructType) -> None:
        self._options = options
        self._lease = lease
        self._wanted = wanted
        self._ends = False
        self._opened: _OnDriver | None = None

    # -------------------------------------------------------------- on the driver

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        self._driver()  # a queue that cannot be worked off is refused now
        return to_json(self._lease.group, self._lease.member, ())

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        rows_max = self._options.max_offsets_per_trigger
        return ReadAllAvailable() if rows_max is None else ReadMaxRows(rows_max)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Settles what Spark has committed, and is lent the next micro-batch. `start` again if nothing is ready; an
        idle query is mostly answered without asking anybody."""
        self._settle(start)
        driver = self._driver()
        ends = driver.watch.bounds()
        now = time.monotonic()
        if ends == driver.idle_at and now < driver.idle_since + _ASKED_AGAIN_S and not self._ends:
            return start
        driver.leasing.grow({topic: len(inner) for topic, inner in ends.items()})
        if self._ends and driver.left is None:
            driver.left = driver.leasing.ready()
        rows_max = self._options.max_offsets_per_trigger if isinstance(limit, ReadMaxRows) else None
        most = [n for n in (rows_max, driver.left) if n is not None]
        leases = driver.leasing.lease(min(most, default=None)) if 0 not in most else []
        driver.idle_at = None if leases else ends
        driver.idle_since = now
        if not leases:
            return start
        if driver.left is not None:
            driver.left = max(0, driver.left - sum(lease.records for lease in leases))
        driver.known = {lease.key: lease for lease in leases}
        return to_json(self._lease.group, self._lease.member, leases)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._ends = True

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """The tasks of the leases that the micro-batch was lent. Leases of a former process are claimed first. Raises
        `LeaseLost`."""
        driver = self._driver()
        planned = new_leases(self._leases(start), self._leases(end))
        former = [lease for lease in planned if lease.key not in driver.known]
        lost = driver.leasing.claim(former)
        driver.known.update((lease.key, lease) for lease in former)
        self._tell(lost, "the micro-batch that is run again")
        return _tasks(self._options, planned, lost, driver.topic_ids)

    def commit(self, end: dict[str, Any]) -> None:
        self._settle(end)

    def stop(self) -> None:
        if self._opened is not None:
            self._opened.leasing.close()
            self._opened.watch.close()
            self._opened = None

    def _settle(self, committed: dict[str, Any]) -> None:
        lost = self._driver().leasing.settle(self._leases(committed))
        self._tell(lost, "a micro-batch that is committed")

    def _tell(self, lost: dict[LeaseKey, list[int]], what: str) -> None:
        if not lost:
            return
        error = self._driver().leasing.why_lost(lost, what)
        if not self._lease.skip_lost:
            raise error
        log.warning("leaseLost=skip: %s", error)

    def _leases(self, offset: dict[str, Any]) -> list[Lease]:
        return from_json(offset, self._lease.group, self._lease.member)

    def _driver(self) -> _OnDriver:
        if self._opened is None:
            cluster = connect(self._options)
            topics = topics_meant(cluster, self._options)
            for topic in topics:
                LeasedProjection(topic, self._wanted)
            leasing = cluster.leasing(self._lease, topics)
            watch = cluster.watch([topic.name for topic in topics])
            self._opened = _OnDriver(cluster, leasing, watch, {topic.name: topic.topic_id for topic in topics})
        return self._opened

    # -------------------------------------------------------------- in the tasks

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Work)
        return read_work(self._options, self._wanted, partition)


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
        for column, count in zip(wanted, self._counts, strict=True):
            if count is not None and column.dataType != spark.IntegerType():
                raise SchemaMismatch(f"column {column.name!r} is int with lease.group: change .schema(...)")
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
        arrays = [next(plain) if count is None else column_of(counts[:, count], pa.int32()) for count in self._counts]
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
    return rows.take(column_of(np.flatnonzero(kept), pa.int64()))


def _offsets(stored: StoredRows) -> NDArray[np.int64]:
    if stored.offsets is not None:
        return stored.offsets
    return np.arange(stored.first_offset, stored.first_offset + stored.rows.num_rows, dtype=np.int64)


def settle(rows: DataFrame) -> int:
    """Settle the records that the batch read was lent which these rows are of (`lease.group`), all of them, whatever
    was filtered out since. Returns how many records there were. Said again, it changes nothing.

    `rows`: the DataFrame of the read, or one that has a column of it. Of a join of several reads, all are settled.
    Raises `InvalidRequest` for a DataFrame without such a column, `LeaseLost` if others were lent some records
    meanwhile: it names them, and all others are settled. Other `TritonMQError`s: it is not known what is settled, call
    it again.
    """
    reads = lent_to(rows.schema)
    if not reads:
        raise InvalidRequest(
            "settle knows what was read by a column of a batch read with lease.group, and this DataFrame has none: "
            "give the DataFrame that load() returned; a stream settles by itself"
        )
    return settle_all(reads)
