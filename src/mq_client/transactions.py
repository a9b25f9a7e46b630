"""The client's side of exactly-once writing: stage batches, decide that they count, ask what was decided.

For the Spark sink. A staged batch is replicated and invisible; a decision names those that count, and the coordinator
on the brokers publishes them even if the one who decided is gone. Asking for the same decision again gives the same
answer.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import NamedTuple

import pyarrow as pa

from mq_client.cluster.connection import Connection
from mq_client.cluster.deadline import Deadline, attempts, positive_ms
from mq_client.cluster.requests import topic_with
from mq_client.errors import BatchTooLarge, InvalidRequest, OutcomeUnknown, Unreachable
from mq_client.producing.accumulator import AccumulatorSettings
from mq_client.producing.batches import conform, largest_record_bytes, split_by_size
from mq_client.producing.futures import TableOutcome
from mq_client.producing.sender import Sender
from mq_protocol import limits
from mq_protocol import mq_pb2 as pb
from mq_protocol.names import TRANSACTIONS_TOPIC, check_topic_name
from mq_protocol.partitioner import coordinator_partition

_ATTEMPT_MS = 10_000.0
_STAGE_BATCH_BYTES = 1 << 20
_BUFFER_BYTES = 64 << 20
_IN_FLIGHT = 8
_RETRIES = 2**31 - 1


class TransactionKey(NamedTuple):
    """One query writing to one sink: within it micro-batch ids only grow."""

    query_id: str
    sink: str


class StagedPart(NamedTuple):
    """A line of a manifest: the staged batches of one partition, in the order in which they are to be published.
    `topic_id`: that of the topic that they were staged in; empty if it is not to be checked."""

    topic: str
    partition: int
    uuids: tuple[bytes, ...]
    row_count: int
    topic_id: str = ""


class Decision(NamedTuple):
    """`already_decided`: this micro-batch had been decided before, with `row_count` rows; what was staged now does not
    count."""

    already_decided: bool
    row_count: int
    published: bool


class TransactionStatus(NamedTuple):
    """The last decided micro-batch of a key."""

    batch_id: int
    run_id: str
    row_count: int
    published: bool


class StagedBatch(NamedTuple):
    """A batch that waits for a decision. `query`: the query's name in listings. `timestamp`: when it was staged,
    microseconds since 1970."""

    topic: str
    partition: int
    query: str
    sink: str
    batch_id: int
    row_count: int
    timestamp: int


class Stage:
    """Owns what one task attempt stages for one micro-batch. `add` as rows come, `finish` once."""

    def __init__(self, client: TransactionClient, key: TransactionKey, batch_id: int, run_id: str) -> None:
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


class TransactionClient:
    """Stages and decides. Thread-safe. `timeout_ms`: for each call, retries included.

    Owns a sender, started with the first `stage`.
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

    # ------------------------------------------------------------------ stage

    def open_stage(self, key: tuple[str, str], batch_id: int, run_id: str) -> Stage:
        """Begin to stage rows of micro-batch `batch_id`."""
        return Stage(self, _checked(key), batch_id, run_id)

    def stage(
        self,
        topic: str,
        partition: int,
        batches: Iterable[pa.RecordBatch | pa.Table],
        key: tuple[str, str],
        batch_id: int,
        run_id: str,
        timeout_ms: float | None = None,
    ) -> list[bytes]:
        """Stage rows for one partition, and wait: the UUIDs that a manifest must name, in order."""
        stage = self.open_stage(key, batch_id, run_id)
        for batch in batches:
            stage.add(topic, partition, batch, timeout_ms)
        return [uuid for part in stage.finish(timeout_ms) for uuid in part.uuids]

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

    # ------------------------------------------------------------------ decide

    def decide(
        self,
        key: tuple[str, str],
        batch_id: int,
        run_id: str,
        manifest: Iterable[StagedPart],
        *,
        keep_on_mismatch: bool = False,
        once: bool = False,
        timeout_ms: float | None = None,
    ) -> Decision:
        """Decide that micro-batch `batch_id` is exactly this manifest; returns once all of it is published.

        Idempotent. `once`: the key is for this decision alone, and may be forgotten an hour after it is published.
        Raises `ReplayMismatch` (decided before with another row count, unless `keep_on_mismatch`), `StaleMicroBatch`,
        `FencedRun`, `StagedBatchMissing` (one of them is not staged by this query for this micro-batch; nothing is
        decided then), `TransactionAborted`, `TooManyTransactions`, and `OutcomeUnknown` when no answer came in time:
        ask again.
        """
        query_id, sink = _checked(key)
        parts = [part for part in manifest if part.uuids]
        deadline = self.deadline(timeout_ms)
        request = pb.DecideRequest(
            key=pb.TransactionKey(query_id=query_id, sink=sink),
            batch_id=batch_id,
            run_id=run_id,
            row_count=sum(part.row_count for part in parts),
            manifest=[
                pb.StagedBatches(
                    topic=part.topic,
                    partition=part.partition,
                    uuids=part.uuids,
                    row_count=part.row_count,
                    topic_id=part.topic_id,
                )
                for part in parts
            ],
            keep_on_mismatch=keep_on_mismatch,
            once=once,
            timeout_ms=int(min(deadline.timeout_ms, _ATTEMPT_MS)),
        )
        answer = self._connection.ask_leader(
            TRANSACTIONS_TOPIC,
            self._coordinator(query_id, sink, deadline),
            "Decide",
            request,
            pb.DecideResponse,
            deadline,
            _ATTEMPT_MS,
        )
        return Decision(answer.already_decided, answer.row_count, answer.published)

    def transaction_status(self, key: tuple[str, str], timeout_ms: float | None = None) -> TransactionStatus | None:
        """The last decided micro-batch of the key; None if there is none."""
        query_id, sink = _checked(key)
        deadline = self.deadline(timeout_ms)
        request = pb.TransactionStatusRequest(key=pb.TransactionKey(query_id=query_id, sink=sink))
        coordinator = self._coordinator(query_id, sink, deadline)
        answer = self._connection.ask_leader(
            TRANSACTIONS_TOPIC,
            coordinator,
            "TransactionStatus",
            request,
            pb.TransactionStatusResponse,
            deadline,
            _ATTEMPT_MS,
        )
        return (
            TransactionStatus(answer.batch_id, answer.run_id, answer.row_count, answer.published)
            if answer.known
            else None
        )

    def staged(self, topic: str, timeout_ms: float | None = None) -> list[StagedBatch]:
        """What waits for a decision in a topic, from every broker for what it leads.

        Raises `Unreachable` if one that is registered cannot be reached until the time is over.
        """
        deadline = self.deadline(timeout_ms)
        gone: Unreachable | None = None
        for _ in attempts(deadline):
            self._connection.refresh(topic, deadline)
            try:
                told = [
                    b for address in self._connection.addresses() for b in self._staged_at(address, topic, deadline)
                ]
                break
            except Unreachable as error:  # it restarts, or it is gone and will not be registered for long
                gone = error
        else:
            assert gone is not None
            raise gone
        found = [
            StagedBatch(b.topic, b.partition, b.query, b.sink, b.batch_id, b.row_count, b.timestamp_us) for b in told
        ]
        return sorted(found, key=lambda batch: (batch.partition, batch.timestamp))

    def _staged_at(self, address: str, topic: str, deadline: Deadline) -> list[pb.StagedInfo]:
        """All that one broker has, asked for until it has no more."""
        request = pb.StagedRequest(topic=topic)
        found: list[pb.StagedInfo] = []
        while True:
            answer = self._connection.ask(address, "Staged", request, pb.StagedResponse, deadline)
            found.extend(answer.staged)
            if not answer.more:
                return found
            request.after.CopyFrom(answer.last)
            request.after_index = answer.last_index

    def _coordinator(self, query_id: str, sink: str, deadline: Deadline) -> int:
        return coordinator_partition(query_id, sink, self._connection.topic(TRANSACTIONS_TOPIC, deadline).partitions)

    def deadline(self, timeout_ms: float | None) -> Deadline:
        """The moment until which a call with that timeout may take."""
        return Deadline(self._timeout_ms if timeout_ms is None else positive_ms("timeout_ms", timeout_ms))

    # ------------------------------------------------------------------ the end

    def close(self) -> None:
        """End the sender. What has no answer yet is given up: its `finish` raises."""
        self._sender.stop(Deadline(2_000))

    def __enter__(self) -> TransactionClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _checked(key: tuple[str, str]) -> TransactionKey:
    query_id, sink = key
    if not query_id:
        raise InvalidRequest("transaction key has no query id: a made-up one would make two copies on a replay")
    return TransactionKey(query_id, sink)
