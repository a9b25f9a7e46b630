"""Two consumers with one member id: the one that has it keeps it, and the other is told."""

from __future__ import annotations

import pytest

from mq_client import Admin, Consumer, MemberInUse, Producer
from mq_client.consuming import subscription as subscription_module
from tests.cluster.harness import wait_until


def consumer(bootstrap: str, topic: str, **options: float) -> Consumer:
    made = Consumer(bootstrap, group=topic, start="earliest", member_id="worker-1", **options)  # type: ignore[arg-type]
    made.subscribe(topic)
    return made


def refused(bootstrap: str, topic: str) -> Consumer:
    """One that waits for a short time only, and that its broker has told of the other: `start` raises so."""
    made = consumer(bootstrap, topic, timeout_ms=300)
    made._subscriptions.begin()
    places = made._subscriptions.places.values()
    wait_until(lambda: all(place.in_use for place in places), "the broker says that the id is in use")
    return made


def test_a_second_consumer_with_the_same_member_id_is_told_and_takes_nothing(
    admin: Admin, bootstrap: str, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    admin.create_topic(topic)
    with Producer(bootstrap) as producer, consumer(bootstrap, topic) as first:
        producer.publish(topic, "a").result(30)
        assert first.take(30_000) is not None
        impatient = refused(bootstrap, topic)
        with pytest.raises(MemberInUse, match="choose another member id"):
            impatient.start()
        impatient.stop()
        monkeypatch.setattr(subscription_module, "_IN_USE_MS", 200.0)
        second = consumer(bootstrap, topic, timeout_ms=600_000)
        with pytest.raises(MemberInUse):
            second.start()
        second.stop()
        producer.publish(topic, "b").result(30)
        record = first.take(30_000)
        assert record is not None
        assert record.value == b"b"


def test_a_consumer_that_is_started_again_under_its_id_waits_until_the_former_is_gone(
    admin: Admin, bootstrap: str, topic: str
) -> None:
    admin.create_topic(topic)
    with Producer(bootstrap) as producer:
        producer.publish(topic, "a").result(30)
    former = consumer(bootstrap, topic)
    former.start()
    again = refused(bootstrap, topic)
    with pytest.raises(MemberInUse):
        again.start()
    former.stop()
    record = again.take(30_000)
    assert record is not None
    assert record.value == b"a"
    again.stop()


def test_a_consumer_whose_broker_still_keeps_its_former_stream_reconnects_at_once(
    admin: Admin, bootstrap: str, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    admin.create_topic(topic)
    with Producer(bootstrap) as producer, consumer(bootstrap, topic) as broken:
        [session] = broken._subscriptions._sessions.values()
        broken._subscriptions.session_ended(session)  # as after a network break: the broker has not heard of it
        producer.publish(topic, "a").result(30)
        assert broken.take(30_000) is not None
        assert not [words for words in caplog.messages if "another key" in words]
        session._stream.cancel()
