"""Leaders begin the lives of queue groups that are declared, and end those of groups that are not declared any more."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection
from typing import Final

from mq_broker.broker.host.partition import Partition
from mq_broker.broker.host.shell import Shell
from mq_broker.broker.metadata.topics import Topics
from mq_broker.broker.queues.policy.declared import Declared, Queue
from mq_broker.broker.queues.working import Working
from mq_broker.core.work.steps import Begin, End, Step
from mq_protocol.errors import OutcomeUnknown, TritonMQError
from mq_protocol.limits import REQUEST_TIMEOUT_MS
from mq_protocol.names import quoted

log = logging.getLogger(__name__)

AT_ONCE: Final = 100
"""Partitions whose groups are begun or ended side by side."""

AGAIN_S: Final = 1.0
"""After an entry was refused for now."""


class Beginning:
    """Owns which partitions are to be looked at: there is something to do once `hint` is set."""

    def __init__(self, shell: Shell, topics: Topics, declared: Declared, working: Working) -> None:
        self._shell = shell
        self._topics = topics
        self._declared = declared
        self._working = working
        self._due: dict[Partition, None] = {}
        self._turns: set[Partition] = set()
        self._room = asyncio.Semaphore(AT_ONCE)
        self.hint = asyncio.Event()
        shell.on_role.append(self._role_changed)

    def topics_changed(self, changed: Collection[str] | None = None) -> None:
        """Look at the partitions of those topics (None: of all): few have queue groups, and only those cost a read."""
        for partition in self._shell.partitions_of(changed):
            self._role_changed(partition)

    def _role_changed(self, partition: Partition) -> None:
        if partition.topic.spec.queues or partition.replica.machine.work:
            self._due[partition] = None
            self.hint.set()

    def look(self) -> None:
        """Begin a turn of each that has none."""
        for partition in [each for each in self._due if each not in self._turns]:
            del self._due[partition]
            self._turns.add(partition)
            self._shell.spawn(self._turn(partition), f"queue groups of {partition.name}")

    async def _turn(self, partition: Partition) -> None:
        """One that is held up holds up no other."""
        async with self._room:
            done = await self._look_at(partition)
        self._turns.discard(partition)
        if not done:
            self._due[partition] = None
            asyncio.get_running_loop().call_later(AGAIN_S, self.hint.set)
        elif self._due:
            self.hint.set()

    async def _look_at(self, partition: Partition) -> bool:
        """Whether nothing is left to do here."""
        if partition.closed or not partition.replica.leading:
            return True
        if not partition.serving:
            return False
        try:
            for queue in self._missing(partition):
                await self._begin(partition, queue)
            for group, life in self._over(partition):
                if await self._is_gone(partition, group, life):
                    await self._end(partition, group, life)
        except TritonMQError as error:
            log.info("%s: its queue groups could not be begun or ended: %s", partition.name, error)
            return False
        return True

    def _missing(self, partition: Partition) -> list[Queue]:
        known = partition.replica.machine.work
        return [
            queue
            for group, queue in self._declared.of(partition).items()
            if group not in known or known[group].life < queue.life
        ]

    def _over(self, partition: Partition) -> list[tuple[str, int]]:
        declared = partition.topic.spec.queues
        return [(group, state.life) for group, state in partition.replica.machine.work.items() if group not in declared]

    async def _is_gone(self, partition: Partition, group: str, life: int) -> bool:
        """Whether the group is declared no more, as the topic stands now. What this broker has read may be older than
        the life that its journal has: to end that would be to forget what is settled."""
        spec = (await self._topics.renewed(partition.topic)).spec
        declared = spec.queues.get(group)
        return spec.topic_id == partition.topic.spec.topic_id and (declared is None or declared.life > life)

    async def _begin(self, partition: Partition, queue: Queue) -> None:
        start = partition.index.find_time(queue.start_us) if queue.start_us else 0
        log.info("%s: queue group %s begins at offset %d", partition.name, quoted(queue.group), start)
        begin = Begin(start, partition.replica.identity.recovery, partition.index.lost_from(start))
        await self._write(partition, queue.group, queue.life, begin)

    async def _end(self, partition: Partition, group: str, life: int) -> None:
        log.info("%s: queue group %s ends", partition.name, quoted(group))
        await self._write(partition, group, life, End())

    async def _write(self, partition: Partition, group: str, life: int, step: Step) -> None:
        try:
            async with asyncio.timeout(REQUEST_TIMEOUT_MS / 1000):
                await self._working.add_steps(partition, group, life, (step,))
        except TimeoutError:
            raise OutcomeUnknown(f"{partition.name} did not commit this in time") from None
