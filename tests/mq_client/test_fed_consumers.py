"""Consumers of one process against a real broker: fed by one stream, each has every record once and in order."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mq_client import AclRule, Admin, Consumer, PermissionDenied, Producer, Security, UnknownTopic
from mq_dev.certificates import Authority, make_missing, write_client
from mq_dev.local_cluster import HOST, LocalCluster
from tests.cluster.harness import wait_until

CONSUMERS = 8


def publish(bootstrap: str, topic: str, numbers: range) -> None:
    with Producer(bootstrap, batch_bytes_max=2_000) as producer:
        for number in numbers:
            producer.publish(topic, b"%d" % number, partition=number % 2)


def is_fed(consumer: Consumer) -> bool:
    with consumer._subscriptions.changed:
        return all(place.fed for place in consumer._subscriptions.places.values())


def values(consumer: Consumer, count: int) -> list[int]:
    taken: list[int] = []
    while len(taken) < count:
        record = consumer.take(30_000)
        assert record is not None, f"only {len(taken)} of {count} came"
        taken.append(int(record.value))
    return taken


def check(taken: list[int], numbers: range) -> None:
    assert sorted(taken) == list(numbers)
    for partition in (0, 1):
        mine = [number for number in taken if number % 2 == partition]
        assert mine == sorted(mine)


@pytest.fixture
def consumers(admin: Admin, bootstrap: str, topic: str) -> Any:
    admin.create_topic(topic, partitions=2)
    made = [Consumer(bootstrap) for _ in range(CONSUMERS)]
    for consumer in made:
        consumer.subscribe(topic)
        consumer.start()
    yield made
    for consumer in made:
        consumer.stop()


def test_consumers_of_one_process_share_a_stream_and_each_has_every_record(
    consumers: list[Consumer], bootstrap: str, topic: str
) -> None:
    wait_until(lambda: all(map(is_fed, consumers)), "all are fed")
    assert not any(consumer._subscriptions._sessions for consumer in consumers), "none has a stream of its own"
    publish(bootstrap, topic, range(2_000))
    for consumer in consumers:
        check(values(consumer, 2_000), range(2_000))
        assert consumer.take(10) is None


def test_one_that_takes_nothing_holds_up_nobody_and_misses_nothing(
    consumers: list[Consumer], bootstrap: str, topic: str
) -> None:
    with Consumer(bootstrap, buffer_bytes_max=4_000) as slow:
        slow.subscribe(topic)
        wait_until(lambda: all(map(is_fed, [*consumers, slow])), "all are fed")
        publish(bootstrap, topic, range(2_000))
        for consumer in consumers:
            check(values(consumer, 2_000), range(2_000))
        assert not is_fed(slow)
        held = sum(slow._subscriptions._feeding._held.values()) + sum(slow._subscriptions._held.values())
        assert held < 4 * 4_000 + 4 * 2_000, "what it holds has a bound"
        check(values(slow, 2_000), range(2_000))


@pytest.mark.cluster
def test_users_share_no_stream_and_a_right_that_is_taken_away_ends_the_shared_one_for_each_of_its_user(
    tmp_path: Path,
) -> None:
    certs = tmp_path / "certs"
    make_missing(certs, HOST, (1,))
    authority = Authority.open(certs, tmp_path / "certs.ca.key")
    with LocalCluster(tmp_path / "cluster", certs=certs) as cluster:
        with Admin(cluster.bootstrap, security=cluster.security) as admin:
            admin.create_topic("t", partitions=2)
            for user in ("eve", "ada"):
                write_client(authority, certs, user)
                admin.alter_acls([AclRule(f"User:{user}", what, "Topic", "t") for what in ("Read", "Describe")])
            eves, adas = (
                [Consumer(cluster.bootstrap, security=Security(certs, user)) for _ in range(2)]
                for user in ("eve", "ada")
            )
            for consumer in (*eves, *adas):
                consumer.subscribe("t")
                consumer.start()
            wait_until(lambda: all(map(is_fed, [*eves, *adas])), "all are fed")
            feeds = [
                {place.feed for each in mine for place in each._subscriptions.places.values()} for mine in (eves, adas)
            ]
            assert [len(mine) for mine in feeds] == [2, 2], "one for each partition"
            assert not feeds[0] & feeds[1], "what one user is pushed is not another one's"
            admin.alter_acls(remove=[AclRule("User:eve", what, "Topic", "t") for what in ("Read", "Describe")])
            for consumer in eves:
                with pytest.raises((PermissionDenied, UnknownTopic)):
                    consumer.take(60_000)
            with Producer(cluster.bootstrap, security=cluster.security) as producer:
                for number in range(100):
                    producer.publish("t", b"%d" % number, partition=number % 2)
            for consumer in adas:
                check(values(consumer, 100), range(100))
        for consumer in (*eves, *adas):
            consumer.stop()
