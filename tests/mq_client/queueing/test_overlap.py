"""What other groups have settled, and what is in two lists of ranges of offsets."""

from __future__ import annotations

import random
from typing import Any

import pytest

from mq_client.cluster.deadline import Deadline
from mq_client.errors import UnknownQueue
from mq_client.queueing.overlap import Ranges, common, settled_by_others
from mq_protocol import mq_pb2 as pb
from tests.mq_client.cluster.administrating import answers, offsets, say
from tests.mq_client.cluster.scripted import Clock, Scripted, topic_info


def test_the_offsets_of_both_are_those_of_the_sets() -> None:
    chance = random.Random(7)

    def ranges() -> list[tuple[int, int]]:
        ends = sorted(chance.sample(range(60), 2 * chance.randint(0, 9)))
        return list(zip(ends[::2], ends[1::2], strict=True))

    def offsets(found: Ranges) -> set[int]:
        return {offset for start, end in found for offset in range(start, end)}

    for _ in range(200):
        first, second = ranges(), ranges()
        assert offsets(common(first, second)) == offsets(first) & offsets(second)


def settled(monkeypatch: pytest.MonkeyPatch, group: str, groups: dict[str, tuple[int, list[tuple[int, int]]]]) -> Any:
    """By others than `group`, of a partition that keeps the offsets 10 to 99, below 50. `groups`: what each one has
    accepted, and its unsettled ranges. One that is listed and has no ranges was deleted meanwhile."""
    scripted = Scripted(Clock())
    monkeypatch.setattr("mq_client.cluster.deadline.time", scripted.clock)
    say(scripted, topic_info(1))
    scripted.learn(topic_info(1))
    offsets(scripted, (10, 100, 0))
    listed = [pb.QueueInfo(topic="t", group=name, life=1) for name in groups]
    answers(scripted, "Queues", pb.QueuesResponse(queues=listed))

    def describe(_: str, request: pb.DescribeQueueRequest) -> pb.DescribeQueueResponse:
        accepted, ranges = groups.get(request.group, (0, []))
        if not ranges:
            raise UnknownQueue(request.group)
        found = pb.QueuePartition(partition=0, life=1, accepted=accepted)
        found.runs.extend(pb.QueueRun(first=first, end=end) for first, end in ranges)
        return pb.DescribeQueueResponse(queue=pb.QueueInfo(topic="t", group=request.group, life=1), partitions=[found])

    scripted.answers["DescribeQueue"] = describe
    return settled_by_others(scripted, "t", group, {0: 50}, Deadline(5_000))


def test_of_what_a_group_has_still_to_do_it_is_counted_what_others_have_settled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    groups = {
        "mine": (30, [(10, 20), (40, 100)]),
        "same": (30, [(10, 20), (40, 100)]),
        "more": (90, [(15, 20), (49, 100)]),
        "ahead": (90, [(10, 20), (40, 50), (90, 100)]),
        "late": (0, [(100, 100)]),
        "gone": (9, []),
    }
    assert settled(monkeypatch, "mine", groups) == {"more": 5 + 9}
    assert settled(monkeypatch, "new", groups) == {"mine": 20, "same": 20, "more": 34, "ahead": 20}, (
        "of the 40 that are kept"
    )
    assert settled(monkeypatch, "mine", {"mine": groups["mine"]}) == {}


def test_no_group_has_settled_more_than_it_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was before its beginning counts as settled for it."""
    assert settled(monkeypatch, "mine", {"mine": (0, [(10, 100)]), "late": (3, [(40, 100)])}) == {"late": 3}
