"""All that the data source asks of the brokers, on top of mq_client. Owns this process's clients.

Spark's Python workers are kept and swap roles, and some are forked: clients are made on first use, kept at module level and keyed
by process id, so that a micro-batch finds those of the one before and a fork makes its own.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from mq_client.connection import Connection, TopicView
from mq_client.deadline import Deadline
from mq_client.leaders import ask_offsets, move_cursors
from mq_client.offsets import OffsetWatch
from mq_client.reader import Reader
from mq_client.transactions import Stage, StagedPart, TransactionClient
from mq_spark.datasource.progress import Place, Reporter
from mq_spark.manifest import MicroBatch, Staged
from mq_spark.positions import AllBounds, Bounds
from mq_spark.schemas import StoredRows, Topic

_REPORT_TIMEOUT_MS: Final = 5_000
_LAST_REPORT_SECONDS: Final = 1.0
_GROUP_KIND: Final = "spark"

_lock = threading.Lock()
_clusters: dict[tuple[int, str, int], Cluster] = {}


def connect(bootstrap: str, timeout_ms: int) -> Cluster:
    """This process's view of the cluster. Connects when it is first asked for something."""
    key = (os.getpid(), bootstrap, timeout_ms)
    with _lock:
        found = _clusters.get(key)
        if found is None:
            found = _clusters[key] = Cluster(bootstrap, timeout_ms)
        return found


class Cluster:
    """Owns the clients of one bootstrap address list. Each question ends within `timeout_ms`, retries included."""

    def __init__(self, bootstrap: str, timeout_ms: int) -> None:
        self._timeout_ms = timeout_ms
        self._connection = Connection(bootstrap)
        self._reader = Reader(self._connection, timeout_ms)
        self._transactions = TransactionClient(self._connection, timeout_ms)
        self._reporter = Reporter(self._move_cursors)

    # -------------------------------------------------------------- what there is

    def topic(self, name: str, topic_id: str | None = None) -> Topic:
        """The topic as it is now, or as last heard of if that has `topic_id`: a worker that is kept may remember one that was
        deleted and made again. Raises `UnknownTopic` with the nearest name, `Unreachable`.
        """
        known = self._connection.known_topic(name)
        if known is not None and known.topic_id == topic_id:
            return _topic(known)
        return _topic(self._connection.refresh(name, self._deadline()))

    def bounds(self, topics: Iterable[str]) -> AllBounds:
        """What the topics keep, asked of every partition's leader now."""
        return {topic: _bounds_of(self._connection, topic, self._deadline()) for topic in topics}

    def watch(self, topics: Iterable[str]) -> Watch:
        """What the topics keep, as the brokers push it from now on."""
        return Watch(OffsetWatch(self._connection, topics), self._timeout_ms)

    # -------------------------------------------------------------- reading

    def fetch(self, topic: str, partition: int, start: int, end: int, columns: Sequence[str]) -> Iterator[StoredRows]:
        """Rows `start .. end - 1` as they are stored. Raises `OffsetOutOfRange` for what is no longer kept."""
        for stored in self._reader.read_stored(topic, partition, start, end, columns=columns):
            yield StoredRows(stored.batch, stored.base_offset, stored.timestamp_us)

    def report(self, group: str, positions: Iterable[tuple[str, int, int]]) -> None:
        """Let the brokers know `(topic, partition, next offset)` of a group, soon. Returns at once and never raises."""
        self._reporter.report(group, positions)

    def flush_reports(self) -> None:
        """Wait a moment for what was handed over to be sent: the process is about to be ended."""
        self._reporter.flush(_LAST_REPORT_SECONDS)

    # -------------------------------------------------------------- writing

    def stage(self, micro_batch: MicroBatch) -> Stage:
        """Begin to stage what one task attempt writes."""
        return self._transactions.open_stage((micro_batch.query_id, micro_batch.sink), micro_batch.batch_id, micro_batch.run_id)

    def decide(self, micro_batch: MicroBatch, manifest: Iterable[Staged], *, keep_on_mismatch: bool) -> None:
        """Decide and publish, once for all; asks again until the deadline."""
        self._transactions.decide(
            (micro_batch.query_id, micro_batch.sink),
            micro_batch.batch_id,
            micro_batch.run_id,
            [StagedPart(line.topic, line.partition, line.uuids, line.row_count) for line in manifest],
            keep_on_mismatch=keep_on_mismatch,
        )

    # -------------------------------------------------------------- private

    def _deadline(self) -> Deadline:
        return Deadline(self._timeout_ms)

    def _move_cursors(self, group: str, positions: Mapping[Place, int]) -> None:
        by_topic: dict[str, dict[int, int]] = {}
        for (topic, partition), offset in positions.items():
            by_topic.setdefault(topic, {})[partition] = offset
        move_cursors(self._connection, group, by_topic, Deadline(_REPORT_TIMEOUT_MS), kind=_GROUP_KIND)


class Watch:
    """Owns the end offsets that the brokers push; reading them asks nobody."""

    def __init__(self, watch: OffsetWatch, timeout_ms: int) -> None:
        self._watch = watch
        self._timeout_ms = timeout_ms

    def bounds(self) -> AllBounds:
        """As last heard; at first waits until every partition has been heard of. Raises `OutcomeUnknown`, `UnknownTopic`."""
        latest = self._watch.wait_first(Deadline(self._timeout_ms))
        return {topic: {p: Bounds(*bound) for p, bound in inner.items()} for topic, inner in latest.items()}

    def close(self) -> None:
        self._watch.close()


def _topic(view: TopicView) -> Topic:
    return Topic(view.name, view.topic_id, view.schema, view.typed, view.partitions)


def _bounds_of(connection: Connection, topic: str, deadline: Deadline) -> dict[int, Bounds]:
    found = ask_offsets(connection, topic, deadline)
    return {partition: Bounds(found[partition].log_start_offset, found[partition].log_end_offset) for partition in sorted(found)}
