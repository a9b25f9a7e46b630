"""Queue groups as brokers tell of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from mq_client.described import described
from mq_protocol import mq_pb2 as pb

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
