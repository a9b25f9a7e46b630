"""Who leads a partition now, as its state node says: asked where the broker that a client means is of no use."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from typing import Final

from mq_broker.broker.metadata.brokers import Cluster
from mq_broker.broker.metadata.topics import Topics
from mq_broker.coordination.service import CoordinationService
from mq_protocol.errors import CoordinationUnavailable, InvalidTopicName, UnknownTopic

LOOK_S: Final = 0.1
"""All who wait for one partition share a look, and there are no more looks at it than this allows."""

PLACES_MAX: Final = 4_096

_Read = tuple[float, "asyncio.Task[int]"]


class Leaders:
    """Owns the last looks, by partition."""

    def __init__(self, cluster: Cluster, topics: Topics, coordination: CoordinationService) -> None:
        self._cluster = cluster
        self._topics = topics
        self._coordination = coordination
        self._looks: OrderedDict[tuple[str, int], _Read] = OrderedDict()

    async def of(self, name: str, partition: int) -> int | None:
        """The broker that leads; 0 if none does, or nobody can say. None: there is no such partition."""
        try:
            topic = self._topics.find(name)
            if topic is None or partition >= topic.partitions:  # it may have been made, or grown, a moment ago
                topic = await self._topics.looked_for(name)
        except (UnknownTopic, InvalidTopicName):
            return None
        except CoordinationUnavailable:
            return 0
        if not 0 <= partition < topic.partitions:
            return None
        place, now = (topic.spec.topic_id, partition), asyncio.get_running_loop().time()
        looked = self._looks.get(place)
        if looked is None or now - looked[0] >= LOOK_S:
            looked = self._looks[place] = now, asyncio.create_task(self._look(*place))
            self._looks.move_to_end(place)
            if len(self._looks) > PLACES_MAX:
                self._looks.popitem(last=False)
        return await asyncio.shield(looked[1])

    async def _look(self, topic_id: str, partition: int) -> int:
        try:
            found = await self._coordination.read_state(topic_id, partition)
        except CoordinationUnavailable:
            return 0
        leader = None if found is None else found[1].leader
        if leader is None or not self._cluster.is_live(leader.broker, leader.incarnation):
            return 0
        return leader.broker
