"""How leases of records ended that was not by their first acknowledgement: so that an outcome which is said again is
known, and one that comes too late is not taken for it.

A record that was lent once and acknowledged is not here: its lease alone can have settled it. So what is kept grows
with what goes back, and is bounded: the lease that was added to longest ago is forgotten first. Of leases up to `floor`
some may be forgotten, so nothing is concluded of them: what was forgotten is told as lost if it is said again, unless
it is an ack of a record that is noted as acknowledged.

Known limit: who names a lease above the floor, and a settled record that this lease never had, is told that it is done.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from enum import IntEnum
from typing import Final, NamedTuple, TypeAlias

from mq_broker.core.work.ranges import RANGES_MAX
from mq_broker.core.work.run_map import RunMap
from mq_broker.core.work.steps import LeaseId

ENDINGS_MAX: Final = RANGES_MAX
"""Runs of records, of all leases of a group in one partition: some 4 MB if each is of another lease."""

_STEP_MAX: Final = (1 << 62) - 1


class How(IntEnum):
    """The numbers are on disk; they never change meaning."""

    TAKEN = 0
    """Not by its holder: it ran out, its member went, or the record went back with another one."""
    RELEASED = 1
    FAILED = 2
    REJECTED = 3
    ACCEPTED = 4


class Ending(NamedTuple):
    """`deliveries`: of the record, this lease included. Another lease since then has counted one more."""

    how: How
    deliveries: int


FrozenEndings: TypeAlias = tuple[LeaseId, tuple[tuple[LeaseId, tuple[tuple[int, int, Ending], ...]], ...]]
"""The floor, and the runs of each lease, the one that was added to longest ago first."""

_NOTHING: Final[RunMap[Ending]] = RunMap()


class Endings:
    """Owns the last so many of them."""

    def __init__(self, begun: tuple[int, int]) -> None:
        """`begun`: the epoch and index of the entry that began the life. Of leases of a former life nothing is
        known."""
        self.floor = LeaseId(0, 0, 0)
        self.forget_before(begun)
        self._by: OrderedDict[LeaseId, RunMap[Ending]] = OrderedDict()
        self._size = 0

    @classmethod
    def thawed(cls, frozen: FrozenEndings) -> Endings:
        """Raises `ValueError` if runs contradict each other."""
        made = cls((0, 0))
        made.floor = frozen[0]
        made._by = OrderedDict((lease, RunMap(runs)) for lease, runs in frozen[1])
        made._size = sum(map(len, made._by.values()))
        return made

    def frozen(self) -> FrozenEndings:
        """All of it as one value."""
        return self.floor, tuple((lease, tuple(runs)) for lease, runs in self._by.items())

    def copy(self) -> Endings:
        """Another one that knows the same."""
        made = Endings((0, 0))
        made.floor, made._size = self.floor, self._size
        made._by = OrderedDict((lease, runs.copy()) for lease, runs in self._by.items())
        return made

    def of(self, lease: LeaseId) -> RunMap[Ending]:
        """How it ended, of records of which that is kept."""
        return self._by.get(lease, _NOTHING)

    def is_whole(self, lease: LeaseId) -> bool:
        """Whether all that it lost is kept: what is settled and not in `of` was acknowledged under it."""
        return lease > self.floor

    def note(self, lease: LeaseId, pieces: Iterable[tuple[int, int, Ending]]) -> None:
        """It ended so for these, ascending and disjoint."""
        runs = self._by.setdefault(lease, RunMap())
        self._by.move_to_end(lease)
        self._size -= len(runs)
        runs.assign([*pieces])
        self._size += len(runs)
        while self._size > ENDINGS_MAX:
            self.forget(next(iter(self._by)))

    def forget_before(self, at: tuple[int, int]) -> None:
        """Of leases that were made before this entry, its epoch and index, some may not be known at all."""
        self.floor = max(self.floor, LeaseId(*at, _STEP_MAX))

    def forget(self, lease: LeaseId) -> None:
        """How it ended is not known any more."""
        self._size -= len(self._by.pop(lease, _NOTHING))
        self.floor = max(self.floor, lease)
