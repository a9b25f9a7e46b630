"""A sender whose clock, brokers and threads the test plays."""

from __future__ import annotations

import math
from typing import Any

import pyarrow as pa

from mq_client.cluster.connection import Connection, TopicView
from mq_client.errors import (
    RefusedError,
    TritonMQError,
    Unreachable,
)
from mq_client.producing import sender as sender_module
from mq_client.producing.accumulator import AccumulatorSettings, Answer
from mq_client.producing.futures import BatchOutcome
from mq_client.producing.sender import Sender
from mq_protocol import mq_pb2 as pb
from mq_protocol.arrow import RECORD_SCHEMA, schema_to_bytes
from mq_protocol.wire.error_messages import to_wire

T0 = 1_000.0
DELIVERY_S = 30.0
STALL_S = sender_module._STALL_S


class Stream:
    """A broker's end of a produce stream: what was sent on it."""

    def __init__(self, address: str, on_results: Any, on_broken: Any, *_client: object) -> None:
        self.address = address
        self.correlations: dict[int, int] = {}
        self.bytes = 0
        self.sent: list[pb.ProduceHeader] = []
        self.closed_within_s: float | None = None
        self.on_results = on_results
        self.on_broken = on_broken

    def send(self, request: Any) -> None:
        self.sent.append(request.header)

    def close(self, timeout_s: float) -> None:
        self.closed_within_s = timeout_s

    @property
    def closed(self) -> bool:
        return self.closed_within_s is not None


class Asked:
    """In the refresher's place: what was asked, and what the test says was refused."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str]] = []
        self.refused: dict[str, RefusedError] = {}

    def ask(self, topic: str, doubted: str = "") -> None:
        self.asked.append((topic, doubted))

    def refusal(self, topic: str) -> RefusedError | None:
        return self.refused.pop(topic, None)

    def stop(self) -> None:
        pass


class Turns:
    """Owns a sender without its thread. Brokers 1 and 2 are at `b:1` and `b:2`; topic `t` has two partitions.
    `connection`: one that has asked nobody yet."""

    def __init__(self, *, connection: Connection | None = None, **settings: Any) -> None:
        self.connection = connection or Connection("b:1")
        self.changed: list[str] = []
        options = {
            "batch_bytes_max": 1 << 20,
            "linger_s": 0.0,
            "delivery_s": DELIVERY_S,
            "retries": 100,
            "max_in_flight": 5,
        }
        age_s_max = settings.pop("metadata_age_s_max", math.inf)
        acks = settings.pop("acks", pb.ALL)
        made = AccumulatorSettings(**{**options, "compression": None, **settings})
        self.lead(1, 1)
        self.now = T0
        opened: Any = Stream
        self.sender = Sender(
            *(self.connection, made, acks, self.changed.append, age_s_max), clock=lambda: self.now, open_stream=opened
        )
        self.asked = Asked()
        self.sender._refresher = self.asked  # type: ignore[assignment]
        self.accumulator = self.sender.accumulator

    def lead(self, *leaders: int, epoch: int = 1, topic: str = "t", topic_id: str = "1") -> TopicView:
        info = pb.TopicInfo(name=topic, topic_id=topic_id, schema=schema_to_bytes(RECORD_SCHEMA))
        for number, leader in enumerate(leaders):
            info.partitions.add(partition=number, leader=leader, leader_epoch=epoch, replicas=[1, 2], isr=[1, 2])
        brokers = [pb.BrokerInfo(id=number, address=f"b:{number}") for number in (1, 2)]
        self.connection._learn(pb.MetadataResponse(brokers=brokers, topics=[info]))
        view = self.connection.known_topic(topic)
        assert view is not None
        return view

    def publish(
        self, now: float = T0, partition: int = 0, rows: int = 1, topic: str = "t", **more: Any
    ) -> BatchOutcome:
        view = self.connection.known_topic(topic)
        assert view is not None
        batch = pa.RecordBatch.from_pylist([{"value": b"x"}] * rows, schema=RECORD_SCHEMA)
        outcome = BatchOutcome(topic)
        self.accumulator.add_closed(view, partition, batch, outcome, now, **more)
        return outcome

    def turn(self, now: float = T0) -> tuple[list[pb.ProduceHeader], list[Answer], float]:
        """What goes out, what ended, and when to look again. Each answer is told, as the thread does."""
        self.now = now
        ready, answers, wake = self.sender._plan(now)
        for answer in answers:
            answer.tell()
        return [header for _, _, header in ready], answers, wake

    def stream(self, address: str) -> Stream:
        found: Any = self.sender._streams[address]
        return found  # type: ignore[no-any-return]

    def results(self, address: str, *results: pb.ProduceResult) -> None:
        stream: Any = self.stream(address)
        self.sender._on_results(stream, results)

    def refuse(self, address: str, correlation: int, error: TritonMQError) -> None:
        self.results(address, pb.ProduceResult(correlation=correlation, error=to_wire(error)))

    def breaks(self, address: str, *, reached: bool = True) -> None:
        stream: Any = self.stream(address)
        self.sender._on_broken(stream, Unreachable("gone"), reached)
