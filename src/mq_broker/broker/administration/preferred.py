"""Partitions are led by their first replica again once it has come back, without `tritonmq cluster balance`.

Each leader looks at the partitions that it leads, as with moves: nobody directs it. A partition is given back after all
its replicas have been in sync, and its first one registered, for a while without a break. A broker that does not keep
what it was given (its disk is full or stuck) is given nothing for twice as long, each time.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Sequence
from typing import Final, NamedTuple

from mq_broker.broker.administration.moves import TRANSFER_MS
from mq_broker.broker.host.partition import Partition
from mq_broker.broker.host.shell import Shell
from mq_broker.broker.metadata.brokers import Cluster

log = logging.getLogger(__name__)

AT_ONCE: Final = 10
"""Partitions that a broker gives back at a time: each is not written to for some milliseconds."""

PAUSE_MS_MAX: Final = 3_600_000
FORGOTTEN_MS: Final = 2 * PAUSE_MS_MAX


class Led(NamedTuple):
    """A partition that is led here, and broker `first` is to lead. `well`: it could, all replicas are in sync."""

    place: tuple[str, int]
    first: int
    well: bool


class GivingBack:
    """Owns since when partitions could be given back, and which brokers did not keep what they were given. Pure: times
    are milliseconds of one clock."""

    def __init__(self, after_ms: int) -> None:
        self._after_ms = after_ms
        self._well_since: dict[tuple[str, int], int] = {}
        self._given: dict[tuple[str, int], tuple[int, int]] = {}
        self._pauses: dict[int, tuple[int, int]] = {}  # of a broker: since when, and for how long

    def due(self, now_ms: int, led: Sequence[Led]) -> list[Led]:
        """Those that are to be given back now, of all that are led here in another's stead."""
        self._notice(now_ms, {each.place for each in led})
        self._well_since = {each.place: self._well_since.get(each.place, now_ms) for each in led if each.well}
        found: list[Led] = []
        room = AT_ONCE - sum(each.place in self._given for each in led)
        for each in led:
            if len(found) < room and each.well and each.place not in self._given and self._is_time(now_ms, each):
                self._given[each.place] = each.first, now_ms
                found.append(each)
        return found

    def _is_time(self, now_ms: int, each: Led) -> bool:
        since, pause_ms = self._pauses.get(each.first, (0, self._after_ms))
        return now_ms - max(since, self._well_since[each.place]) >= pause_ms

    def _notice(self, now_ms: int, led: Collection[tuple[str, int]]) -> None:
        """What was given away and is led here all the same: its broker did not take it, or not keep it."""
        for place, (broker, at_ms) in list(self._given.items()):
            age_ms = now_ms - at_ms
            if age_ms >= FORGOTTEN_MS:
                del self._given[place]
            elif place in led and age_ms > TRANSFER_MS:
                del self._given[place]
                since, pause_ms = self._pauses.get(broker, (0, self._after_ms))
                if broker not in self._pauses or at_ms >= since:  # else it was given before the pause: one lesson
                    self._pauses[broker] = now_ms, min(2 * pause_ms, PAUSE_MS_MAX)
        self._pauses = {
            broker: (since, pause_ms)
            for broker, (since, pause_ms) in self._pauses.items()
            if now_ms - since < FORGOTTEN_MS
        }


class Preferred:
    """Gives leaderships back, `after_ms` after they could be."""

    def __init__(self, shell: Shell, cluster: Cluster, after_ms: int) -> None:
        self._shell = shell
        self._cluster = cluster
        self._giving = GivingBack(after_ms)

    def which(self, partition: Partition) -> object:
        """Those that are led here and should be by another broker."""
        first = partition.topic.spec.assignment[partition.number][0]
        return not partition.closed and partition.serving and first != self._shell.broker

    def look(self, partitions: Iterable[Partition]) -> None:
        """Give back what is due of them."""
        led = {self._led(partition): partition for partition in partitions if self.which(partition)}
        for each in self._giving.due(self._shell.now_ms(), list(led)):
            log.info("%s: broker %d is its first replica, and gets it back", led[each].name, each.first)
            led[each].transfer(each.first, self._shell.now_ms() + TRANSFER_MS)

    def _led(self, partition: Partition) -> Led:
        spec, number = partition.topic.spec, partition.number
        members = spec.assignment[number]
        in_sync = set(members) <= set(partition.replica.isr)
        well = in_sync and members[0] in self._cluster.brokers and number not in spec.moving
        return Led((spec.topic_id, number), members[0], well)
