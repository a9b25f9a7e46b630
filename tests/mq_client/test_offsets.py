"""End offsets pushed into a cache: soon, complete, never backward, found again after a broker's death."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from mq_cli.local_cluster import LocalCluster
from mq_client import Admin, Producer, UnknownTopic, Unreachable
from mq_client.deadline import Deadline
from mq_client.offsets import OffsetWatch


def eventually(condition: Callable[[], bool], deadline_s: float = 20) -> None:
    deadline = time.monotonic() + deadline_s
    while not condition():
        assert time.monotonic() < deadline, "not in time"
        time.sleep(0.002)


def test_every_partition_is_known_and_news_is_pushed(admin: Admin, bootstrap: str, topic: str) -> None:
    admin.create_topic(topic, partitions=3)
    with OffsetWatch(bootstrap, [topic]) as watch, Producer(bootstrap) as producer:
        assert watch.wait_first(Deadline(10_000)) == {topic: {0: (0, 0), 1: (0, 0), 2: (0, 0)}}
        producer.publish(topic, b"x", partition=1).result(10)
        eventually(lambda: watch.latest()[topic][1] == (0, 1))
        assert watch.latest()[topic][0] == (0, 0)


def test_topics_can_be_watched_later_and_no_longer(admin: Admin, bootstrap: str, topic: str) -> None:
    admin.create_topic(topic)
    admin.create_topic(topic + "2")
    with OffsetWatch(bootstrap, [topic]) as watch:
        watch.wait_first(Deadline(10_000))
        watch.watch([topic + "2"])
        assert watch.wait_first(Deadline(10_000)) == {topic + "2": {0: (0, 0)}}


def test_asking_gives_the_same_as_being_told(admin: Admin, bootstrap: str, topic: str) -> None:
    admin.create_topic(topic)
    with OffsetWatch(bootstrap, [topic]) as watch, Producer(bootstrap) as producer:
        producer.publish(topic, b"x").result(10)
        assert watch.ask(Deadline(5_000)) == {topic: {0: (0, 1)}}


def test_an_unknown_topic_is_told_by_the_first_wait(bootstrap: str, topic: str) -> None:
    with OffsetWatch(bootstrap, [topic]) as watch, pytest.raises(UnknownTopic):
        watch.wait_first(Deadline(5_000))


def test_nobody_there_is_told_in_time() -> None:
    with OffsetWatch("127.0.0.1:1", ["t"]) as watch, pytest.raises(Unreachable):
        watch.wait_first(Deadline(1_500))


@pytest.mark.cluster
def test_a_broker_that_comes_back_is_watched_again(tmp_path: Path) -> None:
    with LocalCluster(tmp_path) as cluster, Admin(cluster.bootstrap) as admin:
        admin.create_topic("t")
        with OffsetWatch(cluster.bootstrap, ["t"]) as watch, Producer(cluster.bootstrap) as producer:
            producer.publish("t", b"x").result(10)
            eventually(lambda: watch.latest()["t"].get(0) == (0, 1))
            cluster.kill(1)
            assert watch.latest() == {"t": {0: (0, 1)}}, "what is known stays known"
            cluster.restart(1)
            producer.publish("t", b"y").result(20)
            eventually(lambda: watch.latest()["t"][0] == (0, 2))
