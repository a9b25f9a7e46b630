"""The same by gRPC and over a stream port. TRITONMQ_TRANSPORT in its environment has the whole suite run over one."""

from __future__ import annotations

import os
import time
from typing import Any

import pytest

from mq_client import Admin, Consumer, Producer, Queue
from mq_client.cluster import stream_calls, watching
from mq_client.cluster.deadline import Deadline
from mq_client.cluster.offset_watch import OffsetWatch
from mq_client.cluster.streams import VARIABLE
from mq_client.cluster.watching import StreamWatch
from mq_client.reader import Reader


@pytest.mark.parametrize("transport", ["grpc", "stream"])
def test_records_of_all_sizes_are_written_in_order(
    bootstrap: str, admin: Admin, topic: str, transport: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, transport)
    admin.create_topic(topic, partitions=1, batch_bytes_max=3 << 20, record_bytes_max=2 << 20)
    values = [os.urandom(size) for size in (0, 1, 100, 40_000, 1 << 20, 5, 2 << 20)]
    with Producer(bootstrap, linger_ms=0) as producer:
        outcomes = [producer.publish(topic, value) for value in values]
        assert [outcome.result().offset for outcome in outcomes] == list(range(len(values)))
        [stream] = producer._sender._streams.values()
        assert (stream._duplex is not None) is (transport == "stream")
    with Reader(bootstrap) as reader:
        found = [value for rows in reader.read(topic, 0) for value in rows.column("value").to_pylist()]
    assert found == values


@pytest.fixture
def dialled(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Where calls went over stream ports, on the loop of pushes."""
    found: list[str] = []
    dial = stream_calls.dial

    async def noted(stream_address: str, address: str, client: Any) -> Any:
        found.append(address)
        return await dial(stream_address, address, client)

    monkeypatch.setattr(stream_calls, "dial", noted)
    return found


@pytest.mark.parametrize("transport", ["grpc", "stream"])
def test_a_group_is_pushed_each_record_once_and_goes_on_where_it_was(
    bootstrap: str, admin: Admin, topic: str, transport: str, monkeypatch: pytest.MonkeyPatch, dialled: list[str]
) -> None:
    monkeypatch.setenv(VARIABLE, transport)
    admin.create_topic(topic, partitions=1, batch_bytes_max=3 << 20, record_bytes_max=2 << 20)
    values = [os.urandom(size) for size in (1, 100, 40_000, 1 << 20, 5, 2 << 20)]
    with Producer(bootstrap, linger_ms=0) as producer:
        for value in values:
            producer.publish(topic, value).result(30)
    found: list[bytes] = []
    for _ in range(2):
        with Consumer(bootstrap, group=topic, start="earliest") as consumer:
            consumer.subscribe(topic)
            for _ in range(len(values) // 2):
                record = consumer.take(30_000)
                assert record is not None
                found.append(record.value)
    assert found == values
    assert bool(dialled) is (transport == "stream")


@pytest.mark.parametrize("transport", ["grpc", "stream"])
def test_a_queue_is_worked_off(
    bootstrap: str, admin: Admin, topic: str, transport: str, monkeypatch: pytest.MonkeyPatch, dialled: list[str]
) -> None:
    monkeypatch.setenv(VARIABLE, transport)
    admin.create_topic(topic, partitions=2)
    admin.declare_queue(topic, "g")
    values = {os.urandom(size) for size in (10, 100, 40_000, 200_000)}
    with Producer(bootstrap, linger_ms=0) as producer:
        for value in values:
            producer.publish(topic, value).result(30)
    found = set()
    with Queue(bootstrap, topic, "g", idle_ms=30_000) as queue:
        for _ in values:
            record = queue.take()
            assert record is not None
            found.add(record.value)
            record.ack()
    assert found == values
    assert admin.describe_queue(topic, "g").ready == 0
    assert bool(dialled) is (transport == "stream")


@pytest.mark.parametrize("transport", ["grpc", "stream"])
def test_ends_are_watched(
    bootstrap: str, admin: Admin, topic: str, transport: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, transport)
    watches: list[StreamWatch] = []

    def noted(*of: Any) -> StreamWatch:
        watches.append(StreamWatch(*of))
        return watches[-1]

    monkeypatch.setattr(watching, "StreamWatch", noted)
    admin.create_topic(topic)
    with OffsetWatch(bootstrap, [topic]) as watch, Producer(bootstrap) as producer:
        assert watch.wait_first(Deadline(30_000)) == {topic: {0: (0, 0)}}
        producer.publish(topic, b"x").result(30)
        until = time.monotonic() + 30
        while watch.latest() != {topic: {0: (0, 1)}}:
            assert time.monotonic() < until
            time.sleep(0.01)
    assert bool(watches) is (transport == "stream")
