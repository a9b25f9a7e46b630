"""What a member is lent and settles, question by question, at a broker in this process."""

from __future__ import annotations

from pathlib import Path

from mq_protocol import mq_pb2 as pb
from tests.coroutines import virtual_time
from tests.mq_broker.broker.cluster import standalone, until
from tests.mq_broker.broker.queues.members import Member, queue, ranges


@virtual_time
async def test_records_are_lent_settled_and_not_lent_again_after_a_restart(tmp_path: Path) -> None:
    async with queue(tmp_path) as broker:
        member = Member(broker)
        lent = await member.lease(6)
        assert (ranges(lent), list(lent.deliveries), list(lent.failures)) == ([0, 6], [1], [0])
        assert lent.lease_ms == 30_000
        assert lent.ready
        await member.ack(lent.lease, 0, 4)
        [failed] = await member.settle(
            pb.SettleOne(lease=lent.lease, ranges=[4, 1], outcome=pb.OUTCOME_FAIL, error="x" * 300, delay_ms=0)
        )
        assert failed == pb.SettleAnswer()
        again = await member.lease(1, held=[lent.lease])
        assert (ranges(again), list(again.deliveries), list(again.failures)) == ([4, 1], [2], [1])
    async with standalone(tmp_path) as broker:
        member = Member(broker)
        asking = lambda: member.lease(10, held=[lent.lease, again.lease])  # noqa: E731 - asked until it is led
        rest = await until(asking)
        assert ranges(rest) == [6, 4], "it goes on with what it holds"
        await member.ack(lent.lease, 5, 1)
        await member.ack(again.lease, 4, 1)
        await member.ack(rest.lease, 6, 4)
        assert (await member.lease(1, wait_ms=0)) == pb.LeaseResponse()
