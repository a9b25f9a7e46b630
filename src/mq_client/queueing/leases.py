"""What a member holds: leases, and how far each of their records is. Pure.

A record of a lease waits, is begun by the application, has an outcome on its way to the leader, and then is done or
lost.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mq_client.errors import InternalError
from mq_protocol import mq_pb2 as pb

Offsets = NDArray[np.int64]


def to_gaps(offsets: Offsets) -> list[int]:
    """Gap and length of each run of these offsets, in turn. `offsets` ascend, each once."""
    if len(offsets) < 2:  # most often one, and numpy takes long for it
        return [] if not len(offsets) else [int(offsets[0]), 1]
    breaks = np.flatnonzero(np.diff(offsets) != 1) + 1
    firsts = offsets[np.concatenate(([0], breaks))]
    ends = offsets[np.concatenate((breaks - 1, [len(offsets) - 1]))] + 1
    gaps = np.empty(2 * len(firsts), dtype=np.int64)
    gaps[0::2] = firsts - np.concatenate(([0], ends[:-1]))
    gaps[1::2] = ends - firsts
    numbers: list[int] = gaps.tolist()
    return numbers


def runs_count(offsets: Offsets) -> int:
    """How many ranges these are, at most one for each offset."""
    return int(np.count_nonzero(np.diff(offsets) != 1)) + 1 if len(offsets) > 1 else len(offsets)


def from_gaps(gaps: Sequence[int], records_max: int) -> list[tuple[int, int]]:
    """The ranges, as first offset and end. Raises `InternalError` if a broker sent what cannot be, or more than
    `records_max` records."""
    ranges: list[tuple[int, int]] = []
    at = records = 0
    if len(gaps) % 2:
        raise InternalError("the broker sent ranges of which one has no length: see its log")
    numbers = iter(gaps)
    for gap, length in zip(numbers, numbers, strict=True):
        first = at + gap
        at = first + length
        records += length
        if length < 1 or at > _END_MAX or records > records_max:
            raise InternalError(
                f"the broker lent {records} records up to offset {at}, where at most {records_max} were asked for: "
                "see its log"
            )
        ranges.append((first, at))
    return ranges


def spelled_out(ranges: Sequence[tuple[int, int]]) -> Offsets:
    """Each offset of the ranges."""
    if not ranges:
        return np.empty(0, dtype=np.int64)
    if len(ranges) == 1:
        return np.arange(*ranges[0], dtype=np.int64)
    return np.concatenate([np.arange(first, end, dtype=np.int64) for first, end in ranges])


def spans(offsets: Offsets, gap_max: int) -> list[tuple[int, int]]:
    """First and end of what is read at once: gaps of at most `gap_max` offsets are read too, and left out later."""
    if not len(offsets):
        return []
    breaks = np.flatnonzero(np.diff(offsets) > gap_max + 1) + 1
    return [(int(part[0]), int(part[-1]) + 1) for part in np.split(offsets, breaks)]


_END_MAX = 1 << 62


WAITING: Final = 0
BEGUN_LATELY: Final = 1
"""Handed out since its lease was last extended."""

BEGUN: Final = 2
SETTLING: Final = 3
DONE: Final = 4
LOST: Final = 5

Indexes = NDArray[np.int64]
"""Places in a lease, ascending."""


class LeaseId(NamedTuple):
    """Where a lease was written. Later leases of a partition are higher: give it, as a fencing token, to whatever a
    record's work writes to."""

    leader_epoch: int
    entry: int
    step: int

    def to_wire(self) -> pb.LeaseId:
        return pb.LeaseId(leader_epoch=self.leader_epoch, entry=self.entry, step=self.step)

    @classmethod
    def from_wire(cls, told: pb.LeaseId) -> LeaseId:
        return cls(told.leader_epoch, told.entry, told.step)


class HeldLease:
    """The records of one lease. `open`: how many are neither done nor lost; `settling`: those of them that have an
    outcome. `bytes_each`: what a record takes, as far as is known. `extend_at`: when its clock is to be set anew, by
    the monotonic clock. `order`, `order_by`: which of its records are worked on one after another. `losses`: of its
    `Place`, when its leader was asked to lend it."""

    __slots__ = (
        "_states",
        "bytes_each",
        "deliveries",
        "extend_at",
        "failures",
        "id",
        "lease_s",
        "losses",
        "offsets",
        "open",
        "order",
        "order_by",
        "partition",
        "settling",
        "states",
    )

    def __init__(
        self,
        partition: int,
        lease: LeaseId,
        ranges: Sequence[tuple[int, int]],
        deliveries: Sequence[int],
        failures: Sequence[int],
        lease_s: float,
        now: float,
    ) -> None:
        lengths = [end - first for first, end in ranges]
        self.partition = partition
        self.id = lease
        self.offsets: Offsets = spelled_out(ranges)
        self.deliveries = np.repeat(np.asarray(deliveries, dtype=np.int64), lengths)
        self.failures = np.repeat(np.asarray(failures, dtype=np.int64), lengths)
        self.lease_s = lease_s
        self.extend_at = now + lease_s / 3
        self.open = len(self.offsets)
        self.settling = 0
        self.order: pb.QueueOrder.ValueType = pb.ORDER_NONE
        self.order_by = ""
        self.losses = 0
        self.bytes_each = 0.0
        self._states = bytearray(self.open)
        self.states = np.frombuffer(self._states, dtype=np.uint8)  # the same bytes

    def state(self, index: int) -> int:
        return self._states[index]

    def begin(self, index: int) -> None:
        self._states[index] = BEGUN_LATELY

    def settle_one(self, index: int) -> None:
        """It has an outcome now, and had none before."""
        self._states[index] = SETTLING
        self.settling += 1

    def finish(self, index: int) -> None:
        """It was handed out, and needs no outcome."""
        self._states[index] = DONE
        self.open -= 1

    def begin_all(self, indexes: Indexes) -> None:
        self.states[indexes] = BEGUN_LATELY

    def take_outcome(self, indexes: Indexes) -> None:
        """These have an outcome now; none of them had one before."""
        self.states[indexes] = SETTLING
        self.settling += len(indexes)

    def end(self, indexes: Indexes, state: int) -> int:
        """These are done, or lost. How many of them were not before."""
        states = self.states[indexes]
        ended = int(np.count_nonzero(states < DONE))
        self.settling -= int(np.count_nonzero(states == SETTLING))
        self.open -= ended
        self.states[indexes[states < DONE]] = state
        return ended

    def without_outcome(self) -> Indexes:
        """The records that the application may still settle, or that nobody has begun."""
        return np.flatnonzero(self.states <= BEGUN)

    def begun(self) -> int:
        """How many records were handed out, and have no outcome."""
        return int(np.count_nonzero((self.states == BEGUN_LATELY) | (self.states == BEGUN)))

    def waiting(self) -> Indexes:
        return np.flatnonzero(self.states == WAITING)

    def to_extend(self) -> Indexes:
        """Whose clock is set anew: what waits or has been handed out lately, so that each record has its whole time
        from when it was handed out; and what has an outcome that the leader may not have heard."""
        return np.flatnonzero((self.states <= BEGUN_LATELY) | (self.states == SETTLING))

    def extended(self, now: float) -> None:
        self.states[self.states == BEGUN_LATELY] = BEGUN
        self.extend_at = now + self.lease_s / 3

    def has_begun(self) -> bool:
        return bool(np.any(self.states == BEGUN))

    def index_of(self, offsets: Offsets) -> Indexes:
        """The places of those of the offsets that the lease has."""
        return np.flatnonzero(np.isin(self.offsets, offsets))
