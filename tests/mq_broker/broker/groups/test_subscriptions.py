"""Subscriptions: pushed as they commit, within credit; groups share partitions and keep their cursor."""

from __future__ import annotations

from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from mq_broker.broker.groups import sharing
from mq_broker.core.machine import admission
from mq_protocol import mq_pb2 as pb
from mq_protocol.errors import InvalidRequest, TooManyGroups, TooManyMembers
from mq_protocol.wire.error_messages import from_wire
from tests.coroutines import virtual_time
from tests.mq_broker.broker.cluster import Broker, standalone, until

MEMBER = {"member_id": "a", "member_key": b"k" * 16}


@virtual_time
async def test_what_commits_is_pushed(tmp_path: Path) -> None:
    async with standalone(tmp_path) as broker:
        await broker.create_topic("t", partitions=2)
        await broker.produce("t", 1)
        async with broker.subscribing() as earliest, broker.subscribing() as latest:
            await earliest.open("t", (0, 1), earliest=True)
            await latest.open("t", (0, 1), latest=True)
            assert [(o.partition, o.offset, o.active) for o in await latest.read_opened(2)] == [
                (0, 1, True),
                (1, 0, True),
            ]
            assert await earliest.read_numbers(1) == [1]
            await broker.produce("t", 2, partition=1)
            await broker.produce("t", 3)
            assert await earliest.read_numbers(3) == [1, 2, 3]
            assert await latest.read_numbers(2) == [2, 3]
            assert [(b.topic, b.partition, b.base_offset) for b, _ in latest.batches] == [("t", 1, 0), ("t", 0, 1)]


@virtual_time
async def test_a_topic_that_was_made_again_is_not_gone_on_with_where_the_former_was_left(tmp_path: Path) -> None:
    async with standalone(tmp_path) as broker:
        former = await broker.create_topic("t")
        await broker.ask("DeleteTopic", pb.DeleteTopicRequest(name="t"))
        again = await broker.create_topic("t")
        await broker.produce("t", 0, 1, 2)
        async with broker.subscribing() as subscription:
            for topic_id in (former.topic_id, again.topic_id):
                wanted = pb.SubscribePartition(topic="t", partition=0, offset=2, topic_id=topic_id)
                await subscription.say(open=pb.SubscribeOpen(partitions=[wanted], group="g", **MEMBER))
            refused, opened = await subscription.read_opened(2)
            assert refused.error.code == pb.UNKNOWN_TOPIC
            assert (opened.offset, opened.active) == (2, True)


@virtual_time
async def test_a_groups_cursor_is_kept_over_a_restart(tmp_path: Path) -> None:
    async with standalone(tmp_path) as broker:
        await broker.create_topic("t")
        for n in range(3):
            await broker.produce("t", n)
        async with broker.subscribing() as subscription:
            await subscription.open("t", group="g", member="a", earliest=True)
            await subscription.read_numbers(3)
            for offset in (1, 2):
                await subscription.settle("t", offset)
            await until(lambda: _cursor(broker, "g", 2))
    async with standalone(tmp_path) as broker, broker.subscribing() as subscription:
        await until(lambda: _cursor(broker, "g", 2))
        await subscription.open("t", group="g", member="b", earliest=True)
        assert await subscription.read_numbers(1) == [2]
        assert subscription.opened[0].offset == 2


@virtual_time
async def test_members_share_partitions_and_hand_over_without_giving_a_record_twice(tmp_path: Path) -> None:
    async with standalone(tmp_path) as broker:
        await broker.create_topic("t", partitions=2)
        async with broker.subscribing() as a, broker.subscribing() as b:
            await a.open("t", (0, 1), group="g", member="a", earliest=True)
            await a.read_opened(2)
            await broker.produce("t", 1, partition=1)
            assert await a.read_numbers(1) == [1]
            await b.open("t", (0, 1), group="g", member="b", earliest=True)
            assert [o.active for o in await b.read_opened(2)] == [False, False]
            await broker.produce("t", 2, partition=1)
            await a.settle("t", 1, partition=1)
            opened = (await b.read_opened(3))[2]
            assert (opened.partition, opened.offset, opened.active) == (1, 1, True)
            assert await b.read_numbers(1) == [2]
            assert not (await a.read_opened(3))[2].active
            await broker.produce("t", 3, partition=0)
            assert await a.read_numbers(2) == [1, 3]
            answer = await broker.ask("Groups", pb.GroupsRequest(group="g"))
            assert [(c.partition, list(c.members)) for c in answer.cursors] == [(0, ["a", "b"]), (1, ["a", "b"])]
            assert [c.log_end_offset - c.offset for c in answer.cursors] == [1, 1]
            assert all(c.lag_bytes > 0 and c.lag_us > 0 for c in answer.cursors)


@virtual_time
async def test_a_member_that_leaves_gives_its_partitions_to_the_others_at_once(tmp_path: Path) -> None:
    async with standalone(tmp_path) as broker:
        await broker.create_topic("t")
        await broker.produce("t", 1)
        async with broker.subscribing() as b:
            async with broker.subscribing() as a:
                await a.open("t", group="g", member="a", earliest=True)
                assert await a.read_numbers(1) == [1]
                await b.open("t", group="g", member="b", earliest=True)
                await b.read_opened()
            assert await b.read_numbers(1) == [1]  # it was not settled: given again


@virtual_time
async def test_cursors_are_moved_by_request_within_the_log(tmp_path: Path) -> None:
    async with standalone(tmp_path) as broker:
        await broker.create_topic("t")
        await broker.produce("t", 1, 2, 3)
        for offset, refused in ((2, False), (4, True)):
            positions = [pb.CursorPosition(topic="t", partition=0, offset=offset)]
            answer = await broker.ask(
                "MoveCursors", pb.MoveCursorsRequest(group="q", positions=positions, kind="spark")
            )
            assert answer.partitions[0].HasField("error") == refused
        assert type(from_wire(answer.partitions[0].error)) is InvalidRequest
        [cursor] = (await broker.ask("Groups", pb.GroupsRequest())).cursors
        assert (cursor.group, cursor.offset, cursor.log_end_offset, cursor.kind) == ("q", 2, 3, "spark")
        with pytest.raises(InvalidRequest, match="kind"):
            await broker.ask("MoveCursors", pb.MoveCursorsRequest(group="q", positions=positions))


async def _cursor(broker: Broker, group: str, offset: int) -> bool:
    cursors = (await broker.ask("Groups", pb.GroupsRequest(group=group))).cursors
    return [c.offset for c in cursors] == [offset]


@virtual_time
async def test_a_partition_has_so_many_groups_and_a_group_so_many_members_and_more_are_refused_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admission, "GROUPS_PER_PARTITION_MAX", 1)
    monkeypatch.setattr(sharing, "GROUP_MEMBERS_MAX", 2)
    async with standalone(tmp_path) as broker, AsyncExitStack() as streams:
        await broker.create_topic("t")

        async def told(group: str, member: str) -> pb.PartitionOpened:
            subscription = await streams.enter_async_context(broker.subscribing())
            await subscription.open("t", group=group, member=member, earliest=True)
            [opened] = await subscription.read_opened()
            return opened

        for member in ("a", "b", "b"):  # one that comes again takes its own place
            assert not (await told("g", member)).HasField("error")
        await until(lambda: _cursor(broker, "g", 0))
        third, other = await told("g", "c"), await told("h", "a")
        assert isinstance(from_wire(third.error), TooManyMembers)
        assert "has 2 members" in third.error.message
        assert isinstance(from_wire(other.error), TooManyGroups)
        assert "delete unused groups" in other.error.message
        positions = [pb.CursorPosition(topic="t", partition=0, offset=0)]
        answer = await broker.ask("MoveCursors", pb.MoveCursorsRequest(group="h", positions=positions, kind="spark"))
        assert isinstance(from_wire(answer.partitions[0].error), TooManyGroups)
