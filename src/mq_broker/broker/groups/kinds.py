"""A group reads a topic as a stream or works it off as a queue, never both."""

from __future__ import annotations

from mq_broker.broker.host.partition import Partition
from mq_protocol.errors import WrongGroupKind


def check_is_no_queue(partition: Partition, group: str) -> None:
    """Raises `WrongGroupKind` for a queue group of the partition's topic."""
    if group in partition.topic.spec.queues:
        name = partition.topic.spec.name
        raise WrongGroupKind(
            f"group {group!r} of topic {name} is a queue group, and has no place in the log: work it off (Queue, "
            f"`tritonmq queue describe {name} {group}`), or read the topic in another group"
        )
