"""Which replicas of a broker are ticked, and how often: those at rest seldom, so that idle partitions cost next to nothing.

A replica in use is ticked every 80 ms, and its leader sends a heartbeat four times a second. Of ten thousand partitions nearly
all have nothing to do; then the leader's replica is ticked every `REST_TICK_S`, which sends the heartbeat, and its followers
hear of the time only with that. Any event but those heartbeats and their answers wakes a replica at once: a request, entries, a
broker that comes or goes, a link, a state node that says something new. So nobody waits longer for anything than before, but
for one thing: that a leader falls silent whose broker lives and whose link is up is noticed after `PATIENCE_MS`, and then
looked into as before.

Nothing of the protocol is here: the core takes time as an argument and says itself when it is at rest.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from typing import Final, Protocol

TICK_S: Final = 0.08
SLICES: Final = 4
"""Replicas are ticked in turns, a quarter of them every 20 ms: a thousand at once would hold up the loop."""

REST_TICK_S: Final = 5.0
CALM_MS: Final = 2_000
"""A leader goes to rest after so long without anything to do. Its followers hear eight heartbeats meanwhile."""

FOLLOWER_CALM_MS: Final = 1_000
"""Before its leader, or it would wonder why that has become so quiet."""

PATIENCE_MS: Final = 12_000
"""How long a follower at rest waits for a heartbeat: two may be lost."""

_SLICE_S: Final = TICK_S / SLICES
_REST_SLICES: Final = round(REST_TICK_S / _SLICE_S)


class Resting(Protocol):
    """A partition, as seen from here. `asleep` is set here; the partition calls `Ticking.wake` when that is to end.

    `stirred`: something happened since the last tick that was no heartbeat. `heard_ms`: when its leader last spoke.
    """

    asleep: bool
    stirred: bool
    calm_since_ms: int
    heard_ms: int

    closed: bool

    @property
    def leading(self) -> bool: ...

    @property
    def at_rest(self) -> bool: ...

    def tick(self, now_ms: int, now: float) -> None:
        """Time passes: `now_ms` of the monotonic clock, `now` of the loop's."""


class Ticking:
    """Owns the round of ticks. A partition keeps its place among the slices for as long as it is open."""

    def __init__(self) -> None:
        self._awake: list[dict[Resting, int]] = [{} for _ in range(SLICES)]
        self._asleep: list[dict[Resting, int]] = [{} for _ in range(_REST_SLICES)]
        self._places = itertools.count()
        self._place: dict[Resting, int] = {}

    def add(self, partition: Resting) -> None:
        """From now on, until it is closed."""
        place = self._place[partition] = next(self._places)
        self._awake[place % SLICES][partition] = place

    def wake(self, partition: Resting) -> None:
        """It is ticked as any other again."""
        place = self._place[partition]
        partition.asleep = False
        partition.stirred = True
        if self._asleep[place % _REST_SLICES].pop(partition, None) is not None:
            self._awake[place % SLICES][partition] = place

    @property
    def awake(self) -> int:
        return sum(map(len, self._awake))

    async def run(self) -> None:
        """Runs until cancelled."""
        loop = asyncio.get_running_loop()
        for turn in itertools.count():
            await asyncio.sleep(_SLICE_S)
            now_ms, now = time.monotonic_ns() // 1_000_000, loop.time()
            for partition in list(self._awake[turn % SLICES]):
                self._tick(partition, now_ms, now)
            for partition in list(self._asleep[turn % _REST_SLICES]):
                self._tick_at_rest(partition, now_ms, now)

    def _forget(self, partition: Resting) -> None:
        place = self._place.pop(partition)
        self._awake[place % SLICES].pop(partition, None)
        self._asleep[place % _REST_SLICES].pop(partition, None)

    def _tick(self, partition: Resting, now_ms: int, now: float) -> None:
        if partition.closed:
            self._forget(partition)
            return
        partition.tick(now_ms, now)
        if partition.stirred:
            partition.stirred = False
            partition.calm_since_ms = now_ms
            return
        calm_ms = now_ms - partition.calm_since_ms
        if calm_ms < FOLLOWER_CALM_MS or not partition.at_rest:
            return
        if calm_ms >= CALM_MS if partition.leading else now_ms - partition.heard_ms < FOLLOWER_CALM_MS:
            place = self._place[partition]
            del self._awake[place % SLICES][partition]
            self._asleep[place % _REST_SLICES][partition] = place
            partition.asleep = True

    def _tick_at_rest(self, partition: Resting, now_ms: int, now: float) -> None:
        if partition.closed:
            self._forget(partition)
        elif partition.leading:
            partition.tick(now_ms, now)
        elif now_ms - partition.heard_ms > PATIENCE_MS:
            self.wake(partition)
