"""What a partition's journal is made of: entries, each one operation.

An `Entry` is metadata only. The payload of an APPEND, STAGE, SCHEDULE or CARRY entry (one Arrow IPC record batch
message) never enters the core: the shell and the storage carry it beside the entry, under the same index.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from typing import TypeAlias

from mq_broker.core.work.steps import Step, step_bytes
from mq_protocol import limits
from mq_protocol.manifest import StagedPart

UUID_BYTES = 16
NO_UUID = bytes(UUID_BYTES)
PRIORITY_MAX = limits.PRIORITY_MAX
PRIORITY_USUAL = limits.PRIORITY_USUAL
TTL_MS_MAX = limits.TTL_MS_MAX


class EntryKind(IntEnum):
    """The numbers are on disk and on the wire; they never change meaning."""

    EPOCH_START = 1
    APPEND = 2
    STAGE = 3
    PUBLISH = 4
    DISCARD = 5
    CURSOR = 6
    DECIDE = 7
    FINISH = 8
    TRIM = 9
    ABORT = 10
    FENCE = 11
    FORGET = 12
    WORK = 13
    SCHEDULE = 14
    CARRY = 15
    APPEND_ATTRIBUTED = 16
    GIVE = 17
    DELETE_GROUP = 20


@dataclass(frozen=True, slots=True)
class TransactionKey:
    """One query writing to one sink: the unit within which micro-batch ids only grow."""

    query_id: str
    sink: str


SCHEDULED = TransactionKey("", "")
"""The key of scheduled batches, which belong to no transaction. Nobody else can have it: a query has an id."""


@dataclass(frozen=True, slots=True)
class EpochStart:
    """A leadership begins. The first entry that a new leader writes (rule 3).

    `offset_floor`: offsets below it may have been given to records that are lost (rule 15), so none of them is given
    again.

    `recovery`: how often the log was recovered so far. A new number says that something may have been lost before it.
    """

    broker: int
    offset_floor: int = 0
    recovery: int = 0


@dataclass(frozen=True, slots=True)
class Attributes:
    """What holds for each record of a batch. `priority`: 0 to 31, higher ones are lent first by queue groups. `ttl_ms`:
    how long after the time at which it gets its offsets queue groups lend it; 0 for ever."""

    priority: int = PRIORITY_USUAL
    ttl_ms: int = 0


USUAL = Attributes()
"""Of a batch of which nothing is said. It takes no bytes."""


@dataclass(frozen=True, slots=True)
class Append:
    """A batch that takes the next offsets as soon as it is committed.

    `record_uuids`: empty, or the 16 bytes of each record's own UUID, in order, joined. Each is remembered by itself, so
    that a record is recognised in whatever batch it comes again.
    """

    record_uuids: bytes = b""
    attributes: Attributes = USUAL

    def uuids(self) -> list[bytes]:
        """Those of the records, one by one."""
        joined = self.record_uuids
        return [joined[at : at + UUID_BYTES] for at in range(0, len(joined), UUID_BYTES)]


@dataclass(frozen=True, slots=True)
class Stage:
    """A batch that stays invisible until a PUBLISH entry names its UUID. `owner`: who staged it, as `User:etl`; empty
    where that has no name."""

    key: TransactionKey
    batch_id: int
    run_id: str
    attributes: Attributes = USUAL
    owner: str = ""


@dataclass(frozen=True, slots=True)
class Schedule:
    """A batch that stays invisible until it is due: a PUBLISH entry of the key `SCHEDULED` names its UUID then.
    `due_us`: microseconds since 1970, above 0."""

    due_us: int
    attributes: Attributes = USUAL


@dataclass(frozen=True, slots=True)
class Carry:
    """A scheduled batch once more, under the same UUID and with its payload, so that the journal need not begin before
    its former entry. It changes nothing if no scheduled batch of that UUID waits (any more)."""


@dataclass(frozen=True, slots=True)
class Publish:
    """Gives offsets to staged batches, in the order named; carries no payload. Of scheduled batches `batch_id` is the
    time by which all of them were due, in microseconds since 1970."""

    key: TransactionKey
    batch_id: int
    uuids: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class Discard:
    """Forgets staged batches that no decision names."""

    key: TransactionKey
    uuids: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class MoveCursor:
    """The next offset that a group wants from this partition.

    `kind` says who reads: "consumer", "spark", or "ephemeral" for a group that ends some time after its last member.
    `forward`: it changes nothing where the cursor is at that offset or beyond it. `owner`: who asks, as `User:etl`;
    empty where that has no name. A query's cursor is then nobody else's. Of a group of consumers it says who has begun
    the group, and is written only while nobody has.
    """

    group: str
    offset: int
    kind: str
    forward: bool = False
    owner: str = ""


@dataclass(frozen=True, slots=True)
class DeleteGroup:
    """The group has no place in this partition any more."""

    group: str


@dataclass(frozen=True, slots=True)
class Decide:
    """Coordinator only: micro-batch `batch_id` of `key` is exactly this manifest. `once`: the key is for this decision
    alone, and may be forgotten some time after it is published. `owner`: who decides, as `User:etl`; whoever decides
    first has the key for himself."""

    key: TransactionKey
    batch_id: int
    run_id: str
    row_count: int
    manifest: tuple[StagedPart, ...]
    once: bool = False
    owner: str = ""


@dataclass(frozen=True, slots=True)
class Finish:
    """Coordinator only: every partition has published what the decision named."""

    key: TransactionKey
    batch_id: int


@dataclass(frozen=True, slots=True)
class Give:
    """Coordinator only: whoever is named owns the key from now on, as `User:etl`. Who has staged what does not
    change."""

    key: TransactionKey
    owner: str


@dataclass(frozen=True, slots=True)
class Abort:
    """Coordinator only: nothing more is decided under this key, ever. What is decided already is published all the
    same."""

    key: TransactionKey


@dataclass(frozen=True, slots=True)
class Fence:
    """The key is aborted: from now on nothing is staged under it here, and what is staged is forgotten, but for `kept`,
    the batches that a decision names which is not published yet."""

    key: TransactionKey
    kept: tuple[bytes, ...] = ()


@dataclass(frozen=True, slots=True)
class Forget:
    """Coordinator only: these keys were for one decision each, which was published long ago."""

    keys: tuple[TransactionKey, ...]


@dataclass(frozen=True, slots=True)
class Trim:
    """Retention: records below `log_start_offset` are no longer kept; their offsets are never given again (trap 23)."""

    log_start_offset: int


@dataclass(frozen=True, slots=True)
class Work:
    """What happened to records of a queue group, in order. `life` tells the group from a later one of its name."""

    group: str
    life: int
    steps: tuple[Step, ...]


Operation: TypeAlias = (
    EpochStart
    | Append
    | Stage
    | Publish
    | Discard
    | MoveCursor
    | Decide
    | Finish
    | Trim
    | Give
    | Abort
    | Fence
    | Forget
    | DeleteGroup
    | Work
    | Schedule
    | Carry
)


@dataclass(frozen=True, slots=True)
class Entry:
    """One operation in a partition's journal.

    `index` counts from 1 without gaps; `leader_epoch` never falls along the journal. `timestamp_us` is the leader's
    wall clock in microseconds since 1970, never below the entry before. `record_count` is rows (APPEND, STAGE,
    SCHEDULE, CARRY; else 0). `payload_bytes` is the stored size of the payload; `decoded_bytes` its size in memory once
    decompressed.
    """

    index: int
    leader_epoch: int
    timestamp_us: int
    operation: Operation
    uuid: bytes = NO_UUID
    record_count: int = 0
    payload_bytes: int = 0
    decoded_bytes: int = 0


def offsets_given(entry: Entry, staged: Callable[[bytes], int]) -> int:
    """How many offsets its records take once it is committed. `staged`: the rows of a staged batch, 0 if it is not
    there."""
    match entry.operation:
        case Append():
            return entry.record_count
        case Publish(uuids=uuids):
            return sum(map(staged, uuids))
        case Stage() | Discard() | EpochStart() | Trim() | MoveCursor() | DeleteGroup() | Work():
            return 0
        case Schedule() | Carry():
            return 0
        case Decide() | Finish() | Give() | Abort() | Fence() | Forget():
            return 0


def stored_bytes(entry: Entry) -> int:
    """About what the entry takes on disk and between brokers: payload, and the names and UUIDs of its operation."""
    match entry.operation:
        case Append(record_uuids):
            named = len(record_uuids)
        case Stage(key, _, run_id, owner=owner):
            named = _bytes(key.query_id, key.sink, run_id, owner)
        case Publish(key, _, uuids) | Discard(key, uuids):
            named = _bytes(key.query_id, key.sink) + _UUID_LINE_BYTES * len(uuids)
        case Decide(key, _, run_id, _, manifest, owner=owner):
            lines = sum(_bytes(line.topic) + _UUID_LINE_BYTES * (len(line.uuids) + 1) for line in manifest)
            named = _bytes(key.query_id, key.sink, run_id, owner) + lines
        case MoveCursor(group, owner=owner):
            named = _bytes(group, owner)
        case DeleteGroup(group):
            named = _bytes(group)
        case Fence(key, kept):
            named = _bytes(key.query_id, key.sink) + _UUID_LINE_BYTES * len(kept)
        case Forget(keys):
            named = sum(_bytes(key.query_id, key.sink) for key in keys)
        case Give(key, owner):
            named = _bytes(key.query_id, key.sink, owner)
        case Finish(key) | Abort(key):
            named = _bytes(key.query_id, key.sink)
        case Work(group, _, steps):
            named = _bytes(group) + sum(map(step_bytes, steps))
        case EpochStart() | Trim() | Schedule() | Carry():
            named = 0
    return _FIXED_BYTES + named + entry.payload_bytes


_FIXED_BYTES = 128  # header, lengths, numbers
_UUID_LINE_BYTES = 18

LEVELS: dict[type, int] = {}
"""The level of features (`mq_protocol/versions.py`) from which on a leader may write an operation. Without a line it is
1, the first one."""


def level_of(operation: object) -> int:
    """The lowest level of the cluster at which every broker can read this operation."""
    return LEVELS.get(type(operation), 1)


def _bytes(*names: str) -> int:
    return sum(len(name.encode()) for name in names)
