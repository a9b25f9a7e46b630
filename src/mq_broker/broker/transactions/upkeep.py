"""What becomes of transactions with time: an alarm for a staged batch that holds up retention, and keys that are
forgotten.

Age alone discards nothing that is staged: a slow commit must not lose its rows. An operator is told instead which query
it is.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable
from typing import Final

from mq_broker.broker.host.partition import Partition
from mq_broker.broker.host.shell import Shell
from mq_broker.broker.runtime.streams import in_turns
from mq_broker.broker.transactions.aborting import pins
from mq_broker.broker.transactions.requests import listed_name
from mq_broker.core.entries import Forget, TransactionKey
from mq_protocol.errors import TritonMQError
from mq_protocol.queues.work_keys import place_of

log = logging.getLogger(__name__)

ALARM_MS: Final = 30_000
"""For how long a staged batch may hold up retention before an operator is told, within a minute in all. An honest
micro-batch that takes longer costs a line of the log; a stranger's batch of a few bytes fills the disk."""

FORGET_US: Final = 3_600_000_000
"""For how long a key that was for one decision is remembered after that was published: long past the last retry of its
writer, which gives up within minutes."""

FORGOTTEN_AT_ONCE: Final = 500
_ATTEMPT_S: Final = 5.0

Held = tuple[str, TransactionKey]
"""A partition's name, and the key that has something staged in it which holds up retention."""


class HeldUp:
    """Owns since when retention of a partition has been held up by a key. Times are milliseconds of a monotonic
    clock."""

    def __init__(self) -> None:
        self._since: dict[Held, int] = {}
        self._told: set[Held] = set()

    def look(self, held: Iterable[Held], now_ms: int) -> list[Held]:
        """What holds it up now; returns what an operator is to be told: each once, as long as it lasts."""
        self._since = {each: self._since.get(each, now_ms) for each in held}
        self._told &= self._since.keys()
        due = [each for each, since in self._since.items() if now_ms - since >= ALARM_MS and each not in self._told]
        self._told.update(due)
        return due

    def __len__(self) -> int:
        """How many there were at the last look."""
        return len(self._since)


class Upkeep:
    """Owns the alarm. `now_us` is the time by which keys are forgotten, microseconds since 1970."""

    def __init__(self, shell: Shell, now_us: Callable[[], int]) -> None:
        self._shell = shell
        self._now_us = now_us
        self._held_up = HeldUp()

    @property
    def holding_up(self) -> int:
        """Pairs of a key and a partition led here whose retention it holds up."""
        return len(self._held_up)

    @staticmethod
    def which(partition: Partition) -> object:
        return partition.replica.machine.staged or partition.topic.internal

    async def look(self, partitions: Collection[Partition]) -> None:
        """At those in which something may be staged, and at the coordinators."""
        self.alarm(self._shell.now_ms(), partitions)
        await self.forget(FORGET_US, partitions)

    def alarm(self, now_ms: int, partitions: Iterable[Partition]) -> None:
        """Tell who has held up retention for too long, in partitions led here."""
        held = {
            (partition.name, batch.key): batch.owner
            for partition in partitions
            if partition.serving
            for batch in partition.replica.machine.staged.values()
            if not batch.due_us and pins(partition, batch)
        }
        for name, key in self._held_up.look(held, now_ms):
            place = place_of(key.query_id)
            if place is None:
                advice = f"If the query is dead, free it with `tritonmq transaction abort {listed_name(key.query_id)}`"
            else:
                advice = (
                    f"They go once partition {place.partition} of the queue's topic has a leader, and the lease under "
                    "which they were staged has ended: `tritonmq queue describe` shows both"
                )
            owner = held[name, key]
            log.error(
                "%s: its journal grows, because batches that %s %r%s staged for %r have held up retention for %d s. %s",
                name,
                "query" if place is None else "queue group",
                key.query_id if place is None else place.group,
                f" of {owner}" if owner else "",
                key.sink,
                ALARM_MS // 1000,
                advice,
            )

    async def forget(self, after_us: int, partitions: Iterable[Partition]) -> None:
        """Forget, at the coordinators led here, the keys that were for one decision which has been published for so
        long."""
        before_us = self._now_us() - after_us
        async for partition in in_turns(partitions):
            if partition.serving and partition.topic.internal:
                await self._forget_of(partition, before_us)

    async def _forget_of(self, partition: Partition, before_us: int) -> None:
        over = [
            key
            for key, known in partition.replica.machine.transactions.items()
            if known.once and known.finished and not known.aborted and known.changed_us <= before_us
        ]
        for first in range(0, len(over), FORGOTTEN_AT_ONCE):
            try:
                keys = tuple(over[first : first + FORGOTTEN_AT_ONCE])
                await partition.ask(Forget(keys), asyncio.get_running_loop().time() + _ATTEMPT_S)
            except TritonMQError as error:
                log.info("%s: %d keys are not forgotten yet: %s", partition.name, len(over) - first, error)
                return
