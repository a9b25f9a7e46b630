"""Notices a queue group that stands still although it has work: an operator must look, for no member can tell."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from mq_broker.broker.host.partition import Partition
from mq_broker.broker.host.shell import Shell
from mq_broker.broker.queues.policy.declared import Declared, Queue
from mq_broker.broker.queues.working import Working
from mq_broker.broker.runtime.streams import in_turns
from mq_broker.core.work.state import WorkState
from mq_broker.measured import ALARMS
from mq_protocol.queues.settings import Order

log = logging.getLogger(__name__)

STUCK_MS: Final = 60_000
"""For so long nothing is lent or settled although records are ready and members ask, or a bound is reached."""


@dataclass(slots=True)
class _Seen:
    """A group in a partition, and since when it has been found like this."""

    moved: object
    since_ms: int
    alarm: str = ""


class Stuck:
    """Owns what was seen of each queue group that is led here."""

    def __init__(self, shell: Shell, declared: Declared, working: Working) -> None:
        self._shell = shell
        self._declared = declared
        self._working = working
        self._seen: dict[tuple[Partition, str], _Seen] = {}

    def alarm(self, partition: str, group: str) -> str:
        """Why the group stands still in the partition of that name; empty if it does not."""
        found = (seen.alarm for (place, name), seen in self._seen.items() if (place.name, name) == (partition, group))
        return next(found, "")

    def alarms(self) -> dict[tuple[str, str], int]:
        """In how many partitions each topic's group stands still."""
        counts: dict[tuple[str, str], int] = {}
        for (partition, group), seen in self._seen.items():
            if seen.alarm:
                place = partition.topic.spec.name, group
                counts[place] = counts.get(place, 0) + 1
        return counts

    @staticmethod
    def which(partition: Partition) -> object:
        return partition.replica.machine.work or partition.topic.spec.queues

    async def look(self, partitions: Iterable[Partition]) -> None:
        """At the groups of all of them."""
        async for partition in in_turns(partitions):
            self.look_at(partition, self._shell.now_ms())
        for place in [place for place in self._seen if not place[0].serving]:
            del self._seen[place]

    def look_at(self, partition: Partition, now_ms: int) -> None:
        """Note what has moved since the last look, and say once what has not for too long."""
        work = partition.replica.machine.work if partition.serving else {}
        for place in [each for each in self._seen if each[0] is partition and each[1] not in work]:
            del self._seen[place]
        for group, state in work.items():
            queue = self._declared.find(partition, group)
            why = self._why(partition, group, state, queue) if queue is not None else ""
            moved = why and (
                state.life,
                state.totals,
                state.frontier,
                len(state.leases),
                max(state.leases, default=None),
            )
            seen = self._seen.get((partition, group))
            if not why:
                self._seen.pop((partition, group), None)
            elif seen is None or seen.moved != moved:
                self._seen[partition, group] = _Seen(moved, now_ms)
            elif not seen.alarm and now_ms - seen.since_ms >= STUCK_MS:
                seen.alarm = f"stands still for a minute: {why}"
                ALARMS.add("queue_stuck")
                log.warning(
                    "%s: queue group %s %s; `tritonmq queue describe` shows where it is",
                    partition.name,
                    group,
                    seen.alarm,
                )

    def _why(self, partition: Partition, group: str, state: WorkState, queue: Queue) -> str:
        """What would be no reason to stand still; empty if there is nothing to do, or something is under way."""
        if state.outbox_full():
            return "as many decisions wait to be published as it may have"
        if not state.fresh_room():
            return "it keeps as many runs of leases and marks as it may have"
        if queue.settings.paused or (state.leases and queue.settings.order is not Order.NONE):
            return ""  # in order, what is ready waits for what is leased
        if not self._working.asked(partition, group):
            return ""
        now_us = time.time_ns() // 1000
        ready = state.ready(now_us, queue.settings.delivery_limit, state.base, partition.next_offset)
        first = next(ready, None)
        return f"records from offset {first[0]} on are ready, and members ask for them" if first is not None else ""
