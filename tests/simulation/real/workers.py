"""Members of a queue group in the simulated cluster, and what is checked of each answer that they get.

A worker is lent records, works on them, and settles each one by itself. It extends some, forgets some, fails some, and
says some things twice. It dies now and then, to come back under its name; what the dead process had sent may come late.
The ledger knows what all of them were told; what is committed is known to the truth (queue_truth.py).
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from mq_broker.core.work.steps import LeaseId
from mq_protocol import mq_pb2 as pb
from mq_protocol.errors import TritonMQError
from mq_protocol.queues.work_keys import WorkPlace, query_id_of, run_of_lease
from tests.simulation.real.clients import ANSWER_S, Client
from tests.simulation.real.lending_truth import BYTES_MAX, FILTERS, LENGTH_MAX
from tests.simulation.real.queue_truth import (
    ACK_WITH_OUTPUT,
    DELIVERY_LIMIT,
    FAILED,
    GROUP,
    LEASE_S,
    OUTPUTS,
    RESUME_S,
    QueueTruth,
)
from tests.simulation.real.transactors import stage_batch

if TYPE_CHECKING:
    from tests.simulation.real.cluster import Cluster

OUTPUT_AT = 10**9
"""An output is a number: partition and offset of its record, the partition so many times."""

SETTINGS = {
    "lease_ms": f"{round(LEASE_S * 1000)}ms",
    "delivery_limit": str(DELIVERY_LIMIT),
    "resume_ms": f"{round(RESUME_S * 1000)}ms",
    "retry_ms": "100ms",
    "retry_ms_max": "1s",
}
Item = tuple[LeaseId, int, int]
"""Lease, offset and outcome of one record to settle."""


@dataclass(slots=True)
class Told:
    """What members know of one record. `held_until`: before then nobody else may have it."""

    receipts: int = 0
    failed: set[LeaseId] = field(default_factory=set)
    accepted_at: float | None = None
    holder: str = ""
    held_until: float = 0.0


@dataclass(slots=True)
class Ledger:
    """Owns what all members of the group were told of the records of one partition."""

    cluster: Cluster
    truth: QueueTruth
    records: dict[int, Told] = field(default_factory=dict)

    @property
    def place(self) -> str:
        return self.truth.place

    def forget(self) -> None:
        """The partition is recovered: what members were told of it may be lost."""
        self.records.clear()

    def receive(
        self, member: str, offset: int, asked_at: float, deliveries: int, failures: int, hold_s: float = LEASE_S
    ) -> None:
        """A member was lent the record, by an answer to what it asked at that time. `hold_s`: from then on it has it
        for so long at least."""
        if self.truth.is_old(asked_at):
            return
        told, now = self.records.setdefault(offset, Told()), self.cluster.loop.time()
        told.receipts += 1
        what = f"{self.place} offset {offset} was lent to {member}"
        if told.accepted_at is not None and told.accepted_at < asked_at:
            self.cluster.fail(f"{what} after it had been settled at {told.accepted_at:.6f}")
        if told.holder not in ("", member) and now < self._held_until(offset):
            self.cluster.fail(f"{what} while {told.holder} had it, until {told.held_until:.6f} at least")
        if deliveries < told.receipts:
            self.cluster.fail(f"{what} as delivery {deliveries}, and members had it {told.receipts} times")
        if failures < len(told.failed):
            self.cluster.fail(f"{what} as failed {failures} times, and {len(told.failed)} failures were confirmed")
        told.holder, told.held_until = member, asked_at + hold_s
        if self.truth.order.order != "none":
            self._went_with(offset, member)

    def _went_with(self, offset: int, member: str) -> None:
        """One member has the records of a key: who had later ones has given them back, whatever it knows of that."""
        for later, told in self.records.items():
            if later > offset and told.holder != member and self.truth.order.key(later) == self.truth.order.key(offset):
                told.holder = ""

    def _held_until(self, offset: int) -> float:
        """Before then nobody else may have the record. With an order it goes back with earlier ones of its key: with
        those of which nobody is certain to have them, it may have."""
        told = self.records[offset]
        if self.truth.order.order == "none":
            return told.held_until
        key = self.truth.order.key(offset)
        before = [each for o, each in self.records.items() if o < offset and self.truth.order.key(o) == key]
        open_ = [each for each in before if each.accepted_at is None]
        return min([told.held_until, *(each.held_until if each.holder == told.holder else 0.0 for each in open_)])

    def let_go(self, offset: int) -> None:
        if offset in self.records:
            self.records[offset].holder = ""

    def extended(self, member: str, offset: int, asked_at: float, hold_s: float = LEASE_S) -> None:
        """The member has the record for longer, unless it let go of it meanwhile."""
        told = self.records.get(offset)
        if told is not None and told.holder == member:
            told.held_until = max(told.held_until, asked_at + hold_s)

    def settled(self, lease: LeaseId, offset: int, outcome: int, asked_at: float) -> None:
        """The outcome is confirmed, of what was asked at that time. A repeated one is confirmed again."""
        if self.truth.is_old(asked_at):
            return
        told = self.records.setdefault(offset, Told())
        if outcome == pb.OUTCOME_FAIL:
            told.failed.add(lease)
        if outcome in (pb.OUTCOME_ACK, ACK_WITH_OUTPUT) and told.accepted_at is None:
            told.accepted_at = self.cluster.loop.time()


class Worker(Client):
    """Asks one partition's leader for records now and then, and settles them. What it has outlives its sessions."""

    def __init__(self, cluster: Cluster, name: str, topic: str, partition: int, ledger: Ledger) -> None:
        super().__init__(cluster, name)
        self.topic = topic
        self.partition = partition
        self._ledger = ledger
        self._late: set[asyncio.Task[None]] = set()
        self._number = 0  # of the last ack with outputs, by this name
        self._away_s = 0.0
        self._begin_life()

    def _begin_life(self) -> None:
        self._ledger.truth.lives(self.name)
        self._key = self.random.randbytes(16)
        plan = self.cluster.plan
        self._filter = self.random.choice(tuple(FILTERS)) if plan.sieves else ""
        self._priority = self.random.randrange(3) if plan.priority else 0
        self._held: dict[LeaseId, set[int]] = {}
        self._settles: list[Item] = []
        self._output: pb.SettleOne | None = None  # one at a time, since the group keeps the last number alone

    async def run(self) -> None:
        while not self.cluster.over:
            away_s, self._away_s = self._away_s, 0.0
            if away_s and not self.cluster.stopping:
                await asyncio.sleep(away_s)
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
        items = [(lease, offset, self._outcome()) for lease, held in self._held.items() for offset in sorted(held)]
        if items and self.random.random() < 0.7:
            self._late_task(self._say_late(items))
        self._away_s = self.random.uniform(0, self.cluster.plan.away_s) if self.cluster.plan.away_s else 0.0
        self._begin_life()

    def _late_task(self, saying: Coroutine[Any, Any, None]) -> None:
        task = self.loop.create_task(saying, name=f"{self.name}, beside what it says")
        self._late.add(task)
        task.add_done_callback(self._late.discard)

    async def _say_again(self, broker: int, items: list[Item]) -> None:
        try:
            await self._ask_to_settle(broker, items)
        except TritonMQError as error:
            self.cluster.done[f"said again: {type(error).__name__}"] += 1

    async def _say_late(self, items: list[Item]) -> None:
        """What the process sent before it died comes now."""
        try:
            await self.pause(1.0 + LEASE_S * self.random.random())
            broker = await self.leader(self.topic, self.partition)
            if broker and not self.cluster.over:
                await self._ask_to_settle(broker, items)
        except TritonMQError as error:
            self.cluster.done[f"settled late: {type(error).__name__}"] += 1

    def _opened(self) -> pb.WorkOpen:
        return pb.WorkOpen(
            topic=self.topic, partition=self.partition, group=GROUP, member=self.name, member_key=self._key
        )

    async def _lease(self, broker: int) -> None:
        asked_at = self.cluster.loop.time()
        named = set(self._held)
        credit = pb.WorkCredit(records=self.random.randint(1, 100 if self.cluster.stopping else 5), once=True)
        held = [pb.LeaseId(leader_epoch=e, entry=i, step=s) for e, i, s in self._held]
        request = pb.SessionRequest(check=held, credit=credit)
        terms = pb.WorkTerms(working=1, filter="" if self.cluster.stopping else self._filter, priority=self._priority)
        self._ledger.truth.lending.asks(self.name, terms.filter, terms.priority)
        impatient = not self.cluster.stopping and self.random.random() < self.cluster.plan.impatient
        timeout_s = self.loop.often_short(0.002, 1.0) if impatient else ANSWER_S
        try:
            answer, all_gone = await self.lent(broker, self._opened(), terms, request, timeout_s)
        except TritonMQError:
            if impatient and self.random.random() < 0.5:
                self._die()
            raise
        for gone in all_gone:
            for offset in self._held.pop(_name(gone), ()):
                self._ledger.let_go(offset)
        if not answer.HasField("lease"):
            return
        lease, truth = _name(answer.lease), self._ledger.truth
        if not truth.is_old(asked_at):
            truth.not_named(self.name, named, lease)
        truth.lending.answered(self.name, terms.priority, terms.filter, lease)
        at = 0
        numbers = zip(answer.ranges[::2], answer.ranges[1::2], answer.deliveries, answer.failures, strict=True)
        for gap, length, deliveries, failures in numbers:
            for offset in range(at + gap, at + gap + length):
                truth.received(lease, offset, asked_at, (deliveries, failures))
                truth.lending.received(self.name, terms.filter, offset)
                self._ledger.receive(self.name, offset, asked_at, deliveries, failures)
                self._held.setdefault(lease, set()).add(offset)
                self.cluster.done["records lent"] += 1
            at += gap + length

    def _outcome(self) -> int:
        chance = 0.0 if self.cluster.stopping else self.random.random()
        if chance > 0.95:
            return int(pb.OUTCOME_REJECT)
        if chance > 0.85:
            return int(pb.OUTCOME_FAIL)
        return int(pb.OUTCOME_RELEASE if chance > 0.8 else pb.OUTCOME_ACK)

    def _work(self) -> None:
        """Choose an outcome for most of what is held. Some are worked on for longer; what is forgotten runs out."""
        if self.cluster.plan.order != "none":
            self._work_in_order()
            return
        settling = {(lease, offset) for lease, offset, _ in self._settles}
        for lease, offsets in self._held.items():
            for offset in sorted(offsets):
                if (lease, offset) in settling or self.random.random() < 0.1:
                    continue
                longer = not self.cluster.stopping and self.random.random() < self.cluster.plan.slow_work
                outcome = int(pb.OUTCOME_EXTEND) if longer else self._outcome()
                self._settles.append((lease, offset, outcome))

    def _work_in_order(self) -> None:
        """The same, one record of a key at a time; now and then without a care for that."""
        order, random = self._ledger.truth.order, self.random
        settling = {(lease, offset): outcome for lease, offset, outcome in self._settles}
        careless = not self.cluster.stopping and random.random() < 0.2
        busy: set[int] = set()
        for offset, lease in sorted((offset, lease) for lease, offsets in self._held.items() for offset in offsets):
            key, said = order.key(offset), settling.get((lease, offset))
            if said is None and (key not in busy or careless):
                longer = not self.cluster.stopping and random.random() < self.cluster.plan.slow_work
                said = None if random.random() < 0.1 else int(pb.OUTCOME_EXTEND) if longer else self._outcome()
                if said is not None:
                    self._settles.append((lease, offset, said))
            elif said is None and random.random() < 0.3:
                self._settles.append((lease, offset, int(pb.OUTCOME_EXTEND)))
            if said not in (pb.OUTCOME_ACK, ACK_WITH_OUTPUT):
                busy.add(key)
        if careless:
            random.shuffle(self._settles)

    def _let_go(self, lease: LeaseId, offset: int) -> None:
        self._ledger.let_go(offset)
        self._held.get(lease, set()).discard(offset)
        if not self._held.get(lease, True):
            del self._held[lease]

    async def _settle(self, broker: int) -> None:
        if not self._settles or not broker:
            return
        await self._make_output()
        asked = list(self._settles)
        twice = [item for item in asked if self.random.random() < 0.05]
        self._settles = [item for item in asked if item[2] != pb.OUTCOME_EXTEND]  # extensions are not asked for again
        for _, offset, outcome in asked:
            if outcome != pb.OUTCOME_EXTEND:
                self._ledger.let_go(offset)  # from now on it may be with somebody else
        acks = [item for item in twice if item[2] in (pb.OUTCOME_ACK, ACK_WITH_OUTPUT)]
        if acks and self.random.random() < 0.5:  # by a request of its own, which may come while the first is written
            self._late_task(self._say_again(broker, acks))
            twice = []
        self._settled(await self._ask_to_settle(broker, asked + twice + self._contradicted(asked)))

    def _contradicted(self, said: list[Item]) -> list[Item]:
        """A member may say two things of one record: the first holds."""
        if self.cluster.stopping or self.random.random() < 0.7:
            return []
        plain = [item for item in said if item[2] not in (pb.OUTCOME_EXTEND, ACK_WITH_OUTPUT)]
        return [(lease, offset, self._outcome()) for lease, offset, _ in plain]

    def _settled(self, answered: list[tuple[Item, bool]]) -> None:
        """These have an answer, and whether it is that the record is lost."""
        for item, lost in answered:
            lease, offset, outcome = item
            if item in self._settles:
                self._settles.remove(item)
            elif outcome != pb.OUTCOME_EXTEND:
                continue
            if outcome == pb.OUTCOME_EXTEND and not lost:
                continue
            if lost:
                self._ledger.let_go(offset)
            self._held.get(lease, set()).discard(offset)
            if not self._held.get(lease, True):
                del self._held[lease]

    async def _make_output(self) -> None:
        """Have one of the records that are to be acknowledged answered by an output, staged under its lease."""
        acks = [item for item in self._settles if item[2] == pb.OUTCOME_ACK]
        tried = any(item[2] == ACK_WITH_OUTPUT for item in self._settles)
        if tried or not acks or self.random.random() < 0.5:
            return
        lease, offset, outcome = self.random.choice(acks)
        topics = self.cluster.zookeeper.topics
        target = topics[self.topic + OUTPUTS][1]
        place = WorkPlace(topics[self.topic][1].topic_id, self.partition, GROUP)
        number, uuid = self.random.randrange(len(target.assignment)), self.random.randbytes(16)
        stage = pb.StageOf(
            key=pb.TransactionKey(query_id=query_id_of(place), sink=target.name), run_id=run_of_lease(*lease)
        )
        await stage_batch(self, (target.name, number), stage, uuid, [self.partition * OUTPUT_AT + offset])
        self._number += 1
        self._output = pb.SettleOne(number=self._number)
        self._output.outputs.add(
            topic=target.name, topic_id=target.topic_id, partition=number, uuids=[uuid], row_count=1
        )
        self._settles[self._settles.index((lease, offset, outcome))] = lease, offset, ACK_WITH_OUTPUT
        if not self.cluster.stopping and self.random.random() < self.cluster.plan.slow_work:
            await self.pause(0.5)  # what is staged waits for its decision, and the broker that has it may go

    async def _ask_to_settle(self, broker: int, asked: list[Item]) -> list[tuple[Item, bool]]:
        """Those that have an answer, and whether it is that the record is lost."""
        asked_at, truth = self.cluster.loop.time(), self._ledger.truth
        settles: list[pb.SettleOne] = []
        first = not any(truth.was_said(item) for item in asked if item[2] != pb.OUTCOME_EXTEND)
        for item in asked:
            truth.asks(*item)
            (epoch, entry, step), offset, outcome = item
            lease = pb.LeaseId(leader_epoch=epoch, entry=entry, step=step)
            settle = pb.SettleOne(lease=lease, ranges=[offset, 1])
            settles.append(settle)
            if outcome == ACK_WITH_OUTPUT:
                assert self._output is not None
                settle.MergeFrom(self._output)
                continue
            settle.outcome = outcome  # type: ignore[assignment]
            if outcome in (pb.OUTCOME_FAIL, pb.OUTCOME_REJECT):
                settle.error = FAILED
        answers = await self.answered(broker, self._opened(), settles)
        return self._judge(list(zip(asked, answers, strict=True)), asked_at, broker, LEASE_S, first=first)

    def _judge(
        self,
        answers: Sequence[tuple[Item, pb.SettleAnswer]],
        asked_at: float,
        broker: int,
        hold_s: float,
        *,
        first: bool = True,
    ) -> list[tuple[Item, bool]]:
        """What was told of these, which were asked at that time. Those that have an answer, and whether it is that the
        record is lost. `first`: nobody had said it before; what went along is told once."""
        truth = self._ledger.truth
        answered: list[tuple[Item, bool]] = []
        back: list[tuple[LeaseId, int]] = []
        pulled: set[tuple[LeaseId, int]] = set()
        for item, told in answers:
            if told.HasField("error") and told.error.code != pb.LEASE_LOST:
                self.cluster.done[f"settle again: {told.error.code}"] += 1
                continue
            lost = bool(told.lost) or told.HasField("error")
            truth.answered(*item, lost, asked_at, broker)
            if not lost and item[2] in (pb.OUTCOME_FAIL, pb.OUTCOME_RELEASE, pb.OUTCOME_REJECT):
                back.append(item[:2])
            pulled |= {(_name(each.lease), offset) for each in told.pulled for offset in _offsets(each.ranges)}
            answered.append((item, lost))
            _, offset, outcome = item
            self.cluster.done["records lost" if lost else f"records: {_named(outcome)}"] += 1
            if outcome == pb.OUTCOME_EXTEND and not lost:
                self._ledger.extended(self.name, offset, asked_at, hold_s)
            elif not lost:
                self._ledger.settled(item[0], offset, outcome, asked_at)
        if not truth.is_old(asked_at):
            gone = {item[:2] for item, lost in answered if lost}
            held = {
                lease: {offset for offset in offsets if (lease, offset) not in gone}
                for lease, offsets in self._held.items()
            }
            truth.order.told(self.name, back, pulled, held if first else {})
        for lease, offset in pulled:
            if offset in self._held.get(lease, ()):
                self._let_go(lease, offset)
        return answered


def _named(outcome: int) -> str:
    return "acks with an output" if outcome == ACK_WITH_OUTPUT else pb.Outcome.Name(outcome)  # type: ignore[arg-type]


def _offsets(gaps: Sequence[int]) -> list[int]:
    """What gaps and lengths in turn mean."""
    found: list[int] = []
    at = 0
    for gap, length in zip(gaps[::2], gaps[1::2], strict=True):
        found += range(at + gap, at + gap + length)
        at += gap + length
    return found


def _name(lease: pb.LeaseId) -> LeaseId:
    return LeaseId(lease.leader_epoch, lease.entry, lease.step)


async def declare(operator: Client, topic: str) -> bool:
    """Have the topic worked off as a queue, too."""
    plan = operator.cluster.plan
    settings = {**SETTINGS, "dead_letter": "drop"} if plan.tight else dict(SETTINGS)
    if plan.order != "none":
        settings |= {"order": plan.order, "order_by": "k"} if plan.order == "key" else {"order": plan.order}
    if plan.length:
        settings |= {"overflow": plan.length, "dropped": plan.dropped}
        settings |= {"bytes_max": str(BYTES_MAX)} if plan.heavy else {"length_max": str(LENGTH_MAX)}
    if plan.priority:
        settings["priority"] = plan.priority
    if plan.ttl_s:
        settings["ttl_ms"] = f"{round(plan.ttl_s * 1000)}ms"
    settings["expired"] = plan.expired
    request = pb.AlterQueueRequest(topic=topic, group=GROUP, settings=settings)
    await operator.ask(operator.any_broker(), "AlterQueue", request)
    return True


class Alterer(Client):
    """Changes the filter of a topic's queue group now and then, and what priorities mean to it."""

    def __init__(self, cluster: Cluster, name: str, topic: str) -> None:
        super().__init__(cluster, name)
        self.topic = topic

    async def run(self) -> None:
        plan = self.cluster.plan
        while not self.cluster.stopping:
            settings = {"filter": self.random.choice(tuple(FILTERS))} if plan.filter else {}
            if plan.priority and plan.order == "none" and self.random.random() < 0.2:
                settings["priority"] = self.random.choice(("strict", "weighted", "ignore"))
            try:
                request = pb.AlterQueueRequest(topic=self.topic, group=GROUP, settings=settings, change=pb.QUEUE_ALTER)
                if settings:
                    await self.ask(self.any_broker(), "AlterQueue", request)
                    self.cluster.done["groups altered"] += 1
            except TritonMQError as error:
                self.cluster.done[f"alter again: {type(error).__name__}"] += 1
            await self.pause(1.5)


def why_not_worked_off(partition: Any, ledger: Ledger) -> str:
    """What is left to do in this leader's partition; empty if every record is settled or parked."""
    state = partition.replica.machine.work.get(GROUP)
    if state is None:
        return f"{ledger.place} has begun its queue group"
    for low, high, mark in state.unleased(state.base, partition.next_offset):
        if mark is None or not mark.parked:
            return f"{ledger.place}: offsets {low} to {high} are settled or parked, not {mark}"
    if state.outbox:
        return f"{ledger.place}: everything that was decided is published: {state.outbox}"
    if state.leased:
        return f"{ledger.place}: no record is leased: {dict(state.leases)}"
    for offset, told in ledger.records.items():
        if told.accepted_at is not None and offset not in state.settled:
            return f"{ledger.place}: offset {offset} is settled, as its member was told"
    return ""
