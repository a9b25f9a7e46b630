"""What a consumer hands out, in which order, and when it ends. Nothing is subscribed to at a broker: the test fills the
queues."""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from mq_client import consumer as consumer_module
from mq_client.cluster import connection as connection_module
from mq_client.consumer import Consumer
from mq_client.consuming.record_queue import Chunk, ConsumerRecord
from mq_client.consuming.subscription import Subscriptions
from mq_client.errors import InvalidRequest, InvalidSetting, InvalidTopicName, NotDeserialized, UnknownTopic
from mq_client.producing.batches import records_to_batch
from mq_protocol import mq_pb2 as pb
from mq_protocol.arrow import RECORD_SCHEMA, encode_batch
from tests.mq_client.cluster.scripted import Clock, Scripted, told, topic_info
from tests.mq_client.consuming.played_subscription import shared_batch


class Fed:
    """Owns consumers of topics that the test fills. What they ask of their subscriptions is noted."""

    def __init__(self, scripted: Scripted) -> None:
        self.scripted = scripted
        self.opened: list[list[str]] = []
        self.begun = 0
        self.stopped: list[bool] = []

    def consumer(self, *topics: str, **options: Any) -> Consumer:
        made = Consumer("b:1", **options)
        made.subscribe(topics)
        return made

    def push(self, consumer: Consumer, topic: str, base: int, *values: bytes) -> None:
        subscriptions = consumer._subscriptions
        payload = memoryview(encode_batch(records_to_batch([], values, [], [0] * len(values))))
        with subscriptions.changed:
            place = subscriptions.places[topic, 0]
            subscriptions.queues[topic].put(
                Chunk(place, shared_batch(payload, base, len(values)), RECORD_SCHEMA, 1, False, 0, lambda count: None)
            )
            subscriptions.changed.notify_all()


@pytest.fixture
def fed(monkeypatch: pytest.MonkeyPatch) -> Fed:
    clock = Clock()
    monkeypatch.setattr(connection_module, "time", clock)
    scripted = Scripted(clock)
    scripted.brokers_say = dict.fromkeys(
        ("b:1", "b:2", "b:3"), lambda request: told(*[topic_info(1, name=name) for name in request.topics])
    )
    monkeypatch.setattr(consumer_module, "Connection", lambda bootstrap, **_: scripted)
    made = Fed(scripted)

    def begin(subscriptions: Subscriptions) -> None:
        made.begun += 1

    def stop(subscriptions: Subscriptions, deadline: Any, *, last_is_done: bool) -> None:
        made.stopped.append(last_is_done)
        with subscriptions.changed:
            for queue in subscriptions.queues.values():
                queue.close()
            subscriptions.changed.notify_all()

    monkeypatch.setattr(Subscriptions, "begin", begin)
    monkeypatch.setattr(Subscriptions, "stop", stop)
    monkeypatch.setattr(
        Subscriptions, "wait_opened", lambda subscriptions, topics, deadline: made.opened.append(sorted(topics))
    )
    return made


def taken(consumer: Consumer, count: int) -> list[tuple[str, int]]:
    found = [consumer.take(0) for _ in range(count)]
    return [(record.topic, record.offset) for record in found if record is not None]


# ---------------------------------------------------------------- settings


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"ephemeral": True}, "about a group"),
        ({"buffer_bytes_max": 0}, "buffer_bytes_max=0 must be positive"),
        ({"idle_ms": 0}, "idle_ms=0"),
        ({"timeout_ms": 0}, "timeout_ms=0"),
        ({"settle_ms": 0}, "settle_ms=0"),
        ({"start": "first"}, "start='first' is not known"),
        ({"start": "latst"}, "did you mean 'latest'"),
        ({"start": -1}, "start=-1 is not known"),
    ],
)
def test_a_setting_that_makes_no_sense_is_refused_and_named(wrong: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidSetting, match=says):
        Consumer("b:1", **wrong)


@pytest.mark.parametrize("wrong", [{"group": "a/b"}, {"group": ""}, {"group": "g", "member_id": "a/b"}])
def test_a_name_that_cannot_be_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest):
        Consumer("b:1", **wrong)


def test_settings_reach_the_subscriptions() -> None:
    made = Consumer("b:1", "g", buffer_bytes_max=1, settle_ms=50, member_id="me", ephemeral=True)._subscriptions
    assert (made.group, made.member_id, made.credit_bytes, made.ephemeral, made._settle_s) == ("g", "me", 1, True, 0.05)
    alone = Consumer("b:1")._subscriptions
    assert (alone.group, alone.ephemeral, alone.credit_bytes) == ("", False, 16 << 20)
    assert alone.member_id != Consumer("b:1")._subscriptions.member_id


@pytest.mark.parametrize(
    ("start", "asked"),
    [
        ("earliest", {"earliest": True}),
        ("latest", {"latest": True}),
        (0, {"offset": 0}),
        (7, {"offset": 7}),
        (datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC), {"timestamp_us": 1_000_000}),
    ],
)
def test_it_begins_where_it_is_told(start: Any, asked: dict[str, Any]) -> None:
    request = pb.SubscribePartition()
    Consumer("b:1", start=start)._subscriptions.start(request)
    assert request == pb.SubscribePartition(**asked)


# ---------------------------------------------------------------- what is subscribed


def test_topics_are_heard_of_anew_and_all_of_them_before_any_is_subscribed_to(fed: Fed) -> None:
    consumer = fed.consumer("t")
    assert [request.auto_create for _, _, request in fed.scripted.asked] == [True]
    consumer.subscribe("t")
    assert len(fed.scripted.asked) == 2
    assert fed.opened == []
    fed.scripted.brokers_say = dict.fromkeys(
        ("b:1", "b:2", "b:3"),
        lambda request: told(topic_info(1, name="u")) if "u" in request.topics else told(unknown=tuple(request.topics)),
    )
    with pytest.raises(UnknownTopic):
        consumer.subscribe(["u", "v"])
    for name in ("a/b", "__transactions"):
        with pytest.raises(InvalidTopicName):
            consumer.subscribe(["u", name])
    assert consumer.subscription() == {"t"}
    consumer.subscribe("u")
    assert consumer.subscription() == {"t", "u"}
    consumer.unsubscribe("t")
    assert list(consumer.records()) == ["u"]
    consumer.unsubscribe(["u", "v"])
    assert consumer.subscription() == frozenset()


def test_a_started_consumer_waits_for_what_it_subscribes_to(fed: Fed) -> None:
    consumer = fed.consumer("t", "u")
    consumer.start()
    assert (fed.begun, fed.opened) == (1, [["t", "u"]])
    consumer.start()
    assert (fed.begun, len(fed.opened)) == (1, 1)
    consumer.subscribe("v")
    assert fed.opened[1:] == [["v"]]


def test_a_stopped_consumer_neither_starts_nor_subscribes(fed: Fed) -> None:
    consumer = fed.consumer("t")
    consumer.stop()
    for use in (consumer.start, lambda: consumer.subscribe("u")):
        refused: Callable[[], object] = use
        with pytest.raises(InvalidRequest, match="consumer is stopped: make a new one"):
            refused()
    assert fed.begun == 0
    with pytest.raises(InvalidSetting):
        fed.consumer("t").stop(0)


# ---------------------------------------------------------------- records


def test_topics_have_turns_batch_by_batch(fed: Fed) -> None:
    consumer = fed.consumer("t", "u", "v")
    for topic in ("t", "u"):
        fed.push(consumer, topic, 0, b"a", b"b")
        fed.push(consumer, topic, 2, b"c")
    assert taken(consumer, 7) == [("t", 0), ("t", 1), ("u", 0), ("u", 1), ("t", 2), ("u", 2)]


def test_a_record_is_done_with_when_the_next_is_asked_for_whichever_topic_it_is_of(fed: Fed) -> None:
    consumer = fed.consumer("t", "u")
    fed.push(consumer, "t", 0, b"a")
    fed.push(consumer, "u", 0, b"a")
    place = consumer._subscriptions.places["t", 0]
    taken(consumer, 1)
    assert place.processed == -1
    taken(consumer, 1)
    assert place.processed == 1
    assert consumer._subscriptions.places["u", 0].processed == -1
    assert consumer.take(0) is None
    assert consumer._subscriptions.places["u", 0].processed == 1


def test_a_wait_is_over_in_its_time_and_none_is_no_wait(fed: Fed, monkeypatch: pytest.MonkeyPatch) -> None:
    consumer = fed.consumer("t")
    consumer.start()
    clock = Clock()
    monkeypatch.setattr(consumer_module, "time", clock)
    monkeypatch.setattr(consumer._subscriptions.changed, "wait", clock.sleep)
    assert consumer.take(250) is None
    assert clock.slept == [pytest.approx(0.25)]
    for nothing in (0, -1, math.nan):
        assert consumer.take(nothing) is None
    assert len(clock.slept) == 1
    fed.push(consumer, "t", 0, b"a")
    assert consumer.take(0) is not None


def test_the_error_of_a_topic_comes_behind_its_records_and_those_of_the_others(fed: Fed) -> None:
    consumer = fed.consumer("t", "u")
    fed.push(consumer, "t", 0, b"a")
    fed.push(consumer, "u", 0, b"a")
    consumer._subscriptions.queues["t"].error = UnknownTopic("gone")
    assert taken(consumer, 2) == [("t", 0), ("u", 0)]
    with pytest.raises(UnknownTopic):
        consumer.take(0)


def test_iteration_ends_when_nothing_has_come_for_as_long_as_it_was_told(fed: Fed) -> None:
    consumer = fed.consumer("t", idle_ms=0.01)
    fed.push(consumer, "t", 0, b"a", b"b")
    assert [record.offset for record in consumer] == [0, 1]


def test_what_deserializers_make_of_a_record_is_handed_out(fed: Fed) -> None:
    consumer = fed.consumer("t", value_deserializer="json")
    fed.push(consumer, "t", 0, b"[1]", b"{", b"2")
    assert consumer.take(0).value == [1]  # type: ignore[union-attr]
    with pytest.raises(
        NotDeserialized, match="the value of offset 1 of 't' partition 0 cannot be deserialized"
    ) as refused:
        consumer.take(0)
    assert isinstance(refused.value.record, ConsumerRecord)
    assert refused.value.record.value == b"{"
    assert consumer.take(0).value == 2  # type: ignore[union-attr]
    assert consumer.take(0) is None


# ---------------------------------------------------------------- the end


def test_a_block_that_failed_is_not_done_with_its_last_record(fed: Fed) -> None:
    with fed.consumer("t"):
        pass

    def fail() -> None:
        with fed.consumer("t"):
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert fed.stopped == [True, False]
    assert fed.begun == 2


def test_a_consumer_that_is_stopped_hands_out_nothing_and_does_not_wait(fed: Fed) -> None:
    consumer = fed.consumer("t")
    consumer.start()
    fed.push(consumer, "t", 0, b"a")
    consumer.stop()
    assert consumer.take() is None
    assert fed.stopped == [True]
