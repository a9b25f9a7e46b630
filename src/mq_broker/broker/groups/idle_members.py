"""Looks after members of groups that have a partition and do nothing with it: see sharing.py."""

from __future__ import annotations

from typing import Final

from mq_broker.broker.groups.sharing import Shares
from mq_broker.broker.host.shell import Shell
from mq_broker.broker.runtime.streams import in_turns

SLEPT_MS: Final = 5_000
"""A broker that has not looked for so long stood still."""


class IdleMembers:
    """Owns when it looked last."""

    def __init__(self, shell: Shell, shares: Shares) -> None:
        self._shell = shell
        self._shares = shares
        self._looked_ms = shell.now_ms()

    async def look(self) -> None:
        """At each group of each partition led here that has members."""
        now_ms = self._shell.now_ms()
        stood_still = now_ms - self._looked_ms > SLEPT_MS
        self._looked_ms = now_ms
        async for partition, share in in_turns(self._shares.all()):
            if stood_still or not partition.serving:
                share.look_anew()
            else:
                share.look(now_ms, partition.topic.settings.member_idle_ms)
