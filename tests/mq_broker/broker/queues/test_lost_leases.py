"""An outcome is answered as done only if it is the one that ended the record's lease, whatever another member does."""

from __future__ import annotations

import asyncio
from itertools import product
from pathlib import Path

import pytest

from mq_broker.core.work.ranges import from_gaps
from mq_protocol import mq_pb2 as pb
from tests.mq_broker.broker.cluster import standalone, until
from tests.mq_broker.broker.queues.members import Member, queue, ranges

OUTCOMES = (pb.OUTCOME_ACK, pb.OUTCOME_RELEASE, pb.OUTCOME_FAIL, pb.OUTCOME_REJECT, pb.OUTCOME_EXTEND)
HOLDS = pb.OUTCOME_EXTEND
"""What the second member says that goes on with its record."""

TABLE = tuple(product(OUTCOMES, OUTCOMES))
"""What the second member has said, and what the first one says then. One record each, by its offset."""


def one(lease: pb.LeaseId, offset: int, outcome: pb.Outcome.ValueType) -> pb.SettleOne:
    return pb.SettleOne(lease=lease, ranges=[offset, 1], outcome=outcome)


async def refused(member: Member, *asked: pb.SettleOne) -> list[bool]:
    """Of each outcome, whether its record is told as lost."""
    answers = await member.settle(*asked)
    assert not [answer for answer in answers if answer.HasField("error")]
    return [from_gaps(answer.lost) == from_gaps(one.ranges) for one, answer in zip(asked, answers, strict=True)]


@pytest.mark.parametrize("dead_letter", ["park", "drop", "t.dead"])
def test_what_a_member_says_of_a_record_that_another_one_was_lent_since_is_refused(
    tmp_path: Path, dead_letter: str
) -> None:
    async def scenario() -> None:
        async with queue(tmp_path, records=len(TABLE) + 1, dead_letter=dead_letter) as broker:
            first, second = Member(broker, "first"), Member(broker, "second")
            lost = (await first.lease(100)).lease
            await first.lease(0, wait_ms=0)  # it names nothing, so all goes back
            lent = await second.lease(len(TABLE))
            assert ranges(lent) == [0, len(TABLE)]
            for at, (said, _) in enumerate(TABLE):
                assert await refused(second, one(lent.lease, at, said)) == [False]
            await ask_all(first, lost, second, lent.lease)
            assert await refused(first, one(lost, len(TABLE), pb.OUTCOME_ACK)) == [False], "nobody had it since"
        async with standalone(tmp_path) as broker:  # another leader knows it of the journal
            await until(lambda: Member(broker, "another").lease(0, wait_ms=0))
            await ask_all(Member(broker, "first"), lost, Member(broker, "second"), lent.lease)
            asked = pb.DescribeQueueRequest(topic="t", group="g", partitions=[0])
            [found] = (await broker.ask("DescribeQueue", asked)).partitions
            assert found.accepted == len(OUTCOMES) + 1

    async def ask_all(first: Member, lost: pb.LeaseId, second: Member, lease: pb.LeaseId) -> None:
        for at, (said, now) in enumerate(TABLE):
            row = f"{pb.Outcome.Name(said)}, then {pb.Outcome.Name(now)}"
            assert await refused(first, one(lost, at, now)) == [True], row
            # The second member asks again, since it has lost the answer
            assert await refused(second, one(lease, at, said)) == [False], row
            others = [each for each in OUTCOMES if said not in (each, HOLDS)]
            # To keep what it has acknowledged is no other word: nothing changes, and nobody else had it
            told = [(said, each) != (pb.OUTCOME_ACK, HOLDS) for each in others]
            assert await refused(second, *(one(lease, at, each) for each in others)) == told, row

    asyncio.run(scenario())
