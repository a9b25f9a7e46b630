"""The batch source in lease mode: records that a queue group lends to one read, until `settle` says that they are done.

They are lent when the columns are asked for, once for each `load()`, and are then a part of the data source. So every
evaluation of the DataFrame has the same rows. The columns carry the leases too: by them `settle` finds what a DataFrame
was made of. Each read is a member of its own. Nothing keeps its leases alive: what is not settled in time comes again.
"""

from __future__ import annotations

import json
import logging
import os
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructField, StructType

from mq_protocol.errors import InvalidRequest, InvalidSetting, LeaseLost, TritonMQError
from mq_spark.datasource.cluster import connect
from mq_spark.datasource.lease_rows import LeasedProjection, Work, read_work
from mq_spark.datasource.leasing import Leasing
from mq_spark.datasource.schemas import Topic
from mq_spark.planning.lease_options import LeaseOptions
from mq_spark.planning.leases import Lease, LeaseKey, from_json, planned_work, to_json
from mq_spark.planning.options import SourceOptions
from mq_spark.planning.security_options import TOKEN_LOCATION, SecurityOptions

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
        leasing = connect(options).leasing(lease, topics)
        try:
            leases = leasing.lease(lease.rows)
        finally:
            leasing.close()
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
        leasing = self.leasing()
        try:
            leasing.release(self.leases)
        finally:
            leasing.close()


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
        leasing = lent.leasing()
        try:
            lost = leasing.claim(lent.leases)
        finally:
            leasing.close()
        if lost and not lent.options.skip_lost:
            raise _lost(lost, "Set leaseLost=skip to read the others")
        tasks = planned_work(
            [lease.without(lost.get(lease.key, ())) for lease in lent.leases],
            cores=os.cpu_count() or 1,
            tasks_min=self._options.min_partitions,
            rows_max=self._options.max_records_per_partition,
        )
        return [Work(task, lent.topic_ids) for task in tasks] or [Work()]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Work)
        return read_work(self._options, self._wanted, partition)


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
        leasing = lent.leasing()
        try:
            gone = leasing.settle(lent.leases)
        finally:
            leasing.close()
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
