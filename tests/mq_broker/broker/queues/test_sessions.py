"""Sessions of members of a queue group, at a broker in this process."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from mq_protocol import limits
from mq_protocol import mq_pb2 as pb
from mq_protocol.errors import MemberInUse, Overloaded, RequestTooLarge, TritonMQError, UnknownQueue
from tests.coroutines import virtual_time
from tests.mq_broker.broker.cluster import Broker, standalone, until
from tests.mq_broker.broker.queues.members import queue, ranges
from tests.mq_broker.broker.queues.spoken import ack, released, speaking


async def described(broker: Broker) -> pb.QueuePartition:
    [told] = (
        await broker.ask("DescribeQueue", pb.DescribeQueueRequest(topic="t", group="g", partitions=[0]))
    ).partitions
    assert isinstance(told, pb.QueuePartition)
    return told


@virtual_time
async def test_records_are_pushed_as_far_as_the_credit_goes_and_as_they_come(tmp_path: Path) -> None:
    async with queue(tmp_path) as broker, speaking(broker) as member:
        await member.open(records=4)
        first = await member.lease()
        assert (ranges(first), list(first.deliveries), first.ready) == ([0, 4], [1], True)
        assert member.rows[1] == [0, 1, 2, 3], "their rows come with them"
        await member.settle(ack(first.lease, 0, 4), records=20)
        answered = await member.hear(lambda said: said.answers)
        assert [(each.number, each.answer) for each in answered.answers] == [(1, pb.SettleAnswer())]
        second = answered.lease if answered.HasField("lease") else await member.lease()
        assert (ranges(second), second.ready) == ([4, 6], False)
        assert second.lease.entry == first.lease.entry + 1, "one entry settled, and lent what comes next"
        await broker.produce("t", 10, 11)
        assert ranges(await member.lease()) == [10, 2], "nobody has asked for it"
        await member.settle(ack(second.lease, 4, 6))
        await member.hear(lambda said: [each.number for each in said.answers] == [2])
    async with standalone(tmp_path) as broker:
        await until(lambda: _is(broker, "accepted", 10))
        assert (await described(broker)).leased == 2, "what was settled stays so"


@virtual_time
async def test_a_member_that_comes_back_in_time_keeps_what_it_names_and_the_rest_goes_back_uncharged(
    tmp_path: Path,
) -> None:
    async with queue(tmp_path, resume_ms="10m") as broker:
        async with speaking(broker) as member:
            await member.open(records=4)
            lent = await member.lease()
        async with speaking(broker) as member:
            await member.open(held=(pb.HeldLease(lease=lent.lease, ranges=[1, 2]),), records=10)
            rest = await member.lease()
            assert (ranges(rest), list(rest.deliveries), list(rest.failures)) == (
                [0, 1, 2, 1, 0, 6],
                [2, 2, 1],
                [0, 0, 0],
            )
            await member.settle(ack(lent.lease, 1, 2))
            [answer] = (await member.hear(lambda said: said.answers)).answers
            assert answer.answer == pb.SettleAnswer()
        assert (await described(broker)).charged == 0


@virtual_time
async def test_what_a_member_claims_by_a_former_lease_is_not_its_own_by_a_later_one(tmp_path: Path) -> None:
    """It had given a record back and was lent it again, and the stream broke before it heard of either."""
    async with queue(tmp_path, records=3, resume_ms="10m") as broker:
        async with speaking(broker) as member:
            await member.open(records=3)
            first = await member.lease()
            await broker.produce("t", 3)
            await member.settle(released(first.lease, 0, 1), records=5)
            second = await member.lease()
            if ranges(second) != [0, 1, 2, 1]:  # what it gave back, or the new record, came a moment later
                other = await member.lease()
                assert sorted([ranges(second), ranges(other)]) == [[0, 1], [3, 1]]
                second = second if ranges(second) == [0, 1] else other
        async with speaking(broker) as member:
            claims = (
                pb.HeldLease(lease=first.lease, ranges=[0, 3]),
                pb.HeldLease(lease=second.lease, ranges=[3, 1]),
            )
            await member.open(held=claims, records=10)
            again = await member.lease()
            assert ranges(again)[:2] == [0, 1], "nobody has it by the lease that is named"
            assert (again.deliveries[0], again.failures[0]) == (3, 0)


@virtual_time
async def test_a_member_that_does_not_come_back_is_charged_for_what_it_worked_on(tmp_path: Path) -> None:
    async with queue(tmp_path, resume_ms="300ms", retry_ms="0") as broker, speaking(broker) as other:
        async with speaking(broker) as member:
            await member.open(records=8)
            await member.lease()
            changed = pb.SessionRequest(
                session=1, terms=pb.WorkTerms(working=2), credit=pb.WorkCredit(records=10, watch=True)
            )
            await member.say(changed)
            await member.lease()
            broke_at = asyncio.get_running_loop().time()
        await other.open(member="b", records=10)
        lent = await other.lease()
        assert asyncio.get_running_loop().time() - broke_at >= 0.3
        assert (ranges(lent), list(lent.failures)) == ([0, 2, 0, 8], [1, 0]), "the first ones, as many as it said last"


@virtual_time
async def test_what_was_lent_to_a_session_that_is_over_is_not_pushed_into_the_next_one(tmp_path: Path) -> None:
    """The entry is on its way while the member opens anew."""
    async with queue(tmp_path, records=3) as broker, speaking(broker) as stream:
        await stream.say(
            pb.SessionRequest(
                session=1,
                open=pb.WorkOpen(topic="t", group="g", member="a", member_key=b"k" * 16),
                credit=pb.WorkCredit(records=3),
            )
        )
        await stream.open(2, records=3)
        lent = await stream.lease(2)
        assert ranges(lent) == [0, 3]
        assert list(lent.deliveries) in ([1], [2]), "it went back before it was lent again, if it had been lent"
        with pytest.raises(TritonMQError, match="another session"):
            raise await stream.error(1)
        assert (await described(broker)).charged == 0


@virtual_time
async def test_another_process_of_the_name_takes_its_place_and_the_former_is_told(tmp_path: Path) -> None:
    async with queue(tmp_path, retry_ms="0") as broker, speaking(broker) as stream:
        await stream.open(1, records=10)
        await stream.lease(1)
        await stream.open(2, key=b"z" * 16, records=10)
        assert isinstance(await stream.error(1), MemberInUse)
        assert list((await stream.lease(2)).failures) == [1, 0]
        await stream.open(3, records=10)
        assert isinstance(await stream.error(3), MemberInUse), "and is told so again"


async def _is(broker: Broker, field: str, value: int) -> bool:
    return bool(getattr(await described(broker), field) == value)


@virtual_time
async def test_a_deleted_group_ends_its_sessions(tmp_path: Path) -> None:
    async with queue(tmp_path) as broker, speaking(broker) as stream:
        await stream.open(records=20, watch=False)
        await stream.lease()
        await broker.ask("AlterQueue", pb.AlterQueueRequest(topic="t", group="g", change=pb.QUEUE_DELETE))
        await broker.produce("t", 1)
        assert isinstance(await stream.error(), UnknownQueue)


# ---------------------------------------------------------------- what nobody means


@pytest.mark.parametrize(
    ("said", "words"),
    [
        (pb.SessionRequest(credit=pb.WorkCredit(records=-1)), "is below 0"),
        (pb.SessionRequest(credit=pb.WorkCredit(records=1, bytes=-1)), "is below 0"),
        (pb.SessionRequest(credit=pb.WorkCredit(records=(1 << 31) + 2)), "nobody can hold so much"),
        (pb.SessionRequest(credit=pb.WorkCredit(records=1, bytes=1 << 50)), "nobody can hold so much"),
        (pb.SessionRequest(settles=[ack(pb.LeaseId(), 0, 0)]), "cannot be settled"),
        (pb.SessionRequest(settles=[ack(pb.LeaseId(), 0, 99)]), "beyond the end of the log"),
        (pb.SessionRequest(settles=[ack(pb.LeaseId(), *[1, 1] * 8_001)]), "at most 8000 ranges"),
        (pb.SessionRequest(settles=[pb.SettleOne(ranges=[0, 1], number=1)]), "give both"),
        (pb.SessionRequest(terms=pb.WorkTerms(lease_ms=1)), "lease_ms of 1"),
        (pb.SessionRequest(terms=pb.WorkTerms(priority=32)), "priority 32"),
        (pb.SessionRequest(terms=pb.WorkTerms(filter="n >")), "filter"),
        (pb.SessionRequest(open=pb.WorkOpen(topic="t", group="g", member="c", member_key=b"k" * 16)), "is open"),
        (pb.SessionRequest(check=[pb.LeaseId(leader_epoch=99)]), "another broker may lead"),
    ],
)
@virtual_time
async def test_what_cannot_be_meant_ends_its_session_and_no_other(
    tmp_path: Path, said: pb.SessionRequest, words: str
) -> None:
    async with queue(tmp_path) as broker, speaking(broker) as stream:
        await stream.open(1, "a", records=1)
        await stream.open(2, "b")
        await stream.lease(1)
        said.session = 1
        await stream.say(said)
        assert words in str(await stream.error(1))
        await stream.credit(1, 2)
        assert ranges(await stream.lease(2)) == [1, 1]
        await stream.say(said, pb.SessionRequest(session=77, close=True))
        await stream.credit(2, 2)
        assert ranges(await stream.lease(2)) == [2, 1], "what is said of no session is passed over"


@pytest.mark.parametrize(
    ("opened", "words"),
    [
        (pb.WorkOpen(topic="t", group="g", member="", member_key=b"k" * 16), "member"),
        (pb.WorkOpen(topic="t", group="h", member="a", member_key=b"k" * 16), "'h'"),
        (pb.WorkOpen(topic="u", group="g", member="a", member_key=b"k" * 16), "'u'"),
        (pb.WorkOpen(topic="t", partition=3, group="g", member="a", member_key=b"k" * 16), "partition"),
        (
            pb.WorkOpen(
                topic="t", group="g", member="a", member_key=b"k" * 16, held=[pb.HeldLease(ranges=[1, 1] * 8_001)]
            ),
            "at most 8000 ranges",
        ),
        (
            pb.WorkOpen(topic="t", group="g", member="a", member_key=b"k" * 16, held=[pb.HeldLease(), pb.HeldLease()]),
            "is named twice",
        ),
        (
            pb.WorkOpen(
                topic="t",
                group="g",
                member="a",
                member_key=b"k" * 16,
                held=[pb.HeldLease(lease=pb.LeaseId(leader_epoch=99))],
            ),
            "another broker may lead",
        ),
    ],
)
@virtual_time
async def test_what_cannot_be_opened_is_refused_by_name(tmp_path: Path, opened: pb.WorkOpen, words: str) -> None:
    async with queue(tmp_path) as broker, speaking(broker) as stream:
        await stream.say(pb.SessionRequest(session=1, open=opened))
        assert words in str(await stream.error(1))
        await stream.open(1, records=1)
        assert ranges(await stream.lease()) == [0, 1]


@virtual_time
async def test_claims_of_what_others_have_are_gone(tmp_path: Path) -> None:
    async with queue(tmp_path) as broker, speaking(broker) as stream:
        await stream.open(1, "a", records=5)
        lent = await stream.lease(1)
        await stream.open(2, "b", held=(pb.HeldLease(lease=lent.lease, ranges=[0, 5]),))
        assert list((await stream.hear(lambda said: said.gone, 2)).gone) == [lent.lease]
        await stream.settle(ack(lent.lease, 0, 5), session=2)
        [answer] = (await stream.hear(lambda said: said.answers, 2)).answers
        assert list(answer.answer.lost) == [0, 5]


@virtual_time
async def test_a_message_that_names_too_much_ends_its_stream_and_no_other(tmp_path: Path) -> None:
    async with queue(tmp_path) as broker, speaking(broker) as other:
        await other.open(member="b")
        for request in (
            [pb.SessionRequest(session=number) for number in range(limits.WORK_SESSIONS_AT_ONCE_MAX + 1)],
            [pb.SessionRequest(session=1, settles=[pb.SettleOne()] * (limits.SETTLES_MAX + 1))],
            [pb.SessionRequest(session=1, settles=[ack(pb.LeaseId(), *[1] * 1_100_000)])],
        ):
            async with speaking(broker) as stream:
                await stream.say(*request)
                with pytest.raises(RequestTooLarge):
                    await stream.heard()
        await other.credit(1)
        assert ranges(await other.lease()) == [0, 1]


@virtual_time
async def test_more_sessions_than_a_partition_takes_are_refused_and_the_others_work(
    tmp_path: Path,
) -> None:
    most = limits.WORK_SESSIONS_MAX
    async with queue(tmp_path) as broker, speaking(broker) as stream:
        for number in range(1, most + 1):
            await stream.open(number, f"m{number}")
        await stream.open(most + 1, "one more")
        assert isinstance(await stream.error(most + 1), Overloaded)
        await stream.credit(1, 20)
        assert ranges(await stream.lease(20)) == [0, 1]
        await stream.say(pb.SessionRequest(session=1, close=True))
        await stream.open(most + 2, "another", records=1)
        assert ranges(await stream.lease(most + 2)) == [1, 1]
