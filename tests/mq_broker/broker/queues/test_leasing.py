"""Lease and Settle, asked of a broker in this process."""

from __future__ import annotations

from pathlib import Path

from mq_broker.broker.host.shell import Shell
from mq_protocol import mq_pb2 as pb
from tests.coroutines import virtual_time
from tests.mq_broker.broker.cluster import standalone, until
from tests.mq_broker.broker.queues.members import Member, partition_of, queue, ranges


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


@virtual_time
async def test_a_member_settles_and_is_lent_what_comes_next_by_one_entry_and_with_its_rows(
    tmp_path: Path, shells: list[Shell]
) -> None:
    async with queue(tmp_path, delivery_limit="0") as broker:
        member = Member(broker)
        first = await member.lease(2, rows_bytes_max=10_000)
        [stored] = first.batches
        assert (stored.base_offset, stored.record_count, stored.kept) == (0, 10, bytes([0b11, 0]))
        assert len(first.payload) == stored.payload_bytes > 0
        before = partition_of(shells).replica.last_index
        ack = pb.SettleOne(lease=first.lease, ranges=[0, 2])
        following = await member.lease(2, held=[first.lease], settles=[ack])
        assert partition_of(shells).replica.last_index == before + 1
        assert (ranges(following), list(following.answers)) == ([2, 2], [pb.SettleAnswer()])
        assert (list(following.batches), following.payload) == ([], b""), "none are wanted"
        again = await member.lease(2, held=[following.lease], settles=[ack])
        assert (ranges(again), list(again.answers)) == ([4, 2], [pb.SettleAnswer()]), "asked again: the same answer"
        assert partition_of(shells).replica.machine.work["g"].base == 2
