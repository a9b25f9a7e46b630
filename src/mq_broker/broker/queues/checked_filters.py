"""The filters that members send with each request: whether they fit the topic."""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

import pyarrow as pa

from mq_broker.broker.metadata.topics import Topic, Topics
from mq_protocol.errors import InvalidSetting
from mq_protocol.queues.columns import bound_filter

KNOWN_MAX: Final = 256


class CheckedFilters:
    """Owns which filters were found good last, so that not each request costs the reading of its filter."""

    def __init__(self, topics: Topics) -> None:
        self._topics = topics
        self._known: OrderedDict[tuple[str, str], pa.Schema] = OrderedDict()

    async def check(self, topic: Topic, text: str) -> None:
        """Raises `InvalidSetting` that says what is wrong."""
        name = topic.spec.topic_id, text
        if self._known.get(name) is topic.schema:
            self._known.move_to_end(name)
            return
        try:
            bound_filter(text, topic.schema)
        except InvalidSetting:
            newer = await self._topics.renewed(topic)  # the member may have heard of new columns before this broker
            if newer is topic:
                raise
            bound_filter(text, newer.schema)
            return
        self._known[name] = topic.schema
        if len(self._known) > KNOWN_MAX:
            self._known.popitem(last=False)
