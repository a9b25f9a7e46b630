"""What members may ask, and what becomes of it, asked of a broker in virtual time."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest

from mq_broker.broker.host.shell import Shell
from mq_broker.broker.queues.asked import DELAY_MS_MAX, NAMED_MAX
from mq_protocol import mq_pb2 as pb
from mq_protocol.errors import InvalidRequest, NotLeader, UnknownTopic
from mq_protocol.queues.settings import LEASE_MS_CEILING, LEASE_MS_FLOOR, MEMBER_PRIORITY_MAX
from tests.coroutines import virtual_time
from tests.mq_broker.broker.queues.members import Member, partition_of, queue, ranges

END = 30


def one(*gaps: int, **fields: Any) -> pb.SettleOne:
    """`lease` is to be filled in."""
    return pb.SettleOne(ranges=gaps or (0, 1), **fields)


@virtual_time
async def test_the_time_of_a_lease_has_bounds_and_0_is_the_groups(tmp_path: Path) -> None:
    async with queue(tmp_path, lease_ms="20s") as broker:
        member = Member(broker)
        told = [(await member.lease(1, lease_ms=ms)).lease_ms for ms in (0, LEASE_MS_FLOOR, LEASE_MS_CEILING)]
        assert told == [20_000, LEASE_MS_FLOOR, LEASE_MS_CEILING]
        for lease_ms in (1, LEASE_MS_FLOOR - 1, LEASE_MS_CEILING + 1):
            with pytest.raises(InvalidRequest, match="is not allowed"):
                await member.lease(lease_ms=lease_ms)


@virtual_time
async def test_a_topic_that_was_made_again_is_another_one(tmp_path: Path) -> None:
    async with queue(tmp_path) as broker:
        member = Member(broker)
        former = (await broker.metadata("t")).topics[0].topic_id
        assert ranges(await member.lease(1, topic_id=former)) == [0, 1]
        await broker.ask("DeleteTopic", pb.DeleteTopicRequest(name="t"))
        await broker.create_topic("t")
        await broker.ask("AlterQueue", pb.AlterQueueRequest(topic="t", group="g"))
        for ask in (member.lease, partial(member.settle, one())):
            with pytest.raises(UnknownTopic, match="made again"):
                await ask(topic_id=former)


@virtual_time
async def test_leases_of_a_later_leader_are_judged_by_that(tmp_path: Path) -> None:
    async with queue(tmp_path) as broker:
        member = Member(broker)
        lease = (await member.lease(1)).lease
        later = pb.LeaseId(leader_epoch=lease.leader_epoch + 1)
        with pytest.raises(NotLeader):
            await member.lease(held=[lease, later])
        with pytest.raises(NotLeader):
            await member.settle(pb.SettleOne(lease=later, ranges=[0, 1]))


QUESTIONS: tuple[dict[str, Any], ...] = (
    {"member": ""},
    {"member": "a/b"},
    {"member": "x" * 300},
    {"member_key": b"short"},
    {"member_key": b"x" * 65},
    {"priority": MEMBER_PRIORITY_MAX + 1},
)

SETTLES = (
    (one(0), "has no length"),
    (one(0, END + 1), "beyond the end"),
    (one(error="x"), "leave it out"),
    (one(outcome=pb.OUTCOME_RELEASE, error="x"), "leave it out"),
    (one(outcome=pb.OUTCOME_EXTEND, error="x"), "leave it out"),
    (one(delay_ms=0), "leave it out"),
    (one(outcome=pb.OUTCOME_REJECT, delay_ms=1), "leave it out"),
    (one(outcome=pb.OUTCOME_FAIL, delay_ms=DELAY_MS_MAX + 1), "too long"),
    (one(outcome=77), "is not known"),
    (one(number=1), "outputs"),
)


@virtual_time
async def test_what_cannot_be_is_refused_with_all_that_comes_with_it(tmp_path: Path, shells: list[Shell]) -> None:
    async with queue(tmp_path, records=END) as broker:
        member = Member(broker)
        lease = (await member.lease(END)).lease
        before = partition_of(shells).replica.last_index
        for fields in QUESTIONS:
            with pytest.raises(InvalidRequest):
                await member.lease(**fields)
        good = pb.SettleOne(lease=lease, ranges=[1, 1])
        for settle, why in SETTLES:
            settle.lease.CopyFrom(lease)
            with pytest.raises(InvalidRequest, match=why):
                await member.settle(good, settle)
        assert partition_of(shells).replica.last_index == before


@virtual_time
async def test_each_outcome_is_what_it_says(tmp_path: Path) -> None:
    async with queue(tmp_path, dead_letter="park") as broker:
        member = Member(broker)
        lease = (await member.lease(7)).lease
        outcomes = (
            one(1, 1, outcome=pb.OUTCOME_RELEASE),
            one(2, 1, outcome=pb.OUTCOME_RELEASE, delay_ms=60_000),
            one(3, 1, outcome=pb.OUTCOME_FAIL, error="boom"),
            one(4, 1, outcome=pb.OUTCOME_FAIL, delay_ms=0),
            one(5, 1, outcome=pb.OUTCOME_REJECT, error="é" * 500),
            one(6, 1),
        )
        for each in outcomes:
            each.lease.CopyFrom(lease)
        assert await member.settle(*outcomes) == [pb.SettleAnswer()] * len(outcomes)
        request = pb.DescribeQueueRequest(topic="t", group="g", partitions=[0], runs_max=100)
        [told] = (await broker.ask("DescribeQueue", request)).partitions
        assert [(run.first, run.state, run.failures, run.error) for run in told.runs] == [
            (0, pb.RECORD_LEASED, 0, ""),
            (1, pb.RECORD_READY, 0, ""),
            (2, pb.RECORD_DELAYED, 0, ""),
            (3, pb.RECORD_DELAYED, 1, "boom"),
            (4, pb.RECORD_READY, 1, ""),
            (5, pb.RECORD_PARKED, 0, "é" * 126 + "..."),
            (7, pb.RECORD_READY, 0, ""),
        ]


@virtual_time
async def test_a_request_names_a_record_so_often_and_extensions_count_for_themselves(tmp_path: Path) -> None:
    async with queue(tmp_path, records=END) as broker:
        member = Member(broker)
        lease = (await member.lease(END)).lease

        def named(*gaps: int, outcome: pb.Outcome.ValueType = pb.OUTCOME_ACK) -> pb.SettleOne:
            return pb.SettleOne(lease=lease, ranges=gaps, outcome=outcome)

        often = [named(at, 5) for at in range(NAMED_MAX)]
        await member.settle(*often, *(named(at, 5, outcome=pb.OUTCOME_EXTEND) for at in range(NAMED_MAX)))
        await member.settle(*often, named(NAMED_MAX + 10, 5), named(5, 1), named(6, 1))
        for more in (named(4, 1), named(3, 9)):
            with pytest.raises(InvalidRequest, match="at most 4 times"):
                await member.settle(*often, more)
        with pytest.raises(InvalidRequest, match="offset 0 more often"):
            await member.settle(*[named(0, 1, outcome=pb.OUTCOME_EXTEND)] * (NAMED_MAX + 1))
