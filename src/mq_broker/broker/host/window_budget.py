"""Says when the windows of UUIDs of this broker's partitions take more memory than it was given for them.

That is all it does. A broker may not make a window smaller: the window follows from the journal, and replicas whose
windows differ would answer a retry differently after a failover. Nor may it refuse batches or topics for the memory:
what is told in time costs an operator a look, and what is refused costs users their writes.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from mq_broker.broker.runtime.streams import in_turns

if TYPE_CHECKING:
    from mq_broker.broker.host.partition import Partition

log = logging.getLogger(__name__)

_CALM: Final = 0.9
"""It is told as over once less than this part of the budget is taken: else a window at the edge fills the log."""


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
        elif self._told and total < _CALM * self._bytes_max:
            self._told = False
            log.info("the UUIDs that partitions remember take %s of memory again", _mib(total))


def _mib(count: int) -> str:
    return f"{count / (1 << 20):.1f} MiB"
