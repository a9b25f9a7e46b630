"""A member that gives everything back, for ever: what it makes the journal keep goes once the records are settled."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from mq_broker.broker.host.shell import Shell
from mq_protocol import limits
from mq_protocol import mq_pb2 as pb
from tests.mq_broker.broker.cluster import standalone, until
from tests.mq_broker.broker.queues.members import Member, partition_of

TURNS = 60


def test_the_journal_begins_later_once_what_came_back_again_and_again_is_settled(
    tmp_path: Path, shells: list[Shell], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "SEGMENT_BYTES_FLOOR", 1_000)

    async def scenario() -> None:
        async with standalone(tmp_path) as broker:
            await broker.create_topic("t", segment_bytes_max="1000")
            settings = {"retry_ms": "0", "delivery_limit": "0"}
            await broker.ask("AlterQueue", pb.AlterQueueRequest(topic="t", group="g", settings=settings))
            await broker.produce("t", *range(10))
            member, partition = Member(broker), partition_of(shells)
            for _ in range(TURNS):
                lent = await member.lease(10)
                await member.settle(pb.SettleOne(lease=lent.lease, ranges=[0, 10], outcome=pb.OUTCOME_RELEASE))
            last = partition.replica.applied_index
            assert last > 2 * TURNS
            await partition.shorten()
            assert partition.journal.first_index == 1, "the first record is still to be worked on"
            lent = await member.lease(10)
            assert list(lent.deliveries) == [TURNS + 1]
            await member.ack(lent.lease, 0, 10)
            position = pb.CursorPosition(topic="t", offset=10)
            await broker.ask("Purge", pb.PurgeRequest(positions=[position]))

            async def shorter() -> bool:
                await partition.shorten()
                return partition.journal.first_index > last - 20

            await until(shorter)
            assert partition.replica.machine.work["g"].runs == 0

    asyncio.run(scenario())
