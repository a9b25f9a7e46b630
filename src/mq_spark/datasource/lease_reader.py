"""The streaming source in lease mode: a query that is a member of a queue group.

A micro-batch is what the leaders have lent for it (leasing.py). Spark keeps the leases in its checkpoint as the offset,
so a micro-batch that is run again has the same rows. What Spark has committed is settled: by `commit`, and by
`latestOffset`, whose start is always committed. Spark tells no query of its last micro-batch, so a query that was
killed settles that one when it starts again.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from mq_spark.datasource.cluster import Cluster, Watch, connect
from mq_spark.datasource.lease_rows import LeasedProjection, Work, read_work
from mq_spark.datasource.leasing import Leasing
from mq_spark.datasource.subscribed import topics_meant
from mq_spark.planning.lease_options import LeaseOptions
from mq_spark.planning.leases import Lease, LeaseKey, from_json, new_leases, planned_work, to_json
from mq_spark.planning.options import SourceOptions

log = logging.getLogger(__name__)

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
        tasks = planned_work(
            [lease.without(lost.get(lease.key, ())) for lease in planned],
            cores=os.cpu_count() or 1,
            tasks_min=self._options.min_partitions,
            rows_max=self._options.max_records_per_partition,
        )
        return [Work(task, driver.topic_ids) for task in tasks] or [Work()]

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
