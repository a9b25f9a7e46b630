"""Lease and Settle, asked of a broker in this process."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

from mq_broker.broker.host.shell import Shell
from mq_protocol import mq_pb2 as pb
from mq_protocol.error_messages import from_wire
from mq_protocol.errors import InvalidRequest, NotLeader, RequestTooLarge, UnknownQueue, UnknownTopic
from tests.mq_broker.broker.cluster import standalone, until
from tests.mq_broker.broker.queues.members import Member, of, partition_of, queue, ranges


def test_records_are_lent_settled_and_not_lent_again_after_a_restart(tmp_path: Path) -> None:
    async def scenario() -> None:
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

    asyncio.run(scenario())


def test_a_member_that_waits_is_woken_by_new_records_and_by_the_end_of_a_pause(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with queue(tmp_path, records=0) as broker:
            asking = asyncio.ensure_future(Member(broker).lease(2))
            await asyncio.sleep(0.1)
            await broker.produce("t", 1)
            lent = await asking
            assert ranges(lent) == [0, 1]
            await broker.ask(
                "AlterQueue",
                pb.AlterQueueRequest(topic="t", group="g", change=pb.QUEUE_ALTER, settings={"paused": "true"}),
            )
            await broker.produce("t", 2)
            asking = asyncio.ensure_future(Member(broker).lease(2, held=[lent.lease]))
            await asyncio.sleep(0.1)
            assert not asking.done()
            await broker.ask(
                "AlterQueue",
                pb.AlterQueueRequest(topic="t", group="g", change=pb.QUEUE_ALTER, settings={"paused": "false"}),
            )
            assert ranges(await asking) == [1, 1]

    asyncio.run(scenario())


def test_a_member_that_asks_before_its_queue_has_begun_is_lent_as_soon_as_it_has(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with standalone(tmp_path) as broker:
            await broker.create_topic("t")
            await broker.produce("t", 1)
            await broker.ask("AlterQueue", pb.AlterQueueRequest(topic="t", group="g"))
            async with asyncio.timeout(5):
                assert ranges(await Member(broker).lease(1)) == [0, 1]

    asyncio.run(scenario())


def test_a_request_that_does_not_wait_is_answered_at_once(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with queue(tmp_path, records=0) as broker:
            async with asyncio.timeout(5):
                assert await Member(broker).lease(1, wait_ms=0) == pb.LeaseResponse()

    asyncio.run(scenario())


def test_a_lease_that_runs_out_by_the_brokers_clock_is_lent_to_another(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with queue(tmp_path, records=1, retry_ms="0") as broker:
            lent = await Member(broker).lease(1, lease_ms=1_000)
            taken = await Member(broker, "b").lease(1)
            assert (ranges(taken), list(taken.failures)) == ([0, 1], [1])
            [answer] = await Member(broker).settle(pb.SettleOne(lease=lent.lease, ranges=[0, 1]))
            assert list(answer.lost) == [0, 1]

    asyncio.run(scenario())


def test_a_queue_in_which_everything_is_settled_comes_to_rest(tmp_path: Path, shells: list[Shell]) -> None:
    async def scenario() -> None:
        async with queue(tmp_path, records=5) as broker:
            member = Member(broker)
            lent = await member.lease(5)
            await member.ack(lent.lease, 0, 5)
            waiting = asyncio.ensure_future(member.lease(1, wait_ms=8_000))
            partition = partition_of(shells)
            end = partition.replica.applied_index
            await until(of(lambda: partition.rest.asleep))
            await asyncio.sleep(1.0)
            assert partition.rest.asleep, "nothing wakes it"
            assert partition.replica.applied_index == end
            assert not waiting.done()
            waiting.cancel()

    asyncio.run(scenario())


HELD = pb.LeaseId(leader_epoch=1, entry=1, step=0)

WRONG: Sequence[tuple[str, pb.SettleOne, str]] = (
    ("beyond the end", pb.SettleOne(lease=HELD, ranges=[0, 11]), "beyond the end of the log"),
    ("huge", pb.SettleOne(lease=HELD, ranges=[0, 1 << 63]), "out of range"),
    ("odd", pb.SettleOne(lease=HELD, ranges=[0]), "no length"),
    ("empty", pb.SettleOne(lease=HELD, ranges=[0, 0]), "is empty"),
    ("9,000 ranges", pb.SettleOne(lease=HELD, ranges=[1, 1] * 9_000), "at most 8000 ranges"),
    ("outcome", pb.SettleOne(lease=HELD, ranges=[0, 1], outcome=9), "outcome 9 is not known"),  # type: ignore[arg-type]
    ("error of an ack", pb.SettleOne(lease=HELD, ranges=[0, 1], error="x"), "have an error"),
    ("the same again and again", pb.SettleOne(lease=HELD, ranges=[0, 1]), "at most 4 times"),
    ("delay of an ack", pb.SettleOne(lease=HELD, ranges=[0, 1], delay_ms=1), "after a delay"),
    (
        "delay",
        pb.SettleOne(lease=HELD, ranges=[0, 1], outcome=pb.OUTCOME_RELEASE, delay_ms=1 << 50),
        "is too long",
    ),
)


@pytest.mark.long
def test_what_cannot_be_right_changes_nothing_and_is_refused_early(tmp_path: Path, shells: list[Shell]) -> None:
    async def scenario() -> None:
        async with queue(tmp_path) as broker:
            member = Member(broker)
            partition = partition_of(shells)
            before = partition.replica.machine.work.frozen()
            for what, settle, why in WRONG:
                with pytest.raises(InvalidRequest, match=why):
                    await member.settle(*[settle] * 5)
                assert partition.replica.machine.work.frozen() == before, what
            later = pb.LeaseId(leader_epoch=1 << 40, entry=1)
            with pytest.raises(NotLeader):
                await member.settle(pb.SettleOne(lease=later, ranges=[0, 1]))
            with pytest.raises(NotLeader):
                await member.lease(1, held=[later])
            for name in ("", "a/b", "x" * 300, "a\u200bb"):
                with pytest.raises(InvalidRequest):
                    await Member(broker, name).lease(1)
            for fields in ({"member_key": b"short"}, {"member_key": b"x" * 65}, {"lease_ms": 10}):
                with pytest.raises(InvalidRequest):
                    await member.lease(1, **fields)
            with pytest.raises(RequestTooLarge):
                await member.lease(1, held=[pb.LeaseId(entry=n) for n in range(10_001)])
            with pytest.raises(UnknownTopic):
                await member.lease(1, topic_id="another")
            request = pb.LeaseRequest(topic="t", group="h", member="a", records_max=1)
            with pytest.raises(UnknownQueue):
                await broker.ask("Lease", request)
            assert partition.replica.machine.work.frozen() == before
            unknown = pb.LeaseId(leader_epoch=1, entry=77)
            [answer] = await member.settle(pb.SettleOne(lease=unknown, ranges=[0, 10]))
            assert list(answer.lost) == [0, 10]
            assert partition.replica.machine.work.frozen() == before
            assert ranges(await member.lease(10)) == [0, 10]

    asyncio.run(scenario())


def test_settles_of_one_request_are_answered_each_at_its_place(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with queue(tmp_path) as broker:
            member = Member(broker)
            lease = (await member.lease(10)).lease
            answers = await member.settle(
                pb.SettleOne(lease=lease, ranges=[0, 2]),
                pb.SettleOne(lease=pb.LeaseId(leader_epoch=1, entry=1), ranges=[2, 1]),
                pb.SettleOne(lease=lease, ranges=[3, 1], outcome=pb.OUTCOME_EXTEND),
                pb.SettleOne(lease=lease, ranges=[4, 1], outcome=pb.OUTCOME_REJECT, error="bad"),
            )
            assert [list(answer.lost) for answer in answers] == [[], [2, 1], [], []]
            assert not any(answer.HasField("error") for answer in answers), [from_wire(a.error) for a in answers]

    asyncio.run(scenario())


def test_a_member_settles_and_is_lent_what_comes_next_by_one_entry_and_with_its_rows(
    tmp_path: Path, shells: list[Shell]
) -> None:
    async def scenario() -> None:
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

    asyncio.run(scenario())


def test_who_settles_does_not_wait_to_be_lent_something(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with queue(tmp_path, records=1) as broker:
            member = Member(broker)
            lent = await member.lease(1)
            async with asyncio.timeout(5):
                ack = pb.SettleOne(lease=lent.lease, ranges=[0, 1])
                told = await member.lease(1, wait_ms=60_000, held=[lent.lease], settles=[ack])
            assert (ranges(told), list(told.answers), told.HasField("lease")) == ([], [pb.SettleAnswer()], False)
            lost = pb.SettleOne(lease=lent.lease, ranges=[0, 1], outcome=pb.OUTCOME_FAIL)
            await broker.produce("t", 1)
            told = await member.lease(1, settles=[lost])
            assert ranges(told) == [1, 1]
            assert list(told.answers) == [pb.SettleAnswer(lost=[0, 1])], "it was acknowledged"

    asyncio.run(scenario())


def test_outputs_and_extensions_do_not_go_with_a_question_for_records(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with queue(tmp_path) as broker:
            member = Member(broker)
            lent = await member.lease(1)
            wrong = [
                pb.SettleOne(lease=lent.lease, ranges=[0, 1], outcome=pb.OUTCOME_EXTEND),
                pb.SettleOne(lease=lent.lease, ranges=[0, 1], number=1),
                pb.SettleOne(lease=lent.lease, ranges=[0, 1], outputs=[pb.StagedBatches(topic="u")]),
            ]
            for settle in wrong:
                with pytest.raises(InvalidRequest, match="go by Settle"):
                    await member.lease(1, held=[lent.lease], settles=[settle])
            with pytest.raises(InvalidRequest, match="cannot be settled"):
                await member.lease(1, held=[lent.lease], settles=[pb.SettleOne(lease=lent.lease, ranges=[0, 1 << 40])])
            later = pb.LeaseId(leader_epoch=1 << 20, entry=1)
            with pytest.raises(NotLeader):
                await member.lease(1, held=[lent.lease], settles=[pb.SettleOne(lease=later, ranges=[0, 1])])
            assert (await member.lease(0, held=[lent.lease])).gone == [], "nothing of it was done"

    asyncio.run(scenario())
