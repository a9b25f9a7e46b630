"""When the leases of a queue group run out. Pure: the time is an argument, milliseconds of a monotonic clock.

Clocks are the leader's own and are not in the journal. A new leader starts them anew, so a lease may live longer than
was said. One that was made for longer than the group's `lease_ms` may end earlier, if its member does not name it in
time.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Final

from mq_broker.core.work.ranges import Range, joined
from mq_broker.core.work.run_map import RunMap
from mq_broker.core.work.steps import LeaseId

_STEPS: Final = 64
"""Deadlines are rounded up to a 64th of the time of a lease. So one that is extended all the time has few of them."""

_PRUNE_ABOVE: Final = 1_000
_NEVER: Final = 1 << 62


@dataclass(slots=True)
class _Clock:
    """Of one lease. `parts`: the deadlines of its records, where they differ; else `deadline` holds for all. Without
    any it has not begun."""

    ranges: list[Range]
    lease_ms: int
    deadline: int = _NEVER
    parts: RunMap[int] | None = None
    queued: set[int] = field(default_factory=set)  # deadlines at which the lease is looked at


class Clocks:
    """Owns the deadlines of the leases that are known to it."""

    def __init__(self) -> None:
        self._clocks: dict[LeaseId, _Clock] = {}
        self._queue: list[tuple[int, LeaseId]] = []  # a heap
        self._due: dict[LeaseId, None] = {}

    def __len__(self) -> int:
        return len(self._clocks)

    def know(self, lease: LeaseId, ranges: Iterable[Range], lease_ms: int) -> None:
        """The lease of these records is on its way: it does not run out before it begins."""
        self._clocks[lease] = _Clock([*ranges], lease_ms)

    def begin(self, lease: LeaseId, now_ms: int) -> None:
        """It is committed."""
        clock = self._clocks.get(lease)
        if clock is not None:
            clock.deadline = _rounded(now_ms, clock.lease_ms)
            self._enqueue(lease, clock.deadline)

    def has_begun(self, lease: LeaseId) -> bool:
        """Whether it is known and not only on its way."""
        clock = self._clocks.get(lease)
        return clock is not None and clock.deadline < _NEVER

    def start(self, lease: LeaseId, ranges: Iterable[Range], lease_ms: int, now_ms: int) -> None:
        """The lease of these records begins, or is known from now on. Those of one lease may come in several calls,
        ascending."""
        clock = self._clocks.get(lease)
        if clock is None:
            clock = self._clocks[lease] = _Clock([], lease_ms, _rounded(now_ms, lease_ms))
            self._enqueue(lease, clock.deadline)
        clock.ranges += ranges

    def ranges(self, lease: LeaseId) -> Sequence[Range]:
        """What the lease was of; empty if it is not known."""
        clock = self._clocks.get(lease)
        return clock.ranges if clock is not None else ()

    def extend(self, lease: LeaseId, ranges: list[Range], now_ms: int) -> None:
        """These records of the lease have its whole time again. What is not named keeps its deadline."""
        clock = self._clocks.get(lease)
        if clock is None or clock.deadline == _NEVER:
            return
        deadline = _rounded(now_ms, clock.lease_ms)
        if ranges == clock.ranges:
            clock.deadline, clock.parts = deadline, None
        else:
            parts = clock.parts or RunMap((a, b, clock.deadline) for a, b in joined(clock.ranges))
            parts.assign([(a, b, deadline) for a, b, _ in parts.covered(ranges)])
            clock.parts = parts
        self._enqueue(lease, deadline)

    def lengthen(self, lease: LeaseId, lease_ms: int, now_ms: int) -> None:
        """The lease was made for so long: whoever has it says so to a leader that cannot know. Never shorter."""
        clock = self._clocks.get(lease)
        if clock is not None and lease_ms > clock.lease_ms:
            clock.lease_ms = lease_ms
            self.extend(lease, clock.ranges, now_ms)

    def expired(self, now_ms: int, most: int) -> list[tuple[LeaseId, Sequence[Range]]]:
        """What has run out, of at most so many leases. It is told again until `over` says that the lease was looked
        at."""
        while len(self._due) < most and self._queue and self._queue[0][0] <= now_ms:
            deadline, lease = heapq.heappop(self._queue)
            clock = self._clocks.get(lease)
            if clock is not None:
                clock.queued.discard(deadline)
                self._due[lease] = None
        return [(lease, self._out(lease, now_ms)) for lease in islice(self._due, most)]

    def _out(self, lease: LeaseId, now_ms: int) -> Sequence[Range]:
        clock = self._clocks.get(lease)
        if clock is None:
            return ()
        if clock.parts is None:
            return clock.ranges if clock.deadline <= now_ms else ()
        return tuple((a, b) for a, b, deadline in clock.parts if deadline <= now_ms)

    def over(self, lease: LeaseId, now_ms: int) -> None:
        """None of what has run out is leased any more."""
        self._due.pop(lease, None)
        clock = self._clocks.get(lease)
        if clock is not None and all(
            deadline <= now_ms for deadline in self._deadlines(clock)
        ):  # nothing is left that could run out
            del self._clocks[lease]

    @staticmethod
    def _deadlines(clock: _Clock) -> Collection[int]:
        return [clock.deadline] if clock.parts is None else [deadline for _, _, deadline in clock.parts]

    def due(self, now_ms: int) -> bool:
        """Whether a lease is to be looked at."""
        return bool(self._due) or bool(self._queue and self._queue[0][0] <= now_ms)

    def restart(self, now_ms: int) -> None:
        """Time has stood still for this leader, so nobody could extend anything: every lease has its whole time
        again."""
        self._queue, self._due = [], {}
        for lease, clock in self._clocks.items():
            if clock.deadline == _NEVER:
                continue
            clock.deadline, clock.parts, clock.queued = _rounded(now_ms, clock.lease_ms), None, set()
            self._enqueue(lease, clock.deadline)

    def prune(self, alive: Collection[LeaseId]) -> None:
        """Forget leases that are not alive, once there are more of them than others."""
        if len(self._clocks) <= 2 * len(alive) + _PRUNE_ABOVE:
            return
        self._clocks = {lease: clock for lease, clock in self._clocks.items() if lease in alive}
        self._due = {lease: None for lease in self._due if lease in alive}
        self._queue = [(deadline, lease) for deadline, lease in self._queue if lease in alive]
        heapq.heapify(self._queue)

    def _enqueue(self, lease: LeaseId, deadline: int) -> None:
        clock = self._clocks[lease]
        if deadline not in clock.queued:
            clock.queued.add(deadline)
            heapq.heappush(self._queue, (deadline, lease))


def _rounded(now_ms: int, lease_ms: int) -> int:
    step = max(1, lease_ms // _STEPS)
    return -(-(now_ms + lease_ms) // step) * step
