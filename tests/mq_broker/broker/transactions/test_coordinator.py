"""Stage, decide, publish: a micro-batch becomes readable whole and once, whatever is asked again."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from mq_broker.broker.transactions.coordinator import REAP_AGE_S
from mq_protocol import mq_pb2 as pb
from mq_protocol.errors import (
    FencedRun,
    InvalidRequest,
    InvalidTopicName,
    ReplayMismatch,
    StagedBatchMissing,
    StaleMicroBatch,
    UnknownTopic,
)
from mq_protocol.names import TRANSACTIONS_TOPIC
from tests.coroutines import virtual_time
from tests.mq_broker.broker.cluster import Broker, standalone, until

KEY = pb.TransactionKey(query_id="query", sink="t")


async def stage(broker: Broker, batch_id: int, *numbers: int, partition: int = 0, run: str = "run") -> pb.StagedBatches:
    """One staged batch, as a manifest's line."""
    name = uuid.uuid4().bytes
    result = await broker.produce(
        "t", *numbers, partition=partition, uuid=name, stage=pb.StageOf(key=KEY, batch_id=batch_id, run_id=run)
    )
    assert result.base_offset == -1
    return pb.StagedBatches(topic="t", partition=partition, uuids=[name], row_count=len(numbers))


async def decide(
    broker: Broker, batch_id: int, manifest: Iterable[pb.StagedBatches], run: str = "run", **fields: Any
) -> Any:
    lines = list(manifest)
    count = sum(line.row_count for line in lines)
    request = pb.DecideRequest(key=KEY, batch_id=batch_id, run_id=run, row_count=count, manifest=lines, **fields)
    return await broker.ask("Decide", request)


async def staged(broker: Broker) -> list[tuple[int, int, int]]:
    """By partition, micro-batch and rows."""
    found = (await broker.ask("Staged", pb.StagedRequest(topic="t"))).staged
    return [(batch.partition, batch.batch_id, batch.row_count) for batch in found]


async def prepare(broker: Broker, partitions: int = 2) -> None:
    await broker.create_topic("t", partitions=partitions)
    await broker.metadata(TRANSACTIONS_TOPIC)


@virtual_time
async def test_the_coordinators_topic_is_made_when_it_is_first_named(tmp_path: Path) -> None:
    async with standalone(tmp_path) as broker:
        answers = await asyncio.gather(*(broker.metadata(TRANSACTIONS_TOPIC) for _ in range(5)))
        assert len({answer.topics[0].topic_id for answer in answers}) == 1
        assert [p.leader for p in answers[0].topics[0].partitions] == [1] * 8
        assert [topic.name for topic in (await broker.metadata()).topics] == []
        with pytest.raises(InvalidRequest, match="brokers' own"):
            await broker.produce(TRANSACTIONS_TOPIC, 1)
        with pytest.raises(InvalidTopicName):
            await broker.ask("DeleteTopic", pb.DeleteTopicRequest(name=TRANSACTIONS_TOPIC))


@virtual_time
async def test_staged_batches_are_invisible_until_their_decision_publishes_them(tmp_path: Path) -> None:
    async with standalone(tmp_path) as broker:
        await prepare(broker)
        manifest = [await stage(broker, 0, 1, 2), await stage(broker, 0, 3), await stage(broker, 0, 4, partition=1)]
        loser = await stage(broker, 0, 1, 2)
        assert (await broker.end("t", 0), await broker.end("t", 1)) == (0, 0)
        answer = await decide(broker, 0, manifest)
        assert (answer.already_decided, answer.row_count, answer.published) == (False, 4, True)
        assert (await broker.numbers("t", 0), await broker.numbers("t", 1)) == ([1, 2, 3], [4])
        assert await staged(broker) == [(loser.partition, 0, 2)]


@virtual_time
async def test_asked_again_a_decision_answers_the_same_and_removes_the_new_attempt(tmp_path: Path) -> None:
    async with standalone(tmp_path) as broker:
        await prepare(broker)
        first = [await stage(broker, 0, 1, 2)]
        await decide(broker, 0, first)
        assert (await decide(broker, 0, first)).already_decided
        again = [await stage(broker, 0, 1, 2, run="later")]
        answer = await decide(broker, 0, again, run="later")
        assert (answer.already_decided, answer.row_count, answer.published) == (True, 2, True)
        await until(lambda: _nothing_staged(broker))
        assert await broker.numbers("t") == [1, 2]


@virtual_time
async def test_a_topic_that_was_deleted_holds_up_no_decision(tmp_path: Path) -> None:
    async with standalone(tmp_path) as broker:
        await prepare(broker)
        manifest = [await stage(broker, 0, 1, 2)]
        await broker.ask("DeleteTopic", pb.DeleteTopicRequest(name="t"))
        assert (await decide(broker, 0, manifest)).published


@virtual_time
async def test_a_topic_made_again_under_its_name_gets_nothing_that_was_staged_before_and_holds_up_no_query(
    tmp_path: Path,
) -> None:
    async with standalone(tmp_path) as broker:
        await prepare(broker)
        before = await stage(broker, 0, 1, 2)
        before.topic_id = (await broker.metadata("t")).topics[0].topic_id
        await broker.ask("DeleteTopic", pb.DeleteTopicRequest(name="t"))
        await broker.create_topic("t")
        with pytest.raises(UnknownTopic, match="made again"):
            await decide(broker, 0, [before])
        again = await stage(broker, 0, 3)
        again.topic_id = (await broker.metadata("t")).topics[0].topic_id
        assert (await decide(broker, 0, [again])).published
        assert await broker.numbers("t") == [3]


@virtual_time
async def test_what_must_not_be_decided_is_refused(tmp_path: Path) -> None:
    async with standalone(tmp_path) as broker:
        await prepare(broker)
        await decide(broker, 5, [await stage(broker, 5, 1, 2)])
        with pytest.raises(StaleMicroBatch):
            await decide(broker, 4, [await stage(broker, 4, 1)])
        wider = [await stage(broker, 5, 1, 2, 3)]
        with pytest.raises(ReplayMismatch):
            await decide(broker, 5, wider)
        assert (await decide(broker, 5, wider, keep_on_mismatch=True)).row_count == 2
        await decide(broker, 6, [await stage(broker, 6, 3)], run="new")
        with pytest.raises(FencedRun):
            await decide(broker, 7, [await stage(broker, 7, 4)])
        with pytest.raises(InvalidRequest, match="no query id"):
            await broker.ask("Decide", pb.DecideRequest(batch_id=1))
        with pytest.raises(InvalidRequest, match="rows"):
            await broker.ask("Decide", pb.DecideRequest(key=KEY, batch_id=9, row_count=1))
        assert await broker.numbers("t") == [1, 2, 3]


@virtual_time
async def test_a_manifest_that_names_a_topic_under_two_ids_is_refused_before_it_loses_a_part(tmp_path: Path) -> None:
    async with standalone(tmp_path) as broker:
        await prepare(broker)
        named, unnamed = await stage(broker, 0, 1), await stage(broker, 0, 2)
        named.topic_id = (await broker.metadata("t")).topics[0].topic_id
        with pytest.raises(UnknownTopic, match="start the query again"):
            await decide(broker, 0, [named, unnamed])
        unnamed.topic_id = named.topic_id
        assert (await decide(broker, 0, [named, unnamed])).published
        assert await broker.numbers("t") == [1, 2]


@virtual_time
async def test_an_empty_micro_batch_is_decided_at_once(tmp_path: Path) -> None:
    async with standalone(tmp_path) as broker:
        await prepare(broker)
        assert (await decide(broker, 0, [])).published
        status = await broker.ask("TransactionStatus", pb.TransactionStatusRequest(key=KEY))
        assert (status.known, status.batch_id, status.run_id, status.published) == (True, 0, "run", True)
        unknown = pb.TransactionKey(query_id="other")
        assert not (await broker.ask("TransactionStatus", pb.TransactionStatusRequest(key=unknown))).known


@virtual_time
async def test_a_manifest_that_names_what_was_never_staged_is_told_to_the_driver(tmp_path: Path) -> None:
    async with standalone(tmp_path) as broker:
        await prepare(broker)
        line = pb.StagedBatches(topic="t", partition=0, uuids=[uuid.uuid4().bytes], row_count=1)
        with pytest.raises(StagedBatchMissing):
            await decide(broker, 0, [line])
        with pytest.raises(StagedBatchMissing):
            await decide(broker, 0, [line])


@virtual_time
async def test_the_reaper_removes_what_has_lost_and_nothing_else(tmp_path: Path) -> None:
    async with standalone(tmp_path) as broker:
        await prepare(broker)
        await stage(broker, 0, 1)
        await stage(broker, 1, 1, partition=1)
        winner = await stage(broker, 1, 2)
        undecided = await stage(broker, 2, 3)
        await decide(broker, 1, [winner])
        await until(lambda: _only_staged(broker, (0, 2, 1)), 5 * REAP_AGE_S)
        await decide(broker, 2, [undecided])
        assert await broker.numbers("t") == [2, 3]


async def _nothing_staged(broker: Broker) -> bool:
    return await staged(broker) == []


async def _only_staged(broker: Broker, *batches: tuple[int, int, int]) -> bool:
    return await staged(broker) == list(batches)
