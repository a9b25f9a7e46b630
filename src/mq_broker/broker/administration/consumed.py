"""`retention=consumed`: what every group of the topic is done with may go, and nothing where there is no group.

A queue group is done with what it has settled, a group of consumers or a Spark query with what lies before its cursor.
A group may be in a partition before it has a cursor there: if partitions were added while it was away. So the leader of
such a partition asks the leader of partition 0 which groups the topic has. It drops nothing until it has the answer.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Container
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from mq_broker.broker.host.partition import Partition
from mq_broker.broker.host.shell import Shell
from mq_broker.broker.metadata.topics import Topics
from mq_broker.core.entries import Work
from mq_protocol import mq_pb2 as pb
from mq_protocol.errors import TritonMQError
from mq_protocol.names import RetentionPolicy, check_topic_name

log = logging.getLogger(__name__)

ASK_AGAIN_S: Final = 10.0
"""For so long an answer of the leader of partition 0 counts. The topic has such a leader to ask as often at most."""

AskLeader = Callable[..., Awaitable[Any]]
"""`Transactions.ask_leader`: one attempt at a partition's leader, here or elsewhere."""


class Needed(NamedTuple):
    """The first record that some group is not done with, and that group; the log's end and "" if there is none."""

    offset: int
    group: str


@dataclass(slots=True)
class _Told:
    """What was said last of the groups of a topic, and when (the loop's clock). None: nothing yet."""

    at: float
    groups: frozenset[str] | None = None
    asking: bool = False


class Consumed:
    """Owns what the leaders of partitions 0 have said."""

    def __init__(self, shell: Shell, topics: Topics, ask_leader: AskLeader) -> None:
        self._shell = shell
        self._topics = topics
        self._ask_leader = ask_leader
        self._told: dict[str, _Told] = {}

    def needed(self, partition: Partition) -> Needed | None:
        """What of this partition is still needed; None if nothing may go by it: the topic is set otherwise, has no
        group, or which groups it has is not known yet."""
        if partition.topic.settings.retention is not RetentionPolicy.CONSUMED or not partition.serving:
            return None
        elsewhere = frozenset[str]() if partition.number == 0 else self._groups(partition)
        return None if elsewhere is None else first_needed(partition, elsewhere)

    def _groups(self, partition: Partition) -> frozenset[str] | None:
        """The groups that have a cursor in partition 0, as it was told not long ago."""
        now = asyncio.get_running_loop().time()
        topic_id = partition.topic.spec.topic_id
        told = self._told.setdefault(topic_id, _Told(now - ASK_AGAIN_S))
        if now - told.at >= ASK_AGAIN_S and not told.asking:
            told.asking = True
            self._shell.spawn(self._ask(partition, told), f"ask for the groups of {partition.topic.spec.name}")
        return told.groups

    async def _ask(self, partition: Partition, told: _Told) -> None:
        spec = partition.topic.spec
        request = pb.StreamGroupsRequest(topic=spec.name, topic_id=spec.topic_id)
        try:
            answer = await self._ask_leader(
                spec.name, 0, "StreamGroups", request, pb.StreamGroupsResponse, self.stream_groups
            )
            told.groups = frozenset(answer.groups)
        except TritonMQError as error:
            told.groups = None
            log.info("%s: nothing is dropped as consumed, its groups are not known: %s", partition.name, error)
        finally:
            told.at, told.asking = asyncio.get_running_loop().time(), False

    def keep(self, topic_ids: Container[str]) -> None:
        """Forget what was said of other topics."""
        self._told = {topic_id: told for topic_id, told in self._told.items() if topic_id in topic_ids}

    async def stream_groups(self, request: pb.StreamGroupsRequest, deadline: float) -> pb.StreamGroupsResponse:
        """The groups that have a cursor in the topic's first partition, once this broker knows that it leads there."""
        check_topic_name(request.topic)
        partition = self._shell.leader(await self._topics.meant(request.topic, request.topic_id), 0)
        groups = sorted(partition.replica.machine.cursors)
        # That a group is not among them rests on something not being here.
        await partition.ask(Work("", 1, ()), deadline)
        return pb.StreamGroupsResponse(groups=groups)


def first_needed(partition: Partition, elsewhere: frozenset[str]) -> Needed | None:
    """The first record that some group is not done with; None if the topic has no group. `elsewhere`: groups that have
    a cursor in another partition."""
    machine, queues = partition.replica.machine, partition.topic.spec.queues
    needed: list[Needed] = [Needed(cursor.offset, group) for group, cursor in machine.cursors.items()]
    needed += [Needed(state.needed_from(), group) for group, state in machine.work.items()]
    not_begun = [
        group for group, queue in queues.items() if group not in machine.work or machine.work[group].life < queue.life
    ]
    not_begun += elsewhere - machine.cursors.keys()
    needed += [Needed(machine.log_start_offset, group) for group in not_begun]
    if not needed:
        return None
    first, end = min(needed), machine.next_offset
    return first if first.offset < end else Needed(end, "")
