"""Gathers the observation of this broker: the one reader of partitions for whoever watches.

It runs on the loop that carries the data, so it goes in slices, and its cost has a bound however many ask: one
gathering at a time, whose outcome is given to all.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

from mq_broker.broker.host.partition import Partition
from mq_broker.broker.host.shell import Shell
from mq_broker.broker.metadata.brokers import Cluster
from mq_broker.broker.metadata.topics import Topic
from mq_broker.broker.metrics.observation import Observation, QueueRow
from mq_broker.core.work.state import Mark, WorkState
from mq_broker.rpc.callers import asker
from mq_broker.security.authority import Asker
from mq_protocol import mq_pb2 as pb
from mq_protocol.access.rights import CLUSTER_NAME, Kind, Operation
from mq_protocol.errors import InvalidRequest, Overloaded
from mq_protocol.limits import ANSWER_BYTES_MAX
from mq_protocol.names import check_topic_name
from mq_protocol.observed import add_group, add_topic
from mq_protocol.versions import ours

log = logging.getLogger(__name__)

OBSERVATION_AGE_MS: Final = 500
"""For so long an observation is given again: ten who look cost one gathering."""

REST_SHARE: Final = 4
"""After a gathering at least so many times as long as it took passes before the next: it never gets more than a fifth
of the loop."""

SLICE: Final = 50
"""So many partitions and cursors are looked at before others have their turn: less than a millisecond."""

CURSORS_MAX: Final = 100_000
"""Cursors of groups that one gathering looks at: about a second of the loop's time. What is beyond is left out."""

DISK_PATIENCE_S: Final = 0.25
"""For so long a disk may take to say how much room it has."""

Row = TypeVar("Row", pb.ObservedPartition, pb.ObservedTopic)
MembersOf = Callable[[Partition, str], list[str]]


class QueuesOf(NamedTuple):
    """What is known of queue groups: the delivery limit of one that is declared, and which stand still in how many
    partitions."""

    limit_of: LimitOf = lambda *_: None
    stuck: Callable[[], Mapping[tuple[str, str], int]] = dict


def _as_before(row: Row, before: Sequence[Row], place: int) -> Row:
    """The row that the last gathering had at that place, if it says the same. So idle partitions leave no new objects,
    which the collector of garbage would walk over, and which take milliseconds to let go of."""
    return before[place] if place < len(before) and before[place] == row else row


@dataclass(slots=True)
class _Gathered:
    """What was found so far. `before`: by the last gathering. `topic`: the one that is not complete yet; they come one
    after another."""

    before: Observation | None = None
    partitions: list[pb.ObservedPartition] = field(default_factory=list)
    topics: list[pb.ObservedTopic] = field(default_factory=list)
    topic: pb.ObservedTopic | None = None
    groups: dict[tuple[str, str], pb.ObservedGroup] = field(default_factory=dict)
    members: dict[tuple[str, str], set[str]] = field(default_factory=dict)
    queues: dict[tuple[str, str], QueueRow] = field(default_factory=dict)
    unheard_ms: int = 0
    unscrubbed_bytes: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    cursors: int = 0
    left_out: int = 0

    def add(self, row: pb.ObservedPartition, retention_ms: int | None) -> None:
        """A partition, with the setting of its topic."""
        known = () if self.before is None else self.before.partitions
        self.partitions.append(_as_before(row, known, len(self.partitions)))
        if self.topic is None or self.topic.name != row.topic:
            self.complete()
            self.topic = pb.ObservedTopic(name=row.topic, retention_ms=retention_ms)
        if row.leads:
            one = pb.ObservedTopic(
                led=1,
                records=row.log_end_offset - row.log_start_offset,
                bytes=row.size_bytes,
                staged_batches=row.staged_batches,
                oldest_staged_us=row.oldest_staged_us,
            )
            add_topic(self.topic, one)

    def complete(self) -> None:
        """There is no more of the topic."""
        if self.topic is not None:
            known = () if self.before is None else self.before.topics
            self.topics.append(_as_before(self.topic, known, len(self.topics)))
            self.topic = None

    def room(self) -> bool:
        """Whether one more may be looked at; it is counted."""
        if self.cursors >= CURSORS_MAX:
            self.left_out += 1
            return False
        self.cursors += 1
        return True


class Observing:
    """Owns the newest observation. `state`: "starting", "serving" or "draining", set by who starts and ends this
    broker. `members_of`: the members of a group that may have a partition. `condition`: of the coordination service."""

    def __init__(
        self,
        shell: Shell,
        cluster: Cluster,
        data: Path,
        identity: tuple[str, str],
        members_of: MembersOf,
        condition: Callable[[], str],
        gauges: Callable[[], Mapping[str, float]] = dict,
        queues: QueuesOf | None = None,
        topics: Callable[[], Sequence[Topic]] = tuple,
        label_of: Callable[[str], str] = lambda _group: "",
    ) -> None:
        """`identity`: the cluster's id, and this broker's rack. `gauges`: what others know, by the names of metrics.
        `topics`: all that the cluster has. `label_of`: what people call a group."""
        self.state = "starting"
        self._shell = shell
        self._cluster = cluster
        self._data = data
        self._cluster_id, self._rack = identity
        self._members_of = members_of
        self._condition = condition
        self._gauges = gauges
        self._queues = queues or QueuesOf()
        self._topics = topics
        self._label_of = label_of
        self._clock = asyncio.get_running_loop().time
        self._newest: Observation | None = None
        self._good_until = 0.0
        self._gathering: asyncio.Task[Observation] | None = None
        self._told: dict[int, asyncio.Task[pb.ObserveResponse]] = {}  # of the newest, by their detail
        self._room: asyncio.Task[os.statvfs_result] | None = None

    async def observe(self, request: pb.ObserveRequest, deadline: float) -> pb.ObserveResponse:
        """What this broker holds and how it does. Raises `InvalidRequest` for a name that no topic can have,
        `Overloaded` if it could not be gathered in time."""
        if request.detail not in pb.Detail.values():
            raise InvalidRequest(f"detail {request.detail} is not known: give BROKER, TOPICS or PARTITIONS")
        for name in request.topics:
            check_topic_name(name, internal=True)
        try:
            async with asyncio.timeout_at(deadline):
                return await self._answer(request)
        except TimeoutError as error:
            raise Overloaded("this broker could not gather its observation in time: ask again") from error

    async def observation(self) -> Observation:
        """The newest one if it is young, else a new one. Who asks while one is gathered is given that."""
        if self._gathering is None:
            newest = self._newest
            if newest is not None and newest.state == self.state and self._clock() < self._good_until:
                return newest
            self._gathering = asyncio.create_task(self._gather_anew(), name="observe")
        return await asyncio.shield(self._gathering)

    async def _gather_anew(self) -> Observation:
        began = self._clock()
        try:
            self._newest = await self._gather()
            self._newest.values["observation_seconds"] = self._clock() - began
            self._told.clear()
            self._good_until = self._clock() + max(OBSERVATION_AGE_MS / 1000, REST_SHARE * (self._clock() - began))
            return self._newest
        finally:
            self._gathering = None

    async def _answer(self, request: pb.ObserveRequest) -> pb.ObserveResponse:
        """Of all topics it is made once an observation and detail."""
        newest, asking = await self.observation(), asker()
        if not asking.may(Operation.METRICS, Kind.CLUSTER, CLUSTER_NAME):
            return await answer(newest, request.detail, frozenset(request.topics), asking)
        if request.topics:
            return await answer(newest, request.detail, frozenset(request.topics))
        told = self._told.get(request.detail)
        if told is None:
            told = asyncio.create_task(answer(newest, request.detail, ()), name="tell an observation")
            self._told[request.detail] = told
        return await asyncio.shield(told)

    async def _gather(self) -> Observation:
        found = _Gathered(self._newest)
        for count, _ in enumerate(self._walk(found), 1):
            if count % SLICE == 0:
                await asyncio.sleep(0)
        values: dict[str, float] = {name: float(found.counts[name]) for name in _COUNTED}
        values.update(await self._disk())
        values["brokers_live"] = float(len(self._cluster.brokers))
        values["replica_unheard_seconds"] = found.unheard_ms / 1000
        values["unscrubbed_bytes"] = float(found.unscrubbed_bytes)
        values.update(self._gauges())
        for (topic, group), stuck in self._queues.stuck().items():
            if (topic, group) in found.queues:
                found.queues[topic, group].stuck = stuck
        connected = set(self._shell.links.connected())
        others = sorted(connected.union(self._cluster.brokers) - {self._shell.broker})
        return Observation(
            broker=self._shell.broker,
            incarnation=self._shell.incarnation,
            cluster_id=self._cluster_id,
            version=ours().release,
            rack=self._rack,
            now_us=time.time_ns() // 1000,
            state=self.state,
            coordination=self._condition(),
            values=values,
            links={broker: broker in connected for broker in others},
            topics=found.topics,
            partitions=found.partitions,
            groups=list(found.groups.values()),
            queues=list(found.queues.values()),
            left_out=found.left_out,
        )

    async def _disk(self) -> dict[str, float]:
        """Of the data directory's file system. In a thread, one at a time and not for long: a disk that hangs must hold
        up neither the loop nor what else there is to say."""
        if self._room is None:
            self._room = asyncio.create_task(asyncio.to_thread(os.statvfs, self._data), name="ask for the disk's room")
        done, _ = await asyncio.wait({self._room}, timeout=DISK_PATIENCE_S)
        if not done:
            return {}
        asked, self._room = self._room, None
        try:
            found = asked.result()
        except OSError as error:
            log.warning("how much room the data directory has cannot be told: %s", error)
            return {}
        return {
            "disk_free_bytes": float(found.f_bavail * found.f_frsize),
            "disk_size_bytes": float(found.f_blocks * found.f_frsize),
        }

    def _walk(self, found: _Gathered) -> Iterator[None]:
        """One step a partition, and one a cursor. A partition may be closed between two steps."""
        live = {self._shell.broker, *self._cluster.brokers}
        for partition in self._shell.partitions():
            if partition.closed:
                continue
            row = _row(partition)
            found.add(row, partition.topic.settings.retention_ms)
            keeping = partition.journal.keeping
            found.unscrubbed_bytes += 0 if keeping is None else keeping.unscrubbed_bytes
            _count(partition, row, found.counts, live)
            yield
            if row.leads:
                found.unheard_ms = max(found.unheard_ms, *row.unheard_ms.values(), 0)
                yield from self._walk_cursors(partition, found)
                now_us = time.time_ns() // 1000
                yield from walk_queues(partition, found.queues, self._queues.limit_of, now_us, found.room)
        found.complete()
        yield from self._walk_elsewhere(found, live - {self._shell.broker})

    def _walk_elsewhere(self, found: _Gathered, others: set[int]) -> Iterator[None]:
        """One step a partition of the cluster. One that is not open here has no leader if none of its other replicas'
        brokers lives. Brokers that hold it and are dead cannot say so, so each of the living does."""
        for topic in self._topics():
            for number, replicas in enumerate(topic.spec.assignment):
                if others.isdisjoint(replicas) and self._shell.hosted(topic, number) is None:
                    found.counts["partitions_without_leader"] += 1
                yield

    def _walk_cursors(self, partition: Partition, found: _Gathered) -> Iterator[None]:
        topic = partition.topic.spec.name
        cursors = list(partition.replica.machine.cursors.items())
        room = max(0, CURSORS_MAX - found.cursors)
        found.left_out += max(0, len(cursors) - room)
        for name, cursor in cursors[:room]:
            if not partition.serving:
                return
            found.cursors += 1
            members = found.members.setdefault((name, topic), set())
            members.update(self._members_of(partition, name))
            lag_bytes, lag_us = partition.lag(cursor.offset)
            row = pb.ObservedGroup(
                group=name,
                topic=topic,
                kind=cursor.kind,
                members=len(members),
                lag=max(0, partition.next_offset - max(cursor.offset, partition.index.log_start_offset)),
                lag_bytes=lag_bytes,
                lag_us=lag_us,
                moved_us=cursor.moved_us,
                label=self._label_of(name),
            )
            if found.groups.setdefault((name, topic), row) is not row:
                add_group(found.groups[name, topic], row)
            yield


_COUNTED: Final = (
    "partitions_leader",
    "partitions_follower",
    "partitions_without_leader",
    "partitions_under_replicated",
    "partitions_at_min_isr",
    "partitions_under_min_isr",
    "partitions_moving",
    "partitions_awake",
)


def _count(partition: Partition, row: pb.ObservedPartition, counts: Counter[str], live: set[int]) -> None:
    """In sync are those named that live: a leader leaves no fewer in the set than `min_insync_replicas`, dead or alive,
    and refuses writes by how many live. At the least number is a partition whose next loss of a replica has it refuse
    writes: one that never had more replicas is not counted."""
    counts["partitions_leader" if row.leads else "partitions_follower"] += 1
    counts["partitions_without_leader"] += _unled(row, live, partition.leading)
    counts["partitions_awake"] += not partition.rest.asleep
    if row.leads:
        least, in_sync = partition.topic.settings.min_insync_replicas, len(live.intersection(row.isr))
        counts["partitions_under_replicated"] += in_sync < len(row.replicas)
        counts["partitions_at_min_isr"] += in_sync == least < len(row.replicas)
        counts["partitions_under_min_isr"] += in_sync < least
        counts["partitions_moving"] += bool(row.moving_to)


def _unled(row: pb.ObservedPartition, live: set[int], leading: bool) -> bool:
    """Whether nobody can write or consume the partition, as its metadata says it to clients. A follower goes on naming
    a leader that has died until another one is elected. A leader that does not serve waits for dead replicas: it cannot
    commit the start of its epoch."""
    return not row.leads if leading else row.leader not in live


def _row(partition: Partition) -> pb.ObservedPartition:
    replica, index, spec = partition.replica, partition.index, partition.topic.spec
    machine = replica.machine
    staged = len(machine.staged) - len(machine.due_times)  # scheduled batches lie there too
    oldest = next((each.timestamp_us for each in machine.staged.values() if not each.due_us), 0) if staged else 0
    moving = spec.moving.get(partition.number)
    return pb.ObservedPartition(
        topic=spec.name,
        partition=partition.number,
        leads=partition.serving,
        leader=replica.leader,
        leader_epoch=replica.leader_epoch,
        replicas=replica.replicas,
        isr=replica.isr,
        moving_to=moving.target if moving is not None else (),
        log_start_offset=index.log_start_offset,
        log_end_offset=partition.next_offset,
        high_watermark=replica.high_watermark,
        size_bytes=index.bytes_total,
        staged_batches=staged,
        oldest_staged_us=oldest,
        unheard_ms=partition.unheard_ms,
    )


ROWS_AT_ONCE: Final = 100
"""Rows that are told before others have their turn."""

Observed = pb.ObservedTopic | pb.ObservedPartition | pb.ObservedGroup


async def answer(
    observation: Observation, detail: int, topics: Collection[str], sees: Asker | None = None
) -> pb.ObserveResponse:
    """As many rows as fit one answer. `topics`: rows of these only; none: of all. `sees`: only what it may describe,
    and no numbers of the broker; None: everything."""
    response = pb.ObserveResponse(
        broker=observation.broker,
        incarnation=observation.incarnation,
        cluster_id=observation.cluster_id,
        version=observation.version,
        now_us=observation.now_us,
        state=observation.state,
        coordination=observation.coordination,
        values=observation.values if sees is None else {},
        links=observation.links if sees is None else {},
    )
    if detail < pb.TOPICS:
        return response
    left_out, size = Counter(cursors=observation.left_out), 0
    tables: tuple[tuple[str, Sequence[Observed], Any], ...] = (
        ("topics", observation.topics, response.topics),
        ("groups", observation.groups, response.groups),
        ("partitions", observation.partitions if detail >= pb.PARTITIONS else (), response.partitions),
    )
    for what, rows, told in tables:
        for count, row in enumerate(rows, 1):
            name = row.name if isinstance(row, pb.ObservedTopic) else row.topic
            if (not topics or name in topics) and (sees is None or _seen(row, name, sees)):
                if size < ANSWER_BYTES_MAX:
                    told.append(row)
                    size += row.ByteSize()
                else:
                    left_out[what] += 1
            if count % ROWS_AT_ONCE == 0:
                await asyncio.sleep(0)
    response.left_out.update(+left_out)
    return response


def _seen(row: Observed, topic: str, asker: Asker) -> bool:
    if isinstance(row, pb.ObservedGroup) and not asker.may(Operation.DESCRIBE, Kind.GROUP, row.group):
        return False
    return asker.may(Operation.DESCRIBE, Kind.TOPIC, topic)


LimitOf = Callable[[Partition, str], int | None]
"""The delivery limit of a queue group; None if it is not declared."""


def walk_queues(
    partition: Partition,
    rows: dict[tuple[str, str], QueueRow],
    limit_of: LimitOf,
    now_us: int,
    room: Callable[[], bool],
) -> Iterator[None]:
    """Add the partition's queue groups to their rows, one step a run. `room`: whether one more may be looked at."""
    topic = partition.topic.spec.name
    for group, state in list(partition.replica.machine.work.items()):
        limit = limit_of(partition, group)
        if limit is None or not partition.serving:
            continue
        row = rows.get((topic, group))
        if row is None:
            row = rows[topic, group] = QueueRow(topic, group)
        before = row.delayed + row.doomed + row.parked
        for kind, runs in (
            ("parked", state.parked()), ("doomed", state.doomed(limit)), ("delayed", state.delayed(now_us, limit))
        ):  # fmt: skip
            for count in _counts(runs):
                if not room():
                    return
                setattr(row, kind, getattr(row, kind) + count)
                yield
        _add_totals(row, partition, state, before)
        first = next(state.ready(now_us, limit, state.base, partition.next_offset), None)
        if first is not None:
            at = max(first[0], partition.index.log_start_offset)
            if at < partition.next_offset:
                since_us = partition.index.find(at).timestamp_us
                row.oldest_ready_us = min(row.oldest_ready_us or since_us, since_us)


def _counts(runs: Iterable[tuple[int, int, Mark]]) -> list[int]:
    """Taken before others have their turn: what they change must not be walked over."""
    return [end - first for first, end, _ in runs]


def _add_totals(row: QueueRow, partition: Partition, state: WorkState, before: int) -> None:
    held_back = row.delayed + row.doomed + row.parked - before
    row.leased += state.leased
    row.ready += max(0, state.unlent(partition.next_offset) - held_back)
    totals = state.totals
    for outcome, count in (("accepted", totals.accepted), ("dead", totals.dead)):
        row.settled[outcome] = row.settled.get(outcome, 0) + count
    for reason, count in totals.dropped:
        outcome = reason.name.lower()
        row.settled[outcome] = row.settled.get(outcome, 0) + count
