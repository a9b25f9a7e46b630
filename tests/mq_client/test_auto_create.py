"""Topics that are made when they are first used, where the brokers are set to do so, and deleting only what is
empty."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from mq_broker.broker.administration import topics as broker_admin
from mq_broker.broker.config import AutoCreate
from mq_broker.coordination.interface import NewTopic
from mq_broker.coordination.service import CoordinationService
from mq_client import (
    Admin,
    Consumer,
    InvalidRequest,
    InvalidSetting,
    InvalidTopicName,
    Producer,
    Queue,
    Reader,
    TopicNotEmpty,
    UnknownTopic,
)
from mq_dev.local_cluster import LocalCluster
from mq_protocol.errors import TritonMQError
from mq_protocol.queues.dead_letters import HEADERS
from tests.cluster.harness import wait_until
from tests.mq_broker.broker.cluster import standalone, until
from tests.mq_broker.broker.test_three_brokers import three
from tests.mq_cli.processes import tritonmq


def publish(bootstrap: str, topic: str) -> None:
    with Producer(bootstrap) as producer:
        producer.publish(topic, "hello").result(30)


def subscribe(bootstrap: str, topic: str) -> None:
    with Consumer(bootstrap) as consumer:
        consumer.subscribe(topic)


def test_no_topic_is_made_by_itself_unless_the_broker_is_set_to_do_so(bootstrap: str, admin: Admin, topic: str) -> None:
    for use in (publish, subscribe):
        with pytest.raises(UnknownTopic):
            use(bootstrap, topic)
    assert topic not in admin.list_topics()


def test_who_asks_for_a_topic_that_another_broker_has_just_made_is_told_of_that_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    create = CoordinationService.create_topics

    async def second(self: CoordinationService, topics: Sequence[NewTopic]) -> list[TritonMQError | None]:
        """Another broker makes it just before, and nothing has told this one yet."""
        monkeypatch.setattr(self, "_listener", lambda _event: None)
        others = [(replace(t, topic_id="0" * 32, assignment=t.assignment[:2]), states[:2]) for t, states in topics]
        await create(self, others)
        return await create(self, topics)

    monkeypatch.setattr(CoordinationService, "create_topics", second)

    async def scenario() -> None:
        async with standalone(tmp_path, auto_create=AutoCreate(3, 1)) as broker:
            await asyncio.to_thread(publish, broker.address, "t")
            info = await asyncio.to_thread(Admin(broker.address).describe_topic, "t")
            assert len(info.partitions) == 2, "the topic that is there, and not another one"

    asyncio.run(scenario())


def settle_with_an_output(bootstrap: str, source: str, target: str) -> None:
    with Queue(bootstrap, source, "g") as queue:
        record = queue.take(30_000)
        assert record is not None
        outputs = queue.outputs()
        outputs.publish(target, "done")
        record.ack(outputs=outputs).result(30)


def test_outputs_of_an_ack_make_their_topic_where_brokers_are_set_to_do_so(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with standalone(tmp_path, auto_create=AutoCreate(3, 1)) as broker:
            await asyncio.to_thread(publish, broker.address, "jobs")
            await asyncio.to_thread(settle_with_an_output, broker.address, "jobs", "made")
            admin = Admin(broker.address)
            assert len((await asyncio.to_thread(admin.describe_topic, "made")).partitions) == 3

            async def published() -> bool:
                found = await asyncio.to_thread(admin.offsets, "made")
                return sum(end for _, end in found.values()) == 1

            await until(published)

    asyncio.run(scenario())


def redrive_into_a_topic_that_is_deleted_meanwhile(bootstrap: str) -> None:
    with Producer(bootstrap) as producer:
        producer.publish("jobs", "a").result(30)
        for _ in range(3):
            producer.publish("jobs.dead", "letter", headers={HEADERS["topic"]: b"jobs"}).result(30)
    with Admin(bootstrap) as admin, Admin(bootstrap) as other:
        assert admin.redrive_topic("jobs.dead", limit=1).sent == {"jobs": 1}
        other.delete_topic("jobs")  # which the first one has looked at, and does not know of
        found = admin.redrive_topic("jobs.dead")
        assert (found.sent, sum(found.left.values())) == ({}, 2)
        assert admin.list_topics() == ["jobs.dead"]


def test_a_topic_that_is_deleted_while_letters_are_sent_back_is_not_made_anew(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with standalone(tmp_path, auto_create=AutoCreate(1, 1)) as broker:
            await asyncio.to_thread(redrive_into_a_topic_that_is_deleted_meanwhile, broker.address)

    asyncio.run(scenario())


def test_a_topic_is_made_when_a_producer_or_a_consumer_names_it_and_by_nobody_else(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with standalone(tmp_path, auto_create=AutoCreate(3, 1)) as broker:
            admin = Admin(broker.address)
            for ask in (admin.describe_topic, admin.offsets, Reader(broker.address).offsets):
                with pytest.raises(UnknownTopic):
                    await asyncio.to_thread(ask, "looked-at")
            for use, name in ((publish, "written"), (subscribe, "read")):
                await asyncio.to_thread(use, broker.address, name)
                assert len((await asyncio.to_thread(admin.describe_topic, name)).partitions) == 3
            with pytest.raises(InvalidTopicName):
                await asyncio.to_thread(publish, broker.address, "no/name")
            assert await asyncio.to_thread(admin.list_topics) == ["read", "written"]

    asyncio.run(scenario())


def test_many_who_name_a_topic_at_once_make_it_once(zookeeper: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with three(tmp_path, zookeeper, auto_create=AutoCreate(2, 3)) as cluster:
            addresses = [cluster[broker].address for broker in (1, 2, 3)]
            await asyncio.gather(
                *(asyncio.to_thread(publish, address, "t") for address in addresses)
            )  # the brokers need threads too
            admin = Admin(addresses)

            async def all_there() -> bool:
                found = await asyncio.to_thread(admin.offsets, "t")
                return len(found) == 2 and sum(end for _, end in found.values()) == 3

            await until(all_there)
            described = await asyncio.to_thread(admin.describe_topic, "t")
            assert [len(partition.replicas) for partition in described.partitions] == [3, 3]

    asyncio.run(scenario())


def test_a_consumer_does_not_bring_back_a_topic_that_is_deleted_under_it(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with standalone(tmp_path, auto_create=AutoCreate()) as broker:
            admin = Admin(broker.address)
            with await asyncio.to_thread(Consumer, broker.address) as consumer:
                await asyncio.to_thread(consumer.subscribe, "t")
                await asyncio.to_thread(admin.delete_topic, "t")
                with pytest.raises(UnknownTopic):
                    await asyncio.to_thread(consumer.take, 30_000)
            assert await asyncio.to_thread(admin.list_topics) == []

    asyncio.run(scenario())


def test_no_more_topics_are_made_by_themselves_than_a_cluster_should_have(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(broker_admin, "AUTO_CREATED_TOPICS_MAX", 2)

    async def scenario() -> None:
        async with standalone(tmp_path, auto_create=AutoCreate()) as broker:
            for name in ("a", "b"):
                await asyncio.to_thread(publish, broker.address, name)
            with pytest.raises(InvalidRequest, match="there are 2 topics already"):
                await asyncio.to_thread(publish, broker.address, "c")
            await broker.create_topic("c")

    asyncio.run(scenario())


def test_what_is_made_must_be_possible() -> None:
    for wrong in ({"partitions": 0}, {"replicas": 10}):
        with pytest.raises(InvalidSetting, match="--auto-create-"):
            AutoCreate(**wrong)


def test_a_topic_that_holds_records_is_not_deleted_as_an_empty_one(admin: Admin, bootstrap: str, topic: str) -> None:
    admin.create_topic(topic)
    publish(bootstrap, topic)
    with pytest.raises(TopicNotEmpty, match="holds 1 records"):
        admin.delete_topic(topic, if_empty=True)
    admin.purge(topic)
    admin.delete_topic(topic, if_empty=True)
    assert topic not in admin.list_topics()


def publish_once_it_is_there(bootstrap: str, topic: str) -> None:
    with Admin(bootstrap) as admin:
        wait_until(lambda: topic in admin.list_topics(), "whoever waits for its records has made it")
    publish(bootstrap, topic)


@pytest.mark.cluster
def test_a_broker_is_told_on_its_command_line_to_make_topics(tmp_path: Path) -> None:
    with LocalCluster(tmp_path, arguments=["--auto-create", "--auto-create-partitions", "2"]) as cluster:
        publish(cluster.bootstrap, "t")
        assert len(Admin(cluster.bootstrap).describe_topic("t").partitions) == 2
        at = ("--bootstrap", cluster.bootstrap)
        assert tritonmq("produce", "written", *at, given=b"hello").returncode == 0
        assert tritonmq("consume", "written", "--from", "earliest", "--max", "1", *at).stdout == b"hello\n"
        answering = threading.Thread(target=publish_once_it_is_there, args=(cluster.bootstrap, "waited for"))
        answering.start()
        assert tritonmq("consume", "waited for", "--from", "earliest", "--max", "1", *at).stdout == b"hello\n"
        answering.join(30)
        assert tritonmq("consume", "only looked at", "--exit-at-end", *at).returncode == 1
        assert tritonmq("topic", "describe", "only looked at", *at).returncode == 1
        assert Admin(cluster.bootstrap).list_topics() == ["t", "waited for", "written"]
