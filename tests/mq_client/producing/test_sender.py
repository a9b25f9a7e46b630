"""The sender's pace while a leader cannot be reached: it waits between attempts, and while it waits it does nothing."""

from __future__ import annotations

import time

import pyarrow as pa
import pytest

from mq_client.cluster.connection import Connection
from mq_client.cluster.deadline import Deadline
from mq_client.producing import sender as sender_module
from mq_client.producing.accumulator import AccumulatorSettings
from mq_client.producing.futures import BatchOutcome
from mq_client.producing.produce_stream import ProduceStream
from mq_client.producing.sender import Sender
from mq_dev.embedded_zookeeper import free_port
from mq_protocol import mq_pb2 as pb
from mq_protocol.arrow import RECORD_SCHEMA, schema_to_bytes

WATCHED_S = 1.0
ATTEMPTS_MAX = 60
"""Waits are 20 ms doubling to half a second, less up to half: a dozen in a second."""


def test_a_leader_that_cannot_be_reached_is_dialled_a_few_times_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    opened = 0

    class Counted(ProduceStream):
        def __init__(self, *arguments: object) -> None:
            nonlocal opened
            opened += 1
            super().__init__(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(sender_module, "ProduceStream", Counted)
    address = f"127.0.0.1:{free_port()}"
    connection = Connection(address)
    topic = pb.TopicInfo(name="t", topic_id="1", schema=schema_to_bytes(RECORD_SCHEMA))
    topic.partitions.add(partition=0, leader=1, leader_epoch=1, replicas=[1], isr=[1])
    connection._learn(pb.MetadataResponse(brokers=[pb.BrokerInfo(id=1, address=address)], topics=[topic]))
    view = connection.known_topic("t")
    assert view is not None
    sender = Sender(connection, AccumulatorSettings(1 << 20, 0.0, 30.0, 1_000_000, 5, None), pb.ALL)
    batch = pa.RecordBatch.from_pylist([{"value": b"x"}], schema=RECORD_SCHEMA)
    try:
        with sender.lock:
            sender.ensure_started()
            sender.accumulator.add_closed(view, 0, batch, BatchOutcome("t"), time.monotonic())
            sender.work.notify()
        time.sleep(WATCHED_S)  # what is tested is how often something happens in a time
    finally:
        sender.stop(Deadline(5_000))
    assert 0 < opened <= ATTEMPTS_MAX
