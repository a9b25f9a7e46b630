"""What attempts of queue groups have staged and nobody will decide any more is discarded.

Whoever leads a partition with such batches asks the leader of the queue's partition. It says that an attempt is over
if no entry can decide it any more: a former leader made it, or its lease has ended. What the outbox names, and what
this leader is about to decide, stays. Age alone discards nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Sequence
from typing import Final

from mq_broker.broker.host.partition import Partition
from mq_broker.broker.host.shell import Shell
from mq_broker.broker.metadata.topics import Topics
from mq_broker.broker.queues.letters.dead_letters import DeadLetters
from mq_broker.broker.runtime.streams import in_turns
from mq_broker.broker.transactions.coordinator import Transactions
from mq_broker.core.entries import UUID_BYTES, Discard, TransactionKey, Work
from mq_broker.core.work.state import WorkState
from mq_broker.core.work.steps import LeaseId
from mq_protocol import mq_pb2 as pb
from mq_protocol.errors import InvalidRequest, NotLeader, TritonMQError
from mq_protocol.names import check_group_name, check_topic_name
from mq_protocol.queues.work_keys import LeaseRun, attempt_of, is_of_queue, place_of

log = logging.getLogger(__name__)

ASKED_AT_ONCE: Final = 8_192
"""Batches of one attempt."""

ATTEMPTS_PER_SWEEP: Final = 200
"""Of one partition: the others wait for the next sweep."""

_ATTEMPT_S: Final = 5.0

Attempt = tuple[TransactionKey, str]
"""The key and the run under which something is staged."""


class Leftovers:
    """Owns what the last sweep has seen: nobody is asked about a batch in the first one that sees it, for most are
    decided by the next one. So no clock counts, of which its timestamp is one. What is staged, leased and decided is in
    the journals."""

    def __init__(self, shell: Shell, topics: Topics, transactions: Transactions, letters: DeadLetters) -> None:
        self._shell = shell
        self._topics = topics
        self._transactions = transactions
        self._letters = letters
        self._seen: dict[str, set[bytes]] = {}

    # ------------------------------------------------------------------ the queue's side

    async def attempt_status(self, request: pb.AttemptStatusRequest, deadline: float) -> pb.AttemptStatusResponse:
        """Whether nothing more is decided of the attempt, once this broker knows that it leads. Raises `NotLeader` for
        an attempt of a later leader."""
        check_topic_name(request.topic)
        check_group_name(request.group)
        if len(request.uuids) % UUID_BYTES or len(request.uuids) > ASKED_AT_ONCE * UUID_BYTES:
            raise InvalidRequest(f"an attempt is asked about with at most {ASKED_AT_ONCE} UUIDs of 16 bytes")
        topic = await self._topics.meant(request.topic, request.topic_id)
        partition = self._shell.leader(topic, request.partition)
        state = partition.replica.machine.work.get(request.group)
        over = _is_over(partition, state, request.run_id)
        kept: set[bytes] = set()
        if over:
            asked = set(_uuids(request.uuids))
            kept = asked & self._letters.in_hand(partition.name, request.group)
            async for outgoing in in_turns(list(state.outbox.values()) if state is not None else []):
                for line in outgoing.lines:
                    kept.update(asked.intersection(line.uuids))
        # That it is over rests on something not being here.
        await partition.ask(Work(request.group, state.life if state is not None else 1, ()), deadline)
        return pb.AttemptStatusResponse(over=over, kept=b"".join(sorted(kept)))

    # ------------------------------------------------------------------ the side on which it is staged

    @staticmethod
    def which(partition: Partition) -> object:
        return partition.serving and not partition.topic.internal and partition.replica.machine.staged

    async def look(self, partitions: Iterable[Partition]) -> None:
        """Discard leftovers in those that are led here, among what the sweep before has seen."""
        before, self._seen = self._seen, {}
        async for partition in in_turns(partitions):
            if partition.serving:
                await self._sweep_one(partition, before.get(partition.name, set()))

    async def _sweep_one(self, partition: Partition, before: set[bytes]) -> None:
        attempts: dict[Attempt, list[bytes]] = {}
        for batch in partition.replica.machine.staged.values():
            if not is_of_queue(batch.key.query_id):
                continue
            self._seen.setdefault(partition.name, set()).add(batch.uuid)
            if batch.uuid not in before:
                continue
            attempt = batch.key, batch.run_id
            if attempt not in attempts and len(attempts) >= ATTEMPTS_PER_SWEEP:
                continue
            attempts.setdefault(attempt, []).append(batch.uuid)
        for (key, run_id), uuids in attempts.items():
            some = uuids[:ASKED_AT_ONCE]
            try:
                left = await self._left(key, run_id, some)
                if left and partition.serving:
                    await partition.ask(Discard(key, left), asyncio.get_running_loop().time() + _ATTEMPT_S)
                    log.info("%s: discarded %d batches that a queue group did not decide", partition.name, len(left))
            except TritonMQError as error:
                log.debug("%s: %d staged batches stay for now: %s", partition.name, len(some), error)

    async def _left(self, key: TransactionKey, run_id: str, uuids: Sequence[bytes]) -> tuple[bytes, ...]:
        """Those that nobody will decide. Raises why that cannot be told."""
        place = place_of(key.query_id)
        if place is None:
            return ()
        topic = self._topics.with_id(place.topic_id)
        if topic is None or place.partition >= topic.partitions:
            return tuple(uuids) if await self._topics.is_gone(place.topic_id) else ()
        request = pb.AttemptStatusRequest(
            topic=topic.spec.name,
            topic_id=place.topic_id,
            partition=place.partition,
            group=place.group,
            run_id=run_id,
            uuids=b"".join(uuids),
        )
        status = await self._transactions.ask_leader(
            topic.spec.name,
            place.partition,
            "AttemptStatus",
            request,
            pb.AttemptStatusResponse,
            self.attempt_status,
        )
        kept = set(_uuids(status.kept))
        return tuple(uuid for uuid in uuids if uuid not in kept) if status.over else ()


def _is_over(partition: Partition, state: WorkState | None, run_id: str) -> bool:
    """A serving leader knows what its predecessors have decided. Of its own attempts those in hand are kept apart."""
    attempt = attempt_of(run_id)
    if attempt is None:
        return False
    epoch = attempt.leader_epoch if isinstance(attempt, LeaseRun) else attempt
    if epoch > partition.replica.leader_epoch:
        raise NotLeader(
            f"an attempt of {partition.name} is of leader epoch {epoch}: ask again, another broker may lead"
        )
    return not isinstance(attempt, LeaseRun) or state is None or LeaseId(*attempt) not in state.leases


def _uuids(joined: bytes) -> list[bytes]:
    return [joined[at : at + UUID_BYTES] for at in range(0, len(joined), UUID_BYTES)]
