"""Queue groups are declared in a topic's document, and leaders begin and end them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mq_broker.broker.queues import declaring
from mq_broker.broker.queues.declaring import with_queue, with_queue_settings, without_queue
from mq_broker.coordination.interface import QueueSpec, TopicSpec
from mq_protocol import mq_pb2 as pb
from mq_protocol.errors import (
    InvalidRequest,
    InvalidSetting,
    TooManyGroups,
    TritonMQError,
    UnknownQueue,
    UnknownTopic,
    WrongGroupKind,
)
from mq_protocol.wire.error_messages import from_wire
from tests.coroutines import virtual_time
from tests.mq_broker.broker.cluster import Broker, standalone, until

TOPIC = TopicSpec("t", "0" * 32, ((1,),))
USUAL = {"dead_letter": "t.dead"}
"""Where dead letters of topic `t` go is told always."""


def test_each_declaration_gets_a_life_that_no_group_of_the_topic_had_before() -> None:
    once = with_queue(TOPIC, "g", {"lease_ms": "5s"}, 17)
    assert (once.queues, once.queue_lives) == ({"g": QueueSpec(1, 17, {"lease_ms": "5s"})}, 1)
    assert with_queue(once, "g", {"lease_ms": "5s"}, 99) == once == with_queue(once, "g", {}, 99)
    again = with_queue(without_queue(once, "g", 1), "g", {}, 0)
    assert (again.queues["g"].life, again.queue_lives) == (2, 2)
    assert without_queue(again, "g", 1) == again, "another life"


def test_a_declaration_does_not_change_settings_that_are_there() -> None:
    spec = with_queue(TOPIC, "g", {"lease_ms": "60s", "retry_ms": ""}, 0)
    assert spec.queues["g"].settings == {"lease_ms": "60s"}
    assert with_queue(spec, "g", {"lease_ms": "1m", "delivery_limit": "10", "retry_ms": ""}, 0) == spec, "the same"
    for other in ({"lease_ms": "5s"}, {"lease_ms": ""}, {"paused": "true"}):
        with pytest.raises(InvalidRequest, match="queue alter t g"):
            with_queue(spec, "g", other, 0)


def test_a_topic_has_at_most_a_hundred_queue_groups() -> None:
    full = replace(TOPIC, queues={f"g{n}": QueueSpec(n + 1) for n in range(100)}, queue_lives=100)
    assert with_queue(full, "g7", {}, 0) == full
    with pytest.raises(TooManyGroups, match="100 queue groups"):
        with_queue(full, "one more", {}, 0)


def test_settings_are_changed_one_by_one_and_an_empty_value_is_the_default_again() -> None:
    spec = replace(with_queue(TOPIC, "g", {"lease_ms": "5s", "retry_ms": "1s"}, 3), unknown="{}")
    changed = with_queue_settings(spec, "g", {"lease_ms": "", "paused": "true"})
    assert changed.queues["g"] == QueueSpec(1, 3, {"retry_ms": "1s", "paused": "true"})
    for settings in ({}, {"lease_ms": "0"}, {"leese_ms": ""}, {"bytes_max": "much"}):
        with pytest.raises(InvalidSetting):
            with_queue_settings(spec, "g", settings)
    with pytest.raises(UnknownQueue, match="did you mean 'orders'"):
        with_queue_settings(with_queue(TOPIC, "orders", {}, 0), "order", {"paused": "true"})


async def alter(broker: Broker, change: pb.QueueChange.ValueType = pb.QUEUE_DECLARE, **fields: Any) -> Any:
    request = pb.AlterQueueRequest(change=change, **({"topic": "t", "group": "g"} | fields))
    return await broker.ask("AlterQueue", request)


async def told(broker: Broker, topic: str = "") -> dict[str, dict[str, str]]:
    answer = await broker.ask("Queues", pb.QueuesRequest(topic=topic))
    return {f"{queue.topic} {queue.group} {queue.life}": dict(queue.settings) for queue in answer.queues}


@virtual_time
async def test_a_group_is_declared_once_changed_told_and_deleted(tmp_path: Path) -> None:
    async with standalone(tmp_path) as broker:
        await broker.create_topic("t", partitions=2)
        first = await alter(broker, settings={"lease_ms": "5s"})
        assert (first.made, first.queue.life) == (True, 1)
        assert first.queue.settings == {"lease_ms": "5s", "dead_letter": "t.dead"}
        assert not (await alter(broker)).made
        await alter(broker, group="h")
        await alter(broker, pb.QUEUE_ALTER, settings={"lease_ms": "", "paused": "true"})
        assert await told(broker) == {"t g 1": {"paused": "true", **USUAL}, "t h 2": USUAL}
        deleted = await alter(broker, pb.QUEUE_DELETE)
        assert (deleted.queue.life, await told(broker, "t")) == (1, {"t h 2": USUAL})
        with pytest.raises(UnknownQueue):
            await alter(broker, pb.QUEUE_DELETE)
        assert (await alter(broker)).queue.life == 3
    async with standalone(tmp_path) as broker:
        assert await told(broker) == {"t g 3": USUAL, "t h 2": USUAL}


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"topic": "no such"}, UnknownTopic),
        ({"group": "a/b"}, InvalidRequest),
        ({"group": ""}, InvalidRequest),
        ({"group": "cafe\u0301"}, InvalidRequest),
        ({"settings": {"lease_ms": "0"}}, InvalidSetting),
        ({"settings": {"bytes_max": "much"}}, InvalidSetting),
        ({"settings": {"leese_ms": ""}}, InvalidSetting),
        ({"timestamp_us": -1}, InvalidRequest),
        ({"change": 9}, InvalidRequest),
        ({"change": pb.QUEUE_ALTER, "settings": {"paused": "true"}}, UnknownQueue),
        ({"change": pb.QUEUE_DELETE}, UnknownQueue),
    ],
)
@virtual_time
async def test_what_cannot_be_declared_changes_nothing(
    tmp_path: Path, fields: dict[str, Any], error: type[TritonMQError]
) -> None:
    async with standalone(tmp_path) as broker:
        await broker.create_topic("t")
        with pytest.raises(error):
            await alter(broker, **fields)
        assert await told(broker) == {}


@virtual_time
async def test_a_queue_group_is_not_read_as_a_stream(tmp_path: Path) -> None:
    async with standalone(tmp_path) as broker:
        await broker.create_topic("t")
        await alter(broker)
        async with broker.subscribing() as stream:
            await stream.open("t", group="g", member="m", earliest=True)
            (opened,) = await stream.read_opened()
            assert isinstance(from_wire(opened.error), WrongGroupKind)
        position = pb.CursorPosition(topic="t", offset=0)
        moved = pb.MoveCursorsRequest(group="g", kind="spark", positions=[position])
        (refused,) = (await broker.ask("MoveCursors", moved)).partitions
        assert isinstance(from_wire(refused.error), WrongGroupKind)


@virtual_time
async def test_a_group_that_reads_as_a_stream_is_not_declared(tmp_path: Path) -> None:
    async with standalone(tmp_path) as broker:
        await broker.create_topic("t")
        position = pb.CursorPosition(topic="t", offset=0)
        await broker.ask("MoveCursors", pb.MoveCursorsRequest(group="g", kind="spark", positions=[position]))
        with pytest.raises(WrongGroupKind, match="as a stream"):
            await alter(broker)
        assert await told(broker) == {}


@virtual_time
async def test_a_queue_begins_where_it_is_asked_to(tmp_path: Path) -> None:
    async with standalone(tmp_path) as broker:
        await broker.create_topic("t")
        await broker.produce("t", 1, 2, 3)
        await alter(broker, group="earliest")
        await alter(broker, group="latest", latest=True)
        await alter(broker, group="long ago", timestamp_us=17)

        async def bases() -> dict[str, int] | None:
            found = {}
            for group in ("earliest", "latest", "long ago"):
                asked = pb.DescribeQueueRequest(topic="t", group=group, partitions=[0])
                (partition,) = (await broker.ask("DescribeQueue", asked)).partitions
                if partition.life:
                    found[group] = partition.base
            return found if len(found) == 3 else None

        assert await until(bases) == {"earliest": 0, "latest": 3, "long ago": 0}


@virtual_time
async def test_groups_are_told_a_page_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(declaring, "ANSWER_BYTES_MAX", 1)
    async with standalone(tmp_path) as broker:
        for topic in ("a", "b"):
            await broker.create_topic(topic)
            for group in ("g", "h"):
                await alter(broker, topic=topic, group=group)
        pages, place = [], ("", "")
        while True:
            request = pb.QueuesRequest(after_topic=place[0], after_group=place[1])
            answer = await broker.ask("Queues", request)
            assert len(answer.queues) == 1
            place = answer.queues[0].topic, answer.queues[0].group
            pages.append(place)
            if not answer.more:
                break
        assert pages == [("a", "g"), ("a", "h"), ("b", "g"), ("b", "h")]


@virtual_time
async def test_a_partition_that_is_added_is_worked_off_from_its_first_record_and_a_topic_made_again_has_no_groups(
    tmp_path: Path,
) -> None:
    async with standalone(tmp_path) as broker:
        await broker.create_topic("t")
        await broker.produce("t", 1, 2, 3)
        await alter(broker, latest=True)
        await broker.ask("AlterTopic", pb.AlterTopicRequest(name="t", partitions=2))

        async def begun() -> list[int] | None:
            asked = pb.DescribeQueueRequest(topic="t", group="g", partitions=[0, 1])
            told = (await broker.ask("DescribeQueue", asked)).partitions
            return [each.base for each in told] if all(each.life for each in told) else None

        assert await until(begun) == [3, 0]
        await broker.ask("DeleteTopic", pb.DeleteTopicRequest(name="t"))
        await broker.create_topic("t")
        assert await told(broker) == {}
        assert (await alter(broker)).queue.life == 1
