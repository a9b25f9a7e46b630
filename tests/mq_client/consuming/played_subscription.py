"""A subscription whose streams and leaders the test plays."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from mq_client.cluster.deadline import Deadline
from mq_client.consuming import subscription
from mq_client.consuming.record_queue import PartitionPlace
from mq_client.consuming.shared_batch import SharedBatch
from mq_client.consuming.subscription import Subscriptions
from mq_client.producing.batches import records_to_batch
from mq_protocol import mq_pb2 as pb
from mq_protocol.arrow import encode_batch
from mq_protocol.wire.envelope import Envelope
from mq_protocol.wire.error_messages import to_wire
from tests.mq_client.cluster.scripted import Scripted, played_clock, told, topic_info

CREDIT = 1_000


def shared_batch(
    payload: memoryview, base: int, count: int, *, partition: int = 0, timestamp_us: int = 0
) -> SharedBatch:
    """A batch of topic `t` as it was pushed."""
    stored = pb.StoredBatch(
        topic="t",
        partition=partition,
        base_offset=base,
        record_count=count,
        timestamp_us=timestamp_us,
        payload_bytes=len(payload),
    )
    return SharedBatch(stored, payload)


class Stream:
    """What the client says on one stream."""

    def __init__(self, address: str, heard: Any, over: Any, _client: Any = None) -> None:
        self.address = address
        self.heard = heard
        self.over = over
        self.said: list[pb.SubscribeRequest] = []
        self.last_words = 0
        self.cancelled = False
        self.waited = False

    def say(self, request: pb.SubscribeRequest) -> None:
        self.said.append(request)

    @property
    def last_said(self) -> bool:
        return self.last_words > 0

    def say_last(self) -> None:
        self.last_words += 1

    def cancel(self) -> None:
        self.cancelled = True

    def wait_over(self, timeout_s: float) -> bool:
        self.waited = True
        return True

    def take(self, field: str) -> list[Any]:
        """What was said of this kind so far; it is forgotten."""
        found = [
            request for request in self.said if (request.settled if field == "settled" else request.HasField(field))
        ]  # type: ignore[arg-type]
        self.said = [request for request in self.said if request not in found]
        return [list(request.settled) if field == "settled" else getattr(request, field) for request in found]


class Client:
    """Owns subscriptions without their thread; topic `t` has two partitions, led by brokers 1 and 2."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, group: str = "", **options: Any) -> None:
        self.streams: list[Stream] = []
        monkeypatch.setattr(subscription, "PushStream", self._open)
        self.connection = Scripted(played_clock(monkeypatch))
        self.say(topic_info(1, 2))

        def latest(request: pb.SubscribePartition) -> None:
            request.latest = True

        self.subscriptions = Subscriptions(self.connection, group, "me", latest, 0.01, CREDIT, **options)

    def _open(self, address: str, heard: Any, over: Any, *_: Any) -> Stream:
        stream = Stream(address, heard, over)
        self.streams.append(stream)
        return stream

    def say(self, *topics: pb.TopicInfo) -> None:
        self.connection.clock.now += 1
        self.connection.brokers_say = dict.fromkeys(("b:1", "b:2", "b:3"), told(*topics))

    def look(self) -> None:
        self.subscriptions._follow_leaders()

    def subscribe(self, *topics: str) -> None:
        for topic in topics:
            self.subscriptions.add(self.connection.refresh(topic, Deadline(1_000)))
        self.look()

    def stream(self, number: int) -> Stream:
        """The newest to broker `number`."""
        return [stream for stream in self.streams if stream.address == f"b:{number}"][-1]

    def place(self, partition: int = 0, topic: str = "t") -> PartitionPlace:
        return self.subscriptions.places[topic, partition]

    def hear(self, stream: Stream, header: pb.BatchesHeader, *payloads: memoryview) -> None:
        async def heard() -> None:
            # Brokers are asked in a thread, which must have the same clock as who judges how old their answers are.
            threads = ThreadPoolExecutor(1, initializer=self.connection.clock.adopt)
            asyncio.get_running_loop().set_default_executor(threads)
            await stream.heard(Envelope(header, payloads))

        asyncio.run(heard())

    def opened(
        self, stream: Stream, partition: int, offset: int = 0, *, active: bool = True, error: Any = None
    ) -> None:
        said = pb.PartitionOpened(
            topic="t",
            partition=partition,
            offset=offset,
            active=active,
            error=None if error is None else to_wire(error),
        )
        self.hear(stream, pb.BatchesHeader(opened=[said]))

    def push(self, stream: Stream, partition: int, base: int, count: int, value: bytes = b"v") -> int:
        payload = memoryview(encode_batch(records_to_batch([], [value] * count, [], [0] * count)))
        stored = pb.StoredBatch(
            topic="t", partition=partition, base_offset=base, record_count=count, payload_bytes=len(payload)
        )
        self.hear(stream, pb.BatchesHeader(batches=[stored]), payload)
        return len(payload)

    def taken(self) -> list[tuple[int, int]]:
        """(partition, offset) of all that is here."""
        queue = self.subscriptions.queues["t"]
        return [(record.partition, record.offset) for record in (queue.get_nowait() for _ in range(queue.qsize()))]


def big(client: Client, stream: Stream, base: int) -> int:
    size = client.push(stream, 0, base, 1)
    assert size * 4 >= CREDIT  # one batch is a portion of credit
    return size
