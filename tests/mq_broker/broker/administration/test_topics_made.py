"""Topics that a broker makes by itself, and partitions that it adds, as one broker answers for them."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from mq_broker.broker.administration import topics as admin
from mq_broker.broker.config import AutoCreate
from mq_protocol import mq_pb2 as pb
from mq_protocol.errors import (
    InvalidRequest,
    InvalidSetting,
    InvalidTopicName,
    NotEnoughBrokers,
    UnknownTopic,
)
from mq_protocol.limits import PARTITIONS_PER_TOPIC_MAX, REPLICAS_MAX
from mq_protocol.names import TRANSACTIONS_TOPIC
from tests.coroutines import virtual_time
from tests.mq_broker.broker.cluster import Broker, standalone
from tests.mq_broker.broker.test_three_brokers import three


async def named(broker: Broker, *topics: str, auto_create: bool = True) -> dict[str, int]:
    """How many partitions each topic has that there is, once it was named."""
    answer = await broker.ask("Metadata", pb.MetadataRequest(topics=topics, auto_create=auto_create))
    assert {*answer.unknown_topics, *(topic.name for topic in answer.topics)} == set(topics)
    assert all(partition.leader for topic in answer.topics for partition in topic.partitions)
    return {topic.name: len(topic.partitions) for topic in answer.topics}


@virtual_time
async def test_a_topic_is_made_when_one_is_named_by_somebody_who_wants_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admin, "AUTO_CREATED_TOPICS_MAX", 2)
    async with standalone(tmp_path, auto_create=AutoCreate(2, 1), topic_name_max=5) as broker:
        assert await named(broker, "a", auto_create=False) == {}
        assert await named(broker, "a", "b") == {}, "a list of names is a look, not a use"
        with pytest.raises(InvalidTopicName):
            await named(broker, "longer")
        assert await named(broker, "a") == {"a": 2}
        assert await asyncio.gather(*(named(broker, "b") for _ in range(5))) == [{"b": 2}] * 5
        with pytest.raises(InvalidRequest, match="'c' is not made by itself: there are 2 topics already"):
            await named(broker, "c")
        assert await named(broker, "b") == {"b": 2}
        await broker.ask("DeleteTopic", pb.DeleteTopicRequest(name="a"))
        assert await named(broker, "c") == {"c": 2}


@virtual_time
async def test_a_topic_that_several_brokers_make_by_themselves_at_once_is_one(tmp_path: Path) -> None:
    async with three(tmp_path, auto_create=AutoCreate(2, 1)) as cluster:
        brokers = cluster.brokers.values()
        assert await asyncio.gather(*(named(broker, "a") for broker in brokers)) == [{"a": 2}] * 3
        answers = await asyncio.gather(*(broker.metadata(TRANSACTIONS_TOPIC) for broker in brokers))
        assert len({answer.topics[0].topic_id for answer in answers}) == 1


def wanted(*topics: str, partitions: int = 1, **fields: Any) -> pb.CreateTopicsRequest:
    made = [pb.CreateTopicRequest(name=name, partitions=partitions, replicas=1, **fields) for name in topics]
    return pb.CreateTopicsRequest(topics=made)


@virtual_time
async def test_topics_that_are_asked_for_together_are_each_answered_and_those_that_are_made_are_led(
    tmp_path: Path,
) -> None:
    async with standalone(tmp_path) as broker:
        await broker.create_topic("there")
        request = wanted("a", "no/name", "there", "b", partitions=2)
        request.topics.add(name="wide", partitions=1, replicas=REPLICAS_MAX)
        request.topics.add(name="typo", partitions=1, replicas=1, settings={"durabilty": "os"})
        request.topics.add(name="none", partitions=0, replicas=1)
        request.topics.add(name="schema", partitions=1, replicas=1, schema=b"no schema")
        answer = await broker.ask("CreateTopics", request)
        assert [(made.name, made.error.code) for made in answer.topics] == [
            ("a", 0),
            ("no/name", pb.INVALID_TOPIC_NAME),
            ("there", pb.TOPIC_EXISTS),
            ("b", 0),
            ("wide", pb.NOT_ENOUGH_BROKERS),
            ("typo", pb.INVALID_SETTING),
            ("none", pb.INVALID_SETTING),
            ("schema", pb.INVALID_REQUEST),
        ]
        assert await named(broker, "a", "b", "wide", "typo", auto_create=False) == {"a": 2, "b": 2}
        assert (await broker.ask("CreateTopics", pb.CreateTopicsRequest())).topics == []


@virtual_time
async def test_a_request_for_more_partitions_than_a_topic_may_have_is_refused_whole(tmp_path: Path) -> None:
    async with standalone(tmp_path) as broker:
        for partitions in (PARTITIONS_PER_TOPIC_MAX, (1 << 31) - 1):
            with pytest.raises(InvalidRequest, match="ask for fewer topics at once"):
                await broker.ask("CreateTopics", wanted("a", "b", partitions=partitions))
        hidden = wanted("a", "b", partitions=PARTITIONS_PER_TOPIC_MAX)
        hidden.topics.add(name="c", partitions=-(1 << 31), replicas=1)
        with pytest.raises(InvalidRequest, match="ask for fewer topics at once"):
            await broker.ask("CreateTopics", hidden)
        with pytest.raises(InvalidRequest, match="name"):
            await broker.ask("CreateTopics", wanted("a", "a"))
        assert await named(broker, "a", auto_create=False) == {}


@virtual_time
async def test_a_broker_that_is_not_to_make_topics_makes_none(tmp_path: Path) -> None:
    async with standalone(tmp_path) as broker:
        assert await named(broker, "a") == {}


@pytest.mark.parametrize("name", ["", "a\nb"])
@virtual_time
async def test_a_broker_checks_the_names_of_columns_whatever_its_client_has_checked(tmp_path: Path, name: str) -> None:
    async with standalone(tmp_path) as broker:
        for column in (pa.field(name, pa.int64()), pa.field("s", pa.struct([pa.field(name, pa.int64())]))):
            with pytest.raises(InvalidRequest, match="name"):
                await broker.create_topic("t", schema=pa.schema([column]))
        assert not (await broker.metadata()).topics


@virtual_time
async def test_a_topic_is_not_made_with_settings_that_do_not_exist_or_that_a_broker_cannot_serve(
    tmp_path: Path,
) -> None:
    async with standalone(tmp_path) as broker:
        with pytest.raises(InvalidSetting, match="above what broker 1 takes"):
            await broker.create_topic("t", batch_bytes_max="32MiB")
        with pytest.raises(InvalidSetting, match="did you mean 'durability'"):
            await broker.create_topic("t", durabilty="os")
        assert not (await broker.metadata()).topics


@virtual_time
async def test_only_a_topic_of_users_that_there_is_can_be_deleted(tmp_path: Path) -> None:
    async with standalone(tmp_path) as broker:
        await broker.create_topic("orders")
        await broker.metadata(TRANSACTIONS_TOPIC)
        with pytest.raises(UnknownTopic, match=r"there is no topic 'order'.*did you mean 'orders'"):
            await broker.ask("DeleteTopic", pb.DeleteTopicRequest(name="order"))
        with pytest.raises(InvalidTopicName):
            await broker.ask("DeleteTopic", pb.DeleteTopicRequest(name=TRANSACTIONS_TOPIC))
        await broker.ask("DeleteTopic", pb.DeleteTopicRequest(name="orders"))
        assert not (await broker.metadata()).topics


@virtual_time
async def test_a_topic_is_given_only_as_many_replicas_as_a_topic_may_have(tmp_path: Path) -> None:
    async with standalone(tmp_path) as broker:
        await broker.create_topic("t")
        with pytest.raises(InvalidSetting, match=r"replicas=.* is out of range"):
            await broker.ask("AlterTopic", pb.AlterTopicRequest(name="t", replicas=REPLICAS_MAX + 1))
        with pytest.raises(NotEnoughBrokers):
            await broker.ask("AlterTopic", pb.AlterTopicRequest(name="t", replicas=REPLICAS_MAX))


@virtual_time
async def test_a_topic_is_altered_only_to_batches_that_every_broker_takes_and_by_a_name_that_a_topic_may_have(
    tmp_path: Path,
) -> None:
    async with standalone(tmp_path) as broker:
        await broker.create_topic("t")
        with pytest.raises(InvalidSetting, match="above what broker 1 takes"):
            await broker.ask("AlterTopic", pb.AlterTopicRequest(name="t", settings={"batch_bytes_max": "32MiB"}))
        with pytest.raises(InvalidTopicName):
            await broker.ask("AlterTopic", pb.AlterTopicRequest(name="__transactions", settings={"retention_ms": "1"}))
