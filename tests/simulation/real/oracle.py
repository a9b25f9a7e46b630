"""What no broker can see: every replica at once. Checks what must hold whenever something is committed, and at the end.

What clients were told and saw is judged apart, by tests/history/checker.py.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from mq_broker.core.messages import Audit, DecisionCommitted, Effect, NodeState
from mq_protocol.arrow import decode_batch
from mq_protocol.errors import OffsetOutOfRange
from mq_protocol.queues.dead_letters import DEAD_COLUMN
from mq_protocol.queues.work_keys import is_of_queue
from tests.simulation.real.clients import values_in
from tests.simulation.real.durable_truth import DurableTruth
from tests.simulation.real.idling import IdleTruth
from tests.simulation.real.moves_truth import MovesTruth
from tests.simulation.real.queue_truth import DEAD, OUTPUTS, QueueTruth
from tests.simulation.real.recoveries import Gaps, Recoveries
from tests.simulation.real.workers import OUTPUT_AT, why_not_worked_off

if TYPE_CHECKING:
    from tests.simulation.real.cluster import Cluster
    from tests.simulation.real.loop import Process

HARMLESS_ALARMS = ("the disk refused entries", "the log has a new id", "nothing was committed for")
"""Alarms that faults of the world cause. Any other says that a rule was broken."""

AFTER_A_RESTORATION = ("was the coordination service restored",)

AFTER_A_LOSS = ("recovered from another log", "would cut committed entry", "lacks what is committed here")
"""And those of a log that the partition was not recovered from."""


class Violation(AssertionError):
    """Something that must hold does not."""


class Oracle:
    """Owns what is known of all partitions: what is committed, and who led in each epoch."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self._leaders: dict[tuple[str, int], str] = {}
        self._queues: dict[str, QueueTruth] = {}
        self._durable = DurableTruth(cluster)
        self._moves = MovesTruth(cluster)
        self.idle = IdleTruth(cluster)
        self.recoveries = Recoveries(cluster)
        cluster.zookeeper.on_state = self._state

    def _state(self, topic_id: str, partition: int, version: int, state: NodeState) -> None:
        self._moves.state(topic_id, partition, state)
        self.recoveries.state(topic_id, partition, state)

    def queue(self, place: str) -> QueueTruth:
        """What is committed about the queue group of this partition."""
        if place not in self._queues:
            self._queues[place] = QueueTruth(self.cluster, place)
        return self._queues[place]

    # ------------------------------------------------------------------ each step of each replica

    def stepped(self, process: Process, replica: Any, before: int, effects: list[Effect]) -> None:
        """`before`: the high watermark as it was."""
        shared = replica._shared
        place = shared.name
        for effect in effects:
            if isinstance(effect, Audit) and effect.alarm and not self._is_harmless(place, effect.text):
                self.cluster.fail(f"{process}: an alarm: {effect.text}")
            if isinstance(effect, DecisionCommitted) and self.cluster.nemesis is not None:
                self.cluster.nemesis.decided(effect.decision)
        if replica.leading:
            known = self._leaders.setdefault((place, replica.leader_epoch), process.name)
            if known != process.name:
                self.cluster.fail(f"{place}: {known} and {process.name} both led epoch {replica.leader_epoch}")
        lives = self.recoveries.lives(place)
        lives.see(shared.log)
        high_watermark = replica.high_watermark
        if high_watermark != before:
            lives.commits(process, replica, before)
            if high_watermark > replica.flushed:
                self.cluster.fail(
                    f"{place}: {process} commits up to {high_watermark}, and has flushed up to {replica.flushed}"
                )
        self._durable.stepped(process, replica, before)
        if self.cluster.plan.workers and not place.startswith("__"):
            self.queue(place).stepped(process, replica, before)
        if self.cluster.plan.idles:
            self.idle.stepped(process, replica, before)
        if place in self.cluster.scheduled:
            self.cluster.scheduled[place].stepped(process, replica)

    def _is_harmless(self, place: str, text: str) -> bool:
        after = AFTER_A_LOSS if self.recoveries.at(place) >= 0 else ()
        after += AFTER_A_RESTORATION if self.cluster.zookeeper.restorations else ()
        return any(harmless in text for harmless in (*HARMLESS_ALARMS, *after))

    def put_back(self, broker: int) -> None:
        """The directory of that broker is an older one now."""
        self._durable.forget(broker)

    def deletes(self, process: Process, partition: Any) -> None:
        """A replica is about to be deleted: its topic is gone, or nobody counts on it."""
        topic_id = partition.topic.spec.topic_id
        there = any(spec.topic_id == topic_id for _, spec in self.cluster.zookeeper.topics.values())
        known = self.cluster.zookeeper.states.get((topic_id, partition.number))
        if there and known is not None and any(broker == process.broker for broker, _ in known[1].isr):
            self.cluster.fail(f"{process} deletes {partition.name}, and the in-sync set names it: {known[1]}")
        self.cluster.done["replicas deleted"] += 1

    # ------------------------------------------------------------------ the end

    def _replicas(self) -> dict[tuple[str, int], dict[int, Any]]:
        """By partition and broker: the open replicas."""
        found: dict[tuple[str, int], dict[int, Any]] = {}
        for machine in self.cluster.machines.values():
            shell = machine.process.shell if machine.process is not None and machine.up else None
            if shell is not None:
                for partition in shell.partitions():
                    found.setdefault((partition.topic.spec.name, partition.number), {})[machine.broker] = partition
        return found

    def why_not_whole(self) -> str:
        """What keeps the cluster from being whole; empty if it is."""
        replicas = self._replicas()
        for machine in self.cluster.machines.values():
            if not (machine.up and machine.ready):
                return f"{machine.name} serves"
        for name, (_, spec) in sorted(self.cluster.zookeeper.topics.items()):
            if spec.moving:
                return f"{name} has been moved: {spec.moving}"
            for number, members in enumerate(spec.assignment):
                there = replicas.get((name, number), {})
                _, state = self.cluster.zookeeper.states[spec.topic_id, number]
                if sorted(there) != sorted(members):
                    return f"{name}-{number} is open at {sorted(members)}, not only {sorted(there)}"
                leaders = [broker for broker, partition in there.items() if partition.serving]
                if len(leaders) != 1 or state.leader is None or leaders[0] != state.leader.broker:
                    return f"{name}-{number} has one leader: {leaders} serve, and the node says {state}"
                named = dict(state.isr)
                for broker, partition in there.items():
                    if named.get(broker) != partition.journal.log_id:
                        return f"{name}-{number}: the log of broker {broker} is in sync; the node says {state}"
        return ""

    def whole(self) -> bool:
        return not self.why_not_whole()

    def why_not_published(self) -> str:
        """What is scheduled and not published yet; empty if nothing."""
        replicas = {f"{name}-{number}": there for (name, number), there in self._replicas().items()}
        for place in self.cluster.scheduled:
            leader = next((each for each in replicas.get(place, {}).values() if each.serving), None)
            if leader is None:
                return f"{place} has a leader"
            if left := len(leader.replica.machine.due_times):
                return f"nothing waits in {place}: {left} batches do"
        return ""

    def why_not_worked_off(self) -> str:
        """What members of queue groups have left to do; empty if nothing."""
        replicas = self._replicas()
        for place, ledger in self.cluster.ledgers.items():
            ledger.truth.compare()
            leader = next((each for each in replicas.get(place, {}).values() if each.serving), None)
            if leader is None:
                return f"{ledger.place} has a leader"
            if why := why_not_worked_off(leader, ledger):
                return why
        return ""

    def why_not_swept(self) -> str:
        """What attempts of queue groups have left behind; empty if nothing. Brokers look for it now and then."""
        replicas = self._replicas()
        for (name, number), there in sorted(replicas.items()):
            leader = next((each for each in there.values() if each.serving), None)
            staged = leader.replica.machine.staged.values() if leader is not None else ()
            if left := [batch.key for batch in staged if is_of_queue(batch.key.query_id)]:
                return f"nothing of queue groups is staged at {name}-{number}: {left}"
        return ""

    def _check_published(self) -> None:
        """There is one dead letter for each record that was settled as dead, one output for each ack that was decided
        with one, and none for others."""
        found = {DEAD: Counter[tuple[str, int, int]](), OUTPUTS: Counter[tuple[str, int, int]]()}
        for (name, _), there in self._replicas().items():
            for ending, records in found.items():
                if name.endswith(ending):
                    leads, leader = next((broker, each) for broker, each in there.items() if each.serving)
                    _, values = contents(self.cluster.machines[leads].process, leader)
                    places = values if ending == DEAD else [divmod(value, OUTPUT_AT) for value in values]
                    records.update((name.removesuffix(ending), *place) for place in places)
        for (name, number), ledger in self.cluster.ledgers.items():
            for ending, decided in ((DEAD, ledger.truth.dead), (OUTPUTS, set(ledger.truth.outputs))):
                here = Counter({each[2]: count for each, count in found[ending].items() if each[:2] == (name, number)})
                missing, more = Counter(decided) - here, here - Counter(decided)
                # Of what a recovery of the source lost, another decision may have been made; what one of the target
                # lost is gone.
                more -= ledger.truth.lost_decisions[ending]
                if any(self.recoveries.at(place) >= 0 for place in self._places_of(name + ending)):
                    missing = Counter()
                if missing or more:
                    raise Violation(
                        f"{ledger.place}: {name}{ending} has nothing of offsets {sorted(missing)}, and too much of "
                        f"{sorted(more.elements())}"
                    )
                self.cluster.done["dead letters" if ending == DEAD else "outputs"] += here.total()

    def _places_of(self, topic: str) -> list[str]:
        found = self.cluster.zookeeper.topics.get(topic)
        return [f"{topic}-{number}" for number in range(len(found[1].assignment))] if found is not None else []

    def conclude(self) -> Gaps:
        """All replicas hold the same, and that is written down for the judge. Returns the offsets that were lost."""
        gaps: Gaps = {}
        self._check_published()
        for (name, number), there in sorted(self._replicas().items()):
            if name.startswith("__") or name not in self.cluster.zookeeper.topics:
                continue  # a deleted topic's replicas may still be open, and nobody leads it
            machines = self.cluster.machines
            leads, leader = next((broker, partition) for broker, partition in there.items() if partition.serving)
            offsets, values = contents(machines[leads].process, leader)
            if self.recoveries.at(leader.name) >= 0:
                gaps[name, number] = self.recoveries.lost(leader)
            if leader.name in self.cluster.scheduled:
                self.cluster.scheduled[leader.name].check(leader, offsets, values)
            if not name.endswith((DEAD, OUTPUTS)):
                self.cluster.write(
                    "oracle",
                    "final",
                    topic=name,
                    partition=number,
                    start=leader.index.log_start_offset,
                    end=leader.next_offset,
                    offsets=offsets,
                    values=values,
                )
            for broker, partition in sorted(there.items()):
                if partition is leader:
                    continue
                theirs = dict(zip(*contents(machines[broker].process, partition), strict=True))
                mine = dict(zip(offsets, values, strict=True))
                if partition.replica.applied_index == leader.replica.applied_index:
                    states = partition.replica.machine.state(), leader.replica.machine.state()
                    if states[0] != states[1]:
                        raise Violation(f"{name}-{number}: brokers {broker} and {leads} know otherwise: {states}")
                differ = [offset for offset, value in theirs.items() if mine.get(offset, value) != value]
                if differ or partition.next_offset > leader.next_offset:
                    raise Violation(
                        f"{name}-{number}: brokers {broker} and {leader.replica.leader} differ at offsets {differ}"
                    )
        return gaps


def contents(process: Any, partition: Any) -> tuple[list[int], list[Any]]:
    """Offsets and values that this replica knows to be committed, read by its own process. Of a dead letter, where its
    record was: partition and offset."""
    found: tuple[list[int], list[Any]] = process.context.copy().run(_contents, partition)
    return found


def _contents(partition: Any) -> tuple[list[int], list[Any]]:
    offsets: list[int] = []
    values: list[Any] = []
    at = partition.index.log_start_offset
    while at < partition.next_offset:
        try:
            found = partition.read(at, partition.next_offset, 1 << 20)
        except OffsetOutOfRange as error:
            if error.next_offset <= at:
                raise
            at = error.next_offset  # what is between was lost
            continue
        for batch, payload in found:
            rows = (
                letters_in(payload, partition.topic.schema) if DEAD in partition.topic.spec.name else values_in(payload)
            )
            if len(rows) != batch.record_count:
                raise Violation(f"{partition.name}: offset {at} has a batch of {len(rows)} rows: {batch}")
            skip = at - batch.base_offset
            offsets += range(at, batch.base_offset + batch.record_count)
            values += rows[skip:]
            at = batch.base_offset + batch.record_count
    return offsets, values


def letters_in(payload: Any, schema: pa.Schema) -> list[tuple[int, int]]:
    """Partition and offset of the record that each of these dead letters is of."""
    column = decode_batch(payload, schema).column(DEAD_COLUMN).to_pylist()
    return [(facts["partition"], facts["offset"]) for facts in column]
