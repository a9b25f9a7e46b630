"""Whose topics are: who has made one owns it, where everybody has a name, and its quotas say how many it may have."""

from __future__ import annotations

from collections.abc import Iterable

from mq_broker.broker.metadata.topics import Topic
from mq_broker.measured import QUOTA_REFUSALS
from mq_broker.rpc.callers import asker
from mq_broker.security.names import ANONYMOUS
from mq_broker.security.quotas import Quotas, exceeded
from mq_protocol.access.quotas import Quota
from mq_protocol.names import INTERNAL_PREFIX


def owner_of_new(name: str) -> str:
    """Who is to own a topic that is made now; empty where that is nobody."""
    principal = asker().principal
    return "" if principal == ANONYMOUS or name.startswith(INTERNAL_PREFIX) else str(principal)


def is_counted(owner: str) -> bool:
    """Whether what the owner has counts, for whoever asks now: superusers pass."""
    return bool(owner) and asker().meter is not None


def check_room(topics: Iterable[Topic], quotas: Quotas, owner: str, *, new_topics: int, new_partitions: int) -> None:
    """Raises `QuotaExceeded` if the owner may not have so many more."""
    OwnedRoom(topics, quotas, owner).take(new_topics, new_partitions)


class OwnedRoom:
    """Owns how many topics and partitions an owner has, while more of them are made."""

    def __init__(self, topics: Iterable[Topic], quotas: Quotas, owner: str) -> None:
        self._quotas = quotas
        self._owner = owner
        self._is_counted = is_counted(owner)
        sizes = [topic.partitions for topic in topics if topic.spec.owner == owner] if self._is_counted else []
        self._topics, self._partitions = len(sizes), sum(sizes)

    def take(self, new_topics: int, new_partitions: int) -> None:
        """So many more. Raises `QuotaExceeded` if the owner may not have them."""
        if not self._is_counted:
            return
        for quota, has, more, what in (
            (Quota.TOPICS, self._topics, new_topics, "topics"),
            (Quota.PARTITIONS, self._partitions, new_partitions, "partitions"),
        ):
            limit = self._quotas.limit_of(self._owner, quota)
            if limit is not None and more and has + more > limit:
                QUOTA_REFUSALS.add(quota)
                raise exceeded(self._owner, quota, limit, has, more, what, "delete what is not needed any more")
        self._topics += new_topics
        self._partitions += new_partitions
