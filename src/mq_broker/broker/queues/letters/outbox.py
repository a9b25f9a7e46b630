"""What queue groups have decided is published: outputs of members, and dead letters.

A decision is in the group's outbox from the moment at which its entry is committed. Whoever leads the group's partition
publishes it, and writes `Sent` once all of its partitions have it. A partition is sent the decisions of a group in the
order of their numbers, and one request at a time, since it takes a number below the last one for done. Those that wait
together are one request with the highest number.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from mq_broker.broker.host.shell import Shell
from mq_broker.broker.metadata.topics import Topics
from mq_broker.broker.queues.group.led_group import LedGroup
from mq_broker.broker.queues.group.requests import OwnSteps
from mq_broker.broker.transactions.coordinator import Transactions
from mq_broker.core.work.state import WorkState
from mq_broker.core.work.steps import Sent
from mq_protocol import mq_pb2 as pb
from mq_protocol.errors import (
    CoordinationUnavailable,
    NotLeader,
    StagedBatchMissing,
    TritonMQError,
    UnknownPartition,
    UnknownTopic,
)
from mq_protocol.limits import OUTPUT_BATCHES_MAX
from mq_protocol.names import quoted
from mq_protocol.queues.work_keys import WorkPlace, query_id_of

log = logging.getLogger(__name__)

SENT_AT_ONCE_MAX: Final = 1_000
AGAIN_S: Final = (0.02, 0.05, 0.1, 0.25, 0.5, 1.0)
MISSING_AGAIN_S: Final = 5.0
ALARM_AFTER: Final = 6
"""Attempts that fail one after another, some two seconds, before an operator is told."""


class Missing(Protocol):
    """What is done about a decision whose batches are not staged any more."""

    async def __call__(self, led_group: LedGroup, n: int) -> None: ...


async def nothing(led_group: LedGroup, n: int) -> None:
    """An operator has to look at it."""


@dataclass(frozen=True, slots=True)
class _Waiting:
    n: int
    uuids: tuple[bytes, ...]


@dataclass(slots=True)
class _Lane:
    """What one partition of a topic is to be sent, in order. `alarm`: why it does not get on."""

    topic_id: str
    partition: int
    waiting: deque[_Waiting] = field(default_factory=deque)
    alarm: str = ""

    def first(self, *, alone: bool) -> list[_Waiting]:
        """The first decision, and as many after it as one request may have."""
        chosen: list[_Waiting] = []
        count = 0
        for each in self.waiting:
            count += len(each.uuids)
            if chosen and (alone or count > OUTPUT_BATCHES_MAX):
                break
            chosen.append(each)
        return chosen


@dataclass(slots=True)
class _Group:
    """The outbox of one life of a group, while its partition is led here. `left`: of each decision, how many partitions
    do not have it yet; `sent`: decisions that all have, and the journal does not say so."""

    led_group: LedGroup
    state: WorkState
    highest: int = -1
    left: dict[int, int] = field(default_factory=dict)
    lanes: dict[tuple[str, int], _Lane] = field(default_factory=dict)
    sent: list[int] = field(default_factory=list)
    tasks: set[asyncio.Task[None]] = field(default_factory=set)
    writing: bool = False

    @property
    def over(self) -> bool:
        return (
            self.led_group.closed
            or self.led_group.partition.replica.machine.work.get(self.led_group.group) is not self.state
        )


class Outbox:
    """Owns the publishing of each decision of the queue groups whose partitions are led here."""

    def __init__(self, shell: Shell, topics: Topics, transactions: Transactions) -> None:
        self._shell = shell
        self._topics = topics
        self._transactions = transactions
        self._groups: dict[tuple[str, str], _Group] = {}
        self.missing: Missing = nothing

    def look(self, led_group: LedGroup, state: WorkState) -> None:
        """Take up what is new in the group's outbox. Costs what is new."""
        name = led_group.partition.name, led_group.group
        group = self._groups.get(name)
        if group is None or group.led_group is not led_group or group.state is not state:
            for task in group.tasks if group is not None else ():
                task.cancel()
            self._groups = {known: each for known, each in self._groups.items() if not each.over}
            group = self._groups[name] = _Group(led_group, state)
        new = []
        for n in reversed(state.outbox):
            if n <= group.highest:
                break
            new.append(n)
        for n in reversed(new):
            group.highest = n
            self._take(group, n)

    def alarm(self, partition: str, group: str) -> str:
        """Why what the group has decided does not get on; empty if it does."""
        known = self._groups.get((partition, group))
        if known is None or known.over:
            return ""
        return next((lane.alarm for lane in known.lanes.values() if lane.alarm), "")

    def _take(self, group: _Group, n: int) -> None:
        lines = group.state.outbox[n].lines
        group.left[n] = len(lines)
        if not lines:
            self._is_sent(group, n)
        for line in lines:
            place = line.topic_id, line.partition
            lane = group.lanes.get(place)
            if lane is None:
                lane = group.lanes[place] = _Lane(*place)
                self._spawn(group, self._run(group, lane), "publish")
            lane.waiting.append(_Waiting(n, line.uuids))

    def _spawn(self, group: _Group, work: Coroutine[Any, Any, None], what: str) -> None:
        task = self._shell.spawn(work, f"{what} of {group.led_group.group} of {group.led_group.partition.name}")
        group.tasks.add(task)
        task.add_done_callback(group.tasks.discard)

    # ------------------------------------------------------------------ one partition

    async def _run(self, group: _Group, lane: _Lane) -> None:
        """Until nothing waits for that partition."""
        attempt, alone = 0, False
        while lane.waiting and not group.over:
            chosen = lane.first(alone=alone)
            try:
                await self._publish(group, lane, chosen)
            except StagedBatchMissing as error:
                if len(chosen) > 1:
                    alone = True  # the others need not wait for the one that is missing
                    continue
                self._tell(group, lane, f"what was decided as number {chosen[0].n} is not there any more: {error}")
                await self.missing(group.led_group, chosen[0].n)
                await asyncio.sleep(MISSING_AGAIN_S)
            except TritonMQError as error:
                log.debug("publish %s-%d, attempt %d: %s", lane.topic_id, lane.partition, attempt, error)
                attempt += 1
                if attempt >= ALARM_AFTER:
                    self._tell(group, lane, str(error))
                await asyncio.sleep(AGAIN_S[min(attempt, len(AGAIN_S)) - 1])
            else:
                attempt, alone, lane.alarm = 0, False, ""
                for each in chosen:
                    lane.waiting.popleft()
                    group.left[each.n] -= 1
                    if not group.left[each.n]:
                        self._is_sent(group, each.n)
        if group.lanes.get((lane.topic_id, lane.partition)) is lane:
            del group.lanes[lane.topic_id, lane.partition]

    async def _publish(self, group: _Group, lane: _Lane, chosen: list[_Waiting]) -> None:
        """One attempt. A topic that is there no more has nothing to publish: that counts as done."""
        partition = group.led_group.partition
        topic = self._topics.with_id(lane.topic_id)
        try:
            if topic is None:
                raise UnknownTopic(f"there is no topic of the id {lane.topic_id}")
            place = WorkPlace(partition.topic.spec.topic_id, partition.number, group.led_group.group)
            name = topic.spec.name
            request = pb.PublishRequest(
                topic=name,
                partition=lane.partition,
                key=pb.TransactionKey(query_id=query_id_of(place), sink=name),
                batch_id=chosen[-1].n,
                uuids=[uuid for each in chosen for uuid in each.uuids],
                topic_id=lane.topic_id,
            )
            publish = self._transactions.publish
            await self._transactions.ask_leader(name, lane.partition, "Publish", request, pb.PublishResponse, publish)
        except (UnknownTopic, UnknownPartition) as error:
            if not await self._topics.is_gone(lane.topic_id):
                raise CoordinationUnavailable(f"{error}: its leader has not heard of it yet") from error
            log.warning(
                "%s: %d batches that queue group %s had decided went with the topic that they were staged in: %s",
                partition.name,
                sum(len(each.uuids) for each in chosen),
                quoted(group.led_group.group),
                error,
            )

    def _tell(self, group: _Group, lane: _Lane, why: str) -> None:
        if not lane.alarm:
            log.error(
                "%s: what queue group %s has decided is not published: %s",
                group.led_group.partition.name,
                quoted(group.led_group.group),
                why,
            )
        lane.alarm = why

    # ------------------------------------------------------------------ the journal

    def _is_sent(self, group: _Group, n: int) -> None:
        del group.left[n]
        group.sent.append(n)
        if not group.writing:
            group.writing = True
            self._spawn(group, self._write(group), "note what was published")

    async def _write(self, group: _Group) -> None:
        """Until the journal says of each decision that it was published."""
        try:
            while group.sent and not group.over:
                some = sorted(group.sent)[:SENT_AT_ONCE_MAX]
                own = OwnSteps(group.state.life, tuple(map(Sent, some)))
                group.led_group.add(own)
                try:
                    await own.written
                except NotLeader:
                    return
                except TritonMQError as error:
                    log.debug("%s: %s", group.led_group.partition.name, error)
                    await asyncio.sleep(AGAIN_S[-1])
                else:
                    gone = set(some)
                    group.sent = [n for n in group.sent if n not in gone]
        finally:
            group.writing = False
