"""Logs that are lost for good, and the operator who has their partitions go on (`tritonmq partition recover`).

What a recovery may lose is what the chosen log had not: no more, and nothing while a log is left that the in-sync set
names. The chosen one has to be the best of those that are there.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from mq_broker.core.messages import NodeState
from mq_broker.storage.codec.checkpoint import FILE_NAME as CHECKPOINT
from mq_broker.storage.journal.segments import segment_path
from mq_protocol import mq_pb2 as pb
from mq_protocol.errors import TritonMQError
from tests.simulation.real.clients import Client
from tests.simulation.real.lives import Lives, Recovery
from tests.simulation.real.queue_truth import DEAD

if TYPE_CHECKING:
    from tests.simulation.real.cluster import Cluster, Machine

FORCED_AFTER_S = 20.0
"""Once all is well, and a partition has had no leader for so long, its operator forces its recovery, if it is safe."""


class Recoveries:
    """Owns the lives of all partitions, by name."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self._lives: dict[str, Lives] = {}
        self._states: dict[tuple[str, int], NodeState] = {}
        self._floors: dict[str, set[int]] = {}

    def lives(self, place: str) -> Lives:
        if place not in self._lives:
            self._lives[place] = Lives(self.cluster, place)
        return self._lives[place]

    def at(self, place: str) -> float:
        """When the partition was last recovered; -1 if never."""
        return self.lives(place).recovered_at

    def of_topic(self, topic_id: str, partition: int) -> float:
        """The same, by the topic's id."""
        place = self._name(topic_id, partition)
        return self.at(place) if place else -1.0

    def _name(self, topic_id: str, partition: int) -> str:
        topics = self.cluster.zookeeper.topics
        return next((f"{name}-{partition}" for name, (_, spec) in topics.items() if spec.topic_id == topic_id), "")

    def lost(self, partition: Any) -> list[tuple[int, int]]:
        """The offsets that were lost, each (first, next), as the leader knows them; one for each recovery at most, and
        each to where that says that offsets go on."""
        index = partition.index
        gaps = [*index._gaps]
        floors = self._floors.get(partition.name, set())
        start = partition.replica.machine.log_start_offset
        ends = (floor for floor in floors if floor <= start)
        passed = [floor for floor in ends if not any(first < floor <= after for first, after in gaps)]
        if passed:  # retention has dropped what was before, and with it where that ended
            gaps.insert(0, (0, max(passed)))
        if any(after not in floors for _, after in gaps):
            self.cluster.fail(f"{partition.name} leaves out offsets {gaps}, and recoveries were to go on at {floors}")
        return gaps

    def state(self, topic_id: str, partition: int, state: NodeState) -> None:
        """A state node was written."""
        before = self._states.get((topic_id, partition))
        self._states[topic_id, partition] = state
        if before is None or state.recovery <= before.recovery:
            return
        place = self._name(topic_id, partition)
        self._floors.setdefault(place, set()).add(state.offset_floor)
        logs = open_logs(self.cluster, place)
        self.cluster.faults["partition recovered"] += 1
        [(broker, log_id)] = state.isr
        kept = logs.get(broker)
        # Its broker may have died since it said what it has: that is not known here then.
        last = (kept.replica.last_epoch, kept.replica.last_index) if kept and kept.journal.log_id == log_id else (0, 0)
        has = {each: (log.replica.last_epoch, log.replica.last_index) for each, log in logs.items()}
        self.cluster.tell(f"{place} is recovered from the log of broker {broker}: {state}; logs: {has}")
        if last != (0, 0) and last < max(has.values()):
            self.cluster.fail(f"{place} goes on from the log of broker {broker}, and another is better: {has}")
        for named, its in before.isr:
            if named in logs and logs[named].journal.log_id == its:
                self.cluster.fail(f"{place} is recovered, and the log of broker {named} is left, which is in sync")
        epoch, index = last
        self.lives(place).recovered(Recovery(state.recovery, broker, index, epoch, self.cluster.loop.time()))
        name, _, number = place.rpartition("-")
        if (name, int(number)) in self.cluster.ledgers:
            self.cluster.ledgers[name, int(number)].forget()


def open_logs(cluster: Cluster, place: str) -> dict[int, Any]:
    """By broker: the replicas of a partition that are open."""
    found = {}
    for broker, machine in cluster.machines.items():
        shell = machine.process.shell if machine.up and machine.process is not None else None
        for partition in shell.partitions() if shell is not None else ():
            if partition.name == place:
                found[broker] = partition
    return found


# ---------------------------------------------------------------------- what is lost


def lose_logs(cluster: Cluster, place: str, brokers: list[int]) -> None:
    """These brokers die, and each finds its log of the partition damaged when it starts again, or none at all."""
    logs, random = open_logs(cluster, place), cluster.loop.random
    for broker in brokers:
        cluster.machines[broker].kill()
    for broker in brokers:
        machine, journal = cluster.machines[broker], logs[broker].journal
        directory = str(journal._files.directory)
        machine.disk.spoiled.add(directory)
        last = journal.last_index - 2
        least = journal.first_index if random.random() < 0.4 else last - 10  # mostly the end alone is lost
        where = _frame(journal, random.randint(min(least, last), last))
        if where is None or random.random() < 0.25:
            cluster.tell(f"{machine.name} has lost its log of {place}")
            machine.disk.lose(directory)
        else:
            path, position = where
            cluster.tell(
                f"{machine.name} has damage in its log of {place}, byte {position} of {os.path.basename(path)}"
            )
            with contextlib.suppress(FileNotFoundError):  # or a start reads only what follows it
                os.unlink(os.path.join(directory, CHECKPOINT))
            with open(path, "r+b") as file:
                file.seek(position + 8)
                bits = file.read(4)
                file.seek(position + 8)
                file.write(bytes(bit ^ 0xFF for bit in bits))


def _frame(journal: Any, index: int) -> tuple[str, int] | None:
    """The file that has an entry, and its first byte there. None unless two follow it: the last may be a torn write."""
    if not journal.first_index <= index <= journal.last_index - 2:
        return None
    segment, begins = next(each for each in reversed(journal._segments) if each[0] <= index)
    path = str(segment_path(journal._files.directory, segment))
    first, end = journal._end(index - 1) - begins, journal._end(index) - begins
    return (path, first) if os.path.exists(path) and os.path.getsize(path) > end + 16 else None


def replace_disk(cluster: Cluster, machine: Machine) -> bool:
    """Its disk is empty from now on. Only if another log is left of each partition that names it: no more is promised
    to survive. Returns whether that is so."""
    logs: dict[str, dict[int, Any]] = {}
    for (topic_id, number), (_, state) in cluster.zookeeper.states.items():
        name = next((n for n, (_, spec) in cluster.zookeeper.topics.items() if spec.topic_id == topic_id), "")
        if not name or all(broker != machine.broker for broker, _ in state.isr):
            continue
        place = f"{name}-{number}"
        there = logs.setdefault(place, open_logs(cluster, place))
        if not any(
            broker != machine.broker and broker in there and there[broker].journal.log_id == log_id
            for broker, log_id in state.isr
        ):
            return False
    cluster.tell(f"{machine.name} gets an empty disk")
    machine.kill()
    machine.disk.erase()
    return True


class Recoverer(Client):
    """An operator who has partitions without a leader recovered, and tries it with others, too: that is refused."""

    async def run(self) -> None:
        without: dict[str, float] = {}
        asking: dict[str, asyncio.Task[None]] = {}
        while not self.cluster.over:
            await self.pause(0.5)
            for name, number in recoverable(self.cluster):
                place, spec = f"{name}-{number}", self.cluster.zookeeper.topics[name][1]
                found = self.cluster.zookeeper.states.get((spec.topic_id, number))
                if found is None or (place in asking and not asking[place].done()):
                    continue
                led = any(each.replica.leading for each in open_logs(self.cluster, place).values())
                if led and self.random.random() > 0.01:
                    without.pop(place, None)
                    continue
                since = without.setdefault(place, self.loop.time())
                force = self.cluster.stopping and self.loop.time() - since > FORCED_AFTER_S and self._safe(spec, number)
                request = pb.RecoverRequest(topic=name, partition=number, force=force, timeout_ms=4_000)
                asking[place] = self.loop.create_task(self._recover(request), name=f"recover {place}")
        await asyncio.gather(*asking.values())

    async def _recover(self, request: pb.RecoverRequest) -> None:
        try:
            await self.ask(self.any_broker(), "Recover", request, 5.0)
            self.cluster.done["operator: Recover"] += 1
        except TritonMQError as error:
            self.cluster.tell(f"{request.topic}-{request.partition} is not recovered: {error}")
            self.cluster.done[f"operator: Recover: {type(error).__name__}"] += 1

    def _safe(self, spec: Any, number: int) -> bool:
        """Whoever is named and does not answer is no replica any more, so its log is not open; all replicas are."""
        _, state = self.cluster.zookeeper.states[spec.topic_id, number]
        there = open_logs(self.cluster, f"{spec.name}-{number}")
        left = any(broker in there and there[broker].journal.log_id == log_id for broker, log_id in state.isr)
        return not left and set(spec.assignment[number]) <= set(there)


def recoverable(cluster: Cluster) -> list[tuple[str, int]]:
    """The partitions whose logs may be lost: of the topics of the plan, and of their dead letters."""
    names = [each for name in cluster.plan.topics for each in (name, name + DEAD) if each in cluster.zookeeper.topics]
    return [(name, number) for name in names for number in range(len(cluster.zookeeper.topics[name][1].assignment))]


# ---------------------------------------------------------------------- a group that is declared once all is over

LATE = "late"
"""The group of which nothing was known before any recovery."""


async def declare_late(operator: Client, topic: str) -> bool:
    request = pb.AlterQueueRequest(topic=topic, group=LATE)
    await operator.ask(operator.any_broker(), "AlterQueue", request)
    return True


def why_late_is_wrong(cluster: Cluster) -> str:
    """What the late group takes for a record, and is none; or where it has not begun."""
    for topic in cluster.plan.topics:
        for number in range(len(cluster.zookeeper.topics[topic][1].assignment)):
            leader = next((each for each in open_logs(cluster, f"{topic}-{number}").values() if each.serving), None)
            state = leader.replica.machine.work.get(LATE) if leader is not None else None
            if leader is None or state is None:
                return f"{topic}-{number} has begun group {LATE}"
            lost = leader.index._gaps
            for low, high, _ in state.unleased(state.base, leader.next_offset):
                if any(low < after and first < high for first, after in lost):
                    return f"{topic}-{number}: group {LATE} does not wait for {low} to {high}, of which {lost} are lost"
    return ""


# ---------------------------------------------------------------------- what may be missing


Gaps = dict[tuple[str, int], list[tuple[int, int]]]
"""By topic and partition: the offsets that were lost, each (first, next), ascending. None of them is given again."""


def without_lost(
    history: list[dict[str, Any]], gaps: Gaps, unsaid: Collection[tuple[str, int]] = ()
) -> list[dict[str, Any]]:
    """The history as if what was lost had never been answered nor seen, and no offset had been left out. `unsaid`: what
    was refused, by process and id, and the refusal is lost."""
    lines = []
    for line in history:
        if line["op"] == "send" and line["state"] == "fail" and (line["process"], line["id"]) in unsaid:
            continue
        lost = gaps.get((line.get("topic", ""), line["partition"])) if line.get("partition") is not None else None
        lines += [line] if not lost else _without(line, lost)
    return _answered(lines, gaps)


def _without(line: dict[str, Any], lost: list[tuple[int, int]]) -> list[dict[str, Any]]:
    if line["op"] == "trimmed":
        if any(line["offset"] == after for _, after in lost):
            return []
        return [{**line, "op": "seek"}]  # that it was dropped may be what was lost
    if line["op"] == "final":
        line = {**line, "start": _place(line["start"], lost), "end": _place(line["end"], lost)}
    if "offsets" not in line or line["op"] == "send":
        return [line]
    kept = [at for at, offset in enumerate(line["offsets"]) if not _is_lost(offset, lost)]
    fields = {
        "offsets": [_place(line["offsets"][at], lost) for at in kept],
        "values": [line["values"][at] for at in kept],
    }
    return [{**line, **fields}] if kept or line["op"] == "final" else []


def _answered(lines: list[dict[str, Any]], gaps: Gaps) -> list[dict[str, Any]]:
    """An answer that tells a place which is lost leaves nothing known."""
    topics = {
        (line["process"], line["id"]): line for line in lines if line["op"] == "send" and line["state"] == "invoke"
    }
    answered = []
    for line in lines:
        if line["op"] == "send" and line["state"] != "invoke":
            sent = topics[line["process"], line["id"]]
            lost = gaps.get((sent["topic"], sent["partition"]), [])
            offsets = line.get("offsets")
            if offsets and any(_is_lost(offset, lost) for offset in offsets):
                line = {key: value for key, value in line.items() if key != "offsets"} | {"state": "unknown"}
            elif offsets:
                line = {**line, "offsets": [_place(offset, lost) for offset in offsets]}
        answered.append(line)
    return answered


def _is_lost(offset: int, lost: list[tuple[int, int]]) -> bool:
    return any(first <= offset < after for first, after in lost)


def _place(offset: int, lost: list[tuple[int, int]]) -> int:
    """Where it would be, had no offset been left out."""
    return offset - sum(min(offset, after) - first for first, after in lost if first < offset)
