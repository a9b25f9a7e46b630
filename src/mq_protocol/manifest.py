"""A line of a manifest, as the sink's tasks and driver, the client, the coordinator and its journal all know it. Pure:
`manifest_lines.py` has it as protobuf."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple


class StagedPart(NamedTuple):
    """The staged batches of one partition, in the order in which they are to be published. UUIDs are 16 bytes.
    `topic_id` tells the topic that they were staged in from one made later under its name (trap 29); empty if it is not
    to be checked."""

    topic: str
    partition: int
    uuids: tuple[bytes, ...]
    row_count: int
    topic_id: str = ""


def by_partition(manifest: Iterable[StagedPart]) -> list[StagedPart]:
    """One line a partition, with the batches of all its lines in their order: it publishes everything of a micro-batch
    at once, or nothing."""
    parts: dict[tuple[str, int, str], list[StagedPart]] = {}
    for line in manifest:
        parts.setdefault((line.topic, line.partition, line.topic_id), []).append(line)
    return [
        StagedPart(
            topic,
            partition,
            tuple(uuid for line in lines for uuid in line.uuids),
            sum(line.row_count for line in lines),
            topic_id,
        )
        for (topic, partition, topic_id), lines in parts.items()
    ]
