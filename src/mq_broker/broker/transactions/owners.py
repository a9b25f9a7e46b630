"""In whose name something is staged, decided, or moved: that of whoever asks, if it has one. And how much each user
owns.

Whoever decides first under a key has it for himself, and whoever moves a query's cursor first has that
(core/machine/admission.py). In plain text nobody has a name: what is done there belongs to nobody, and is taken over by
who comes first with one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Final

from mq_broker.broker.host.partition import Partition
from mq_broker.broker.transactions.requests import listed_name
from mq_broker.core.entries import TransactionKey
from mq_broker.core.machine.admission import not_owner
from mq_broker.core.machine.state import TransactionState
from mq_broker.measured import QUOTA_REFUSALS
from mq_broker.security.authority import Asker
from mq_broker.security.names import ANONYMOUS
from mq_broker.security.quotas import exceeded
from mq_protocol.access.quotas import Quota
from mq_protocol.access.rights import Kind, Operation
from mq_protocol.queues.work_keys import is_of_queue


def owner_of(asker: Asker, key: TransactionKey) -> str:
    """Who is to own what is written under the key. Nobody owns that of a queue group, whose members share one key."""
    return "" if is_of_queue(key.query_id) else name_of(asker)


def name_of(asker: Asker) -> str:
    """By which the asker owns something; empty for nobody."""
    return "" if asker.principal == ANONYMOUS else asker.text


def is_for_anybody(asker: Asker) -> bool:
    """Whether owners do not count for the asker: a superuser, a broker, and everybody where no rights are judged."""
    return asker.free or asker.superuser


def check_may_see(asker: Asker, key: TransactionKey, known: TransactionState) -> None:
    """Raises `PermissionDenied` for who asks about a key that is another user's, and has no right to describe it."""
    if known.owner in ("", asker.text) or is_for_anybody(asker):
        return
    if not asker.may(Operation.DESCRIBE, Kind.TRANSACTION, key.query_id):
        note_stranger(asker, Operation.DESCRIBE, key)
        raise not_owner(key)


OWNERS_RULE: Final = "it is another user's, who decided under it first or was given it"
"""Why the audit log says that something about a key was denied."""


def note_stranger(asker: Asker, operation: Operation, key: TransactionKey, why: str = OWNERS_RULE) -> None:
    """In the audit log, which names a query as listings do."""
    asker.note_denied(operation, Kind.TRANSACTION, listed_name(key.query_id), why)


AGAIN_S: Final = 1.0
OLD_S: Final = 60.0
"""After so long it is counted anew: other partitions are led here by now."""

_WORDS: Final = {
    Quota.TRANSACTIONS: (
        "transaction keys at this broker",
        "abort those that are not needed any more (tritonmq transaction abort)",
    ),
    Quota.STAGED: (
        "batches staged at this broker",
        "let queries commit what they have staged, or abort those that died",
    ),
    Quota.STAGED_BYTES: (
        "bytes staged at this broker",
        "let queries commit what they have staged, or abort those that died",
    ),
}


class Owned:
    """How many transaction keys, and how much that is staged, each user owns in the partitions led here.

    To count takes a walk over all of it. So what was counted last is taken with all that came since, until that is too
    much for somebody: then it is counted anew, at most once a second.

    Owns the counts. `partitions`: those of this broker; `clock`: seconds that only go forward."""

    def __init__(self, partitions: Callable[[], Iterable[Partition]], clock: Callable[[], float]) -> None:
        self._partitions = partitions
        self._clock = clock
        self._counts: dict[Quota, Counter[str]] = {quota: Counter() for quota in _WORDS}
        self._counted_at = float("-inf")

    def add(self, asker: Asker, owner: str, more: dict[Quota, int]) -> None:
        """The owner is to have so much more. Raises `QuotaExceeded` if that is too much for it."""
        if not owner or asker.meter is None:
            return
        limits = asker.meter.limits
        over = self._over(owner, limits, more)
        now = self._clock()
        if now - self._counted_at > (AGAIN_S if over is not None else OLD_S):
            self._count()
            self._counted_at = now
            over = self._over(owner, limits, more)
        if over is not None:
            QUOTA_REFUSALS.add(over)
            raise exceeded(owner, over, limits[over], self._counts[over][owner], more[over], *_WORDS[over])
        for quota, amount in more.items():
            self._counts[quota][owner] += amount

    def _over(self, owner: str, limits: dict[Quota, int], more: dict[Quota, int]) -> Quota | None:
        for quota, amount in more.items():
            if quota in limits and self._counts[quota][owner] + amount > limits[quota]:
                return quota
        return None

    def _count(self) -> None:
        for count in self._counts.values():
            count.clear()
        keys, staged, staged_bytes = (self._counts[quota] for quota in _WORDS)
        for partition in self._partitions():
            if not partition.serving:
                continue
            machine = partition.replica.machine
            if partition.topic.internal:
                for known in machine.transactions.values():
                    keys[known.owner] += 1
            for batch in machine.staged.values():
                staged[batch.owner] += 1
                staged_bytes[batch.owner] += batch.payload_bytes
