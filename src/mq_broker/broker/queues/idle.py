"""`idle_ms`: a queue group that no member had open for so long is deleted, once the leaders of all partitions agree.

Each leader knows for how long it has heard of no member, by its own monotonic clock. A new leader begins to count anew,
and so does one that stood still: members could not reach it. The leader of partition 0 asks the others. One that cannot
be asked, or does not know for sure that it still leads, has not agreed. A group that has leases, or has decided what is
not published yet, is in use.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

from mq_broker.broker.host.partition import Partition
from mq_broker.broker.host.shell import Shell
from mq_broker.broker.metadata.topics import Topics
from mq_broker.broker.queues.policy.declared import Declared, Queue
from mq_broker.broker.queues.working import Working
from mq_broker.broker.transactions.coordinator import Transactions
from mq_broker.coordination.interface import TopicSpec
from mq_broker.core.entries import Work
from mq_protocol import mq_pb2 as pb
from mq_protocol.errors import TritonMQError
from mq_protocol.names import check_group_name, check_topic_name, quoted

log = logging.getLogger(__name__)

SLEPT_MS: Final = 5_000
"""A leader that has not looked for so long stood still."""

AGAIN_MS: Final = 10_000
"""A group is not asked about more often."""


@dataclass(slots=True)
class _Watched:
    """A group in one leadership of a partition. `since_ms`: no member was heard of since then. `ask_at_ms`: when the
    other leaders may be asked, if this one is of partition 0."""

    life: int
    idle_ms: int
    epoch: int
    since_ms: int
    ask_at_ms: int = 0
    asking: bool = False

    def is_of(self, queue: Queue, epoch: int) -> bool:
        return (self.life, self.idle_ms, self.epoch) == (queue.life, queue.settings.idle_ms, epoch)


class Idle:
    """Owns since when each group that has an `idle_ms` is idle, in the partitions led here."""

    def __init__(
        self, shell: Shell, topics: Topics, declared: Declared, working: Working, transactions: Transactions
    ) -> None:
        self._shell = shell
        self._topics = topics
        self._declared = declared
        self._working = working
        self._transactions = transactions
        self._watched: dict[tuple[Partition, str], _Watched] = {}
        self._looked_ms = shell.now_ms()

    @staticmethod
    def which(partition: Partition) -> object:
        return partition.topic.spec.queues

    def look(self, partitions: Iterable[Partition]) -> None:
        """See which groups are idle, and ask the other leaders about those that were so for long enough."""
        now_ms = self._shell.now_ms()
        former = {} if self._stood_still(now_ms) else self._watched
        self._looked_ms = now_ms
        self._watched = {}
        for partition in partitions:
            if not partition.serving:
                continue
            epoch = partition.replica.leader_epoch
            for group, queue in self._declared.of(partition).items():
                if not queue.settings.idle_ms:
                    continue
                watched = former.get((partition, group))
                if watched is None or not watched.is_of(queue, epoch):
                    watched = _Watched(queue.life, queue.settings.idle_ms, epoch, now_ms)
                self._watched[partition, group] = watched
                if self._idle_ms(partition, group, now_ms) >= watched.idle_ms and partition.number == 0:
                    self._ask_all(partition, group, watched, now_ms)

    def _stood_still(self, now_ms: int) -> bool:
        return now_ms - self._looked_ms > SLEPT_MS

    def _idle_ms(self, partition: Partition, group: str, now_ms: int) -> int:
        """0 for a group that is not watched in this leadership."""
        watched = self._watched.get((partition, group))
        if watched is None or not partition.serving or partition.replica.leader_epoch != watched.epoch:
            return 0
        used_ms = self._working.led_group(partition, group).used_ms()
        watched.since_ms = max(watched.since_ms, used_ms)
        return now_ms - watched.since_ms

    # ------------------------------------------------------------------ the leader of partition 0

    def _ask_all(self, partition: Partition, group: str, watched: _Watched, now_ms: int) -> None:
        if watched.asking or now_ms < watched.ask_at_ms:
            return
        watched.asking = True
        self._shell.spawn(self._end(partition, group, watched), f"end queue group {group} of {partition.name}")

    async def _end(self, partition: Partition, group: str, watched: _Watched) -> None:
        left_ms = 0
        try:
            left_ms = await self._end_if_all_agree(partition, group, watched)
        except TritonMQError as error:
            log.info(
                "%s: queue group %s is kept, not every leader has agreed: %s", partition.name, quoted(group), error
            )
        finally:
            watched.ask_at_ms = self._shell.now_ms() + max(left_ms, AGAIN_MS)
            watched.asking = False

    async def _end_if_all_agree(self, partition: Partition, group: str, watched: _Watched) -> int:
        """How long to wait at least before they are asked again, in milliseconds."""
        topic = await self._topics.renewed(partition.topic)
        known = topic.spec
        for number in range(topic.partitions):
            request = pb.QueueIdleRequest(
                topic=known.name, topic_id=known.topic_id, partition=number, group=group, life=watched.life
            )
            answer = await self._transactions.ask_leader(
                known.name, number, "QueueIdle", request, pb.QueueIdleResponse, self.queue_idle
            )
            if answer.idle_ms < watched.idle_ms:
                return watched.idle_ms - int(answer.idle_ms)
        edited = await self._topics.edit(known.name, lambda spec: without_idle(spec, known, group))
        if group not in edited.spec.queues:
            log.info(
                "topic %s: queue group %s is deleted: no member had it open for %g s (idle_ms)",
                known.name,
                quoted(group),
                watched.idle_ms / 1000,
            )
        return 0

    # ------------------------------------------------------------------ every leader

    async def queue_idle(self, request: pb.QueueIdleRequest, deadline: float) -> pb.QueueIdleResponse:
        """For how long no member had the group open in the partition, once this broker knows that it leads. 0 for a
        group that is in use, or is not watched here."""
        check_topic_name(request.topic)
        check_group_name(request.group)
        partition = self._shell.leader(await self._topics.meant(request.topic, request.topic_id), request.partition)
        state = partition.replica.machine.work.get(request.group)
        watched = self._watched.get((partition, request.group))
        if state is None or watched is None or not state.life == watched.life == request.life:
            return pb.QueueIdleResponse()
        # That nobody had it open rests on something not being heard: members may be at another leader by now.
        await partition.ask(Work(request.group, state.life, ()), deadline)
        now_ms = self._shell.now_ms()
        if self._stood_still(now_ms):
            return pb.QueueIdleResponse()
        return pb.QueueIdleResponse(idle_ms=max(self._idle_ms(partition, request.group, now_ms), 0))


def without_idle(spec: TopicSpec, known: TopicSpec, group: str) -> TopicSpec:
    """Without the group, unless anything has changed that the leaders were asked about: which life of the group, how
    long it may be idle, how many partitions there are."""
    queue = spec.queues.get(group)
    asked = known.topic_id, known.queues.get(group), len(known.assignment)
    if queue is None or (spec.topic_id, queue, len(spec.assignment)) != asked:
        return spec
    return replace(spec, queues={name: each for name, each in spec.queues.items() if name != group})
