"""How many transaction keys, and how much that is staged, one user may have: what fits is taken, one more is refused by
name, and what is committed or aborted makes room."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from mq_broker.broker.transactions.owners import AGAIN_S
from mq_protocol import mq_pb2 as pb
from mq_protocol.errors import QuotaExceeded
from mq_protocol.names import TRANSACTIONS_TOPIC
from tests.coroutines import virtual_time
from tests.mq_broker.broker.cluster import Broker, until
from tests.mq_broker.broker.principals import ROOT, As, judging, named  # noqa: F401 - a fixture
from tests.mq_broker.broker.transactions.test_aborting import decide, stage

pytestmark = pytest.mark.usefixtures("named")

GREEDY, MODEST = "User:greedy", "User:modest"


def key(query: str | None = None) -> pb.TransactionKey:
    return pb.TransactionKey(query_id=query or str(uuid.uuid4()), sink="t")


@contextlib.asynccontextmanager
async def served(data: Path, **limits: int) -> AsyncIterator[tuple[As, As, As]]:
    """Somebody who may do everything, and two users who may write topic `t`, of whom the first has these limits."""
    async with judging(data) as broker:
        root = As(broker, ROOT)
        await root.create_topic("t")
        for who in (GREEDY, MODEST):
            await root.allow(pb.AclRule(principal=who, operation="Write", kind="Topic", name="t"))
        if limits:
            await limit(root, **limits)
        yield root, As(broker, GREEDY), As(broker, MODEST)


async def it_is_counted_again() -> None:
    """So long that the next one who has too much has it counted anew."""
    await asyncio.sleep(AGAIN_S + 0.1)


async def limit(root: Broker, **limits: int) -> None:
    await root.ask("AlterQuotas", pb.AlterQuotasRequest(principal=GREEDY, set=limits))


@virtual_time
async def test_staged_batches_are_counted_until_they_are_decided(tmp_path: Path) -> None:
    async with served(tmp_path, staged=3) as (root, greedy, modest):
        mine = key()
        lines = [await stage(greedy, 0, n, key=mine) for n in range(3)]
        with pytest.raises(QuotaExceeded, match=r"User:greedy has 3 batches staged at this broker.*--staged 6"):
            await stage(greedy, 0, 3, key=mine)
        for n in range(5):
            await stage(modest, 0, n, key=key())
        place = pb.StageOf(key=mine, batch_id=0, run_id="run")
        again = await greedy.produce("t", 0, uuid=lines[0].uuids[0], stage=place)
        assert again.duplicate, "what is staged already is no more than it was"
        whole = pb.StagedBatches(topic="t", partition=0, uuids=[line.uuids[0] for line in lines], row_count=3)
        await decide(greedy, 0, whole, key=mine)
        assert await root.numbers("t") == [0, 1, 2]
        await it_is_counted_again()
        await stage(greedy, 1, 3, key=mine)


@virtual_time
async def test_keys_are_counted_and_a_key_that_is_there_goes_on(tmp_path: Path) -> None:
    async with served(tmp_path, transactions=2) as (root, greedy, modest):
        first = key()
        for each in (first, key()):
            await decide(greedy, 0, key=each)
        with pytest.raises(QuotaExceeded, match=r"has 2 transaction keys at this broker.*--transactions 4"):
            await decide(greedy, 0, key=key())
        await decide(greedy, 1, key=first)
        for _ in range(3):
            await decide(modest, 0, key=key())
            await decide(root, 0, key=key())
        await limit(root, transactions=3)
        await decide(greedy, 0, key=key())


@virtual_time
async def test_what_is_there_at_a_new_start_counts(tmp_path: Path) -> None:
    async with served(tmp_path, staged=2, transactions=1) as (_, greedy, _modest):
        mine = key()
        await decide(greedy, 0, key=mine)
        for n in range(2):
            await stage(greedy, 1, n, key=mine)
    async with judging(tmp_path) as broker:
        root, greedy = As(broker, ROOT), As(broker, GREEDY)

        async def all_are_led() -> bool:
            topics = (await root.metadata("t", TRANSACTIONS_TOPIC)).topics
            return len(topics) == 2 and all(p.leader == 1 for topic in topics for p in topic.partitions)

        await until(all_are_led)
        with pytest.raises(QuotaExceeded):
            await stage(greedy, 1, 3, key=mine)
        with pytest.raises(QuotaExceeded):
            await decide(greedy, 0, key=key())
