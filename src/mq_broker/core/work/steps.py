"""What a `Work` entry is made of: steps, each a fact about some records of one group in one partition."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, NamedTuple, TypeAlias

from mq_broker.core.work.ranges import RANGES_MAX, Ranges, why_wrong

ERROR_BYTES_MAX: Final = 256
"""Of the text that says why a record failed, in UTF-8."""


ENTRY_BYTES_MAX: Final = 1 << 20
"""Of all steps of an entry, about."""


class LeaseId(NamedTuple):
    """Where the lease was written: the epoch and index of the entry, and the number of the step in it. Epochs are never
    given twice, indexes are, after a recovery. So leases ascend as they are made."""

    leader_epoch: int
    entry: int
    step: int


class Reason(IntEnum):
    """Why a record is settled that nobody accepted. The numbers are on disk; they never change meaning."""

    EXPIRED = 1
    PURGED = 2
    FILTERED = 3
    LENGTH = 4
    RETENTION = 5
    REJECTED = 6
    DELIVERY_LIMIT = 7
    OUTPUT = 8
    """Of a `Send` alone: it was accepted, and what was made of it is published."""


@dataclass(frozen=True, slots=True)
class OutputLine:
    """Staged batches of one partition, which are to be published in this order."""

    topic_id: str
    partition: int
    uuids: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class Begin:
    """A new life of the group: everything below `offset` is settled, and nothing else is known. `recovery`: how often
    the partition had been recovered by then. `lost`: offsets of no record, left out by recoveries; they are settled."""

    offset: int
    recovery: int = 0
    lost: Ranges = ()


@dataclass(frozen=True, slots=True)
class Lease:
    """These records are lent to `member`, as far as nobody has them."""

    ranges: Ranges
    member: str


@dataclass(frozen=True, slots=True)
class Accept:
    """These records are settled. `late`: nobody has them, and this was the last lease of each; it ran out."""

    ranges: Ranges
    late: LeaseId | None = None


@dataclass(frozen=True, slots=True)
class Drop:
    """These records are settled without having been worked on. What is leased stays."""

    ranges: Ranges
    reason: Reason


@dataclass(frozen=True, slots=True)
class Return:
    """The leases of these records end. `charged`: it counts as a failed delivery. They are not lent again before
    `due_us`, microseconds since 1970. `error`: why; without one the error of an earlier failure is kept. `said`: by
    whoever had them, and for these."""

    ranges: Ranges
    charged: bool = False
    due_us: int = 0
    error: str = ""
    said: bool = False


@dataclass(frozen=True, slots=True)
class Reject:
    """The leases of these records end, and they are lent to nobody any more."""

    ranges: Ranges
    error: str = ""


@dataclass(frozen=True, slots=True)
class Send:
    """These records are settled, and `lines` are to be published as number `n`; all of it or nothing.

    With a `member` the records are leased to it, the lines are its outputs, and its `number` is taken. Without one they
    are dead letters, and the records are leased to nobody. Numbers n ascend.
    """

    ranges: Ranges
    reason: Reason
    n: int
    lines: tuple[OutputLine, ...]
    member: str = ""
    number: int = 0


@dataclass(frozen=True, slots=True)
class Sent:
    """What was sent as number `n` is published."""

    n: int


@dataclass(frozen=True, slots=True)
class Park:
    """These records, which nobody has, are kept and lent to nobody."""

    ranges: Ranges


@dataclass(frozen=True, slots=True)
class Reset:
    """These records, which nobody has, are neither parked nor rejected nor failed any more, and are ready at once."""

    ranges: Ranges


@dataclass(frozen=True, slots=True)
class End:
    """The group is forgotten in this partition."""


Step: TypeAlias = Begin | Lease | Accept | Drop | Return | Reject | Send | Sent | Park | Reset | End


def ranges_of(step: Step) -> Ranges:
    """The records that the step names."""
    match step:
        case Sent() | End():
            return ()
        case Begin(lost=ranges):
            return ranges
        case (
            Lease(ranges=ranges)
            | Accept(ranges=ranges)
            | Drop(ranges=ranges)
            | Return(ranges=ranges)
            | Reject(ranges=ranges)
            | Send(ranges=ranges)
            | Park(ranges=ranges)
            | Reset(ranges=ranges)
        ):
            return ranges


def step_bytes(step: Step) -> int:
    """About what the step takes in an entry, rather more than less."""
    size = 16 + _RANGE_BYTES * len(ranges_of(step))
    match step:
        case Lease(member=text) | Return(error=text) | Reject(error=text):
            return size + len(text.encode())
        case Send(lines=lines, member=member):
            names = sum(len(line.topic_id.encode()) + 16 + _UUID_BYTES * len(line.uuids) for line in lines)
            return size + len(member.encode()) + names + 32
        case Begin() | Accept() | Drop() | Sent() | Park() | Reset() | End():
            return size


def why_not_one_entry(steps: Iterable[Step]) -> str:
    """Why these steps cannot be one entry; empty if they can."""
    ranges = size = 0
    for step in steps:
        why = why_wrong(ranges_of(step))
        if why:
            return why
        ranges += len(ranges_of(step))
        size += step_bytes(step)
    if ranges > RANGES_MAX or size > ENTRY_BYTES_MAX:
        return f"{ranges} ranges and {size} bytes are more than {RANGES_MAX} or {ENTRY_BYTES_MAX}"
    return ""


_RANGE_BYTES: Final = 8
"""Gap and length as varints. Only the first gap of a step can be long."""
_UUID_BYTES: Final = 18
