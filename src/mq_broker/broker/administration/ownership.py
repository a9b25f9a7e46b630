"""Whose topics are: who has made one owns it, where everybody has a name, and its quotas say how many it may have."""

from __future__ import annotations

from collections.abc import Iterable

from mq_broker.broker.metadata.topics import Topic
from mq_broker.measured import QUOTA_REFUSALS
from mq_broker.rpc.callers import asker
from mq_broker.security.names import ANONYMOUS
from mq_broker.security.quotas import Quotas, exceeded
from mq_protocol.names import INTERNAL_PREFIX
from mq_protocol.quotas import Quota


def owner_of_new(name: str) -> str:
    """Who is to own a topic that is made now; empty where that is nobody."""
    principal = asker().principal
    return "" if principal == ANONYMOUS or name.startswith(INTERNAL_PREFIX) else str(principal)


def is_counted(owner: str) -> bool:
    """Whether what the owner has counts, for whoever asks now: superusers pass."""
    return bool(owner) and asker().meter is not None


def check_room(topics: Iterable[Topic], quotas: Quotas, owner: str, *, new_topics: int, new_partitions: int) -> None:
    """Raises `QuotaExceeded` if the owner may not have so many more."""
    if not is_counted(owner):
        return
    sizes = [topic.partitions for topic in topics if topic.spec.owner == owner]
    for quota, has, more, what in (
        (Quota.TOPICS, len(sizes), new_topics, "topics"),
        (Quota.PARTITIONS, sum(sizes), new_partitions, "partitions"),
    ):
        limit = quotas.limit_of(owner, quota)
        if limit is not None and more and has + more > limit:
            QUOTA_REFUSALS.add(quota)
            raise exceeded(owner, quota, limit, has, more, what, "delete what is not needed any more")
