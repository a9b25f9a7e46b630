"""How many groups one user may begin: what fits is taken, one more is refused by name, and what is deleted makes
room."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from mq_broker.broker.transactions.begun_groups import AGAIN_S
from mq_protocol import mq_pb2 as pb
from mq_protocol.errors import QuotaExceeded
from mq_protocol.wire.error_messages import from_wire
from tests.coroutines import virtual_time
from tests.mq_broker.broker.cluster import Broker, until
from tests.mq_broker.broker.principals import ROOT, As, judging, named  # noqa: F401 - a fixture
from tests.mq_broker.broker.test_cursors import move

pytestmark = pytest.mark.usefixtures("named")

GREEDY, MODEST = "User:greedy", "User:modest"
TOLD = r"User:greedy has 2 groups at this broker.*tritonmq quota set User:greedy --groups 4"


@contextlib.asynccontextmanager
async def served(data: Path, groups: int = 2) -> AsyncIterator[tuple[As, As, As]]:
    """A superuser, and two users who may read topic `t` and do everything with groups. The first may begin so many."""
    async with judging(data) as broker:
        root = As(broker, ROOT)
        if not (await root.metadata("t")).topics:
            await root.create_topic("t", partitions=3)
            for who in (GREEDY, MODEST):
                await root.allow(pb.AclRule(principal=who, operation="Read", kind="Topic", name="t"))
                for operation in ("Read", "Create", "Delete"):
                    await root.allow(pb.AclRule(principal=who, operation=operation, kind="Group", prefix=True))
            await root.ask("AlterQuotas", pb.AlterQuotasRequest(principal=GREEDY, set={"groups": groups}))
        yield root, As(broker, GREEDY), As(broker, MODEST)


async def it_is_counted_again() -> None:
    """So long that the next one who has too much has it counted anew."""
    await asyncio.sleep(AGAIN_S + 0.1)


async def consume(who: Broker, group: str, *partitions: int, ephemeral: bool = False) -> None:
    """Until the group has its cursors there."""
    places = [pb.SubscribePartition(topic="t", partition=number, earliest=True) for number in partitions or (0,)]
    async with who.subscribing() as stream:
        named = {"group": group, "member_id": "m", "member_key": b"k" * 16}
        await stream.say(open=pb.SubscribeOpen(partitions=places, ephemeral=ephemeral, **named))
        for opened in await stream.read_opened(len(places)):
            if opened.HasField("error"):
                raise from_wire(opened.error)
        await until(lambda: _is_there(who, group, len(places)))


async def _is_there(who: Broker, group: str, count: int) -> bool:
    cursors = (await who.ask("Groups", pb.GroupsRequest(group=group))).cursors
    return len([cursor for cursor in cursors if cursor.group == group]) >= count


async def declare(who: Broker, group: str) -> None:
    settings = {"dead_letter": "drop"}
    request = pb.AlterQueueRequest(topic="t", group=group, change=pb.QUEUE_DECLARE, settings=settings)
    await who.ask("AlterQueue", request)


async def delete(who: Broker, group: str) -> None:
    places = [pb.TopicPartition(topic="t", partition=number) for number in range(3)]
    await who.ask("DeleteGroup", pb.DeleteGroupRequest(group=group, partitions=places, force=True))


@virtual_time
async def test_one_group_more_is_refused_and_one_that_is_there_goes_on(tmp_path: Path) -> None:
    async with served(tmp_path) as (root, greedy, modest):
        await consume(greedy, "a", 0, 1, 2)
        await consume(greedy, "b")
        with pytest.raises(QuotaExceeded, match=TOLD):
            await consume(greedy, "c")
        await consume(greedy, "b", 0, 1)
        for n in range(4):
            await consume(modest, f"m{n}")
            await consume(root, f"r{n}")
        await consume(greedy, "m0")
        await delete(greedy, "a")
        await it_is_counted_again()
        await consume(greedy, "c")
        with pytest.raises(QuotaExceeded, match=TOLD):
            await consume(greedy, "d")


@virtual_time
async def test_a_group_that_somebody_else_has_deleted_is_begun_anew_by_whoever_comes(tmp_path: Path) -> None:
    async with served(tmp_path) as (_, greedy, modest):
        await consume(modest, "x")
        await consume(greedy, "a")
        await consume(greedy, "b")
        with pytest.raises(QuotaExceeded, match=TOLD):
            await consume(greedy, "c")
        await delete(modest, "x")
        for group in ("c", "x"):
            await it_is_counted_again()
            with pytest.raises(QuotaExceeded, match=TOLD):
                await consume(greedy, group)


@pytest.mark.parametrize("way", ["consumer", "ephemeral", "spark", "without a stream", "reset", "queue"])
@virtual_time
async def test_it_counts_however_it_is_begun(tmp_path: Path, way: str) -> None:
    async def begin(who: Broker, group: str) -> None:
        match way:
            case "consumer" | "ephemeral":
                await consume(who, group, ephemeral=way == "ephemeral")
            case "spark":
                await move(who, 0, kind="spark", group=group)
            case "without a stream":
                await move(who, 0, kind="consumer", group=group, member_id="m")
            case "reset":
                await move(who, 0, kind="", group=group, reset=True)
            case "queue":
                await declare(who, group)

    async with served(tmp_path) as (_, greedy, modest):
        await begin(greedy, "a")
        await begin(greedy, "b")
        for refused in (begin, consume):
            with pytest.raises(QuotaExceeded, match=TOLD):
                await refused(greedy, "c")
        await begin(greedy, "a")
        await begin(modest, "c")


@virtual_time
async def test_what_is_there_at_a_new_start_counts(tmp_path: Path) -> None:
    async def leads(who: Broker) -> bool:
        return await who.end("t") == 0

    async with served(tmp_path) as (_, greedy, _modest):
        await consume(greedy, "a")
        await declare(greedy, "b")
    async with served(tmp_path) as (_, greedy, _modest):
        await until(lambda: leads(greedy))
        with pytest.raises(QuotaExceeded, match=TOLD):
            await consume(greedy, "c")
        await consume(greedy, "a")
