"""Who may move a group's cursor, and where to: members forward, queries by their checkpoint, administrators
anywhere."""

from __future__ import annotations

from pathlib import Path

import pytest

from mq_protocol import mq_pb2 as pb
from mq_protocol.errors import InvalidRequest
from mq_protocol.wire.error_messages import from_wire
from tests.coroutines import virtual_time
from tests.mq_broker.broker.cluster import Broker, Subscription, standalone, until
from tests.virtual.world import in_virtual_time


async def move(broker: Broker, offset: int, *, group: str = "g", **fields: object) -> pb.PartitionOffsets:
    """Raises what the one position was refused with."""
    positions = [pb.CursorPosition(topic="t", partition=0, offset=offset)]
    fields = {"member_key": b"k" * 16, **fields}
    request = pb.MoveCursorsRequest(group=group, positions=positions, **fields)  # type: ignore[arg-type]
    [answer] = (await broker.ask("MoveCursors", request)).partitions
    if answer.HasField("error"):
        raise from_wire(answer.error)
    return answer  # type: ignore[no-any-return]


async def cursors(broker: Broker, group: str = "g") -> list[tuple[int, str]]:
    answer = await broker.ask("Groups", pb.GroupsRequest(group=group))
    return [(cursor.offset, cursor.kind) for cursor in answer.cursors]


async def is_at(broker: Broker, offset: int) -> bool:
    return [at for at, _ in await cursors(broker)] == [offset]


def test_a_member_that_wakes_after_another_has_gone_on_does_not_move_the_group_back(tmp_path: Path) -> None:
    """z holds the first 50 of 200 and is paused; a is given the partition, is done with all of it and stops; z wakes
    and stops."""

    async def scenario() -> None:
        async with standalone(tmp_path) as broker, broker.subscribing() as paused:
            await broker.create_topic("t")
            await broker.produce("t", *range(200))
            await paused.open("t", group="g", member="z", earliest=True)
            await paused.read_numbers(200)
            async with broker.subscribing() as other:
                await other.open("t", group="g", member="a", earliest=True)
                await until(lambda: has_it(other))
                await other.settle("t", 200)
                await until(lambda: is_at(broker, 200))
                await move(broker, 50, kind="consumer", member_id="z")  # while another member has the partition
                assert await is_at(broker, 200)
                await move(broker, 200, kind="consumer", member_id="a")
            await move(broker, 50, kind="consumer", member_id="z")  # and when it has been given the partition again
            assert await is_at(broker, 200)
        async with standalone(tmp_path) as broker:  # a leader that knows no members
            await until(lambda: broker.end("t"))
            assert await is_at(broker, 200)
            await move(broker, 50, kind="consumer", member_id="z")
            assert await is_at(broker, 200)

    async def has_it(member: Subscription) -> bool:
        await member.read_opened()
        while not member.opened[-1].active:
            await member.read()
        return True

    in_virtual_time(scenario())


@virtual_time
async def test_a_members_last_word_counts_forward_with_its_stream_gone_and_at_a_leader_that_knows_no_members(
    tmp_path: Path,
) -> None:
    async with standalone(tmp_path) as broker:
        await broker.create_topic("t")
        await broker.produce("t", *range(10))
        await move(broker, 4, kind="consumer", member_id="a")
        await move(broker, 7, kind="consumer", member_id="a")
        assert await is_at(broker, 7)


@virtual_time
async def test_a_word_that_did_not_come_on_the_owners_stream_is_where_the_next_owner_begins(tmp_path: Path) -> None:
    async with standalone(tmp_path) as broker:
        await broker.create_topic("t")
        await broker.produce("t", *range(10))
        async with broker.subscribing() as waiting:
            async with broker.subscribing() as owner:
                await owner.open("t", group="g", member="a", earliest=True)
                await owner.read_numbers(10)
                await waiting.open("t", group="g", member="b", earliest=True)
                await waiting.read_opened()
                await move(broker, 6, kind="consumer", member_id="b")
                await until(lambda: is_at(broker, 0))
                await move(broker, 6, kind="consumer", member_id="a")
                assert await is_at(broker, 6)
            opened = await waiting.read_opened(2)
            assert (opened[-1].active, opened[-1].offset) == (True, 6)


@virtual_time
async def test_a_word_beyond_the_end_of_the_log_takes_nothing_from_the_next_owner(tmp_path: Path) -> None:
    async with standalone(tmp_path) as broker:
        await broker.create_topic("t")
        await broker.produce("t", *range(10))
        async with broker.subscribing() as waiting:
            async with broker.subscribing() as owner:
                await owner.open("t", group="g", member="a", earliest=True)
                await owner.read_numbers(10)
                await waiting.open("t", group="g", member="b", earliest=True)
                await waiting.read_opened()
                with pytest.raises(InvalidRequest, match="the log ends at 10"):
                    await move(broker, 1_000, kind="consumer", member_id="a")
            opened = await waiting.read_opened(2)
            assert opened[-1].active
            assert opened[-1].offset <= 10
            await broker.produce("t", 10)
            assert (await waiting.read_numbers(1))[-1] == 10


@virtual_time
async def test_a_consumer_that_names_no_member_moves_nothing(tmp_path: Path) -> None:
    async with standalone(tmp_path) as broker:
        await broker.create_topic("t")
        await broker.produce("t", 1)
        with pytest.raises(InvalidRequest, match="name the member"):
            await move(broker, 1, kind="consumer")
        assert await cursors(broker) == []


@virtual_time
async def test_only_an_administrator_moves_a_group_of_consumers_back_and_a_query_stays_a_query(tmp_path: Path) -> None:
    async with standalone(tmp_path) as broker:
        await broker.create_topic("t")
        await broker.produce("t", *range(10))
        await move(broker, 8, kind="consumer", member_id="a")
        with pytest.raises(InvalidRequest, match=r"another kafka\.group\.id"):
            await move(broker, 2, kind="spark")
        await move(broker, 3, reset=True)
        assert await cursors(broker) == [(3, "consumer")]
        await move(broker, 4, group="e", kind="ephemeral", member_id="a")
        with pytest.raises(InvalidRequest, match=r"another kafka\.group\.id"):
            await move(broker, 2, group="e", kind="spark")
        await move(broker, 9, group="q", kind="spark")
        await move(broker, 1, group="q", reset=True)
        assert await cursors(broker, "q") == [(1, "spark")]


@virtual_time
async def test_a_query_restarted_from_an_older_checkpoint_reports_that_it_went_back(tmp_path: Path) -> None:
    async with standalone(tmp_path) as broker:
        await broker.create_topic("t")
        await broker.produce("t", *range(10))
        await move(broker, 9, kind="spark")
        await move(broker, 2, kind="spark")
        assert await cursors(broker) == [(2, "spark")]
