"""Members of a queue group in the simulated cluster, and what is checked of each answer that they get.

A worker is lent records, works on them, and settles each one by itself; it forgets some, fails some, and dies now and
then, to come back under its name. The ledger knows what all of them were told.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from mq_protocol import mq_pb2 as pb
from mq_protocol.errors import TritonMQError
from tests.simulation.real.clients import Client

if TYPE_CHECKING:
    from tests.simulation.real.cluster import Cluster

GROUP = "work"
LEASE_S = 3.0
SETTINGS = {
    "lease_ms": f"{round(LEASE_S * 1000)}ms",
    "delivery_limit": "4",
    "retry_ms": "100ms",
    "retry_ms_max": "1s",
    "dead_letter": "park",
}
LeaseName = tuple[int, int, int]


@dataclass(slots=True)
class Told:
    """What members know of one record. `held_until`: before then nobody else may have it."""

    receipts: int = 0
    failed: int = 0
    accepted_at: float | None = None
    holder: str = ""
    held_until: float = 0.0


@dataclass(slots=True)
class Ledger:
    """Owns what all members of the group were told of the records of one partition."""

    cluster: Cluster
    place: str
    records: dict[int, Told] = field(default_factory=dict)

    def receive(self, member: str, offset: int, asked_at: float, deliveries: int, failures: int) -> None:
        """A member was lent the record, by an answer to what it asked at that time."""
        told, now = self.records.setdefault(offset, Told()), self.cluster.loop.time()
        told.receipts += 1
        what = f"{self.place} offset {offset} was lent to {member}"
        if told.accepted_at is not None and told.accepted_at < asked_at:
            self.cluster.fail(f"{what} after it had been settled at {told.accepted_at:.6f}")
        if told.holder not in ("", member) and now < told.held_until:
            self.cluster.fail(f"{what} while {told.holder} had it, until {told.held_until:.6f} at least")
        if deliveries < told.receipts:
            self.cluster.fail(f"{what} as delivery {deliveries}, and members had it {told.receipts} times")
        if failures < told.failed:
            self.cluster.fail(f"{what} as failed {failures} times, and {told.failed} failures were confirmed")
        told.holder, told.held_until = member, asked_at + LEASE_S

    def let_go(self, offset: int) -> None:
        self.records[offset].holder = ""

    def settled(self, offset: int, outcome: int) -> None:
        """The outcome is confirmed."""
        told = self.records[offset]
        told.failed += outcome == pb.OUTCOME_FAIL
        if outcome == pb.OUTCOME_ACK and told.accepted_at is None:
            told.accepted_at = self.cluster.loop.time()


class Worker(Client):
    """Asks one partition's leader for records, and settles them."""

    def __init__(self, cluster: Cluster, name: str, topic: str, partition: int, ledger: Ledger) -> None:
        super().__init__(cluster, name)
        self.topic = topic
        self.partition = partition
        self._ledger = ledger
        self._lives = 0
        self._begin_life()

    def _begin_life(self) -> None:
        self._lives += 1
        self._key = self.random.randbytes(16)
        self._held: dict[LeaseName, set[int]] = {}
        self._settles: list[tuple[LeaseName, int, pb.Outcome.ValueType]] = []

    async def run(self) -> None:
        while not self.cluster.over:
            try:
                broker = await self.leader(self.topic, self.partition)
                if broker:
                    await self._lease(broker)
                    await self.pause(self.cluster.plan.pause_s)
                    self._work()
                    await self._settle(await self.leader(self.topic, self.partition))
            except (TritonMQError, TimeoutError, asyncio.InvalidStateError) as error:
                self.cluster.done[f"work again: {type(error).__name__}"] += 1
                await self.pause(0.2)
            if not self.cluster.stopping and self.random.random() < 0.02:
                self._die()

    def _die(self) -> None:
        for offsets in self._held.values():
            for offset in offsets:
                self._ledger.let_go(offset)
        self.cluster.done["workers died"] += 1
        self._begin_life()

    async def _lease(self, broker: int) -> None:
        asked_at = self.cluster.loop.time()
        request = pb.LeaseRequest(
            topic=self.topic,
            partition=self.partition,
            group=GROUP,
            member=self.name,
            member_key=self._key,
            records_max=self.random.randint(1, 5),
            wait_ms=self.random.choice((0, 500, 2_000)),
            held=[pb.LeaseId(leader_epoch=e, entry=i, step=s) for e, i, s in self._held],
            working=1,
        )
        answer: pb.LeaseResponse = await self.ask(broker, "Lease", request)
        for gone in answer.gone:
            for offset in self._held.pop(_name(gone), ()):
                self._ledger.let_go(offset)
        if not answer.HasField("lease"):
            return
        lease = _name(answer.lease)
        at = 0
        numbers = zip(answer.ranges[::2], answer.ranges[1::2], answer.deliveries, answer.failures, strict=True)
        for gap, length, deliveries, failures in numbers:
            for offset in range(at + gap, at + gap + length):
                self._ledger.receive(self.name, offset, asked_at, deliveries, failures)
                self._held.setdefault(lease, set()).add(offset)
                self.cluster.done["records lent"] += 1
            at += gap + length

    def _work(self) -> None:
        """Choose an outcome for most of what is held. What is forgotten runs out."""
        settling = {(lease, offset) for lease, offset, _ in self._settles}
        for lease, offsets in self._held.items():
            for offset in sorted(offsets):
                if (lease, offset) in settling or self.random.random() < 0.1:
                    continue
                chance = 0.0 if self.cluster.stopping else self.random.random()
                outcome = pb.OUTCOME_ACK
                if chance > 0.95:
                    outcome = pb.OUTCOME_REJECT
                elif chance > 0.85:
                    outcome = pb.OUTCOME_FAIL
                elif chance > 0.8:
                    outcome = pb.OUTCOME_RELEASE
                self._settles.append((lease, offset, outcome))

    async def _settle(self, broker: int) -> None:
        if not self._settles or not broker:
            return
        asked = list(self._settles)
        for _, offset, _ in asked:
            self._ledger.let_go(offset)  # from now on it may be with somebody else
        request = pb.SettleRequest(
            topic=self.topic, partition=self.partition, group=GROUP, member=self.name, timeout_ms=4_000
        )
        for (epoch, entry, step), offset, outcome in asked:
            lease = pb.LeaseId(leader_epoch=epoch, entry=entry, step=step)
            request.settles.append(pb.SettleOne(lease=lease, ranges=[offset, 1], outcome=outcome))
            if outcome in (pb.OUTCOME_FAIL, pb.OUTCOME_REJECT):
                request.settles[-1].error = "it failed"
        answer: pb.SettleResponse = await self.ask(broker, "Settle", request)
        for (lease, offset, outcome), told in zip(asked, answer.answers, strict=True):
            if told.HasField("error") and told.error.code != pb.LEASE_LOST:
                self.cluster.done[f"settle again: {told.error.code}"] += 1
                continue
            self._settles.remove((lease, offset, outcome))
            self._held.get(lease, set()).discard(offset)
            if not self._held.get(lease, True):
                del self._held[lease]
            if told.lost or told.HasField("error"):
                self.cluster.done["records lost"] += 1
                continue
            self.cluster.done["records settled"] += 1
            self._ledger.settled(offset, outcome)


def _name(lease: pb.LeaseId) -> LeaseName:
    return lease.leader_epoch, lease.entry, lease.step


async def declare(operator: Client, topic: str) -> bool:
    """Have the topic worked off as a queue, too."""
    request = pb.AlterQueueRequest(topic=topic, group=GROUP, settings=SETTINGS)
    await operator.ask(operator.any_broker(), "AlterQueue", request)
    return True


def why_not_worked_off(partition: Any, ledger: Ledger) -> str:
    """What is left to do in this leader's partition; empty if every record is settled or parked."""
    state = partition.replica.machine.work.get(GROUP)
    if state is None:
        return f"{ledger.place} has begun its queue group"
    for low, high, mark in state.unleased(state.base, partition.next_offset):
        if mark is None or not mark.parked:
            return f"{ledger.place}: offsets {low} to {high} are settled or parked, not {mark}"
    if state.leased:
        return f"{ledger.place}: no record is leased: {dict(state.leases)}"
    for offset, told in ledger.records.items():
        if told.accepted_at is not None and offset not in state.settled:
            return f"{ledger.place}: offset {offset} is settled, as its member was told"
    return ""
