"""The client's side of exactly-once writing: stage batches, decide that they count, ask what was decided.

For the Spark sink. A staged batch is replicated and invisible; a decision names those that count, and the coordinator
on the brokers publishes them even if the one who decided is gone. Asking for the same decision again gives the same
answer.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, TypeVar

import pyarrow as pa
from google.protobuf.message import Message

from mq_client.cluster.deadline import Deadline, attempts
from mq_client.cluster.paging import Parts
from mq_client.errors import Unreachable
from mq_client.producing.staging import Stage, Stager, TransactionKey, checked_key
from mq_protocol import mq_pb2 as pb
from mq_protocol.manifest import StagedPart
from mq_protocol.manifest_lines import line_to_wire
from mq_protocol.names import TRANSACTIONS_TOPIC
from mq_protocol.partitioner import coordinator_partition

__all__ = [
    "Decision",
    "Stage",
    "StagedBatch",
    "StagedPart",
    "TransactionClient",
    "TransactionKey",
    "TransactionStatus",
]

R = TypeVar("R", bound=Message)

_ATTEMPT_MS = 10_000.0


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


class TransactionClient(Stager):
    """Stages and decides. Thread-safe. `timeout_ms`: for each call, retries included.

    Owns a sender, started with the first `stage`.
    """

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
        query_id, sink = checked_key(key)
        parts = [part for part in manifest if part.uuids]
        deadline = self.deadline(timeout_ms)
        request = pb.DecideRequest(
            key=pb.TransactionKey(query_id=query_id, sink=sink),
            batch_id=batch_id,
            run_id=run_id,
            row_count=sum(part.row_count for part in parts),
            manifest=[line_to_wire(part) for part in parts],
            keep_on_mismatch=keep_on_mismatch,
            once=once,
            timeout_ms=int(min(deadline.timeout_ms, _ATTEMPT_MS)),
        )
        answer = self._ask_coordinator(request, "Decide", pb.DecideResponse, deadline)
        return Decision(answer.already_decided, answer.row_count, answer.published)

    def transaction_status(self, key: tuple[str, str], timeout_ms: float | None = None) -> TransactionStatus | None:
        """The last decided micro-batch of the key; None if there is none."""
        query_id, sink = checked_key(key)
        deadline = self.deadline(timeout_ms)
        request = pb.TransactionStatusRequest(key=pb.TransactionKey(query_id=query_id, sink=sink))
        answer = self._ask_coordinator(request, "TransactionStatus", pb.TransactionStatusResponse, deadline)
        if not answer.known:
            return None
        return TransactionStatus(answer.batch_id, answer.run_id, answer.row_count, answer.published)

    def staged(self, topic: str, timeout_ms: float | None = None) -> list[StagedBatch]:
        """What waits for a decision in a topic, from every broker for what it leads.

        Raises `Unreachable` if one that is registered cannot be reached until the time is over.
        """
        deadline = self.deadline(timeout_ms)
        gone: Unreachable | None = None
        for _ in attempts(deadline):
            self._connection.refresh(topic, deadline)
            try:
                addresses = self._connection.addresses()
                told = [b for address in addresses for b in self._staged_at(address, topic, deadline)]
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
        found, parts = list[pb.StagedInfo](), Parts()
        while True:
            answer = self._connection.ask(address, "Staged", request, pb.StagedResponse, deadline)
            found.extend(answer.staged)
            if not parts.more(answer, (answer.last,)):
                return found
            request.after.CopyFrom(answer.last)
            request.after_index = answer.last_index

    def _ask_coordinator(
        self,
        request: pb.DecideRequest | pb.TransactionStatusRequest,
        method: str,
        response: type[R],
        deadline: Deadline,
    ) -> R:
        """Whoever leads the partition of the request's key."""
        partitions = self._connection.topic(TRANSACTIONS_TOPIC, deadline).partitions
        partition = coordinator_partition(request.key.query_id, request.key.sink, partitions)
        return self._connection.ask_leader(
            TRANSACTIONS_TOPIC, partition, method, request, response, deadline, _ATTEMPT_MS
        )
