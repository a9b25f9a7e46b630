"""A group's member is replaced, and spoken for, by its own key alone: its id is told to whoever describes the group."""

from __future__ import annotations

from pathlib import Path

import pytest

from mq_protocol import mq_pb2 as pb
from mq_protocol.errors import InvalidRequest, MemberInUse
from mq_protocol.wire.error_messages import from_wire
from tests.coroutines import virtual_time
from tests.mq_broker.broker.cluster import Subscription, standalone, until
from tests.mq_broker.broker.test_cursors import is_at, move

MINE = b"the member's key"
OTHER = b"another's secret"


async def refused(subscription: Subscription) -> Exception:
    return from_wire((await subscription.read_opened())[-1].error)


@virtual_time
async def test_a_stranger_who_knows_a_members_id_takes_nothing_from_it(tmp_path: Path) -> None:
    async with standalone(tmp_path) as broker:
        await broker.create_topic("t")
        await broker.produce("t", *range(10))
        async with broker.subscribing() as member, broker.subscribing() as stranger:
            await member.open("t", group="g", member="m", key=MINE, earliest=True)
            await member.read_numbers(10)
            await until(lambda: is_at(broker, 0))
            told = await broker.ask("Groups", pb.GroupsRequest(group="g"))
            assert list(told.cursors[0].members) == ["m"]
            assert MINE not in told.SerializeToString()
            await stranger.open("t", group="g", member="m", key=OTHER, earliest=True)
            error = await refused(stranger)
            assert isinstance(error, MemberInUse)
            assert "choose another member id" in str(error)
            assert MINE.decode() not in str(error)
            await stranger.settle("t", 10)
            with pytest.raises(MemberInUse):
                await move(broker, 10, kind="consumer", member_id="m", member_key=OTHER)
            await broker.produce("t", 10)
            assert await member.read_numbers(11) == list(range(11)), "the member has the partition as before"
            await member.settle("t", 7)
            await until(lambda: is_at(broker, 7))


@virtual_time
async def test_a_member_that_reconnects_with_its_key_replaces_its_former_stream_at_once(tmp_path: Path) -> None:
    async with standalone(tmp_path) as broker:
        await broker.create_topic("t")
        await broker.produce("t", 1, 2)
        async with broker.subscribing() as cut_off, broker.subscribing() as again:
            await cut_off.open("t", group="g", member="m", key=MINE, earliest=True)
            await cut_off.read_numbers(2)
            await again.open("t", group="g", member="m", key=MINE, earliest=True)
            assert await again.read_numbers(2) == [1, 2]
            await cut_off.settle("t", 2)  # of a stream that is replaced: it does not count
            await again.settle("t", 1)
            await until(lambda: is_at(broker, 1))
            await move(broker, 2, kind="consumer", member_id="m", member_key=MINE)
            assert await is_at(broker, 2)


@pytest.mark.parametrize("key", [b"", b"short", b"x" * 65])
@virtual_time
async def test_a_key_that_can_be_guessed_or_is_long_is_refused(tmp_path: Path, key: bytes) -> None:
    async with standalone(tmp_path) as broker:
        await broker.create_topic("t")
        with pytest.raises(InvalidRequest, match="16 to 64 random bytes"):
            await move(broker, 1, kind="consumer", member_id="m", member_key=key)
        async with broker.subscribing() as subscription:
            await subscription.open("t", group="g", member="m", key=key, earliest=True)
            with pytest.raises(Exception, match="16 to 64 random bytes"):
                await subscription.read()


@virtual_time
async def test_a_stream_keeps_the_key_that_it_began_with(tmp_path: Path) -> None:
    async with standalone(tmp_path) as broker:
        await broker.create_topic("t", partitions=2)
        async with broker.subscribing() as subscription:
            await subscription.open("t", (0,), group="g", member="m", key=MINE, earliest=True)
            await subscription.read_opened()
            await subscription.open("t", (1,), group="g", member="m", key=OTHER, earliest=True)
            with pytest.raises(Exception, match="open another stream"):
                await subscription.read()
