"""What applications are told of topics, brokers, groups and work queues."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from types import MappingProxyType
from typing import Final

import pyarrow as pa

from mq_client.shown.described import described
from mq_client.shown.html import numbers, table
from mq_protocol import mq_pb2 as pb
from mq_protocol.arrow import schema_from_bytes
from mq_protocol.partitioner import member_of_partition

SCHEMAS_KEPT: Final = 64


@dataclass(frozen=True, slots=True)
class PartitionDescription:
    """`leader` 0: none at the moment. `replicas` in order of rank. `moving_to`: where they will be once the partition's
    move is over; empty if it does not move. `unheard_ms`: of replicas that are not in sync, for how long their leader
    has heard nothing."""

    partition: int
    leader: int
    leader_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    moving_to: tuple[int, ...] = ()
    unheard_ms: dict[int, int] = field(default_factory=dict, compare=False)


@dataclass(frozen=True, slots=True)
class PartitionMove:
    """A partition on its way (or to be sent on its way) from the brokers `origin` to `target`, whose first is to lead.
    `leader` is as of now, and so is `isr` where the move is under way."""

    topic: str
    partition: int
    origin: tuple[int, ...]
    target: tuple[int, ...]
    leader: int = 0
    isr: tuple[int, ...] = ()


class PartitionMoves(list[PartitionMove]):
    """Moves of partitions, as a list that a notebook shows as a table."""

    def _repr_html_(self) -> str:
        rows = [
            (m.topic, m.partition, numbers(m.origin), numbers(m.target), m.leader or "none", numbers(m.isr))
            for m in self
        ]
        headings = ("topic", "partition", "from brokers", "to brokers", "leader", "in sync")
        return table(f"{len(self)} partitions move", headings, rows)


@dataclass(frozen=True, slots=True)
class Recovery:
    """What a recovery kept: the log of `broker`, up to `next_offset`. Offsets from there to below `offset_floor` were
    given to records that are lost. `given_up`: brokers whose logs are in sync no more and begin anew."""

    broker: int
    next_offset: int
    offset_floor: int
    given_up: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TopicDescription:
    """`typed` False: a topic of records. `settings`: those that were given when it was made."""

    name: str
    topic_id: str
    schema: pa.Schema = field(repr=False)
    typed: bool
    settings: dict[str, str]
    partitions: tuple[PartitionDescription, ...]

    def _repr_html_(self) -> str:
        rows = [
            (p.partition, p.leader or "none", p.leader_epoch, numbers(p.replicas), numbers(p.isr), numbers(p.moving_to))
            for p in self.partitions
        ]
        headings = ("partition", "leader", "leader epoch", "replicas", "in sync", "moving to")
        columns = ", ".join(f"{field.name} {field.type}" for field in self.schema) if self.typed else "records"
        settings = ", ".join(f"{name}={value}" for name, value in sorted(self.settings.items()))
        return table(f"Topic {self.name!r}: {columns}", headings, rows, f"Settings: {settings}" if settings else "")


def described_topic(info: pb.TopicInfo) -> TopicDescription:
    partitions = sorted(info.partitions, key=lambda partition: partition.partition)
    return described(
        TopicDescription,
        info,
        schema=_schema(info.schema),
        partitions=tuple(described(PartitionDescription, each) for each in partitions),
    )


@lru_cache(maxsize=SCHEMAS_KEPT)
def _schema(data: bytes) -> pa.Schema:
    """Most of thousands of topics have one of a few schemas. Parsing takes most of the time of describing a topic."""
    return schema_from_bytes(data)


@dataclass(frozen=True, slots=True)
class GroupCursor:
    """Where a group is in one partition. `members`: all of the group that may be given the partition.

    `lag`: records between its cursor and the end; `lag_us`: how old the next one is.
    """

    topic: str
    partition: int
    offset: int
    log_end_offset: int
    lag_bytes: int
    lag_us: int
    moved_us: int
    members: tuple[str, ...]
    kind: str
    leads: bool = True
    """False: the partition has no leader at the moment, or none that answers; this is what a follower knows."""
    label: str = ""
    """What people call the group, as its leader there was told it."""

    @property
    def lag(self) -> int:
        return max(0, self.log_end_offset - self.offset)

    @property
    def member(self) -> str:
        """The one of `members` that has the partition, or is to have it as soon as another hands it over; "" if there
        is none."""
        return member_of_partition(self.members, self.partition) if self.members else ""


@dataclass(frozen=True, slots=True)
class GroupDescription:
    """A group and its cursors, by topic and partition.

    `silent`: addresses of brokers that did not answer. Partitions that only they have are missing here.
    """

    name: str
    cursors: tuple[GroupCursor, ...]
    silent: tuple[str, ...] = ()

    @property
    def label(self) -> str:
        """What people call the group, as the name of a Spark query: as the leader was told it whose partition moved
        last. Empty if none was told it since it started."""
        labelled = [cursor for cursor in self.cursors if cursor.label]
        return max(labelled, key=lambda cursor: cursor.moved_us).label if labelled else ""

    @property
    def lag(self) -> int:
        """Records that it has not read, all partitions together."""
        return sum(cursor.lag for cursor in self.cursors)

    @property
    def lag_bytes(self) -> int:
        """Their stored size."""
        return sum(cursor.lag_bytes for cursor in self.cursors)

    @property
    def lag_us(self) -> int:
        """How old the oldest of them is, in microseconds."""
        return max((cursor.lag_us for cursor in self.cursors), default=0)

    def _repr_html_(self) -> str:
        called = f" ({self.label})" if self.label else ""
        title = (
            f"Group {self.name!r}{called}: {self.lag} records, {self.lag_bytes} bytes, {self.lag_us / 1e6:.1f} s behind"
        )
        silent = f"These brokers did not answer: {', '.join(self.silent)}" if self.silent else ""
        return table(title, CURSOR_HEADINGS, map(cursor_row, self.cursors), silent)


CURSOR_HEADINGS: Final = ("topic", "partition", "offset", "log end", "records", "bytes", "seconds", "member")


def cursor_row(cursor: GroupCursor) -> tuple[object, ...]:
    """A line of a table in a notebook, under `CURSOR_HEADINGS`."""
    seconds = f"{cursor.lag_us / 1e6:.1f}"
    place = (cursor.topic, cursor.partition, cursor.offset, cursor.log_end_offset)
    return (*place, cursor.lag, cursor.lag_bytes, seconds, cursor.member)


def freshness(cursor: pb.GroupCursor) -> tuple[bool, int, int, int]:
    """Of two words about one cursor the greater holds: the leader's, else the newest."""
    return cursor.leads, cursor.leader_epoch, cursor.moved_us, cursor.log_end_offset


def described_group(name: str, cursors: Iterable[pb.GroupCursor], silent: Iterable[str]) -> GroupDescription:
    """What brokers told of one group."""
    in_order = sorted(cursors, key=lambda cursor: (cursor.topic, cursor.partition))
    return GroupDescription(name, tuple(described(GroupCursor, each) for each in in_order), tuple(silent))


@dataclass(frozen=True, slots=True)
class BrokerDescription:
    """A live broker. `incarnation` counts the lives of its process. `level` is the highest level of features that it
    knows."""

    id: int
    address: str
    incarnation: int
    rack: str
    release: str = ""
    level: int = 1


@dataclass(frozen=True, slots=True)
class ClusterDescription:
    """`coordination`: "connected", "suspended" or "file", as the broker that answered sees it. `level`: of features.
    `coordination_access`: who may read and write what ZooKeeper keeps: "open" (everybody who reaches it), "closing" or
    "closed" (the brokers alone); empty where there is no ZooKeeper.
    `security_floor`: what the cluster demands of each broker. `insecure_brokers`: those that other machines reach in
    plain text, also if whoever asks is not told their addresses."""

    brokers: tuple[BrokerDescription, ...]
    coordination: str
    answered_by: int
    level: int = 1
    coordination_access: str = ""
    security_floor: tuple[str, ...] = ()
    insecure_brokers: tuple[int, ...] = ()

    def _repr_html_(self) -> str:
        rows = [(b.id, b.address, b.incarnation, b.rack, b.release, b.level) for b in self.brokers]
        title = f"{len(self.brokers)} live brokers, level of features {self.level}, coordination {self.coordination}"
        return table(title, ("broker", "address", "incarnation", "rack", "release", "level"), rows)


@dataclass(frozen=True, slots=True)
class Upgrade:
    """`level`: the cluster's level of features now. `target`: the highest that every registered broker knows. `absent`:
    brokers that hold replicas and are not registered, so that nobody knows their release."""

    level: int
    target: int
    brokers: tuple[BrokerDescription, ...]
    absent: tuple[int, ...]


STATES: Final[Mapping[str, pb.RecordState.ValueType]] = MappingProxyType(
    {
        "any": pb.RECORD_ANY,
        "ready": pb.RECORD_READY,
        "leased": pb.RECORD_LEASED,
        "delayed": pb.RECORD_DELAYED,
        "doomed": pb.RECORD_DOOMED,
        "parked": pb.RECORD_PARKED,
    }
)
"""What a record that is not settled can be, by name."""

_NAMES: Final = {state: name for name, state in STATES.items()}


@dataclass(frozen=True, slots=True)
class QueueInfo:
    """A queue group as it was declared. `settings`: all but defaults, and `dead_letter`, as text. `life`: a
    group that is deleted and declared again has a higher one."""

    topic: str
    group: str
    life: int
    settings: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class QueueMember:
    """A member that holds records of one partition."""

    member: str
    records: int


@dataclass(frozen=True, slots=True)
class QueueRun:
    """Offsets `first` to `end - 1` of one partition, which are alike. `due_us`: not lent before this time, in
    microseconds since 1970; 0: at any time. `error`: of the last failure. `member`: who holds them, "" if nobody."""

    partition: int
    first: int
    end: int
    state: str
    deliveries: int
    failures: int
    due_us: int
    error: str
    member: str


@dataclass(frozen=True, slots=True)
class QueuePartition:
    """What became of one partition's records in a queue group. All below offset `base` are settled, all from `frontier`
    on were never lent. Totals count since the group began: `accepted`, `dropped` by reason, `returned`, and `charged`,
    which are returns that count as failures. `oldest_ready_us`: when the oldest ready record was appended, 0 if none
    is ready. `runs_kept`: what leases and returned records take of their bound of 100,000. `dead`: records that were
    sent as dead letters since the group began. `outbox`: decisions whose dead letters or outputs are not all published
    yet. `alarm`: why they do not get on, "" if they do. `blocked_by`: in a queue that is in order the offset that
    others wait for and that is not lent now, None if there is none, and `blocked_by_key` its key as text."""

    partition: int
    begun: bool
    base: int
    frontier: int
    log_end_offset: int
    ready: int
    leased: int
    delayed: int
    doomed: int
    parked: int
    oldest_ready_us: int
    accepted: int
    dropped: Mapping[str, int]
    returned: int
    charged: int
    members: tuple[QueueMember, ...]
    more_members: int
    runs_kept: int
    leader_epoch: int
    dead: int = 0
    outbox: int = 0
    alarm: str = ""
    blocked_by: int | None = None
    blocked_by_key: str = ""


class _Sum:
    """Of the field of that name, over all partitions."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, of: QueueDescription | None, owner: type) -> int:
        return sum(getattr(each, self._name) for each in of.partitions) if of is not None else 0


@dataclass(frozen=True, slots=True)
class QueueDescription:
    """A queue group now: each partition as its leader knows it."""

    info: QueueInfo
    partitions: tuple[QueuePartition, ...]

    @property
    def topic(self) -> str:
        return self.info.topic

    @property
    def group(self) -> str:
        return self.info.group

    @property
    def settings(self) -> Mapping[str, str]:
        return self.info.settings

    ready = _Sum()
    leased = _Sum()
    delayed = _Sum()
    doomed = _Sum()
    parked = _Sum()
    accepted = _Sum()
    charged = _Sum()
    dead = _Sum()
    outbox = _Sum()

    @property
    def alarms(self) -> dict[int, str]:
        """Why dead letters or outputs do not get on, by partition."""
        return {each.partition: each.alarm for each in self.partitions if each.alarm}

    @property
    def members(self) -> dict[str, int]:
        """Records held, by member."""
        found: dict[str, int] = {}
        for each in self.partitions:
            for member in each.members:
                found[member.member] = found.get(member.member, 0) + member.records
        return dict(sorted(found.items()))


def described_info(told: pb.QueueInfo) -> QueueInfo:
    return described(QueueInfo, told, settings=MappingProxyType(dict(sorted(told.settings.items()))))


def described_partition(told: pb.QueuePartition) -> QueuePartition:
    return described(
        QueuePartition,
        told,
        begun=told.life > 0,
        dropped=MappingProxyType(dict(sorted(told.dropped.items()))),
        members=tuple(described(QueueMember, each) for each in told.members),
        blocked_by=told.blocked_by.offset if told.HasField("blocked_by") else None,
        blocked_by_key=told.blocked_by.key,
    )


def described_run(partition: int, told: pb.QueueRun) -> QueueRun:
    return described(QueueRun, told, partition=partition, state=_NAMES.get(told.state, "any"))
