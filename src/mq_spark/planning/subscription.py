"""Which topics and partitions a source reads: a list of topics, a pattern, or partitions one by one.

Pure: whether there are such topics the brokers say.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeAlias

from mq_protocol.errors import InvalidSetting

Assigned: TypeAlias = dict[str, tuple[int, ...]]
"""`{topic: (partition, …)}`, sorted both."""


@dataclass(frozen=True, slots=True)
class Subscription:
    """One of three: `option` is the name under which the user gave it.

    `topics`: those that were named, sorted; none under a pattern. `pattern`: a regular expression (Python's) for whole
    names. `assigned`: the partitions of each topic that are read, and no others.
    """

    option: str
    topics: tuple[str, ...] = ()
    pattern: str | None = None
    assigned: Assigned | None = None

    def matching(self, existing: Iterable[str]) -> tuple[str, ...]:
        """The topics that are meant, given the names of all that exist: under a pattern those that it fits, else those
        named."""
        if self.pattern is None:
            return self.topics
        pattern = re.compile(self.pattern)
        return tuple(sorted(name for name in existing if pattern.fullmatch(name)))

    def covers(self, topic: str, partition: int) -> bool:
        """Whether the partition is meant, if it exists."""
        if self.pattern is not None:
            return re.fullmatch(self.pattern, topic) is not None
        return topic in self.topics and (self.assigned is None or partition in self.assigned[topic])

    def partitions(self, topic: str, count: int) -> tuple[int, ...]:
        """Those of the topic's `count` partitions that are meant. Raises `InvalidSetting` for one that it does not
        have."""
        if self.assigned is None:
            return tuple(range(count))
        for partition in self.assigned[topic]:
            if partition >= count:
                raise InvalidSetting(f"assign names partition {partition} of topic {topic}, which has 0 to {count - 1}")
        return self.assigned[topic]
