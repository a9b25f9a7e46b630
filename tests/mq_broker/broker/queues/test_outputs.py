"""Outputs that are settled with the records that they were made of, asked of a broker in this process."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from uuid import uuid4

import pytest

from mq_broker.broker.host.shell import Shell
from mq_broker.broker.queues.outbox import Outbox
from mq_broker.core.work.steps import OutputLine
from mq_protocol import mq_pb2 as pb
from mq_protocol.errors import InvalidRequest, InvalidTopicName, TritonMQError, UnknownPartition, UnknownTopic
from mq_protocol.work_keys import WorkPlace, query_id_of
from tests.mq_broker.broker.cluster import Broker, standalone, until
from tests.mq_broker.broker.queues.members import Member, of, partition_of, queue

HELD = pb.LeaseId(leader_epoch=1, entry=1, step=0)
UUID = bytes(16)
TOPIC_ID = "0" * 32


def line(**fields: object) -> pb.StagedBatches:
    given = {"topic": "t", "topic_id": TOPIC_ID, "partition": 0, "uuids": [UUID], **fields}
    return pb.StagedBatches(**given)  # type: ignore[arg-type]


def ack(*outputs: pb.StagedBatches, number: int = 1, ranges: Sequence[int] = (0, 1)) -> pb.SettleOne:
    return pb.SettleOne(lease=HELD, ranges=ranges, outputs=outputs, number=number)


WRONG: Sequence[tuple[str, pb.SettleOne, type[TritonMQError], str]] = (
    ("no number", ack(line(), number=0), InvalidRequest, "a number from 1"),
    ("huge number", ack(line(), number=1 << 63), InvalidRequest, "a number from 1"),
    ("number alone", ack(), InvalidRequest, "give both"),
    ("no records", ack(line(), ranges=()), InvalidRequest, "name some"),
    ("65 lines", ack(*[line()] * 65), InvalidRequest, "at most 64 partitions"),
    ("8,193 batches", ack(line(uuids=[UUID] * 8_193)), InvalidRequest, "8192 batches"),
    ("no topic id", ack(line(topic_id="")), InvalidRequest, "the id of its topic"),
    ("no batch", ack(line(uuids=[])), InvalidRequest, "at least one"),
    ("no UUID", ack(line(uuids=[b"x"])), InvalidRequest, "16 bytes"),
    ("internal topic", ack(line(topic="__transactions")), InvalidTopicName, "the brokers' own"),
    ("unknown topic", ack(line(topic="nowhere")), UnknownTopic, "nowhere"),
    ("another id", ack(line()), UnknownTopic, "made again"),
)


def test_outputs_that_cannot_be_right_change_nothing(tmp_path: Path, shells: list[Shell]) -> None:
    async def scenario() -> None:
        async with queue(tmp_path) as broker:
            member, partition = Member(broker), partition_of(shells)
            topic_id = partition.topic.spec.topic_id
            before = partition.replica.machine.work.frozen()
            for what, settle, error, why in WRONG:
                with pytest.raises(error, match=why):
                    await member.settle(settle)
                assert partition.replica.machine.work.frozen() == before, what
            with pytest.raises(UnknownPartition):
                await member.settle(ack(line(topic_id=topic_id, partition=7)))
            with pytest.raises(InvalidRequest, match="twice"):
                await member.settle(ack(line(topic_id=topic_id), line(topic_id=topic_id)))
            settle = ack(line(topic_id=topic_id))
            settle.outcome = pb.OUTCOME_RELEASE
            with pytest.raises(InvalidRequest, match="acknowledged"):
                await member.settle(settle)

    asyncio.run(scenario())


def test_an_ack_with_outputs_settles_and_decides_by_one_entry_or_does_nothing(
    tmp_path: Path, shells: list[Shell]
) -> None:
    async def scenario() -> None:
        async with queue(tmp_path) as broker:
            await broker.create_topic("out")
            out = (await broker.metadata("out")).topics[0].topic_id
            member, state = Member(broker), partition_of(shells).replica.machine.work["g"]
            lent = await member.lease(4)
            settle = pb.SettleOne(
                lease=lent.lease,
                ranges=[0, 2],
                outputs=[line(topic="out", topic_id=out), line(topic="out", topic_id=out, uuids=[b"1" * 16])],
                number=7,
            )
            [lost] = await Member(broker, "b").settle(settle)
            assert list(lost.lost) == [0, 2], "it is another member's lease"
            assert not state.outbox
            assert await member.settle(settle) == [pb.SettleAnswer()]
            [outgoing] = state.outbox.values()
            assert (outgoing.ranges, outgoing.lines) == (((0, 2),), (OutputLine(out, 0, (UUID, b"1" * 16)),))
            assert await member.settle(settle) == [pb.SettleAnswer()], "asked again, it is done"
            assert len(state.outbox) == 1
            again = pb.SettleOne(lease=lent.lease, ranges=[1, 3], outputs=settle.outputs, number=8)
            assert list((await member.settle(again))[0].lost) == [1, 3], "one of them is settled: nothing is done"
            assert (state.totals.accepted, state.leased) == (2, 2)

    asyncio.run(scenario())


async def staged(broker: Broker, key: pb.TransactionKey, *numbers: int) -> bytes:
    """The UUID of a batch that a member has staged in topic `out`."""
    uuid = uuid4().bytes
    stage = pb.StageOf(key=key, batch_id=0, run_id="lease:1.1.0")
    await broker.produce("out", *numbers, uuid=uuid, stage=stage)
    return uuid


def test_outputs_are_published_once_after_the_ack_and_in_its_order(tmp_path: Path, shells: list[Shell]) -> None:
    async def scenario() -> None:
        async with queue(tmp_path) as broker:
            await broker.create_topic("out")
            out = (await broker.metadata("out")).topics[0].topic_id
            partition = partition_of(shells)
            key = pb.TransactionKey(query_id=query_id_of(WorkPlace(partition.topic.spec.topic_id, 0, "g")), sink="out")
            member = Member(broker)
            lent = await member.lease(10)
            settles = []
            for number in range(10):
                uuids = [await staged(broker, key, number), await staged(broker, key, 100 + number)]
                outputs = [line(topic="out", topic_id=out, uuids=uuids)]
                settles.append(pb.SettleOne(lease=lent.lease, ranges=[number, 1], outputs=outputs, number=number + 1))
            never = await staged(broker, key, 999)
            assert await broker.numbers("out") == [], "what is staged is not seen"
            for settle in settles:
                assert await member.settle(settle, settle) == [pb.SettleAnswer()] * 2
            expected = [n for number in range(10) for n in (number, 100 + number)]
            await until(of(lambda: not partition.replica.machine.work["g"].outbox))
            assert await broker.numbers("out") == expected
            machine = partition_of(shells, "out").replica.machine
            assert set(machine.staged) == {never}
            [published] = machine.published.values()
            assert published == partition.replica.machine.work["g"].last_n
            assert published >> 32 == partition.replica.leader_epoch
        async with standalone(tmp_path) as broker:
            await until(lambda: has_numbers(broker, expected))

    asyncio.run(scenario())


def test_what_was_decided_is_published_by_the_next_leader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        with monkeypatch.context() as context:
            context.setattr(Outbox, "look", lambda *_: None)  # the broker stops before it publishes anything
            async with queue(tmp_path, records=2) as broker:
                await broker.create_topic("out")
                topics = {topic.name: topic.topic_id for topic in (await broker.metadata()).topics}
                key = pb.TransactionKey(query_id=query_id_of(WorkPlace(topics["t"], 0, "g")), sink="out")
                member = Member(broker)
                lent = await member.lease(2)
                for number in range(2):
                    outputs = [line(topic="out", topic_id=topics["out"], uuids=[await staged(broker, key, number)])]
                    settle = pb.SettleOne(lease=lent.lease, ranges=[number, 1], outputs=outputs, number=number + 1)
                    assert await member.settle(settle) == [pb.SettleAnswer()]
        async with standalone(tmp_path) as broker:
            await until(lambda: has_numbers(broker, [0, 1]))

    asyncio.run(scenario())


def test_outputs_in_a_topic_that_was_deleted_count_as_published(
    tmp_path: Path, shells: list[Shell], caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        async with queue(tmp_path) as broker:
            state = partition_of(shells).replica.machine.work["g"]
            await broker.create_topic("out")
            out = (await broker.metadata("out")).topics[0].topic_id
            lent = await Member(broker).lease(1)
            settle = pb.SettleOne(lease=lent.lease, ranges=[0, 1], outputs=[line(topic="out", topic_id=out)], number=1)
            assert await Member(broker).settle(settle) == [pb.SettleAnswer()]
            await until(of(lambda: "is not published" in caplog.text))
            assert state.outbox, "a batch that is not there is not taken for published"
            await broker.ask("DeleteTopic", pb.DeleteTopicRequest(name="out"))
            await until(of(lambda: not state.outbox))
            assert "went with the topic" in caplog.text

    asyncio.run(scenario())


async def has_numbers(broker: Broker, expected: list[int]) -> bool:
    try:
        return await broker.numbers("out") == expected
    except TritonMQError:
        return False
