"""Outputs that are settled with the records that they were made of, asked of a broker in this process."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from uuid import uuid4

import pytest

from mq_broker.broker.host.shell import Shell
from mq_protocol import mq_pb2 as pb
from mq_protocol.errors import (
    InvalidRequest,
    InvalidTopicName,
    StagedBatchMissing,
    TritonMQError,
    UnknownPartition,
    UnknownTopic,
)
from mq_protocol.queues.work_keys import WorkPlace, query_id_of
from mq_protocol.wire.error_messages import from_wire
from tests.coroutines import virtual_time
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
)


@virtual_time
async def test_outputs_that_cannot_be_right_change_nothing(tmp_path: Path, shells: list[Shell]) -> None:
    async with queue(tmp_path) as broker:
        member, partition = Member(broker), partition_of(shells)
        before = partition.replica.machine.work.frozen()
        for what, settle, error, why in WRONG:
            with pytest.raises(error, match=why):
                await member.settle(settle)
            assert partition.replica.machine.work.frozen() == before, what
        with pytest.raises(InvalidRequest, match="twice"):
            await member.settle(ack(line(), line()))
        settle = ack(line())
        settle.outcome = pb.OUTCOME_RELEASE
        with pytest.raises(InvalidRequest, match="acknowledged"):
            await member.settle(settle)


async def out_topic(broker: Broker, shells: list[Shell]) -> tuple[str, pb.TransactionKey]:
    """The id of topic `out`, made now, and the key under which members of the queue stage there."""
    await broker.create_topic("out")
    out = (await broker.metadata("out")).topics[0].topic_id
    place = WorkPlace(partition_of(shells).topic.spec.topic_id, 0, "g")
    return out, pb.TransactionKey(query_id=query_id_of(place), sink="out")


@virtual_time
async def test_outputs_that_are_not_staged_are_refused_by_themselves(tmp_path: Path, shells: list[Shell]) -> None:
    """One that could not be published would stop all others of the group to its partition."""
    async with queue(tmp_path) as broker:
        out, key = await out_topic(broker, shells)
        member, state = Member(broker), partition_of(shells).replica.machine.work["g"]
        lent = await member.lease(8)
        there = await staged(broker, key, 1)
        wrong = [
            line(topic="nowhere"),
            line(topic="out"),  # of another id
            line(topic="out", topic_id=out, partition=7),
            line(topic="out", topic_id=out),
            line(topic="out", topic_id=out, uuids=[there, UUID]),
        ]
        settles = [
            pb.SettleOne(lease=lent.lease, ranges=[at, 1], outputs=[each], number=at + 1)
            for at, each in enumerate(wrong)
        ]
        right = pb.SettleOne(
            lease=lent.lease, ranges=[5, 1], outputs=[line(topic="out", topic_id=out, uuids=[there])], number=9
        )
        *refused, settled, also = await member.settle(*settles, right, pb.SettleOne(lease=lent.lease, ranges=[6, 1]))
        assert [type(from_wire(each.error)) for each in refused] == [
            *(UnknownTopic, UnknownTopic, UnknownPartition, StagedBatchMissing, StagedBatchMissing)
        ]
        assert settled == also == pb.SettleAnswer()
        assert (state.totals.accepted, state.leased) == (2, 6)
        await until(lambda: has_numbers(broker, [1]))
        unstaged = pb.SettleOne(lease=lent.lease, ranges=[0, 1], outputs=[wrong[3]], number=10)
        [after] = await member.settle(unstaged)
        assert type(from_wire(after.error)) is StagedBatchMissing, "also once something was published"


@virtual_time
async def test_an_ack_that_is_asked_again_is_done_though_its_outputs_are_published_and_their_topic_is_gone(
    tmp_path: Path, shells: list[Shell]
) -> None:
    async with queue(tmp_path) as broker:
        out, key = await out_topic(broker, shells)
        member = Member(broker)
        lent = await member.lease(2)
        settle = pb.SettleOne(
            lease=lent.lease,
            ranges=[0, 1],
            outputs=[line(topic="out", topic_id=out, uuids=[await staged(broker, key, 1)])],
            number=1,
        )
        assert await member.settle(settle) == [pb.SettleAnswer()]
        await until(lambda: has_numbers(broker, [1]))
        assert await member.settle(settle) == [pb.SettleAnswer()]
        await broker.ask("DeleteTopic", pb.DeleteTopicRequest(name="out"))
        assert await member.settle(settle) == [pb.SettleAnswer()]


async def staged(broker: Broker, key: pb.TransactionKey, *numbers: int) -> bytes:
    """The UUID of a batch that a member has staged in topic `out`."""
    uuid = uuid4().bytes
    stage = pb.StageOf(key=key, batch_id=0, run_id="lease:1.1.0")
    await broker.produce("out", *numbers, uuid=uuid, stage=stage)
    return uuid


@virtual_time
async def test_outputs_are_published_once_after_the_ack_and_in_its_order(tmp_path: Path, shells: list[Shell]) -> None:
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


async def has_numbers(broker: Broker, expected: list[int]) -> bool:
    try:
        return await broker.numbers("out") == expected
    except TritonMQError:
        return False
