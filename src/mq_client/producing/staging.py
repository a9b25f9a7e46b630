"""Batches that are staged: replicated and invisible until somebody decides that they count. For whoever decides: the
transaction client, and members of queue groups."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from types import TracebackType
from typing import NamedTuple, Self

import pyarrow as pa

from mq_client.cluster.connection import Connection
from mq_client.cluster.deadline import Deadline, positive_ms
from mq_client.cluster.requests import topic_with
from mq_client.errors import BatchTooLarge, InvalidRequest, OutcomeUnknown
from mq_client.producing.accumulator import AccumulatorSettings
from mq_client.producing.batches import conform, largest_record_bytes, split_by_size
from mq_client.producing.futures import TableOutcome
from mq_client.producing.sender import Sender
from mq_protocol import limits
from mq_protocol import mq_pb2 as pb
from mq_protocol.manifest import StagedPart
from mq_protocol.names import check_topic_name

_STAGE_BATCH_BYTES = 1 << 20
_BUFFER_BYTES = 64 << 20
_IN_FLIGHT = 8
_RETRIES = 2**31 - 1


class TransactionKey(NamedTuple):
    """One query writing to one sink: within it micro-batch ids only grow."""

    query_id: str
    sink: str


class Stage:
    """Owns what one task attempt stages for one micro-batch. `add` as rows come, `finish` once."""

    def __init__(self, client: Stager, key: TransactionKey, batch_id: int, run_id: str) -> None:
        self._client = client
        self._stage = pb.StageOf(
            key=pb.TransactionKey(query_id=key.query_id, sink=key.sink), batch_id=batch_id, run_id=run_id
        )
        self._outcome = TableOutcome("", 0)
        self._uuids: dict[tuple[str, int, str], list[bytes]] = {}  # by topic, partition, topic id
        self._rows: dict[tuple[str, int, str], int] = {}

    def add(
        self, topic: str, partition: int, table: pa.RecordBatch | pa.Table, timeout_ms: float | None = None
    ) -> None:
        """Send these rows, to be staged under fresh UUIDs. Returns once there is room for them, not once they are
        staged.

        Columns as for `Producer.publish_batch`. Raises `SchemaMismatch`, `BatchTooLarge`, `UnknownTopic`,
        `UnknownPartition`, `Overloaded`.
        """
        topic_id, sent = self._client.send(topic, partition, table, self._stage, self._outcome, timeout_ms)
        if sent:
            place = topic, partition, topic_id
            self._uuids.setdefault(place, []).extend(uuid for uuid, _ in sent)
            self._rows[place] = self._rows.get(place, 0) + sum(rows for _, rows in sent)

    def finish(self, timeout_ms: float | None = None) -> list[StagedPart]:
        """Wait until all of it is staged: what a manifest must name. Raises the error of what could not be."""
        deadline = self._client.deadline(timeout_ms)
        future = self._outcome.complete()
        try:
            future.result(deadline.remaining_s + 1)
        except TimeoutError:
            raise OutcomeUnknown(
                f"staging was not acknowledged within {deadline.timeout_ms:.0f} ms: run the task again"
            ) from None
        return [
            StagedPart(topic, partition, tuple(uuids), self._rows[topic, partition, topic_id], topic_id)
            for (topic, partition, topic_id), uuids in self._uuids.items()
        ]


class Stager:
    """Stages. Thread-safe. `timeout_ms`: for each call, retries included.

    Owns a sender, started with the first batch.
    """

    def __init__(
        self,
        bootstrap: str | Sequence[str] | Connection,
        timeout_ms: float = limits.REQUEST_TIMEOUT_MS,
        *,
        compression: str | None = None,
    ) -> None:
        self._timeout_ms = positive_ms("timeout_ms", timeout_ms)
        self._connection = bootstrap if isinstance(bootstrap, Connection) else Connection(bootstrap)
        settings = AccumulatorSettings(_STAGE_BATCH_BYTES, 0.0, timeout_ms / 1000, _RETRIES, _IN_FLIGHT, compression)
        self._sender = Sender(self._connection, settings, pb.ALL)

    @property
    def connection(self) -> Connection:
        return self._connection

    # ------------------------------------------------------------------ stage

    def open_stage(self, key: tuple[str, str], batch_id: int, run_id: str) -> Stage:
        """Begin to stage rows of micro-batch `batch_id`."""
        return Stage(self, checked_key(key), batch_id, run_id)

    def send(
        self,
        topic: str,
        partition: int,
        table: pa.RecordBatch | pa.Table,
        stage: pb.StageOf,
        outcome: TableOutcome,
        timeout_ms: float | None,
    ) -> tuple[str, list[tuple[bytes, int]]]:
        """For `Stage`: the topic's id, and the UUIDs under which the rows go out, each with its number of rows."""
        check_topic_name(topic)
        deadline = self.deadline(timeout_ms)
        view = topic_with(self._connection, topic, [partition], deadline)
        now_us = None if view.typed else time.time_ns() // 1000
        rows = conform(table, view.schema, topic, now_us=now_us, first_columns=view.first_columns)
        if not view.typed and (largest := largest_record_bytes(rows)) > view.settings.record_bytes_max:
            raise BatchTooLarge(
                f"record of {largest} bytes is above {topic!r}'s record_bytes_max={view.settings.record_bytes_max}"
            )
        most = view.settings.batch_bytes_max - limits.BATCH_OVERHEAD_BYTES
        sent: list[tuple[bytes, int]] = []
        for piece in split_by_size(rows, min(_STAGE_BATCH_BYTES, most), most):
            if piece.num_rows == 0:
                continue
            uuid = os.urandom(16)
            with self._sender.lock:
                self._sender.ensure_started()
                self._sender.wait_for_room(piece.nbytes, _BUFFER_BYTES, deadline)
                self._sender.accumulator.add_closed(
                    view, partition, piece, outcome.piece(), time.monotonic(), uuid=uuid, stage=stage
                )
                self._sender.work.notify()
            sent.append((uuid, piece.num_rows))
        return view.topic_id, sent

    def deadline(self, timeout_ms: float | None) -> Deadline:
        """The moment until which a call with that timeout may take."""
        return Deadline(self._timeout_ms if timeout_ms is None else positive_ms("timeout_ms", timeout_ms))

    # ------------------------------------------------------------------ the end

    def close(self) -> None:
        """End the sender. What has no answer yet is given up: its `finish` raises."""
        self._sender.stop(Deadline(2_000))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def checked_key(key: tuple[str, str]) -> TransactionKey:
    """Raises `InvalidRequest` for a key without a query."""
    query_id, sink = key
    if not query_id:
        raise InvalidRequest("transaction key has no query id: a made-up one would make two copies on a replay")
    return TransactionKey(query_id, sink)
