"""Somebody who has learnt the key of another's query, and may write the same topic, at a real broker."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from mq_protocol import mq_pb2 as pb
from mq_protocol.errors import NotLeader, PermissionDenied, StagedBatchMissing
from tests.coroutines import virtual_time
from tests.mq_broker.broker.cluster import DEADLINE_S, standalone
from tests.mq_broker.broker.principals import ROOT, As, judging, named  # noqa: F401 - a fixture

pytestmark = pytest.mark.usefixtures("named")

KEY = pb.TransactionKey(query_id="3f1d53e2-8bb1-4a43-b1e6-6a7a4f3a9a10", sink="t")


@contextlib.asynccontextmanager
async def served(data: Path) -> AsyncIterator[tuple[As, As, As]]:
    """A superuser, the owner of the query and a thief, who may write all topics."""
    async with judging(data) as broker:
        root, owner, thief = As(broker, ROOT), As(broker, "User:etl"), As(broker, "User:thief")
        await root.create_topic("t")
        for who in ("User:etl", "User:thief"):
            await root.allow(pb.AclRule(principal=who, operation="Write", kind="Topic", name="", prefix=True))
        yield root, owner, thief


async def once_led(ask: Callable[[], Awaitable[Any]]) -> Any:
    """A broker that has just begun leads nothing yet."""
    async with asyncio.timeout(DEADLINE_S):
        while True:
            try:
                return await ask()
            except NotLeader:
                await asyncio.sleep(0.05)


async def stage(who: As, batch_id: int, *numbers: int, run: str = "run") -> bytes:
    made = uuid.uuid4().bytes
    stage_of = pb.StageOf(key=KEY, batch_id=batch_id, run_id=run)
    await once_led(lambda: who.produce("t", *numbers, uuid=made, stage=stage_of))
    return made


async def decide(who: As, batch_id: int, *uuids: bytes, rows: int = 0, run: str = "run") -> pb.DecideResponse:
    manifest = [pb.StagedBatches(topic="t", partition=0, uuids=uuids, row_count=rows)] if uuids else []
    request = pb.DecideRequest(key=KEY, batch_id=batch_id, run_id=run, row_count=rows, manifest=manifest)
    answer: pb.DecideResponse = await once_led(lambda: who.ask("Decide", request))
    return answer


@virtual_time
async def test_a_stranger_cannot_decide_fence_or_look_in_anothers_name(tmp_path: Path) -> None:
    async with served(tmp_path) as (root, owner, thief):
        await decide(owner, 0, await stage(owner, 0, 1), rows=1)
        status = pb.TransactionStatusRequest(key=KEY)
        attempts: list[tuple[int, dict[str, Any]]] = [
            (1, {}),  # the owner's next rows would vanish
            (0, {"run": "stolen"}),  # the owner's run would be fenced
            (2**62, {}),  # no later micro-batch could be decided
        ]
        for batch_id, said in attempts:
            with pytest.raises(PermissionDenied, match="another user's"):
                await decide(thief, batch_id, **said)
        with pytest.raises(PermissionDenied):
            await thief.ask("TransactionStatus", status)
        assert (await owner.ask("TransactionStatus", status)).batch_id == 0
        assert (await root.ask("TransactionStatus", status)).run_id == "run"
        await decide(owner, 1, await stage(owner, 1, 2), rows=1)
        assert await root.numbers("t") == [1, 2]


@virtual_time
async def test_what_a_stranger_stages_under_a_key_is_not_its_owners_and_does_no_harm(tmp_path: Path) -> None:
    async with served(tmp_path) as (root, owner, thief):
        theirs = await stage(thief, 0, 666)
        with pytest.raises(StagedBatchMissing):
            await decide(owner, 0, theirs, rows=1)
        mine = await stage(owner, 0, 1)
        with pytest.raises(StagedBatchMissing):
            await decide(thief, 0, mine, rows=1)
        await decide(owner, 0, mine, rows=1)
        assert await root.numbers("t") == [1]


@virtual_time
async def test_who_has_a_right_to_describe_the_transaction_sees_it(tmp_path: Path) -> None:
    async with served(tmp_path) as (root, owner, thief):
        await decide(owner, 0, await stage(owner, 0, 1), rows=1)
        await root.allow(
            pb.AclRule(principal="User:thief", operation="Describe", kind="Transaction", name=KEY.query_id)
        )
        status = await thief.ask("TransactionStatus", pb.TransactionStatusRequest(key=KEY))
        assert status.known
        with pytest.raises(PermissionDenied, match="another user's"):
            await decide(thief, 1)


@virtual_time
async def test_a_superuser_may_decide_and_does_not_take_the_key(tmp_path: Path) -> None:
    async with served(tmp_path) as (root, owner, thief):
        await decide(owner, 0, await stage(owner, 0, 1), rows=1)
        await decide(root, 1, await stage(owner, 1, 2), rows=1)
        await decide(owner, 2, await stage(owner, 2, 3), rows=1)
        with pytest.raises(PermissionDenied):
            await decide(thief, 3)
        assert await root.numbers("t") == [1, 2, 3]


@virtual_time
async def test_owners_outlast_the_broker_and_do_not_count_where_rights_are_not_judged(tmp_path: Path) -> None:
    async with served(tmp_path) as (_, owner, _thief):
        await decide(owner, 0, await stage(owner, 0, 1), rows=1)
    async with judging(tmp_path) as broker:
        with pytest.raises(PermissionDenied, match="another user's"):
            await decide(As(broker, "User:thief"), 1)
        await decide(As(broker, "User:etl"), 1)
    async with standalone(tmp_path) as broker:
        anonymous = As(broker, "User:ANONYMOUS")
        await decide(anonymous, 2, await stage(anonymous, 2, 3), rows=1)
        assert await anonymous.numbers("t") == [1, 3]
