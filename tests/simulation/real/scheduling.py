"""Clients that publish for later and cancel some of it, and what must hold of that.

Each scheduled batch has one place in the log, not before its time by the clock that its leader may believe. One whose
cancelling was answered has none. At rest nothing waits.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mq_broker.core.entries import SCHEDULED, Carry, Publish
from mq_broker.rpc.service import parse
from mq_protocol import mq_pb2 as pb
from mq_protocol.errors import TritonMQError
from mq_protocol.wire.error_messages import from_wire
from tests.simulation.real.clients import ANSWER_S, FINGERPRINT, LIVES_MS, Client, payload_of
from tests.simulation.real.substitutes import EPOCH_S

if TYPE_CHECKING:
    from tests.simulation.real.cluster import Cluster
    from tests.simulation.real.loop import Process


@dataclass(slots=True)
class Waiting:
    """A batch that was sent for later. `due_us`: the time that was asked for, 0 for a delay. `acknowledged`: some
    broker answered. `cancelled`, `published`: that was answered, with the offset."""

    uuid: bytes
    values: list[int]
    writer: str
    id: int
    due_us: int = 0
    delay_ms: int = 0
    acknowledged: bool = False
    cancelled: bool = False
    published: int = -1


class ScheduledTruth:
    """Owns what clients were told of scheduled batches in one partition."""

    def __init__(self, cluster: Cluster, place: tuple[str, int]) -> None:
        self.cluster = cluster
        self.place = place
        self.batches: dict[bytes, Waiting] = {}
        self._seen: set[tuple[int, int]] = set()
        self._recoveries = 0

    def stepped(self, process: Process, replica: Any) -> None:
        """What a leader has put into its journal is due by the clock that it may believe, and in order of time."""
        log = replica._shared.log
        if not replica.leading:
            return
        life = self.cluster.oracle.recoveries.lives(f"{self.place[0]}-{self.place[1]}").present
        if life.recovery > self._recoveries:
            self._recoveries = life.recovery
            self._go_on(replica)
        for index in range(log.last_index - log.tail_count + 1, log.last_index + 1):
            key = index, log.epoch_at(index)
            if key in self._seen or key[1] != replica.leader_epoch or index not in log._tail:
                continue
            self._seen.add(key)
            operation = log.entry(index).operation
            self.cluster.done["carried"] += isinstance(operation, Carry)
            if isinstance(operation, Publish) and operation.key == SCHEDULED:
                self._published(process, replica, operation)

    def _go_on(self, replica: Any) -> None:
        """The partition was recovered: what clients were told is true as far as the log still says so."""
        machine = replica.machine
        for uuid, batch in self.batches.items():
            placed = machine.uuids.get(uuid)
            if batch.cancelled and (placed is None or uuid in machine.staged or placed.base_offset >= 0):
                self.cluster.unsaid.add((batch.writer, batch.id))
                batch.cancelled = False
            batch.acknowledged = batch.acknowledged and placed is not None
            batch.published = placed.base_offset if placed is not None else -1

    def is_old(self, asked_at: float) -> bool:
        """What was answered to a request of that time may be lost."""
        return asked_at <= self.cluster.oracle.recoveries.at(f"{self.place[0]}-{self.place[1]}")

    def _published(self, process: Process, replica: Any, publish: Publish) -> None:
        latest_us = round((EPOCH_S + self.cluster.loop.time() + process.believable_s) * 1e6)
        due = [replica.machine.staged[uuid].due_us for uuid in publish.uuids]
        if early := [each - latest_us for each in due if each > latest_us]:
            self._fail(f"{process} publishes batches {early} microseconds before they are due")
        if due != sorted(due):
            self._fail(f"{process} publishes batches in another order than they are due in: {due}")

    def _fail(self, what: str) -> None:
        self.cluster.fail(f"{self.place[0]}-{self.place[1]}: {what}")

    def check(self, leader: Any, offsets: list[int], values: list[int]) -> None:
        """At rest. `offsets`, `values`: what the log has."""
        found = dict(zip(offsets, values, strict=True))
        there = set(values)
        for uuid, batch in self.batches.items():
            placed = leader.replica.machine.uuids.get(uuid)
            offset = placed.base_offset if placed is not None else None
            if batch.cancelled:
                if offset != -1 or there & set(batch.values):
                    self._fail(f"batch {uuid.hex()} was cancelled, and is at offset {offset}")
                continue
            if not batch.acknowledged:
                continue
            if offset is None or offset < 0:
                self._fail(f"batch {uuid.hex()} was taken, and is at no offset: {placed}")
            elif batch.published not in (-1, offset):
                self._fail(f"batch {uuid.hex()} was published at {batch.published}, and is at offset {offset}")
            else:
                wrong = [
                    at
                    for at, value in enumerate(batch.values, offset)
                    if at >= leader.index.log_start_offset and found.get(at) != value
                ]
                if wrong:
                    self._fail(f"batch {uuid.hex()} is at offset {offset}, and others are at {wrong}")
        self.cluster.done["scheduled"] += sum(not batch.cancelled for batch in self.batches.values())
        self.cluster.done["cancelled"] += sum(batch.cancelled for batch in self.batches.values())


class Scheduler(Client):
    """Publishes for later in one partition, each batch again until it is acknowledged. Some it cancels, and asks until
    it knows what became of them; of some it then says again that they are to be published."""

    def __init__(self, cluster: Cluster, name: str, truth: ScheduledTruth) -> None:
        super().__init__(cluster, name)
        self.topic, self.partition = truth.place
        self._truth = truth

    async def run(self) -> None:
        going: set[asyncio.Task[None]] = set()
        while not self.cluster.stopping:
            for task in [task for task in going if task.done()]:
                going.discard(task)
                task.result()
            if len(going) < 20:
                going.add(self.loop.create_task(self._one(self._new())))
            await self.pause(self.cluster.plan.pause_s * 2)
        await asyncio.gather(*going)

    def _new(self) -> Waiting:
        values = self.cluster.new_values(self.random.randint(1, 3))
        uuid = self.random.randbytes(16)
        self._ids += 1
        # Of a process of its own: they are in the order in which they are due.
        batch = Waiting(uuid, values, f"{self.name} {self._ids}", self._ids)
        most_s = self.cluster.plan.later_s
        later_s = (
            self.random.uniform(0.0, most_s) if self.random.random() < 0.3 else self.loop.often_short(0.01, most_s)
        )
        if self.random.random() < 0.5:
            batch.delay_ms = max(1, round(later_s * 1000))
        else:
            batch.due_us = round((EPOCH_S + self.loop.time() + later_s) * 1e6)
        self.cluster.values[uuid] = values
        if self.cluster.plan.lives and self.random.random() < 0.6:
            self.cluster.lives_ms[uuid] = self.random.choice(LIVES_MS)
        self._truth.batches[uuid] = batch
        self.cluster.write(
            batch.writer,
            "send",
            state="invoke",
            id=batch.id,
            topic=self.topic,
            partition=self.partition,
            values=values,
        )
        return batch

    async def _one(self, batch: Waiting) -> None:
        await self._until(self._sent, batch)
        if self.random.random() < 0.4:
            await self.pause(self.loop.often_short(0.01, self.cluster.plan.later_s / 2))
            await self._until(self._cancel, batch)
        if self.random.random() < 0.2:
            await self._until(self._sent, batch)

    async def _until(self, attempt: Any, batch: Waiting) -> None:
        while True:
            broker = await self.leader(self.topic, self.partition)
            try:
                if broker and await attempt(broker, batch):
                    return
            except TritonMQError as error:
                self.cluster.done[f"schedule again: {type(error).__name__}"] += 1
            await self.pause(0.3)

    async def _sent(self, broker: int, batch: Waiting) -> bool:
        asked_at = self.loop.time()
        header = pb.ProduceHeader(
            correlation=1,
            topic=self.topic,
            partition=self.partition,
            uuid=batch.uuid,
            record_count=len(batch.values),
            schema_fingerprint=FINGERPRINT,
            timeout_ms=int(ANSWER_S * 1000),
            due_us=batch.due_us,
            delay_ms=batch.delay_ms,
        )
        if batch.uuid in self.cluster.lives_ms:
            header.attributes.ttl_ms = self.cluster.lives_ms[batch.uuid]
        async with self.call(broker, "Produce") as line:
            await line.write(header.SerializeToString(), (payload_of(batch.values),))
            said = await self.read(line)
        if said is None:
            return False
        [result] = parse(said.body, pb.ProduceResponse).results
        if result.HasField("error"):
            raise from_wire(result.error)
        if self._truth.is_old(asked_at):
            return False
        batch.acknowledged = True
        self._is_at(batch, result.base_offset)
        return True

    async def _cancel(self, broker: int, batch: Waiting) -> bool:
        request = pb.CancelScheduledRequest(topic=self.topic, partition=self.partition, uuid=batch.uuid)
        asked_at = self.loop.time()
        answer = await self.ask(broker, "CancelScheduled", request)
        if self._truth.is_old(asked_at):
            return False
        if answer.cancelled:
            batch.cancelled = True
            self.cluster.write(batch.writer, "send", state="fail", id=batch.id)
            if batch.published >= 0:
                self._truth._fail(f"batch {batch.uuid.hex()} is cancelled, and was published at {batch.published}")
        elif answer.published:
            self._is_at(batch, answer.offset)
        elif batch.acknowledged:
            self._truth._fail(f"batch {batch.uuid.hex()} was acknowledged, and a broker does not know it: {answer}")
        return True

    def _is_at(self, batch: Waiting, offset: int) -> None:
        if offset < 0:
            return
        if batch.cancelled or batch.published not in (-1, offset):
            self._truth._fail(
                f"batch {batch.uuid.hex()} is told to be at offset {offset}, after {batch.published}"
                f"{', cancelled' if batch.cancelled else ''}"
            )
        batch.published = offset
