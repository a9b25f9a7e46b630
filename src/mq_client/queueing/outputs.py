"""What a member publishes together with the records that it acknowledges: gathered here, staged when they are."""

from __future__ import annotations

import random
import time
from datetime import datetime
from typing import Any, Final

import numpy as np
import pyarrow as pa

from mq_client.cluster.connection import TopicView
from mq_client.cluster.deadline import Deadline
from mq_client.cluster.requests import topic_with
from mq_client.errors import BatchTooLarge, InvalidRequest, Overloaded, SchemaMismatch
from mq_client.producing.batches import (
    RECORD_OVERHEAD_BYTES,
    Headers,
    conform,
    largest_record_bytes,
    record_key_column,
    record_size,
    record_time_us,
    records_to_batch,
    split_by_partition,
    to_bytes,
    to_header_pairs,
)
from mq_client.producing.rows import RowShape
from mq_client.producing.staging import Stager
from mq_client.queueing.leases import LeaseId
from mq_protocol.limits import OUTPUT_BATCHES_MAX, OUTPUT_PARTITIONS_MAX
from mq_protocol.manifest import StagedPart
from mq_protocol.names import check_topic_name, did_you_mean
from mq_protocol.partitioner import partition_for_key, partitions_for_keys
from mq_protocol.queues.work_keys import WorkPlace, query_id_of, run_of_lease

BYTES_MAX: Final = 64 << 20
"""Of one ack, about: what is gathered is in this process's memory."""


class Outputs:
    """Records and rows that are published if, and only if, an `ack` that is given them counts. Made by
    `Queue.outputs()`, given to one `ack`. Used by one thread at a time.

    Nothing is sent before the `ack`, so an object that is dropped leaves nothing behind. Partitions are chosen as a
    `Producer` does it: by the key; what has no key goes to one partition of its topic. A topic that does not exist is
    made when it is first written here, if the brokers run with `--auto-create`. One object takes about 64 MiB, and
    writes at most 64 partitions.
    """

    def __init__(self, stager: Stager, timeout_ms: float) -> None:
        self.auto_create = True
        """Whether a topic that does not exist may be made."""
        self._stager = stager
        self._timeout_ms = timeout_ms
        self._views: dict[str, TopicView] = {}
        self._shapes: dict[str, RowShape] = {}
        self._usual: dict[str, int] = {}
        self._rows: dict[tuple[str, int], list[Any]] = {}
        self._tables: dict[tuple[str, int], list[pa.Table]] = {}
        self._bytes = 0
        self._given = False

    def __bool__(self) -> bool:
        """Whether there is anything to publish."""
        return bool(self._rows or self._tables)

    def publish(
        self,
        topic: str,
        value: object,
        *,
        key: bytes | str | None = None,
        headers: Headers | None = None,
        partition: int | None = None,
        timestamp: int | datetime | None = None,
    ) -> None:
        """Add a record, or a dict of columns for a topic with a schema of its own. As `Producer.publish`.

        Raises `SchemaMismatch` naming the column, `BatchTooLarge`, `UnknownTopic`, `UnknownPartition`, and
        `Overloaded` if this object has as much as one ack may publish.
        """
        view = self._view(topic, partition)
        name = None if key is None else to_bytes(key, "key")
        row: Any
        if view.typed:
            if headers is not None or timestamp is not None:
                raise InvalidRequest(
                    f"topic {topic!r} has its own schema: it has no place for headers or timestamp; make them columns"
                )
            row, size = self._fitted(view, value)
        else:
            pairs = None if headers is None else to_header_pairs(headers)
            text = None if value is None else to_bytes(value, "value")
            size = record_size(name, text, pairs)
            at_us = time.time_ns() // 1000 if timestamp is None else record_time_us(timestamp)
            row = (name, text, pairs, at_us)
        self._check_row(view, size - (0 if view.typed else RECORD_OVERHEAD_BYTES))
        where = topic, self._chosen(view, partition, name)
        self._check_room(size, {where})
        self._rows.setdefault(where, []).append(row)
        self._bytes += size

    def publish_batch(
        self,
        topic: str,
        batch: pa.RecordBatch | pa.Table,
        *,
        partition: int | None = None,
        key_column: str | None = None,
    ) -> None:
        """Add a table. As `Producer.publish_batch`, and raises as `publish` does; then nothing of it is added."""
        view = self._view(topic, partition, batch.schema.names)
        now_us = None if view.typed else time.time_ns() // 1000
        table = conform(batch, view.schema, topic, now_us=now_us, first_columns=view.first_columns)
        if not table.num_rows:
            return
        if not view.typed:
            self._check_row(view, largest_record_bytes(table))
        parts = list(self._parts(view, table, partition, key_column))
        self._check_room(table.nbytes, {(topic, at) for at, _ in parts})
        for at, rows in parts:
            self._tables.setdefault((topic, at), []).append(rows)
        self._bytes += table.nbytes

    # ------------------------------------------------------------------ for the ack

    def check_usable(self) -> None:
        """Raises `InvalidRequest` if they were given to an `ack` before."""
        if self._given:
            raise InvalidRequest("these outputs were given to an ack before: make others with queue.outputs()")

    def note_given(self) -> None:
        self._given = True

    def stage(self, place: WorkPlace, lease: LeaseId) -> tuple[StagedPart, ...]:
        """Stage all of it under that lease, and wait for that. Raises the error of what could not be staged; nothing is
        visible then, and it may be tried again."""
        self.check_usable()
        stages = {
            topic: self._stager.open_stage((query_id_of(place), topic), 0, run_of_lease(*lease))
            for topic in sorted({topic for topic, _ in (*self._rows, *self._tables)})
        }
        deadline = Deadline(self._timeout_ms)
        for (topic, partition), rows in self._rows.items():
            stages[topic].add(topic, partition, self._table(topic, rows), _left_ms(deadline))
        for (topic, partition), tables in self._tables.items():
            for table in tables:
                stages[topic].add(topic, partition, table, _left_ms(deadline))
        parts = tuple(part for stage in stages.values() for part in stage.finish(_left_ms(deadline)))
        if sum(len(part.uuids) for part in parts) > OUTPUT_BATCHES_MAX:
            raise BatchTooLarge(
                f"one ack publishes at most {OUTPUT_BATCHES_MAX} batches: give it larger ones, or fewer"
            )
        return parts

    def _table(self, topic: str, rows: list[Any]) -> pa.RecordBatch:
        if topic in self._shapes:
            return self._shapes[topic].batch(rows)
        keys, values, headers, timestamps = zip(*rows, strict=True)
        return records_to_batch(keys, values, headers, timestamps)

    # ------------------------------------------------------------------ what fits where

    def _view(self, topic: str, partition: int | None, columns: list[str] | None = None) -> TopicView:
        """The topic as it was when it was first written here."""
        check_topic_name(topic)
        self.check_usable()
        view = self._views.get(topic)
        if view is None or (partition is not None and partition >= view.partitions):
            deadline = Deadline(self._timeout_ms)
            self._stager.connection.topic(topic, deadline, auto_create=self.auto_create)
            view = topic_with(self._stager.connection, topic, [partition or 0], deadline, columns=columns or ())
            self._views[topic] = view
        return view

    def _fitted(self, view: TopicView, row: object) -> tuple[list[Any], int]:
        if view.name not in self._shapes:
            self._shapes[view.name] = RowShape(view.schema, view.name)
        shape = self._shapes[view.name]
        return shape.fit(shape.columns_of(row))

    @staticmethod
    def _check_row(view: TopicView, size: int) -> None:
        if size > view.settings.record_bytes_max:
            raise BatchTooLarge(
                f"record of {size} bytes is above {view.name!r}'s record_bytes_max={view.settings.record_bytes_max}: "
                "send less in a record or raise the setting"
            )

    def _check_room(self, size: int, places: set[tuple[str, int]]) -> None:
        if self._bytes + size > BYTES_MAX:
            raise Overloaded(
                f"outputs of one ack take at most {BYTES_MAX >> 20} MiB, and these would take more: acknowledge fewer "
                "records at a time"
            )
        if len({*self._rows, *self._tables, *places}) > OUTPUT_PARTITIONS_MAX:
            raise Overloaded(
                f"outputs of one ack go to at most {OUTPUT_PARTITIONS_MAX} partitions: acknowledge fewer records at a "
                "time, or write records without keys"
            )

    def _chosen(self, view: TopicView, partition: int | None, key: bytes | None) -> int:
        if partition is not None:
            return partition
        if key is not None:
            return partition_for_key(key, view.partitions)
        if view.name not in self._usual:
            self._usual[view.name] = random.randrange(view.partitions)  # noqa: S311 - spreads load
        return self._usual[view.name]

    def _parts(
        self, view: TopicView, table: pa.Table, partition: int | None, key_column: str | None
    ) -> list[tuple[int, pa.Table]]:
        if partition is not None:
            return [(partition, table)]
        if key_column is None and not view.typed:
            key_column = record_key_column(table)
        if key_column is None:
            return [(self._chosen(view, None, None), table)]
        if key_column not in table.schema.names:
            raise SchemaMismatch(
                f"key_column={key_column!r} is no column{did_you_mean(key_column, table.schema.names)}"
            )
        found = np.asarray(partitions_for_keys(table.column(key_column).combine_chunks(), view.partitions))
        found = np.where(found < 0, self._chosen(view, None, None), found)
        return list(split_by_partition(table, found))


def _left_ms(deadline: Deadline) -> float:
    return max(1.0, deadline.remaining_s * 1000)
