"""End offsets pushed into a cache: soon, complete, never backward, found again after a broker's death."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from mq_client import Admin, InvalidRequest, Producer
from mq_client.cluster import offset_watch as offsets
from mq_client.cluster.connection import Connection
from mq_client.cluster.deadline import Deadline
from mq_client.cluster.offset_watch import OffsetWatch
from mq_client.cluster.requests import ask_offsets, measure_spans
from mq_dev.local_cluster import LocalCluster
from mq_protocol import mq_pb2 as pb


@pytest.fixture(autouse=True)
def _looked_at_only_when_it_is_due(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is to be watched at once is not watched by the look at the leaders that comes in any case."""
    monkeypatch.setattr(offsets, "_REFRESH_S", 3_600.0)


def eventually(condition: Callable[[], bool], deadline_s: float = 30) -> None:
    deadline = time.monotonic() + deadline_s
    while not condition():
        assert time.monotonic() < deadline, "not in time"
        time.sleep(0.002)


def test_every_partition_is_known_and_news_is_pushed(admin: Admin, bootstrap: str, topic: str) -> None:
    admin.create_topic(topic, partitions=3)
    with OffsetWatch(bootstrap, [topic]) as watch, Producer(bootstrap) as producer:
        assert watch.wait_first(Deadline(30_000)) == {topic: {0: (0, 0), 1: (0, 0), 2: (0, 0)}}
        producer.publish(topic, b"x", partition=1).result(30)
        eventually(lambda: watch.latest()[topic][1] == (0, 1))
        assert watch.latest()[topic][0] == (0, 0)


def test_topics_can_be_watched_later_and_no_longer(admin: Admin, bootstrap: str, topic: str) -> None:
    admin.create_topic(topic)
    admin.create_topic(topic + "2")
    with OffsetWatch(bootstrap, [topic]) as watch:
        watch.wait_first(Deadline(30_000))
        with Producer(bootstrap) as producer:
            producer.publish(topic, b"x").result(30)
            eventually(lambda: watch.latest() == {topic: {0: (0, 1)}})  # no look at the leaders is due by then
            watch.watch([topic + "2"])
            assert watch.wait_first(Deadline(30_000)) == {topic + "2": {0: (0, 0)}}
            producer.publish(topic + "2", b"x").result(30)
        eventually(lambda: watch.latest() == {topic + "2": {0: (0, 1)}})


def test_of_a_topic_only_some_partitions_may_be_watched(admin: Admin, bootstrap: str, topic: str) -> None:
    admin.create_topic(topic, partitions=3)
    with OffsetWatch(bootstrap, [topic], {topic: [2, 0]}) as watch, Producer(bootstrap) as producer:
        assert watch.wait_first(Deadline(30_000)) == watch.ask(Deadline(30_000)) == {topic: {0: (0, 0), 2: (0, 0)}}
        producer.publish(topic, b"x", partition=1).result(30)
        producer.publish(topic, b"x", partition=2).result(30)
        eventually(lambda: watch.latest()[topic][2] == (0, 1))
        assert 1 not in watch.latest()[topic]


def test_offsets_are_measured_in_stored_bytes(admin: Admin, bootstrap: str, topic: str) -> None:
    admin.create_topic(topic, partitions=2, schema="n long")
    with Producer(bootstrap) as producer:
        for _ in range(10):
            producer.publish_batch(topic, pa.table({"n": range(100)}), partition=1).result(30)
    connection, deadline = Connection(bootstrap), Deadline(30_000)

    def measured(start: int, end: int, bytes_max: int) -> pb.SpanMeasure:
        return measure_spans(connection, topic, {0: (0, 0, 5), 1: (start, end, bytes_max)}, deadline)[1]

    whole = measured(0, 1_000, 0)
    assert whole.bytes == ask_offsets(connection, topic, deadline)[1].bytes > 8_000
    assert 8 <= whole.first_bytes < 20
    assert whole.end_offset == 0
    assert measured(0, 1_000, whole.bytes).end_offset == measured(0, 5_000, 1 << 40).end_offset == 1_000
    half = measured(0, 1_000, whole.bytes // 2)
    assert half.end_offset == 500
    assert measured(0, half.end_offset, 0).bytes + measured(half.end_offset, 1_000, 0).bytes == whole.bytes
    assert measured(333, 334, 1 << 20).end_offset == 334
    with pytest.raises(InvalidRequest):
        measured(5, 4, 0)


@pytest.mark.cluster
def test_a_broker_that_comes_back_is_watched_again(tmp_path: Path) -> None:
    with LocalCluster(tmp_path) as cluster, Admin(cluster.bootstrap) as admin:
        admin.create_topic("t")
        with OffsetWatch(cluster.bootstrap, ["t"]) as watch, Producer(cluster.bootstrap) as producer:
            producer.publish("t", b"x").result(30)
            eventually(lambda: watch.latest()["t"].get(0) == (0, 1))
            cluster.kill(1)
            assert watch.latest() == {"t": {0: (0, 1)}}, "what is known stays known"
            cluster.restart(1)
            producer.publish("t", b"y").result(30)
            eventually(lambda: watch.latest()["t"][0] == (0, 2))
