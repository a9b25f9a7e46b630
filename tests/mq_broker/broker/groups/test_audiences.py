"""Broadcast groups: who of their members is pushed records, from where on, and how far. The last tests run a broker."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from mq_broker.broker.groups.audiences import Audiences
from mq_protocol import mq_pb2 as pb
from mq_protocol.errors import InvalidRequest, TooManyMembers, WrongGroupKind
from mq_protocol.limits import GROUP_MEMBERS_MAX
from mq_protocol.wire.error_messages import from_wire
from tests.coroutines import virtual_time
from tests.mq_broker.broker.cluster import Broker, Subscription, standalone
from tests.mq_broker.broker.groups.partitions import Led
from tests.virtual.world import in_virtual_time


class Listening:
    """A member, and what it is told: where it begins, and where it ends to stand by."""

    def __init__(self, log: Any, priority: int = 0) -> None:
        self.priority = priority
        self.told: list[tuple[str, int]] = []
        self._log = log

    def first_offset(self) -> int:
        return int(self._log.next_offset)

    def activate(self, offset: int) -> None:
        self.told.append(("begin", offset))

    def stand_by(self, offset: int) -> None:
        self.told.append(("stand by", offset))


class World:
    """A partition, and broadcast group `g`."""

    def __init__(self) -> None:
        self.log: Any = Led()
        self.log.next_offset = 10
        self.audiences = Audiences()

    def joins(self, priority: int = 0) -> Listening:
        member = Listening(self.log, priority)
        self.audiences.join(self.log, "g", member)
        self.log.next_offset += 1
        return member

    def leaves(self, member: Listening) -> None:
        self.audiences.leave(self.log, "g", member)
        self.log.next_offset += 1


def test_lower_ones_stand_by_while_a_higher_one_is_there_and_go_on_at_the_end_afterwards() -> None:
    world = World()
    low, also_low = world.joins(1), world.joins(1)
    lowest = world.joins(0)
    assert lowest.told == [("stand by", 12)]
    high = world.joins(5)
    another = world.joins(5)
    assert low.told == [("begin", 10), ("stand by", 13)]
    assert also_low.told == [("begin", 11), ("stand by", 13)]
    assert (high.told, another.told) == ([("begin", 13)], [("begin", 14)])
    world.leaves(high)
    assert len(low.told) == 2, "another of the same priority is there"
    world.leaves(another)
    assert (low.told[2:], also_low.told[2:], lowest.told[1:]) == ([("begin", 16)], [("begin", 16)], [])
    world.leaves(low)
    world.leaves(also_low)
    assert lowest.told[1:] == [("begin", 18)]


def test_a_group_has_so_many_members() -> None:
    world = World()
    for _ in range(GROUP_MEMBERS_MAX):
        world.joins()
    with pytest.raises(TooManyMembers, match=f"has {GROUP_MEMBERS_MAX} members at t-0"):
        world.joins()


# ---------------------------------------------------------------- a broker


@asynccontextmanager
async def member(broker: Broker, priority: int = 0, *, credit: int = 1 << 20) -> AsyncIterator[Subscription]:
    """One of broadcast group `g`, of which the broker knows."""
    async with broker.subscribing() as subscription:
        await opens(subscription, priority=priority, credit=credit)
        await subscription.read_opened()
        yield subscription


async def opens(subscription: Subscription, *, credit: int = 1 << 20, **fields: Any) -> None:
    wanted = [pb.SubscribePartition(topic="t", partition=0, latest=True)]
    fields.setdefault("broadcast", "g")
    opening = pb.SubscribeOpen(partitions=wanted, **fields)
    await subscription.say(open=opening, credit=pb.SubscribeCredit(bytes=credit))


@virtual_time
async def test_every_member_is_pushed_what_comes_while_it_is_there_and_nothing_is_written_of_the_group(
    tmp_path: Path,
) -> None:
    async with standalone(tmp_path) as broker:
        await broker.create_topic("t")
        await broker.produce("t", 1)
        async with member(broker) as first:
            await broker.produce("t", 2)
            async with member(broker) as second:
                await broker.produce("t", 3)
                assert await first.read_numbers(2) == [2, 3]
                assert await second.read_numbers(1) == [3]
        groups = await broker.ask("Groups", pb.GroupsRequest())
        assert list(groups.cursors) == []


@virtual_time
async def test_a_member_that_is_to_stand_by_is_pushed_what_came_before_the_higher_one(tmp_path: Path) -> None:
    async with standalone(tmp_path) as broker:
        await broker.create_topic("t")
        async with member(broker, credit=0) as low:
            await broker.produce("t", 1)
            await broker.produce("t", 2)
            async with member(broker, priority=3) as high:
                await broker.produce("t", 3)
                assert await high.read_numbers(1) == [3]
                await low.say(credit=pb.SubscribeCredit(bytes=1 << 20))
                opened = await low.read_opened(2)
                assert [told.active for told in opened] == [True, False]
                assert await low.read_numbers(2) == [1, 2]
            again = (await low.read_opened(3))[2]
            assert (again.active, again.offset) == (True, 3)
            await broker.produce("t", 4)
            assert await low.read_numbers(3) == [1, 2, 4]


@virtual_time
async def test_a_name_is_of_one_kind_of_group_and_what_a_broadcast_group_cannot_have_is_refused(tmp_path: Path) -> None:
    async with standalone(tmp_path) as broker:
        await broker.create_topic("t")
        await broker.ask("AlterQueue", pb.AlterQueueRequest(topic="t", group="jobs"))

        async def refused(**fields: Any) -> None:
            async with broker.subscribing() as another:
                await opens(another, **fields)
                [told] = await another.read_opened()
                raise from_wire(told.error)

        async with broker.subscribing() as stream:
            await stream.open("t", group="readers", member="m", earliest=True)
            await stream.read_opened()
            with pytest.raises(WrongGroupKind, match="reads t-0 as a stream"):
                await refused(broadcast="readers")
        with pytest.raises(WrongGroupKind, match="is a queue group"):
            await refused(broadcast="jobs")
        async with member(broker):
            with pytest.raises(WrongGroupKind, match="is a broadcast group"):
                await refused(broadcast="", group="g", member_id="m", member_key=b"k" * 16)


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"broadcast": "", "priority": 1}, "only members of a broadcast group"),
        ({"priority": 32}, "0 to 31"),
        ({"group": "g", "member_id": "m", "member_key": b"k" * 16}, "leave out group and ephemeral"),
        ({"ephemeral": True}, "leave out group and ephemeral"),
        ({"broadcast": "a\nb"}, "group"),
    ],
)
def test_a_stream_that_names_what_no_member_can_be_is_refused(tmp_path: Path, fields: dict[str, Any], why: str) -> None:
    async def scenario() -> None:
        async with standalone(tmp_path) as broker:
            await broker.create_topic("t")
            async with broker.subscribing() as stream:
                await opens(stream, **fields)
                await stream.read()

    with pytest.raises(InvalidRequest, match=why):
        in_virtual_time(scenario())
