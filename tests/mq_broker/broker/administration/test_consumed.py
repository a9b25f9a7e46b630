"""`retention=consumed`: what all groups of a topic are done with is dropped, and nothing else is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mq_broker.broker.administration import consumed
from mq_broker.broker.administration.consumed import Consumed, Needed, first_needed
from mq_broker.coordination.interface import QueueSpec
from mq_broker.core.machine.state import Cursor
from mq_broker.core.work.steps import Accept, Begin, Reason, Send, Sent
from mq_protocol import mq_pb2 as pb
from mq_protocol.errors import InvalidSetting, NotLeader, OffsetOutOfRange
from tests.coroutines import virtual_time
from tests.mq_broker.broker.administration.test_retention import ROWS, fill, first_segments, held, start_of
from tests.mq_broker.broker.administration.test_trimming import Part
from tests.mq_broker.broker.cluster import Broker, standalone, until
from tests.mq_broker.broker.queues.members import Member
from tests.mq_broker.broker.queues.partitions import Around
from tests.mq_broker.broker.test_three_brokers import three
from tests.often import look_every
from tests.virtual.world import in_virtual_time


class Kept(Part):
    """Partition 1 of a topic with `retention=consumed`: fifty records in five batches. `cursors`: of stream groups."""

    def __init__(self, number: int = 1, **cursors: int) -> None:
        super().__init__(number=number, retention="consumed")
        self.machine.cursors.update({group: Cursor(offset, "consumer", 0) for group, offset in cursors.items()})


def needed(part: Kept, *elsewhere: str) -> Needed | None:
    each: Any = part
    return first_needed(each, frozenset(elsewhere))


def test_without_any_group_nothing_is_consumed() -> None:
    assert needed(Kept()) is None


def test_the_group_that_is_behind_most_says_what_is_needed() -> None:
    part = Kept(quick=40, slow=12)
    assert needed(part) == (12, "slow")
    part.apply("jobs", 1, Begin(5))
    assert needed(part) == (5, "jobs")
    part.apply("jobs", 1, Accept(((5, 45),)))
    assert needed(part) == (12, "slow")
    part.machine.cursors.pop("slow")
    assert needed(part) == (40, "quick")


def test_once_all_are_at_the_end_nobody_is_waited_for() -> None:
    part = Kept(quick=50)
    part.apply("jobs", 1, Begin(50))
    assert needed(part) == (50, "")


def test_a_record_is_needed_until_its_dead_letter_is_published() -> None:
    part = Kept()
    part.apply("jobs", 1, Begin(0), Send(((20, 21),), Reason.REJECTED, 1, ()), Accept(((0, 20), (21, 50))))
    assert needed(part) == (20, "jobs")
    part.apply("jobs", 1, Sent(1))
    assert needed(part) == (50, "")


def test_a_queue_group_that_has_not_begun_here_needs_all_that_there_is() -> None:
    part = Kept(quick=50)
    part.declare(jobs=QueueSpec(2, 17))
    assert needed(part) == (0, "jobs")
    part.apply("jobs", 1, Begin(50))
    assert needed(part) == (0, "jobs"), "that was a former one of its name"
    part.apply("jobs", 2, Begin(50))
    assert needed(part) == (50, "")


def test_a_group_that_has_a_cursor_elsewhere_and_none_here_needs_all_that_there_is() -> None:
    part = Kept(quick=50)
    assert needed(part, "quick") == (50, "")
    assert needed(part, "away", "quick") == (0, "away")


def test_a_leader_that_does_not_know_whether_it_still_leads_says_nothing_of_groups() -> None:
    first = Kept(0, quick=30, slow=10)
    around: Any = Around(first.topic)
    around.leds = [first]
    ours = Consumed(around, around, around)
    request = pb.StreamGroupsRequest(topic="t", topic_id=first.topic.spec.topic_id)
    assert list(in_virtual_time(ours.stream_groups(request, 5.0)).groups) == ["quick", "slow"]
    first.refuses = NotLeader("another broker leads")
    with pytest.raises(NotLeader):
        in_virtual_time(ours.stream_groups(request, 5.0))


# ---------------------------------------------------------------- real brokers


@pytest.fixture
def checked_often(monkeypatch: pytest.MonkeyPatch) -> None:
    look_every(monkeypatch, retention=0.1)
    monkeypatch.setattr(consumed, "ASK_AGAIN_S", 0.2)


async def move(broker: Broker, group: str, offset: int, partition: int = 0) -> None:
    position = pb.CursorPosition(topic="t", partition=partition, offset=offset)
    request = pb.MoveCursorsRequest(group=group, positions=[position], reset=True)
    [answer] = (await broker.ask("MoveCursors", request)).partitions
    assert not answer.HasField("error"), answer


async def held_by(broker: Broker) -> str:
    answer = await broker.ask("ListOffsets", pb.ListOffsetsRequest(topic="t", partitions=[0]))
    return str(answer.partitions[0].held_by)


@virtual_time
async def test_journal_files_go_once_every_group_is_done_with_them_and_a_leader_that_dies_changes_nothing(
    tmp_path: Path, checked_often: None
) -> None:
    async with three(tmp_path) as cluster:
        info = await cluster[1].create_topic("t", replicas=3, segment_bytes_max="65536", retention="consumed")
        await cluster[1].ask("AlterQueue", pb.AlterQueueRequest(topic="t", group="g"))
        leader = await cluster.leader("t", at=1)
        await move(cluster[leader], "slow", 0)
        await fill(cluster[leader], 0, 6)
        member = Member(cluster[leader])
        for batch in range(6):
            lent = await member.lease(ROWS)
            await member.ack(lent.lease, *lent.ranges)
            assert list(lent.ranges) == [batch * ROWS, ROWS]

        async def waits() -> bool:
            return await held_by(cluster[leader]) == "slow"

        await until(waits)
        assert await held(cluster[leader], 0, 6 * ROWS) == list(range(6 * ROWS))
        await move(cluster[leader], "slow", 2 * ROWS + 1)

        async def trimmed(at: int, to: int) -> bool:
            return await start_of(cluster[at]) == to

        await until(lambda: trimmed(leader, 2 * ROWS))
        await cluster[leader].abandon()
        heir = await cluster.leader("t", at=1 + leader % 3, not_=leader)
        await until(lambda: trimmed(heir, 2 * ROWS))
        assert await held(cluster[heir], 2 * ROWS, 6 * ROWS) == list(range(2 * ROWS, 6 * ROWS))
        await cluster[leader].start()
        await until(lambda: cluster[heir].end("t"))
        await move(cluster[heir], "slow", 6 * ROWS)
        await until(lambda: trimmed(heir, 6 * ROWS))

        async def shortened() -> bool:
            return all(first > 5 for first in first_segments(tmp_path, info.topic_id).values())

        await until(shortened)
        assert await held_by(cluster[heir]) == ""
        assert (await cluster[heir].produce("t", 1)).base_offset == 6 * ROWS


@virtual_time
async def test_a_partition_that_is_added_keeps_its_records_for_a_group_that_was_away(
    tmp_path: Path, checked_often: None
) -> None:
    async with standalone(tmp_path) as broker:
        await broker.create_topic("t", retention="consumed")
        await broker.produce("t", 1)
        for group in ("present", "away"):
            await move(broker, group, 1)

        async def dropped(partition: int) -> bool:
            with_partition = pb.ListOffsetsRequest(topic="t", partitions=[partition])
            return bool((await broker.ask("ListOffsets", with_partition)).partitions[0].log_start_offset)

        await until(lambda: dropped(0))
        await broker.ask("AlterTopic", pb.AlterTopicRequest(name="t", partitions=2))
        await broker.produce("t", 2, 3, partition=1)
        await move(broker, "present", 2, 1)
        await broker.produce("t", 4)
        for group in ("present", "away"):
            await move(broker, group, 2)

        async def gone() -> bool:
            try:
                await broker.fetch("t", 1, 2)
            except OffsetOutOfRange:
                return True
            return False

        await until(gone)
        assert not await dropped(1)
        await move(broker, "away", 2, 1)
        await until(lambda: dropped(1))


@virtual_time
async def test_a_word_that_retention_does_not_know_is_refused_with_the_nearest_one(tmp_path: Path) -> None:
    async with standalone(tmp_path) as broker:
        with pytest.raises(InvalidSetting, match=r"did you mean 'consumed'\?.*limits or consumed"):
            await broker.create_topic("t", retention="consume")
