"""Subscriptions: pushed as they commit, within credit; groups share partitions and keep their cursor."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from mq_broker.broker.groups import cursors as groups
from mq_broker.broker.groups import sharing
from mq_broker.broker.groups import subscriptions as delivery
from mq_broker.broker.host.partition import Partition
from mq_broker.broker.host.shell import Shell
from mq_broker.broker.metadata.topics import Topics
from mq_broker.broker.runtime.memory import Held
from mq_broker.broker.transactions.begun_groups import BegunGroups
from mq_broker.core.entries import MoveCursor, Operation
from mq_broker.core.machine import admission
from mq_broker.core.messages import Refused, Result
from mq_protocol import mq_pb2 as pb
from mq_protocol.error_messages import from_wire
from mq_protocol.errors import InvalidRequest, NotEnoughReplicas, TooManyGroups, TooManyMembers
from tests.mq_broker.broker.cluster import Broker, standalone, until


def test_what_commits_is_pushed(tmp_path: Path) -> None:
    async def scenario() -> None:
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

    asyncio.run(scenario())


def test_nothing_is_pushed_beyond_the_credit(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with standalone(tmp_path) as broker:
            await broker.create_topic("t")
            for n in range(4):
                await broker.produce("t", n)
            async with broker.subscribing() as subscription:
                await subscription.open("t", earliest=True, credit=1)
                assert await subscription.read_numbers(1) == [0]
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(subscription.call.read(), 0.1)
            async with broker.subscribing() as subscription:
                await subscription.open("t", earliest=True, credit=0)
                await subscription.read_opened()
                assert subscription.batches == []
                await subscription.say(credit=pb.SubscribeCredit(bytes=1 << 20))
                assert await subscription.read_numbers(4) == [0, 1, 2, 3]

    asyncio.run(scenario())


def test_a_subscription_begins_where_it_asks_to(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with standalone(tmp_path) as broker:
            await broker.create_topic("t")
            await broker.produce("t", 0, 1)
            second = await broker.produce("t", 2)
            starts = [({"offset": 1}, 1), ({"offset": 99}, 3), ({"timestamp_us": second.timestamp_us}, 2), ({}, 3)]
            for start, offset in starts:
                async with broker.subscribing() as subscription:
                    await subscription.open("t", **start)  # type: ignore[arg-type]
                    assert (await subscription.read_opened())[0].offset == offset

    asyncio.run(scenario())


def test_a_closed_subscription_gets_nothing_more(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with standalone(tmp_path) as broker:
            await broker.create_topic("t", partitions=2)
            async with broker.subscribing() as subscription:
                await subscription.open("t", (0, 1), earliest=True)
                await subscription.read_opened(2)
                await subscription.say(close=pb.SubscribeClose(partitions=[pb.TopicPartition(topic="t", partition=0)]))
                await subscription.open("t", (1,), earliest=True)  # answered, so the close has been heard
                await subscription.read_opened(3)
                await broker.produce("t", 1, partition=0)
                await broker.produce("t", 2, partition=1)
                assert await subscription.read_numbers(1) == [2]

    asyncio.run(scenario())


def test_unknown_topics_are_told_by_partition(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with standalone(tmp_path) as broker, broker.subscribing() as subscription:
            await subscription.open("nothing", earliest=True)
            [opened] = await subscription.read_opened()
            assert opened.error.code == pb.UNKNOWN_TOPIC

    asyncio.run(scenario())


def test_a_topic_that_was_made_again_is_not_gone_on_with_where_the_former_was_left(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with standalone(tmp_path) as broker:
            former = await broker.create_topic("t")
            await broker.ask("DeleteTopic", pb.DeleteTopicRequest(name="t"))
            again = await broker.create_topic("t")
            await broker.produce("t", 0, 1, 2)
            async with broker.subscribing() as subscription:
                for topic_id in (former.topic_id, again.topic_id):
                    wanted = pb.SubscribePartition(topic="t", partition=0, offset=2, topic_id=topic_id)
                    await subscription.say(open=pb.SubscribeOpen(partitions=[wanted], group="g", member_id="a"))
                refused, opened = await subscription.read_opened(2)
                assert refused.error.code == pb.UNKNOWN_TOPIC
                assert (opened.offset, opened.active) == (2, True)

    asyncio.run(scenario())


def test_a_groups_cursor_is_kept_over_a_restart(tmp_path: Path) -> None:
    async def scenario() -> None:
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

    asyncio.run(scenario())


def test_a_group_that_began_at_the_end_finds_that_place_again(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with standalone(tmp_path) as broker:
            await broker.create_topic("t")
            await broker.produce("t", 0)
            async with broker.subscribing() as subscription:
                await subscription.open("t", group="g", member="a", latest=True)
                await subscription.read_opened()
                await until(lambda: _cursor(broker, "g", 1))
            await broker.produce("t", 1)
            async with broker.subscribing() as subscription:
                await subscription.open("t", group="g", member="a", latest=True)
                assert await subscription.read_numbers(1) == [1]

    asyncio.run(scenario())


def test_a_place_that_is_refused_for_now_is_written_down_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(groups, "MOVE_AGAIN_S", 0.01)
    refused: list[int] = []
    propose = Partition.propose

    def refuse_the_first(
        self: Partition, operation: Operation, on_reply: Callable[[Result], None], deadline: float, **fields: Any
    ) -> None:
        if isinstance(operation, MoveCursor) and len(refused) < 3:
            refused.append(operation.offset)
            on_reply(Refused(NotEnoughReplicas("1 live in-sync replica of 2")))
        else:
            propose(self, operation, on_reply, deadline, **fields)

    async def scenario() -> None:
        async with standalone(tmp_path) as broker:
            await broker.create_topic("t")
            await broker.produce("t", 0)
            monkeypatch.setattr(Partition, "propose", refuse_the_first)
            async with broker.subscribing() as subscription:
                await subscription.open("t", group="g", member="a", latest=True)
                await subscription.read_opened()
                await until(lambda: _cursor(broker, "g", 1), 5)
            await broker.produce("t", 1)
            async with broker.subscribing() as subscription:
                await subscription.open("t", group="g", member="a", latest=True)
                assert await subscription.read_numbers(1) == [1], "what came after the group began is its own"
                refused.clear()
                await subscription.settle("t", 2)
                await until(lambda: _cursor(broker, "g", 2), 5)
            assert refused == [2, 2, 2]

    asyncio.run(scenario())


def test_members_share_partitions_and_hand_over_without_giving_a_record_twice(tmp_path: Path) -> None:
    async def scenario() -> None:
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

    asyncio.run(scenario())


def test_a_member_that_leaves_gives_its_partitions_to_the_others_at_once(tmp_path: Path) -> None:
    async def scenario() -> None:
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

    asyncio.run(scenario())


def test_a_member_that_does_not_settle_loses_its_partition_and_its_word(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mq_broker.broker.groups.sharing.GROUP_HANDOVER_MS", 100)

    async def scenario() -> None:
        async with standalone(tmp_path) as broker:
            await broker.create_topic("t")
            await broker.produce("t", 1)
            async with broker.subscribing() as slow, broker.subscribing() as other:
                await slow.open("t", group="g", member="b", earliest=True)
                assert await slow.read_numbers(1) == [1]
                await other.open("t", group="g", member="a", earliest=True)
                assert await other.read_numbers(1) == [1]
                assert not (await slow.read_opened(2))[1].active
                await slow.settle("t", 1)
                await broker.produce("t", 2)
                assert await other.read_numbers(2) == [1, 2]
                assert await _cursor(broker, "g", 0)

    asyncio.run(scenario())


def test_a_member_that_is_told_of_a_loss_still_settles_what_it_was_given_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[delivery.Delivery] = []
    make = delivery.Delivery.__init__

    def remember(self: delivery.Delivery, shell: Shell, topics: Topics, held: Held, begun: BegunGroups) -> None:
        make(self, shell, topics, held, begun)
        made.append(self)

    monkeypatch.setattr(delivery.Delivery, "__init__", remember)

    async def scenario() -> None:
        async with standalone(tmp_path) as broker:
            await broker.create_topic("t")
            await broker.produce("t", 0)
            await broker.produce("t", 1)
            partition = made[0].shell.leader(await made[0].topics.get("t"), 0)
            partition.index.skip(2, 30)  # as a recovery from a shorter log does
            partition.replica.machine.next_offset = 30
            await broker.produce("t", 30)
            async with broker.subscribing() as member:
                await member.open("t", group="g", member="a", earliest=True)
                assert await member.read_numbers(3) == [0, 1, 30]
                begun, lost = await member.read_opened(2)
                assert (begun.offset, lost.offset, lost.active) == (0, 30, True)
                assert "offsets 2 to 29 were lost" in lost.error.message
                await member.settle("t", 1)
                await until(lambda: _at(broker, "g", 1))
            async with broker.subscribing() as next_member:
                await next_member.open("t", group="g", member="b", earliest=True)
                assert await next_member.read_numbers(2) == [1, 30]

    asyncio.run(scenario())


async def _at(broker: Broker, group: str, offset: int) -> bool:
    answer = await broker.ask("Groups", pb.GroupsRequest(group=group))
    return [cursor.offset for cursor in answer.cursors] == [offset]


def test_cursors_are_moved_by_request_within_the_log(tmp_path: Path) -> None:
    async def scenario() -> None:
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

    asyncio.run(scenario())


@pytest.mark.long
def test_what_waits_to_be_told_to_a_client_that_does_not_read_is_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delivery, "UNTOLD_BYTES_MAX", 10_000)
    most = 0
    tell = delivery._Session.tell

    def watched(session: delivery._Session, opened: pb.PartitionOpened) -> None:
        nonlocal most
        tell(session, opened)
        most = max(most, sum(told.ByteSize() for told, _ in session._opened))

    monkeypatch.setattr(delivery._Session, "tell", watched)

    async def scenario() -> None:
        async with standalone(tmp_path) as broker, broker.subscribing() as subscription:
            await broker.create_topic("t")
            places = [pb.SubscribePartition(topic="t", partition=7 + number) for number in range(500)]
            one = pb.SubscribeRequest(open=pb.SubscribeOpen(partitions=places))
            asked = 0

            async def ask() -> None:
                """Until so much waits, however much gRPC takes of what nobody reads, and some more."""
                nonlocal asked
                more = 20
                while more:
                    more -= most > 10_000
                    asked += 1
                    await subscription.call.write(one.SerializeToString())

            asking = asyncio.create_task(ask())
            async with asyncio.timeout(120):
                while most <= 10_000:  # noqa: ASYNC110 - what is waited for is a number that grows
                    await asyncio.sleep(0.01)
            # Nothing is read: it ends only if the broker keeps whatever comes
            await asyncio.wait({asking}, timeout=0.5)
            while not asking.done() or len(subscription.opened) < 500 * asked:
                if len(subscription.opened) < 500 * asked:
                    await subscription.read()
                else:
                    await asyncio.wait({asking}, timeout=0.05)
            await asking
            assert 10_000 < most <= 10_000 + 1_000, "one more at most, though a request asks for five hundred"

    asyncio.run(scenario())


async def _cursor(broker: Broker, group: str, offset: int) -> bool:
    cursors = (await broker.ask("Groups", pb.GroupsRequest(group=group))).cursors
    return [c.offset for c in cursors] == [offset]


def test_a_partition_has_so_many_groups_and_a_group_so_many_members_and_more_are_refused_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admission, "GROUPS_PER_PARTITION_MAX", 1)
    monkeypatch.setattr(sharing, "GROUP_MEMBERS_MAX", 2)

    async def scenario() -> None:
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
            answer = await broker.ask(
                "MoveCursors", pb.MoveCursorsRequest(group="h", positions=positions, kind="spark")
            )
            assert isinstance(from_wire(answer.partitions[0].error), TooManyGroups)

    asyncio.run(scenario())
