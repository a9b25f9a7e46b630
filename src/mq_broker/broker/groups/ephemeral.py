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
from mq_broker.broker.runtime.streams import those
from mq_broker.core.entries import DeleteGroup
from mq_protocol.errors import TritonMQError
from mq_protocol.limits import REQUEST_TIMEOUT_MS

log = logging.getLogger(__name__)

GRACE_S: Final = 30.0
"""For so long members may be away: longer than a failover takes them to come back, or a program to restart."""

CHECK_S: Final = 1.0
"""Costs a look at each partition led here, and at each ephemeral group in it."""


class EphemeralGroups:
    """Owns since when each ephemeral group has had no member, of the partitions led here."""

    def __init__(self, shell: Shell, shares: Shares) -> None:
        self._shell = shell
        self._shares = shares
        self._alone: dict[tuple[Partition, str], tuple[int, float]] = {}  # (leader epoch, since when)

    async def keep(self) -> None:
        """Runs until cancelled."""
        while True:
            await asyncio.sleep(min(CHECK_S, GRACE_S / 4))
            some = await those(self._shell.partitions(), lambda each: each.replica.machine.ephemeral)
            self.look(asyncio.get_running_loop().time(), some)

    def look(self, now: float, partitions: Iterable[Partition] | None = None) -> None:
        """End the groups whose time is over. `now`: the loop's clock. `partitions`: which may have such groups; all if
        not given."""
        alone: dict[tuple[Partition, str], tuple[int, float]] = {}
        for partition in self._shell.partitions() if partitions is None else partitions:
            groups = partition.replica.machine.ephemeral
            if not groups or not partition.serving:  # in this order: most of thousands of partitions have none
                continue
            for group in groups:
                if self._shares.members_of(partition, group):
                    continue
                epoch = partition.replica.leader_epoch
                former, since = self._alone.get((partition, group), (epoch, now))
                since = since if former == epoch else now
                if now - since >= GRACE_S:
                    self._shell.spawn(self._end(partition, group), f"end group {group} in {partition.name}")
                    since = now
                alone[partition, group] = epoch, since
        self._alone = alone

    async def _end(self, partition: Partition, group: str) -> None:
        self._shares.forget(partition, group)
        try:
            await partition.ask(DeleteGroup(group), asyncio.get_running_loop().time() + REQUEST_TIMEOUT_MS / 1000)
            log.info("%s: group %s has ended: it had no member for %g s", partition.name, group, GRACE_S)
        except TritonMQError as error:  # another leader, or the next look, does it
            log.info("%s: group %s could not be ended: %s", partition.name, group, error)
