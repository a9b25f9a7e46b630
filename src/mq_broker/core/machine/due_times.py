"""When the scheduled batches of a partition are due, in order of time and then of arrival."""

from __future__ import annotations

import heapq
from collections.abc import Iterable

from mq_broker.core.machine.state import StagedBatch

_SLACK = 64


class DueTimes:
    """Owns the order of the scheduled batches that wait. It is derived from what is staged, and so is no state of its
    own.

    One that is published or cancelled leaves its line behind. Such lines go when they come to the front, or once they
    are more than those that count.
    """

    def __init__(self, staged: Iterable[StagedBatch] = ()) -> None:
        self._lines: list[tuple[int, int, bytes]] = []  # a heap of: due, number of the arrival, UUID
        self._waiting: dict[bytes, int] = {}  # the number of the arrival
        self._arrivals = 0
        for batch in staged:
            if batch.due_us:
                self.add(batch.uuid, batch.due_us)

    def __len__(self) -> int:
        """How many wait."""
        return len(self._waiting)

    def __contains__(self, uuid: bytes) -> bool:
        return uuid in self._waiting

    def add(self, uuid: bytes, due_us: int) -> None:
        """It came behind all others."""
        self._arrivals += 1
        self._waiting[uuid] = self._arrivals
        heapq.heappush(self._lines, (due_us, self._arrivals, uuid))

    def remove(self, uuid: bytes) -> None:
        """It waits no more. It need not be there."""
        if self._waiting.pop(uuid, None) is None:
            return
        if len(self._lines) > 2 * len(self._waiting) + _SLACK:
            self._lines = [line for line in self._lines if self._counts(line)]
            heapq.heapify(self._lines)
        while self._lines and not self._counts(self._lines[0]):
            heapq.heappop(self._lines)

    def next_us(self) -> int | None:
        """When the first one is due, microseconds since 1970; None if none waits."""
        return self._lines[0][0] if self._lines else None

    def due(self, now_us: int, most: int) -> list[bytes]:
        """The first ones that are due, at most `most`, in the order in which they are to be published."""
        found: list[tuple[int, int, bytes]] = []
        while self._lines and self._lines[0][0] <= now_us and len(found) < most:
            line = heapq.heappop(self._lines)
            if self._counts(line):
                found.append(line)
        for line in found:
            heapq.heappush(self._lines, line)
        return [uuid for _, _, uuid in found]

    def uuids(self) -> list[bytes]:
        """Those that wait, in order of arrival."""
        return list(self._waiting)

    def _counts(self, line: tuple[int, int, bytes]) -> bool:
        return self._waiting.get(line[2]) == line[1]
