"""What is staged and decided, listed; and a query's key aborted, so that what a dead query has left pins no journal for
ever.

An abort is an entry of the key's coordinator: from its commit on nothing more is decided under the key, whoever leads.
Then every partition that has something staged under it is fenced, by an entry of its own: what no decision names is
forgotten, and nothing more is staged. What was decided before is published as ever, so fences keep what such a decision
names.

Nothing of this has to be finished by whoever began it. Asked again it goes on from where it is. And the reaper of each
partition (transactions.py) asks the coordinator about old staged batches anyway, and fences where nobody did.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
from collections.abc import Mapping, Sequence
from typing import Final

from mq_broker.broker.host.partition import Partition
from mq_broker.broker.host.shell import Shell
from mq_broker.broker.metadata.brokers import Cluster
from mq_broker.broker.transactions.coordinator import Transactions
from mq_broker.broker.transactions.owners import OWNERS_RULE, note_stranger
from mq_broker.broker.transactions.requests import is_meant, key_of, key_to_wire, listed_name
from mq_broker.core.entries import SCHEDULED, Abort, Decide, Fence, TransactionKey
from mq_broker.core.machine.state import StagedBatch, TransactionState
from mq_broker.rpc.callers import asker
from mq_protocol import mq_pb2 as pb
from mq_protocol.access.rights import Kind, Operation
from mq_protocol.errors import TritonMQError
from mq_protocol.limits import LISTED_TRANSACTIONS_MAX
from mq_protocol.manifest import StagedPart
from mq_protocol.manifest_lines import line_from_wire, line_to_wire

log = logging.getLogger(__name__)

AGAIN_S: Final = 0.25
"""Until brokers that did not answer, or partitions that had no leader, are asked again."""

FENCES_AT_ONCE: Final = 100
LOOK_UP_MANY: Final = 1_000
"""Keys that are looked through before others get their turn on the loop."""

Place = tuple[str, int]


class Aborting:
    """Owns nothing: what is aborted is in the journals."""

    def __init__(self, shell: Shell, cluster: Cluster, transactions: Transactions) -> None:
        self._shell = shell
        self._cluster = cluster
        self._transactions = transactions

    # ------------------------------------------------------------------ what there is

    async def transactions(self, request: pb.TransactionsRequest, _deadline: float) -> pb.TransactionsResponse:
        """What is decided by the coordinators led here, and what is staged in the partitions led here; of one query or
        of all."""
        response = pb.TransactionsResponse()
        known: list[tuple[TransactionKey, TransactionState]] = []
        for partition in self._serving():
            machine = partition.replica.machine
            known += [
                (key, state)
                for key in await meant(dict.fromkeys(machine.transactions, ""), request.query, Operation.DESCRIBE)
                if (state := machine.transactions.get(key)) is not None
            ]
            sums = await self._sums(partition, request.query)
            told = sums[: LISTED_TRANSACTIONS_MAX - len(response.staged)]
            response.staged.extend(told)
            response.left_out += len(sums) - len(told)
        newest = heapq.nlargest(LISTED_TRANSACTIONS_MAX, known, key=lambda item: item[1].changed_us)
        response.known.extend(_known(key, state) for key, state in newest)
        response.left_out += len(known) - len(newest)
        return response

    async def _sums(self, partition: Partition, query: str) -> list[pb.StagedSum]:
        """What each query has staged in the partition."""
        if not asker().may(Operation.DESCRIBE, Kind.TOPIC, partition.topic.spec.name):
            return []
        by_key: dict[TransactionKey, list[StagedBatch]] = {}
        for batch in partition.replica.machine.staged.values():
            if not batch.due_us:  # scheduled batches are of no query
                by_key.setdefault(batch.key, []).append(batch)
        return [
            _sum(partition, key, by_key[key])
            for key in await meant(dict.fromkeys(by_key, ""), query, Operation.DESCRIBE)
        ]

    def _serving(self) -> list[Partition]:
        return [partition for partition in self._shell.partitions() if partition.serving]

    # ------------------------------------------------------------------ abort

    async def abort_transaction(
        self, request: pb.AbortTransactionRequest, deadline: float
    ) -> pb.AbortTransactionResponse:
        """Abort the key that is known here by that name, at its coordinator. Idempotent."""
        deadline = until(request.timeout_ms, deadline)
        answer = pb.AbortTransactionResponse(known=False, batch_id=-1, published=True)
        for key in await self._keys(request.query, request.sink):
            asked = pb.AbortKeyRequest(key=key_to_wire(key), timeout_ms=left_ms(deadline))
            answer = await self._transactions.ask_coordinator(
                key, "AbortKey", asked, pb.AbortTransactionResponse, self.abort_key, deadline
            )
        return answer

    async def _keys(self, query: str, sink: str) -> list[TransactionKey]:
        known: dict[TransactionKey, str] = {}
        for partition in self._serving():
            machine = partition.replica.machine
            known.update((key, state.owner) for key, state in machine.transactions.items() if key.sink == sink)
            for batch in machine.staged.values():
                if batch.key.sink == sink and batch.key != SCHEDULED:
                    known.setdefault(batch.key, "")
        return await meant(known, query, Operation.ABORT, noting=True) if query else []

    async def abort_key(self, request: pb.AbortKeyRequest, deadline: float) -> pb.AbortTransactionResponse:
        """Asked of the coordinator. Past the deadline, where it may still have something staged is told."""
        key, deadline = key_of(request.key), until(request.timeout_ms, deadline)
        partition = await self._transactions.coordinator(key)
        await partition.ask(Abort(key), deadline)
        known = partition.replica.machine.transactions[key]
        log.warning("query %s is aborted: nothing more is written under its key", listed_name(key.query_id))
        discarded, unreached = await self._fence_everywhere(key, known.manifest, deadline)
        published = known.finished or await self._is_published(partition, key, known, deadline)
        return pb.AbortTransactionResponse(
            known=True, batch_id=known.batch_id, published=published, discarded=discarded, unreached=unreached
        )

    async def _is_published(
        self, partition: Partition, key: TransactionKey, known: TransactionState, deadline: float
    ) -> bool:
        """It was decided before: the coordinator goes on until all of it is published, as if nothing were aborted."""
        decide = Decide(key, known.batch_id, known.run_id, known.row_count, known.manifest)
        try:
            await self._transactions.wait_until_published(partition, decide, deadline)
        except TritonMQError as error:
            log.warning("micro-batch %d of an aborted query is still to be published: %s", known.batch_id, error)
            return False
        return True

    # ------------------------------------------------------------------ fences

    async def _fence_everywhere(
        self, key: TransactionKey, manifest: Sequence[StagedPart], deadline: float
    ) -> tuple[int, list[str]]:
        """Ask every broker to fence what it leads, until nothing is left or time is up. How many staged batches were
        removed, and where there may be more."""
        request = pb.FenceRequest(key=key_to_wire(key), kept=[line_to_wire(line) for line in manifest])
        loop = asyncio.get_running_loop()
        fenced: set[Place] = set()
        discarded = 0
        while True:
            brokers = sorted({self._shell.broker, *self._cluster.brokers})
            asked = [self._fence_at(broker, request, deadline) for broker in brokers]
            unreached: list[str] = []
            left: set[Place] = set()
            for broker, answer in zip(brokers, await asyncio.gather(*asked), strict=True):
                if isinstance(answer, TritonMQError):
                    unreached.append(f"what broker {broker} leads: {answer}")
                    continue
                fenced.update((place.topic, place.partition) for place in answer.fenced)
                left.update((place.topic, place.partition) for place in answer.left)
                discarded += sum(place.discarded for place in answer.fenced)
            unreached += [
                f"{topic}-{number}: it has no leader at the moment" for topic, number in sorted(left - fenced)
            ]
            if not unreached or loop.time() + AGAIN_S >= deadline:
                return discarded, unreached
            await asyncio.sleep(AGAIN_S)

    async def _fence_at(
        self, broker: int, request: pb.FenceRequest, deadline: float
    ) -> pb.FenceResponse | TritonMQError:
        try:
            if broker == self._shell.broker:
                return await self.fence(request, deadline)
            return await self._transactions.ask_broker(broker, "Fence", request, pb.FenceResponse, deadline)
        except TritonMQError as error:
            return error

    async def fence(self, request: pb.FenceRequest, deadline: float) -> pb.FenceResponse:
        """Fence the key in every partition led here in which it has something staged, and in those of the topic that it
        writes to. Those are told in which it is fenced, now or before, and those replicas that have something and do
        not lead."""
        key = key_of(request.key)
        kept: dict[tuple[str, int], list[bytes]] = {}
        for line in map(line_from_wire, request.kept):
            kept.setdefault((line.topic, line.partition), []).extend(line.uuids)
        response = pb.FenceResponse()
        to_fence: list[tuple[Partition, Fence]] = []
        for count, partition in enumerate(self._shell.partitions()):
            if count % FENCES_AT_ONCE == FENCES_AT_ONCE - 1:
                await asyncio.sleep(0)
            name = partition.topic.spec.name
            if partition.closed or partition.topic.internal:
                continue
            machine = partition.replica.machine
            fence = Fence(key, tuple(kept.get((name, partition.number), ())))
            undecided = bool(machine.undecided(fence))
            if not partition.serving:
                if undecided:
                    response.left.add(topic=name, partition=partition.number)
            elif undecided or (name == key.sink and key not in machine.fenced):
                to_fence.append((partition, fence))
            elif key in machine.fenced:
                response.fenced.add(topic=name, partition=partition.number)
        for first in range(0, len(to_fence), FENCES_AT_ONCE):
            some = to_fence[first : first + FENCES_AT_ONCE]
            for (partition, _), discarded in zip(
                some, await asyncio.gather(*(self._fence_one(*one, deadline) for one in some)), strict=True
            ):
                name, number = partition.topic.spec.name, partition.number
                if discarded is None:
                    response.left.add(topic=name, partition=number)
                else:
                    response.fenced.add(topic=name, partition=number, discarded=discarded)
        return response

    async def _fence_one(self, partition: Partition, fence: Fence, deadline: float) -> int | None:
        """How many staged batches went; None if it could not be done."""
        count = len(partition.replica.machine.undecided(fence))
        try:
            await partition.ask(fence, deadline)
        except TritonMQError as error:
            log.info("%s: an aborted query is not fenced here yet: %s", partition.name, error)
            return None
        return count


async def meant(
    owners: Mapping[TransactionKey, str], query: str, operation: Operation, *, noting: bool = False
) -> list[TransactionKey]:
    """The keys that `query` means, of these with their owners, with which the asker may do that. `noting`: those with
    which it may not are denials in the audit log. To make a thousand digests takes milliseconds: others get their turn
    on the loop meanwhile."""
    may = asker().may
    found: list[TransactionKey] = []
    for count, (key, owner) in enumerate(list(owners.items())):
        if count % LOOK_UP_MANY == LOOK_UP_MANY - 1:
            await asyncio.sleep(0)
        if not is_meant(key, query):
            continue
        if may(operation, Kind.TRANSACTION, key.query_id):
            found.append(key)
        elif noting:
            note_stranger(asker(), operation, key, "no right" if owner in ("", asker().text) else OWNERS_RULE)
    return found


def pins(partition: Partition, batch: StagedBatch) -> bool:
    """Whether the batch keeps the journal from being shortened: retention has dropped all before an entry that comes
    after it."""
    return batch.index < partition.could_begin


def _known(key: TransactionKey, state: TransactionState) -> pb.KnownTransaction:
    return pb.KnownTransaction(
        query=listed_name(key.query_id),
        sink=key.sink,
        batch_id=state.batch_id,
        row_count=state.row_count,
        published=state.finished,
        aborted=state.aborted,
        changed_us=state.changed_us,
        owner=state.owner,
    )


def _sum(partition: Partition, key: TransactionKey, batches: Sequence[StagedBatch]) -> pb.StagedSum:
    return pb.StagedSum(
        query=listed_name(key.query_id),
        sink=key.sink,
        topic=partition.topic.spec.name,
        partition=partition.number,
        batches=len(batches),
        rows=sum(batch.row_count for batch in batches),
        bytes=sum(batch.payload_bytes for batch in batches),
        first_batch_id=min(batch.batch_id for batch in batches),
        last_batch_id=max(batch.batch_id for batch in batches),
        since_us=min(batch.timestamp_us for batch in batches),
        pins=any(pins(partition, batch) for batch in batches),
    )


def until(timeout_ms: int, deadline: float) -> float:
    return min(deadline, asyncio.get_running_loop().time() + timeout_ms / 1000) if timeout_ms else deadline


def left_ms(deadline: float) -> int:
    """For whoever is asked, so much that its answer comes back in time."""
    left_s = deadline - asyncio.get_running_loop().time()
    return max(1, int(900 * left_s))
