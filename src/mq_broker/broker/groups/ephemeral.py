"""Groups that end with their last member: their cursors go some time after nobody reads in them any more.

That a group is ephemeral is written in its cursors, so every leader knows. Each leader decides for its partitions: all
members of a group are members of each partition's share. A new leader has heard of no member yet, and begins to wait
anew.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from typing import Final

from mq_broker.broker.groups.sharing import Shares
from mq_broker.broker.host.partition import Partition
from mq_broker.broker.host.shell import Shell
from mq_broker.core.entries import DeleteGroup
from mq_protocol.errors import TritonMQError
from mq_protocol.limits import REQUEST_TIMEOUT_MS

log = logging.getLogger(__name__)

GRACE_MS: Final = 30_000
"""For so long members may be away: longer than a failover takes them to come back, or a program to restart."""


class EphemeralGroups:
    """Owns since when each ephemeral group has had no member, of the partitions led here."""

    def __init__(self, shell: Shell, shares: Shares) -> None:
        self._shell = shell
        self._shares = shares
        self._alone: dict[tuple[Partition, str], tuple[int, int]] = {}  # (leader epoch, since when)

    @staticmethod
    def which(partition: Partition) -> object:
        return partition.replica.machine.ephemeral

    def look(self, partitions: Iterable[Partition]) -> None:
        """End the groups whose time is over."""
        now_ms = self._shell.now_ms()
        alone: dict[tuple[Partition, str], tuple[int, int]] = {}
        for partition in partitions:
            if not partition.serving:
                continue
            for group in partition.replica.machine.ephemeral:
                if self._shares.members_of(partition, group):
                    continue
                epoch = partition.replica.leader_epoch
                former, since_ms = self._alone.get((partition, group), (epoch, now_ms))
                since_ms = since_ms if former == epoch else now_ms
                if now_ms - since_ms >= GRACE_MS:
                    self._shell.spawn(self._end(partition, group), f"end group {group} in {partition.name}")
                    since_ms = now_ms
                alone[partition, group] = epoch, since_ms
        self._alone = alone

    async def _end(self, partition: Partition, group: str) -> None:
        self._shares.forget(partition, group)
        try:
            await partition.ask(DeleteGroup(group), asyncio.get_running_loop().time() + REQUEST_TIMEOUT_MS / 1000)
            log.info("%s: group %s has ended: it had no member for %g s", partition.name, group, GRACE_MS / 1000)
        except TritonMQError as error:  # another leader, or the next look, does it
            log.info("%s: group %s could not be ended: %s", partition.name, group, error)
