"""A group reads a topic as a stream, works it off as a queue, or is a broadcast group: never two of these."""

from __future__ import annotations

from collections.abc import Collection

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


def check_is_no_stream(partition: Partition, group: str, members: Collection[str]) -> None:
    """Raises `WrongGroupKind` for a group that reads the partition as a stream. `members`: those that do so now: the
    cursor of the first may not be committed yet."""
    if members or group in partition.replica.machine.cursors:
        raise WrongGroupKind(
            f"group {group!r} reads {partition.name} as a stream and has a cursor there: choose another name for a "
            "broadcast group, or delete that group"
        )
