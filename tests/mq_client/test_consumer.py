"""Consumers against a real broker: pushed to, each record once; groups share, go on, and give again what was lost."""

from __future__ import annotations

import math
import threading
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from mq_client import (
    Admin,
    Consumer,
    ConsumerRecord,
    InvalidRequest,
    InvalidSetting,
    InvalidTopicName,
    Producer,
    UnknownTopic,
)
from mq_client.consuming import subscription
from mq_client.consuming.push_streams import PushStream
from mq_dev.local_cluster import LocalCluster
from mq_protocol import limits
from mq_protocol import mq_pb2 as pb
from tests.cluster.harness import wait_until


@pytest.fixture(autouse=True)
def _looked_at_only_when_it_is_due(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is to be opened at once is not opened by the look at the leaders that comes in any case."""
    monkeypatch.setattr(subscription, "_REFRESH_S", 3_600.0)


def publish(bootstrap: str, topic: str, numbers: range, partitions: int = 1) -> None:
    with Producer(bootstrap, batch_bytes_max=2_000) as producer:
        for number in numbers:
            producer.publish(topic, b"%d" % number, partition=number % partitions)


def ints(records: list[ConsumerRecord]) -> list[int]:
    return [int(record.value) for record in records]


def take(consumer: Consumer, count: int) -> list[ConsumerRecord]:
    taken = []
    for _ in range(count):
        record = consumer.take(30_000)
        assert record is not None, f"only {len(taken)} of {count} came"
        taken.append(record)
    return taken


def test_more_partitions_than_one_request_may_name_are_opened_and_settled_by_several(
    admin: Admin, bootstrap: str, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "REQUEST_PLACES_MAX", 2)
    said: list[pb.SubscribeRequest] = []
    say = PushStream.say

    def noted(stream: PushStream, request: pb.SubscribeRequest) -> None:
        said.append(request)
        say(stream, request)

    monkeypatch.setattr(PushStream, "say", noted)
    admin.create_topic(topic, partitions=5)
    publish(bootstrap, topic, range(5), partitions=5)
    with Consumer(bootstrap, group=topic, start="earliest") as consumer:
        consumer.subscribe(topic)
        assert sorted(ints(take(consumer, 5))) == list(range(5))
    assert sum(len(request.open.partitions) for request in said) == 5
    assert max(max(len(request.open.partitions), len(request.settled)) for request in said) == 2
    assert sorted(cursor.offset for cursor in admin.describe_group(topic).cursors) == [1] * 5


@pytest.mark.parametrize(
    "wrong",
    [
        {"start": "earliset"},
        {"start": -1},
        {"idle_ms": 0},
        {"settle_ms": -1},
        {"ephemeral": True},
        {"buffer_bytes_max": 0},
        {"timeout_ms": 0},
        {"priority": 1},
        {"priority": 32, "broadcast": "news"},
        {"priority": True, "broadcast": "news"},
        {"group": "g", "broadcast": "news"},
        {"start": "earliest", "broadcast": "news"},
        {"start": 0, "broadcast": "news"},
    ],
)
def test_a_setting_that_makes_no_sense_is_named(wrong: dict[str, object]) -> None:
    with pytest.raises(InvalidSetting, match=next(iter(wrong))):
        Consumer("127.0.0.1:1", **wrong)  # type: ignore[arg-type]


def test_a_start_outside_the_log_is_moved_to_its_end_and_told_once_for_a_topic(
    admin: Admin, bootstrap: str, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    admin.create_topic(topic, partitions=3)
    with Producer(bootstrap) as producer:
        for partition in range(3):
            producer.publish(topic, "early", partition=partition).result(30)
        with Consumer(bootstrap, start=99) as consumer, Consumer(bootstrap, start=1) as fitting:
            consumer.subscribe(topic)
            fitting.subscribe(topic)
            producer.publish(topic, "late", partition=1).result(30)
            for each in (consumer, fitting):
                record = each.take(30_000)
                assert record is not None
                assert (record.offset, record.value) == (1, b"late")
    [words] = [words for words in caplog.messages if "consumed from offset" in words]
    assert "from offset 1, not 99: it ends at offset 1" in words


def test_a_start_below_what_is_kept_is_told(
    admin: Admin, bootstrap: str, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    admin.create_topic(topic)
    with Producer(bootstrap) as producer:
        producer.publish(topic, "early").result(30)
        producer.publish(topic, "late").result(30)
    admin.purge(topic, before=1)
    with Consumer(bootstrap, start=0) as consumer:
        consumer.subscribe(topic)
        record = consumer.take(30_000)
        assert record is not None
        assert record.value == b"late"
    assert "from offset 1, not 0: what is before offset 1 is no longer kept" in caplog.text


def test_what_is_published_after_start_is_pushed(admin: Admin, bootstrap: str, topic: str) -> None:
    admin.create_topic(topic, partitions=3)
    publish(bootstrap, topic, range(10), 3)
    consumer = Consumer(bootstrap)
    consumer.subscribe(topic)
    with consumer:
        publish(bootstrap, topic, range(10, 40), 3)
        taken = take(consumer, 30)
        assert sorted(ints(taken)) == list(range(10, 40))
        assert consumer.take(50) is None
        for partition in range(3):
            mine = [record for record in taken if record.partition == partition]
            assert ints(mine) == sorted(ints(mine))


def test_a_consumer_begins_where_it_is_told(admin: Admin, bootstrap: str, topic: str) -> None:
    admin.create_topic(topic)
    publish(bootstrap, topic, range(10))
    boundary = datetime.now(UTC)
    publish(bootstrap, topic, range(10, 20))
    starts: dict[str | int | datetime, int] = {
        "earliest": 0,
        5: 5,
        boundary: 10,
        boundary - timedelta(days=1): 0,
        1_000_000: 20,
    }
    for start, first in starts.items():
        consumer = Consumer(bootstrap, start=start)
        consumer.subscribe(topic)
        assert ints(take(consumer, 20 - first)) == list(range(first, 20)), start
        assert consumer.take(200) is None
        consumer.stop()


def test_a_small_buffer_holds_back_the_broker_not_the_records(admin: Admin, bootstrap: str, topic: str) -> None:
    admin.create_topic(topic)
    publish(bootstrap, topic, range(3_000))
    consumer = Consumer(bootstrap, start="earliest", buffer_bytes_max=5_000)
    consumer.subscribe(topic)
    with consumer:
        waiting = consumer.records()[topic]
        wait_until(waiting.qsize, "the first records are pushed")
        with Consumer(bootstrap, start="earliest") as other:  # which is given all of it meanwhile
            other.subscribe(topic)
            take(other, 3_000)
        assert waiting.qsize() < 500
        assert ints(take(consumer, 3_000)) == list(range(3_000))


def test_topics_can_be_added_and_left_while_running(admin: Admin, bootstrap: str, topic: str) -> None:
    one, two = topic + "1", topic + "2"
    for name in (one, two):
        admin.create_topic(name)
    consumer = Consumer(bootstrap)
    consumer.subscribe(one)
    with consumer:
        publish(bootstrap, one, range(1))
        take(consumer, 1)  # nothing is left to be opened by then
        consumer.subscribe([two])
        assert consumer.subscription() == {one, two}
        publish(bootstrap, two, range(3))
        assert {record.topic for record in take(consumer, 3)} == {two}
        consumer.unsubscribe(two)
        assert consumer.subscription() == {one}
        publish(bootstrap, two, range(3))
        publish(bootstrap, one, range(3))
        assert {record.topic for record in take(consumer, 3)} == {one}
        assert consumer.take(50) is None
        for names in ([two, topic + "3"], [two, "a/b"], [two, "__transactions"]):
            with pytest.raises((UnknownTopic, InvalidTopicName)):
                consumer.subscribe(names)
        assert consumer.subscription() == {one}, "all of them or none"


def test_topics_have_turns_and_the_error_of_one_comes_behind_the_records_of_all(
    admin: Admin, bootstrap: str, topic: str
) -> None:
    names = [topic + "1", topic + "2"]
    for name in names:
        admin.create_topic(name)
        for number in range(2):
            publish(bootstrap, name, range(number, number + 1))
    with Consumer(bootstrap, group=topic, start="earliest") as consumer:
        consumer.subscribe(names)
        queues = consumer.records()
        wait_until(lambda: all(queues[name].qsize() == 2 for name in names), "all of it is here")
        admin.delete_topic(names[0])
        taken = [(record.topic[-1], int(record.value)) for record in take(consumer, 4)]
        assert taken in ([("1", 0), ("2", 0), ("1", 1), ("2", 1)], [("2", 0), ("1", 0), ("2", 1), ("1", 1)])
        with pytest.raises(UnknownTopic):
            consumer.take(30_000)
    (place,) = admin.describe_group(topic).cursors
    assert (place.topic, place.offset) == (names[1], 2), "a record is done with when the next of any topic is asked for"


@pytest.mark.parametrize("wrong", [{"group": "a/b"}, {"group": ""}, {"group": "g", "member_id": "a/b"}])
def test_a_name_that_cannot_be_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest):
        Consumer("127.0.0.1:1", **wrong)


def test_a_stopped_consumer_says_so(admin: Admin, bootstrap: str, topic: str) -> None:
    admin.create_topic(topic)
    consumer = Consumer(bootstrap)
    consumer.subscribe(topic)
    consumer.start()
    ended: list[object] = []
    waiting = threading.Thread(target=lambda: ended.extend(consumer))
    waiting.start()
    consumer.stop()
    consumer.stop()
    waiting.join(30)
    assert not waiting.is_alive()
    with pytest.raises(InvalidRequest, match="make a new one"):
        consumer.start()


def test_a_wait_may_be_without_end_and_is_over_if_it_is_no_number(admin: Admin, bootstrap: str, topic: str) -> None:
    admin.create_topic(topic)
    publish(bootstrap, topic, range(1))
    consumer = Consumer(bootstrap, start="earliest", timeout_ms=math.inf, idle_ms=math.inf)
    consumer.subscribe(topic)
    with consumer:
        assert next(iter(consumer)).offset == 0
        assert consumer.take(math.nan) is None
        threading.Timer(0.05, publish, (bootstrap, topic, range(1, 2))).start()
        assert next(iter(consumer)).offset == 1


# ---------------------------------------------------------------- groups


def test_a_group_goes_on_where_it_was(admin: Admin, bootstrap: str, topic: str) -> None:
    admin.create_topic(topic, partitions=2)
    publish(bootstrap, topic, range(100), 2)
    found: list[int] = []
    for count in (30, 30, 40):
        consumer = Consumer(bootstrap, group=topic, start="earliest")
        consumer.subscribe(topic)
        with consumer:
            found += ints(take(consumer, count))
    assert sorted(found) == list(range(100))


def test_a_group_that_began_at_the_end_misses_nothing_while_it_is_away(
    admin: Admin, bootstrap: str, topic: str
) -> None:
    admin.create_topic(topic)
    for expected in (range(0), range(5)):
        consumer = Consumer(bootstrap, group=topic, start="latest")
        consumer.subscribe(topic)
        with consumer:
            assert ints(take(consumer, len(expected))) == list(expected)
            assert consumer.take(300) is None
        publish(bootstrap, topic, range(5))


def test_a_record_whose_work_failed_is_given_again(admin: Admin, bootstrap: str, topic: str) -> None:
    admin.create_topic(topic)
    publish(bootstrap, topic, range(5))
    consumer = Consumer(bootstrap, group=topic, start="earliest")
    consumer.subscribe(topic)
    with pytest.raises(ZeroDivisionError), consumer:  # noqa: PT012
        assert ints(take(consumer, 3)) == [0, 1, 2]
        _ = 1 / 0
    again = Consumer(bootstrap, group=topic, start="earliest")
    again.subscribe(topic)
    with again:
        assert ints(take(again, 3)) == [2, 3, 4]


def shared_by(admin: Admin, group: str, count: int) -> bool:
    """Whether each of its four places is known to that many members."""
    return [len(cursor.members) for cursor in admin.describe_group(group).cursors] == [count] * 4


def test_members_share_and_a_partition_is_handed_over_without_a_record_twice(
    admin: Admin, bootstrap: str, topic: str
) -> None:
    admin.create_topic(topic, partitions=4)
    members = [Consumer(bootstrap, group=topic, start="earliest", settle_ms=20) for _ in range(2)]
    found: list[list[ConsumerRecord]] = [[], []]
    threads = []

    def consume(number: int) -> None:
        for record in members[number]:
            found[number].append(record)

    for number, member in enumerate(members):
        member.subscribe(topic)
        member.start()
        threads.append(threading.Thread(target=consume, args=(number,)))
        threads[-1].start()
        wait_until(lambda count=number + 1: shared_by(admin, topic, count), "it has its partitions")  # type: ignore[misc]
        publish(bootstrap, topic, range(number * 2_000, number * 2_000 + 2_000), 4)
    wait_until(lambda: sum(map(len, found)) >= 4_000, "the members have everything")
    for member in members:
        member.stop()
    for thread in threads:
        thread.join(30)
    counts = Counter(int(record.value) for mine in found for record in mine)
    assert sorted(counts) == list(range(4_000))
    assert set(counts.values()) == {1}
    assert all(mine for mine in found)


@pytest.mark.cluster
def test_a_broker_that_comes_back_is_neither_a_gap_nor_a_repeat(tmp_path: Path) -> None:
    with LocalCluster(tmp_path) as cluster, Admin(cluster.bootstrap) as admin:
        admin.create_topic("t", partitions=2)
        alone, member = Consumer(cluster.bootstrap), Consumer(cluster.bootstrap, group="g", settle_ms=20)
        for consumer in (alone, member):
            consumer.subscribe("t")
            consumer.start()
        publish(cluster.bootstrap, "t", range(100), 2)
        taken = take(alone, 50)  # the other 50 are on their way, or here and not taken
        cluster.kill(1)
        cluster.restart(1)
        publish(cluster.bootstrap, "t", range(100, 200), 2)
        taken += take(alone, 150)
        assert alone.take(100) is None
        assert sorted(ints(taken)) == list(range(200))
        assert sorted(ints(take(member, 200))) == list(range(200))
        alone.stop()
        member.stop()
