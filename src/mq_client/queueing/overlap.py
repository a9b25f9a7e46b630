"""What other queue groups of a topic have settled, and one group has still to do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Final, TypeAlias

from mq_client.cluster.connection import Connection
from mq_client.cluster.deadline import Deadline
from mq_client.cluster.requests import ask_offsets
from mq_client.errors import UnknownQueue
from mq_client.queueing.administration import describe, list_queues, runs
from mq_protocol import mq_pb2 as pb

Ranges: TypeAlias = Sequence[tuple[int, int]]
"""Of offsets, each from its first to before its second number, in order and apart."""

RUNS_MAX: Final = 10_000
"""So many runs of a group are looked at in each partition: of a larger group the count is about right."""


def settled_by_others(
    connection: Connection, topic: str, group: str, ends: Mapping[int, int], deadline: Deadline
) -> dict[str, int]:
    """How many records that are still kept, and lie below `ends`, each other group has settled, of those that `group`
    has not. Groups with none are left out. A group that is not declared has settled none."""
    others = [each.group for each in list_queues(connection, topic, deadline) if each.group != group]
    if not others:
        return {}
    kept = {
        partition: (each.log_start_offset, ends[partition])
        for partition, each in ask_offsets(connection, topic, deadline).items()
        if partition in ends
    }
    found: dict[str, int] = {}
    for other in others:
        try:
            told = describe(connection, topic, other, deadline).partitions
        except UnknownQueue:  # deleted meanwhile
            continue
        for each in told:
            if not each.accepted or each.partition not in kept:
                continue
            span = kept[each.partition]
            ours = _unsettled(connection, topic, group, each.partition, span, deadline)
            theirs = _unsettled(connection, topic, other, each.partition, span, deadline)
            # A group that began late looks as if it had settled what was before.
            count = min(each.accepted, length(ours) - length(common(ours, theirs)))
            if count:
                found[other] = found.get(other, 0) + count
    return found


def _unsettled(
    connection: Connection, topic: str, group: str, partition: int, span: tuple[int, int], deadline: Deadline
) -> list[tuple[int, int]]:
    try:
        told = islice(runs(connection, topic, group, partition, pb.RECORD_ANY, deadline), RUNS_MAX)
        return common([(run.first, run.end) for run in told], [span])
    except UnknownQueue:
        return [span]


def common(first: Ranges, second: Ranges) -> list[tuple[int, int]]:
    """The offsets that are in both."""
    found: list[tuple[int, int]] = []
    at = other = 0
    while at < len(first) and other < len(second):
        low, high = max(first[at][0], second[other][0]), min(first[at][1], second[other][1])
        if low < high:
            found.append((low, high))
        if first[at][1] < second[other][1]:
            at += 1
        else:
            other += 1
    return found


def length(ranges: Ranges) -> int:
    return sum(end - first for first, end in ranges)
