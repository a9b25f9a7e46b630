"""Consumers whose program says that it cannot work, against a real broker."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

import pytest

from mq_client import Admin, Consumer, ConsumerRecord, InvalidSetting, Producer
from mq_client.consuming import health
from mq_client.consuming.push_streams import PushStream
from mq_protocol import mq_pb2 as pb
from tests.cluster.harness import wait_until


@pytest.fixture(autouse=True)
def _asked_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "EVERY_S", 0.02)


def publish(bootstrap: str, topic: str, numbers: range, partitions: int = 1) -> None:
    with Producer(bootstrap, batch_bytes_max=2_000) as producer:
        for number in numbers:
            producer.publish(topic, b"%d" % number, partition=number % partitions)


class Member:
    """Owns a consumer and the thread that takes its records."""

    def __init__(self, bootstrap: str, topic: str, name: str, healthy: Callable[[], object] | None = None) -> None:
        self.consumer = Consumer(bootstrap, topic, "earliest", member_id=name, healthy=healthy)
        self.consumer.subscribe(topic)
        self.consumer.start()
        self.taken: list[int] = []
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        for record in self.consumer:
            self.taken.append(int(record.value))

    def stop(self) -> None:
        self.consumer.stop()
        self._thread.join(30)


def members(admin: Admin, group: str) -> list[tuple[str, ...]]:
    return [cursor.members for cursor in admin.describe_group(group).cursors]


def test_the_partitions_of_a_member_that_cannot_work_go_to_others_and_come_back(
    admin: Admin, bootstrap: str, topic: str
) -> None:
    admin.create_topic(topic, partitions=2)
    well = threading.Event()
    well.set()
    sick, other = Member(bootstrap, topic, "a", well.is_set), Member(bootstrap, topic, "b")
    try:
        wait_until(lambda: members(admin, topic) == [("a", "b")] * 2, "both are members")
        publish(bootstrap, topic, range(100), partitions=2)
        wait_until(lambda: len(sick.taken) == len(other.taken) == 50, "each has its partition")
        well.clear()
        wait_until(lambda: members(admin, topic) == [("b",)] * 2, "the other one has both")
        publish(bootstrap, topic, range(100, 200), partitions=2)
        wait_until(lambda: len(other.taken) == 150, "it is given all")
        assert len(sick.taken) == 50
        well.set()
        wait_until(lambda: members(admin, topic) == [("a", "b")] * 2, "it is a member again")
        publish(bootstrap, topic, range(200, 300), partitions=2)
        wait_until(lambda: len(sick.taken) == 100 and len(other.taken) == 200, "each has its partition again")
    finally:
        well.set()
        sick.stop()
        other.stop()
    assert sorted(sick.taken + other.taken) == list(range(300))  # nothing twice: all that was handed out was settled


def test_what_a_member_that_cannot_work_had_not_handed_out_is_given_to_others(
    admin: Admin, bootstrap: str, topic: str
) -> None:
    admin.create_topic(topic)
    publish(bootstrap, topic, range(10))
    well = threading.Event()
    well.set()
    with Consumer(bootstrap, topic, "earliest", member_id="a", healthy=well.is_set) as sick:
        sick.subscribe(topic)
        taken = [sick.take(30_000), sick.take(30_000)]
        well.clear()
        wait_until(lambda: members(admin, topic) in ([()], []), "it has left")
        other = Member(bootstrap, topic, "b")
        wait_until(lambda: other.taken == list(range(1, 10)), "the other one is given what was not settled")
        assert sick.take(1) is None
        other.stop()
        well.set()
        publish(bootstrap, topic, range(10, 11))
        taken.append(sick.take(30_000))
    assert [int(record.value) for record in taken if record is not None] == [0, 1, 10]


def test_no_credit_is_given_while_the_program_cannot_work_and_nothing_is_lost(
    admin: Admin, bootstrap: str, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[int] = []
    say = PushStream.say

    def noted(stream: PushStream, request: pb.SubscribeRequest) -> None:
        if request.HasField("credit"):
            given.append(request.credit.bytes)
        say(stream, request)

    monkeypatch.setattr(PushStream, "say", noted)
    other = f"{topic}-other"
    for each in (topic, other):
        admin.create_topic(each)
        publish(bootstrap, each, range(1_000))
    well = threading.Event()
    well.set()
    taken: list[ConsumerRecord] = []
    with Consumer(bootstrap, start="earliest", healthy=well.is_set, buffer_bytes_max=4_000) as consumer:
        consumer.subscribe(other)
        wait_until(lambda: consumer.records()[other].qsize() > 0, "what was allowed has come")
        well.clear()
        wait_until(lambda: consumer._subscriptions.suspended, "it was asked")
        before = len(given)
        consumer.subscribe(topic)
        assert consumer.take(1) is None
        consumer.unsubscribe(other)  # what was here is dropped, and its credit free
        consumer.subscribe(other)
        assert not any(given[before:])
        well.set()
        while len(taken) < 2_000:
            record = consumer.take(30_000)
            assert record is not None
            taken.append(record)
    for each in (topic, other):
        assert [int(record.value) for record in taken if record.topic == each] == list(range(1_000))
    assert any(given[before:])


def test_a_function_that_raises_says_no_and_is_logged_once(
    admin: Admin, bootstrap: str, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    admin.create_topic(topic)
    asked = 0

    def healthy() -> bool:
        nonlocal asked
        asked += 1
        raise ValueError("no database")

    with (
        caplog.at_level(logging.WARNING, "mq_client.consuming.health"),
        Consumer(bootstrap, topic, "earliest", healthy=healthy) as consumer,
    ):
        consumer.subscribe(topic)
        wait_until(lambda: asked > 5 and consumer._subscriptions.suspended, "it was asked again and again")
    told = [record.message for record in caplog.records if "no database" in record.message]
    assert told == ["healthy() failed, which counts as no: ValueError: no database"]
    assert consumer._subscriptions._health is not None
    consumer._subscriptions._health._thread.join(30)
    assert not consumer._subscriptions._health._thread.is_alive(), "a stopped consumer asks no more"


def test_a_function_that_does_not_answer_says_no_and_it_is_logged(
    admin: Admin, bootstrap: str, topic: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(health, "LATE_S", 0.1)
    admin.create_topic(topic)
    answers = threading.Event()

    def healthy() -> bool:
        return answers.wait(60)

    with (
        caplog.at_level(logging.INFO, "mq_client.consuming.health"),
        Consumer(bootstrap, start="earliest", healthy=healthy) as consumer,
    ):
        consumer.subscribe(topic)
        wait_until(lambda: "healthy() has not answered for" in caplog.text, "it has not answered")
        assert consumer._subscriptions.suspended
        answers.set()
        publish(bootstrap, topic, range(1))
        assert consumer.take(30_000) is not None
        assert "healthy() says yes again" in caplog.text


async def later() -> bool:
    return True


@pytest.mark.parametrize("wrong", [True, "yes", later])
def test_what_cannot_be_asked_is_refused(bootstrap: str, wrong: object) -> None:
    with pytest.raises(InvalidSetting, match="a function without arguments"):
        Consumer(bootstrap, healthy=wrong)  # type: ignore[arg-type]
