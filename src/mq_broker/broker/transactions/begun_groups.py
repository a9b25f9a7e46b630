"""How many groups each user has begun: those with cursors in the partitions led here, and queue groups of all topics.

To count takes a walk over all cursors. So what was counted last is taken with all that came since, until that is too
much for somebody: then it is counted anew, at most once a second.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Final

from mq_broker.broker.host.partition import Partition
from mq_broker.broker.metadata.topics import Topic
from mq_broker.broker.runtime.streams import in_turns
from mq_broker.measured import QUOTA_REFUSALS
from mq_broker.security.authority import Asker
from mq_broker.security.quotas import exceeded
from mq_protocol.access.quotas import Quota

AGAIN_S: Final = 1.0
OLD_S: Final = 60.0
"""After so long it is counted anew: other partitions are led here by then, and groups have been deleted."""

_Name = tuple[str, str]
"""The topic of a queue group, or nothing; and the group."""


class BegunGroups:
    """Owns the count. `partitions`: those of this broker; `topics`: all; `clock`: seconds that only go forward."""

    def __init__(
        self,
        partitions: Callable[[], Iterable[Partition]],
        topics: Callable[[], Iterable[Topic]],
        clock: Callable[[], float],
    ) -> None:
        self._partitions = partitions
        self._topics = topics
        self._clock = clock
        self._there: set[_Name] = set()
        self._of: dict[str, set[_Name]] = {}
        self._counted_at = float("-inf")
        self._counting = asyncio.Lock()

    async def check(self, asker: Asker, owner: str, group: str, queue_of: str = "") -> None:
        """The owner is about to move a group's cursor in a partition that knows none of it, or to declare a queue group
        of the topic `queue_of`. Raises `QuotaExceeded` if it would begin one more than it may have."""
        if not owner or asker.meter is None or Quota.GROUPS not in asker.meter.limits:
            return
        name = queue_of, group
        if name in self._there:
            return
        async with self._counting:  # while some are counted nobody begins more
            limit = asker.meter.limits.get(Quota.GROUPS)
            if self._is_there(name) or limit is None:
                self._there.add(name)
                return
            now, full = self._clock(), self._has(owner) >= limit
            if now - self._counted_at > (AGAIN_S if full else OLD_S):
                await self._count()
                self._counted_at = now
            if (has := self._has(owner)) >= limit:
                QUOTA_REFUSALS.add(Quota.GROUPS)
                raise exceeded(owner, Quota.GROUPS, limit, has, 1, "groups at this broker", _ADVICE)
            self._there.add(name)
            self._of.setdefault(owner, set()).add(name)

    def _has(self, owner: str) -> int:
        return len(self._of.get(owner, ()))

    def _is_there(self, name: _Name) -> bool:
        queue_of, group = name
        return not queue_of and any(
            group in partition.replica.machine.cursors for partition in self._partitions() if partition.serving
        )

    async def _count(self) -> None:
        there: set[_Name] = set()
        of: dict[str, set[_Name]] = {}
        async for partition in in_turns(self._partitions()):
            if not partition.serving:
                continue
            for group, cursor in partition.replica.machine.cursors.items():
                there.add(("", group))
                if cursor.owner:
                    of.setdefault(cursor.owner, set()).add(("", group))
        async for topic in in_turns(self._topics()):
            for group, queue in topic.spec.queues.items():
                there.add((topic.spec.name, group))
                if queue.owner:
                    of.setdefault(queue.owner, set()).add((topic.spec.name, group))
        self._there, self._of = there, of


_ADVICE: Final = "delete unused ones (tritonmq group delete, tritonmq queue delete)"
