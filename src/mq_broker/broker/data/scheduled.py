"""Scheduled batches: published by the partition's leader when they are due, in order of time and then of arrival.

A batch is never published before it is due by the clock that this broker believes (`RetentionClock`): a wall clock that
jumps forward is not obeyed for an hour. The broker has one timer for all partitions. It knows the partitions in which
something waits, so one in which nothing waits costs a look at a number every two seconds.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import Final

from mq_broker.broker.host.partition import Partition
from mq_broker.broker.host.shell import Shell
from mq_broker.broker.metadata.topics import Topics
from mq_broker.core.entries import SCHEDULED, UUID_BYTES, Carry, Discard, Publish
from mq_broker.core.messages import Result
from mq_protocol import mq_pb2 as pb
from mq_protocol.errors import InvalidRequest, StorageFailed, TritonMQError
from mq_protocol.limits import DELAY_MS_MAX

log = logging.getLogger(__name__)

CLOCK_S: Final = 2.0
"""A clock that was set is noticed so soon."""

PUBLISHED_AT_ONCE: Final = 1_000
"""Batches of one entry. What is due beyond them is in the next one."""

CARRIED_AT_ONCE: Final = 16
CARRY_ENTRIES: Final = 10_000
CARRY_TIMES: Final = 10
"""A batch is carried once so many entries before it could go, and ten times as many as batches wait: so carrying is a
small part of what is written."""

_ATTEMPT_S: Final = 10.0
_AGAIN_S: Final = 0.5


class Scheduled:
    """Owns which partitions have something that waits, and when the first of it is due. `now_us`: the time that this
    broker believes, microseconds since 1970. `hint` is set when that may be sooner than it was."""

    def __init__(self, shell: Shell, topics: Topics, now_us: Callable[[], int]) -> None:
        self.now_us = now_us
        self._shell = shell
        self._topics = topics
        self._waiting: dict[Partition, None] = {}
        self._publishing: set[Partition] = set()
        self.hint = asyncio.Event()

    def due_us(self, header: pb.ProduceHeader) -> int:
        """When the batch is due, microseconds since 1970; 0 if it is not scheduled."""
        return header.due_us or (self.now_us() + header.delay_ms * 1000 if header.delay_ms else 0)

    def waits(self, partition: Partition) -> None:
        """Something may, from now on."""
        self._waiting[partition] = None
        self.hint.set()

    @staticmethod
    def which(partition: Partition) -> object:
        return partition.replica.machine.due_times

    def look(self, partitions: Iterable[Partition]) -> None:
        """At what a predecessor has left a new leader, and at what keeps the journal from beginning later."""
        for partition in partitions:
            if partition.serving:
                self.waits(partition)
                self._carry(partition)

    def publish_due(self) -> float:
        """Begin where something is due. In how many seconds the next one is."""
        now_us, first_us = self.now_us(), None
        for partition in list(self._waiting):
            next_us = partition.replica.machine.due_times.next_us()
            if next_us is None or not partition.serving:
                del self._waiting[partition]
            elif partition in self._publishing:
                continue
            elif next_us <= now_us:
                self._publishing.add(partition)
                self._shell.spawn(self._publish(partition), f"publish what is due in {partition.name}")
            else:
                first_us = next_us if first_us is None else min(first_us, next_us)
        return CLOCK_S if first_us is None else min(CLOCK_S, max((first_us - now_us) / 1e6, 0.001))

    async def _publish(self, partition: Partition) -> None:
        try:
            while partition.serving:
                now_us, machine = self.now_us(), partition.replica.machine
                due = machine.due_times.due(now_us, PUBLISHED_AT_ONCE)
                if not due:
                    break
                gone = tuple(uuid for uuid in due if machine.staged[uuid].index < partition.replica.first_index)
                deadline = asyncio.get_running_loop().time() + _ATTEMPT_S
                if gone:
                    log.error(
                        "%s: %d scheduled batches were lost by a recovery and are discarded, among them %s: their "
                        "records have to be sent again",
                        partition.name,
                        len(gone),
                        gone[0].hex(),
                    )
                    await partition.ask(Discard(SCHEDULED, gone), deadline)
                else:
                    await partition.ask(Publish(SCHEDULED, now_us, tuple(due)), deadline)
        except TritonMQError as error:
            log.info("%s: what is due is not published yet: %s", partition.name, error)
            await asyncio.sleep(_AGAIN_S)
        finally:
            self._publishing.discard(partition)
            self.hint.set()

    # ------------------------------------------------------------------ carried

    def _carry(self, partition: Partition) -> None:
        """Write those anew that keep the journal from beginning later (rule 13), the oldest first."""
        machine, first_index = partition.replica.machine, partition.replica.first_index
        most = max(CARRY_ENTRIES, CARRY_TIMES * len(machine.due_times))
        if partition.could_begin - first_index < most:
            return
        held_by = [machine.staged[uuid] for uuid in machine.due_times.uuids()]
        pinning = sorted(
            (batch.index, batch.uuid) for batch in held_by if first_index <= batch.index < partition.could_begin
        )
        for index, uuid in pinning[:CARRIED_AT_ONCE]:
            batch = machine.staged[uuid]
            try:
                payload = bytes(partition.journal.payload(index))
            except StorageFailed as error:
                log.warning("%s: a scheduled batch cannot be carried: %s", partition.name, error)
                return
            partition.propose(
                Carry(),
                _ignore,
                asyncio.get_running_loop().time() + _ATTEMPT_S,
                uuid=uuid,
                record_count=batch.row_count,
                payload=payload,
                decoded_bytes=batch.decoded_bytes,
            )
        if pinning:
            partition.shorten_due = True

    # ------------------------------------------------------------------ cancelled

    async def cancel_scheduled(self, request: pb.CancelScheduledRequest, deadline: float) -> pb.CancelScheduledResponse:
        """Discard the batch if it waits; else say what became of it, as far as the partition remembers."""
        if len(request.uuid) != UUID_BYTES:
            raise InvalidRequest(f"a batch is named by a UUID of {UUID_BYTES} bytes; this one has {len(request.uuid)}")
        partition = self._shell.leader(await self._topics.get(request.topic), request.partition)
        if request.uuid not in partition.replica.machine.uuids or request.uuid in partition.replica.machine.due_times:
            await partition.ask(Discard(SCHEDULED, (request.uuid,)), deadline)
        machine = partition.replica.machine
        placed = machine.uuids.get(request.uuid)
        if placed is None or request.uuid in machine.staged:  # unknown, or of a query
            return pb.CancelScheduledResponse()
        if placed.base_offset >= 0:
            return pb.CancelScheduledResponse(published=True, offset=placed.base_offset)
        return pb.CancelScheduledResponse(cancelled=True)


def _ignore(_result: Result) -> None:
    """It is looked at again in any case."""


def is_scheduled(header: pb.ProduceHeader) -> bool:
    return bool(header.due_us or header.delay_ms)


def check_schedule(header: pb.ProduceHeader, now_us: int) -> None:
    """Raises `InvalidRequest` for a time that a batch cannot have."""
    if header.due_us and header.delay_ms:
        raise InvalidRequest("a batch is due at a time or after a delay: give due_us or delay_ms, not both")
    if header.HasField("stage") or header.record_uuids:
        raise InvalidRequest("a scheduled batch belongs to no transaction and has no UUIDs of its records")
    if header.due_us < 0 or header.delay_ms < 0:
        raise InvalidRequest("a scheduled batch has a due time or a delay above 0")
    if max(header.delay_ms, (header.due_us - now_us) // 1000) > DELAY_MS_MAX:
        raise InvalidRequest(f"a batch may be due in at most {DELAY_MS_MAX} ms, a year: schedule it later")
