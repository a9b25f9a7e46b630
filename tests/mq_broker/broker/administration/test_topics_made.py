"""Topics that a broker makes by itself, and partitions that it adds, as one broker answers for them."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from mq_broker.broker.administration import topic_making
from mq_broker.broker.administration import topics as admin
from mq_broker.broker.administration.topic_making import TopicMaking
from mq_broker.broker.administration.topics import Admin
from mq_broker.broker.config import AutoCreate
from mq_broker.broker.metadata.topics import Topics
from mq_broker.coordination import documents
from mq_protocol import mq_pb2 as pb
from mq_protocol.errors import (
    InvalidRequest,
    InvalidSetting,
    InvalidTopicName,
    NotEnoughBrokers,
    OutcomeUnknown,
    TopicExists,
    UnknownTopic,
)
from mq_protocol.limits import PARTITIONS_PER_TOPIC_MAX, REPLICAS_MAX
from mq_protocol.names import TRANSACTIONS_TOPIC
from tests.mq_broker.broker.cluster import Broker, standalone


async def named(broker: Broker, *topics: str, auto_create: bool = True) -> dict[str, int]:
    """How many partitions each topic has that there is, once it was named."""
    answer = await broker.ask("Metadata", pb.MetadataRequest(topics=topics, auto_create=auto_create))
    assert {*answer.unknown_topics, *(topic.name for topic in answer.topics)} == set(topics)
    assert all(partition.leader for topic in answer.topics for partition in topic.partitions)
    return {topic.name: len(topic.partitions) for topic in answer.topics}


def test_a_topic_is_made_when_one_is_named_by_somebody_who_wants_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admin, "AUTO_CREATED_TOPICS_MAX", 2)

    async def scenario() -> None:
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

    asyncio.run(scenario())


def wanted(*topics: str, partitions: int = 1, **fields: Any) -> pb.CreateTopicsRequest:
    made = [pb.CreateTopicRequest(name=name, partitions=partitions, replicas=1, **fields) for name in topics]
    return pb.CreateTopicsRequest(topics=made)


def test_topics_that_are_asked_for_together_are_each_answered_and_those_that_are_made_are_led(tmp_path: Path) -> None:
    async def scenario() -> None:
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

    asyncio.run(scenario())


def test_a_request_for_more_partitions_than_a_topic_may_have_is_refused_whole(tmp_path: Path) -> None:
    async def scenario() -> None:
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

    asyncio.run(scenario())


def test_topics_whose_leaders_do_not_say_so_in_time_are_told_as_unclear(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def never(*_: object) -> list[pb.TopicInfo]:
        return []

    async def scenario() -> None:
        async with standalone(tmp_path) as broker:
            monkeypatch.setattr(TopicMaking, "_told_by", never)
            monkeypatch.setattr(topic_making, "ANSWER_S", 1_000.0)
            answer = await broker.ask("CreateTopics", wanted("a", "b"))
            assert [made.error.code for made in answer.topics] == [pb.OUTCOME_UNKNOWN] * 2
            assert {topic.name for topic in (await broker.metadata()).topics} == {"a", "b"}

    asyncio.run(scenario())


def test_a_broker_that_is_not_to_make_topics_makes_none(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with standalone(tmp_path) as broker:
            assert await named(broker, "a") == {}

    asyncio.run(scenario())


def test_leaders_are_asked_once_whether_they_know_a_topic_that_is_about_to_be_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admin, "AUTO_CREATED_TOPICS_MAX", 3)
    waited: list[str] = []
    wait = Admin._wait_until_led

    async def noted(self: Admin, topic: Any, deadline: float) -> None:
        waited.append(topic.spec.name)
        await wait(self, topic, deadline)

    async def scenario() -> None:
        async with standalone(tmp_path, auto_create=AutoCreate()) as broker:
            for name in "abc":
                await broker.create_topic(name)
            monkeypatch.setattr(Admin, "_wait_until_led", noted)
            await named(broker, "a", auto_create=False)
            assert waited == []
            for name in "aab":
                await named(broker, name)
            assert waited == ["a", "b"]

    asyncio.run(scenario())


def test_only_so_many_topics_are_remembered_as_known_to_their_leaders(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admin, "AUTO_CREATED_TOPICS_MAX", 2)
    waited: list[str] = []

    async def noted(self: Admin, topic: Any, deadline: float) -> None:
        waited.append(topic.spec.topic_id)
        assert deadline <= asyncio.get_running_loop().time() + admin.LEADERS_KNOW_S
        raise OutcomeUnknown("no leader yet")

    monkeypatch.setattr(Admin, "_wait_until_led", noted)
    there: Any = SimpleNamespace(broker=1)
    request = pb.MetadataRequest(auto_create=True)

    async def scenario() -> None:
        one = Admin(there, there, there, there, there, auto_create=AutoCreate())
        for name in "abcabcda":
            topic: Any = SimpleNamespace(spec=SimpleNamespace(topic_id=name))
            await one._until_leaders_know(topic, request, 1e9)
        assert waited == ["a", "b", "c", "d", "a"], "all were forgotten for the fourth one"
        waited.clear()
        makes_none = Admin(there, there, there, there, there)
        await makes_none._until_leaders_know(topic, request, 1e9)
        assert waited == [], "a topic that somebody created has leaders already"

    asyncio.run(scenario())


def test_a_topic_that_is_too_large_for_the_coordination_service_is_not_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(documents, "TOPIC_DOCUMENT_BYTES_MAX", 1_000)

    async def scenario() -> None:
        async with standalone(tmp_path) as broker:
            with pytest.raises(InvalidRequest, match=r"topic 't' would take .* and at most 1000 are allowed"):
                await broker.create_topic("t", partitions=1_000)
            assert await named(broker, "t") == {}
            await broker.create_topic("t")

    asyncio.run(scenario())


def test_partitions_are_added_in_parts_behind_those_that_are_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admin, "PARTITIONS_ADDED_AT_ONCE_MAX", 2)
    edits: list[int] = []
    edit = Topics.edit

    async def noted(self: Topics, name: str, change: Any) -> Any:
        topic = await edit(self, name, change)
        edits.append(topic.partitions)
        return topic

    monkeypatch.setattr(Topics, "edit", noted)

    async def scenario() -> None:
        async with standalone(tmp_path) as broker:
            await broker.create_topic("t", partitions=2, durability="memory")
            await broker.produce("t", 1, partition=1)
            answer = await broker.ask("AlterTopic", pb.AlterTopicRequest(name="t", partitions=7))
            assert [(p.partition, p.leader) for p in answer.topic.partitions] == [(number, 1) for number in range(7)]
            assert edits == [4, 6, 7]
            await broker.produce("t", 2, partition=6)
            assert (await broker.numbers("t", 1), await broker.numbers("t", 6)) == ([1], [2])
            with pytest.raises(InvalidRequest, match="cannot have fewer"):
                await broker.ask("AlterTopic", pb.AlterTopicRequest(name="t", partitions=6))
            edits.clear()
            await broker.ask("AlterTopic", pb.AlterTopicRequest(name="t", partitions=7))
            assert edits == []

    asyncio.run(scenario())


@pytest.mark.parametrize("name", ["", "a\nb"])
def test_a_broker_checks_the_names_of_columns_whatever_its_client_has_checked(tmp_path: Path, name: str) -> None:
    async def scenario() -> None:
        async with standalone(tmp_path) as broker:
            for column in (pa.field(name, pa.int64()), pa.field("s", pa.struct([pa.field(name, pa.int64())]))):
                with pytest.raises(InvalidRequest, match="name"):
                    await broker.create_topic("t", schema=pa.schema([column]))
            assert not (await broker.metadata()).topics

    asyncio.run(scenario())


def test_a_topic_is_not_made_with_settings_that_do_not_exist_or_that_a_broker_cannot_serve(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with standalone(tmp_path) as broker:
            with pytest.raises(InvalidSetting, match="above what broker 1 takes"):
                await broker.create_topic("t", batch_bytes_max="32MiB")
            with pytest.raises(InvalidSetting, match="did you mean 'durability'"):
                await broker.create_topic("t", durabilty="os")
            assert not (await broker.metadata()).topics

    asyncio.run(scenario())


def test_only_a_topic_of_users_that_there_is_can_be_deleted(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with standalone(tmp_path) as broker:
            await broker.create_topic("orders")
            await broker.metadata(TRANSACTIONS_TOPIC)
            with pytest.raises(UnknownTopic, match=r"there is no topic 'order'.*did you mean 'orders'"):
                await broker.ask("DeleteTopic", pb.DeleteTopicRequest(name="order"))
            with pytest.raises(InvalidTopicName):
                await broker.ask("DeleteTopic", pb.DeleteTopicRequest(name=TRANSACTIONS_TOPIC))
            await broker.ask("DeleteTopic", pb.DeleteTopicRequest(name="orders"))
            assert not (await broker.metadata()).topics

    asyncio.run(scenario())


def test_whoever_asks_for_the_coordinators_topic_waits_until_it_is_led_whichever_broker_made_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    waited: list[Any] = []
    made: Any = SimpleNamespace(spec=SimpleNamespace(name=TRANSACTIONS_TOPIC))
    others = [False]

    async def create(_self: Admin, *_what: object) -> Any:
        if others[0]:
            raise TopicExists("another broker was as quick")
        return made

    async def wait(_self: Admin, topic: Any, _deadline: float) -> None:
        waited.append(topic)

    async def get(_name: str) -> Any:
        return made

    async def refresh() -> None:
        pass

    monkeypatch.setattr(Admin, "_create", create)
    monkeypatch.setattr(Admin, "_wait_until_led", wait)
    there: Any = SimpleNamespace(brokers={1: None}, get=get, refresh=refresh)
    for others[0] in (False, True):
        waited.clear()
        asyncio.run(Admin(there, there, there, there, there)._make_transactions_topic(1e9))
        assert waited == [made]


def test_a_topic_is_given_only_as_many_replicas_as_a_topic_may_have(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with standalone(tmp_path) as broker:
            await broker.create_topic("t")
            with pytest.raises(InvalidSetting, match=r"replicas=.* is out of range"):
                await broker.ask("AlterTopic", pb.AlterTopicRequest(name="t", replicas=REPLICAS_MAX + 1))
            with pytest.raises(NotEnoughBrokers):
                await broker.ask("AlterTopic", pb.AlterTopicRequest(name="t", replicas=REPLICAS_MAX))

    asyncio.run(scenario())


def test_a_topic_is_altered_only_to_batches_that_every_broker_takes_and_by_a_name_that_a_topic_may_have(
    tmp_path: Path,
) -> None:
    async def scenario() -> None:
        async with standalone(tmp_path) as broker:
            await broker.create_topic("t")
            with pytest.raises(InvalidSetting, match="above what broker 1 takes"):
                await broker.ask("AlterTopic", pb.AlterTopicRequest(name="t", settings={"batch_bytes_max": "32MiB"}))
            with pytest.raises(InvalidTopicName):
                await broker.ask(
                    "AlterTopic", pb.AlterTopicRequest(name="__transactions", settings={"retention_ms": "1"})
                )

    asyncio.run(scenario())
