"""What is said of the windows of UUIDs of this broker's partitions: that they take more memory than it was given for
them; that one turns over within a minute, and which clients fill it.

That is all that is done about the memory. A broker may not make a window smaller: the window follows from the journal,
and replicas whose windows differ would answer a retry differently after a failover. Nor may it refuse batches or topics
for the memory: what is told in time costs an operator a look, and what is refused costs users their writes.

A window that is full forgets the oldest UUID for each new one. Who sends many batches, or many records with UUIDs, so
makes the broker forget the UUIDs of others: if one of those is sent again, it becomes a second copy. A broker cannot
refuse that, since the window is bounded. It can say so, and to whom an operator must talk.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote

from mq_broker.broker.runtime.streams import in_turns
from mq_protocol.names import quoted

if TYPE_CHECKING:
    from mq_broker.broker.host.partition import Partition

log = logging.getLogger(__name__)

CALM: Final = 0.9
"""The budget is told as over once less than this part of it is taken: else a window at the edge fills the log."""

CALM_S: Final = 600.0
"""A window that has not turned over for so long is calm: only then the next time is told again."""

TOLD_AT_ONCE_MAX: Final = 10
"""Alarms of one look, so that a client that fills many partitions does not fill the log."""

FILLERS_MAX: Final = 16
"""Clients that are counted for one partition at the same time."""

_NAMED: Final = 3
"""Clients that an alarm names."""


@dataclass(slots=True)
class _Filler:
    """A client, by its host and by the query that it writes for. `peer`: the address that it came from last."""

    peer: str
    uuids: int


def _take_from_all(fillers: dict[tuple[str, str], _Filler], uuids: int) -> None:
    for key, filler in list(fillers.items()):
        filler.uuids -= uuids
        if filler.uuids <= 0:
            del fillers[key]


class Fillers:
    """Owns, for each partition that is written here, how many UUIDs its most active clients brought lately.

    The count is approximate: while there are more clients than places, what a new one brings is taken from every count
    (the algorithm of Misra and Gries). Who brings more than a seventeenth of all UUIDs has a place.
    """

    def __init__(self) -> None:
        self._of: dict[Partition, dict[tuple[str, str], _Filler]] = {}

    def count(self, partition: Partition, peer: str, query: str, uuids: int) -> None:
        """The client at the address `peer` wrote `uuids` UUIDs; `query`: the listed name of its query, empty if there
        is none."""
        fillers = self._of.get(partition)
        if fillers is None:
            fillers = self._of[partition] = {}
        key = peer.rpartition(":")[0], query
        filler = fillers.get(key)
        if filler is not None:
            filler.peer = peer
            filler.uuids += uuids
        elif len(fillers) < FILLERS_MAX:
            fillers[key] = _Filler(peer, uuids)
        else:
            taken = min(uuids, *(filler.uuids for filler in fillers.values()))
            _take_from_all(fillers, taken)
            if uuids > taken:
                fillers[key] = _Filler(peer, uuids - taken)

    def described(self, partition: Partition) -> str:
        """The clients that brought most, for the log."""
        fillers = sorted(self._of.get(partition, {}).items(), key=lambda item: -item[1].uuids)
        named = [
            f"{quoted(unquote(filler.peer))}{f' for query {query}' if query else ''} ({filler.uuids} UUIDs)"
            for (_, query), filler in islice(fillers, _NAMED)
        ]
        return ", ".join(named) or "none of them long enough to be counted"

    def age(self) -> None:
        """Halve all counts, so that what was long ago does not weigh. Clients and partitions that fall to nothing are
        dropped."""
        for partition, fillers in list(self._of.items()):
            for key, filler in list(fillers.items()):
                filler.uuids //= 2
                if not filler.uuids:
                    del fillers[key]
            if not fillers or partition.closed:
                del self._of[partition]


class WindowTurnover:
    """Owns which partitions' windows have been told as turning over, and when each last did.

    `now_us`: the wall clock, in microseconds since 1970; `passed_s`: a clock that only goes forward.
    """

    def __init__(
        self,
        fillers: Fillers,
        now_us: Callable[[], int] = lambda: time.time_ns() // 1000,
        passed_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._fillers = fillers
        self._now_us = now_us
        self._passed_s = passed_s
        self._looked_us = now_us()
        self._seen_us: dict[Partition, int] = {}
        self._told: dict[Partition, float] = {}

    @staticmethod
    def which(partition: Partition) -> object:
        return partition.replica.window_turned_over_us

    def look(self, partitions: Iterable[Partition]) -> None:
        """An error in the log for each partition led here whose window has turned over, told once until it is calm."""
        now_s = self._passed_s()
        turned_us = {p: us for p in partitions if (us := p.replica.window_turned_over_us) and not p.closed}
        # What a replica only reads again, from its journal or from a leader, was told when it happened: it is older
        # than a look.
        news = [p for p, us in turned_us.items() if us > self._seen_us.get(p, self._looked_us) and p.replica.leading]
        self._seen_us, self._looked_us = turned_us, self._now_us()
        untold = [partition for partition in news if partition not in self._told]
        for partition in untold[:TOLD_AT_ONCE_MAX]:
            self._tell(partition)
        if len(untold) > TOLD_AT_ONCE_MAX:
            log.error(
                "the windows of UUIDs of %d more partitions turned over within a minute", len(untold) - TOLD_AT_ONCE_MAX
            )
        self._told.update((partition, now_s) for partition in news)
        self._told = {
            partition: at for partition, at in self._told.items() if now_s - at < CALM_S and not partition.closed
        }
        self._fillers.age()

    def _tell(self, partition: Partition) -> None:
        log.error(
            "%s remembers the last %d UUIDs (dedup_uuids_max), and these turned over within a minute: a batch or a "
            "record that is sent again later than that may be stored twice. Most of them came from %s. Let clients "
            "that write so much have a topic of their own, or make a topic with a larger dedup_uuids_max: that of %s "
            "cannot be changed",
            partition.name,
            partition.topic.settings.dedup_uuids_max,
            self._fillers.described(partition),
            quoted(partition.topic.spec.name),
        )


class WindowBudget:
    """Owns whether it was told that the budget of `bytes_max` is reached."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._told = False

    @staticmethod
    def which(partition: Partition) -> object:
        return partition.replica.window_bytes

    async def look(self, partitions: Iterable[Partition]) -> None:
        """One error in the log when the budget is reached, one line when there is room again."""
        taken: dict[str, int] = {}
        async for partition in in_turns(partitions):
            taken[partition.name] = partition.replica.window_bytes
        total = sum(taken.values())
        if not self._told and total >= self._bytes_max:
            self._told = True
            largest = ", ".join(
                f"{name} {_mib(taken[name])}" for name in sorted(taken, key=lambda name: -taken[name])[:3]
            )
            log.error(
                "the UUIDs that partitions remember take %s of memory, and --dedup-memory-max is %s. None is forgotten "
                "for that, and nothing is refused: move partitions to other brokers, make topics with a smaller "
                "dedup_uuids_max or a dedup_ms, or raise the option. The largest: %s",
                _mib(total),
                _mib(self._bytes_max),
                largest,
            )
        elif self._told and total < CALM * self._bytes_max:
            self._told = False
            log.info("the UUIDs that partitions remember take %s of memory again", _mib(total))


def _mib(count: int) -> str:
    return f"{count / (1 << 20):.1f} MiB"
