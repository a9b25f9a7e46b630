"""All Subscribe streams of a process on one loop: how many threads that takes, what breaks a stream, how a process
ends."""

from __future__ import annotations

import asyncio
import queue
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from mq_client import Admin, Consumer, Producer
from mq_client.consuming.push_streams import PushStream
from mq_client.errors import InvalidRequest, TritonMQError, Unreachable
from mq_protocol import mq_pb2 as pb
from mq_protocol.wire.envelope import Envelope
from tests import switch

WAIT_S = 30.0
OPEN = pb.SubscribeRequest(credit=pb.SubscribeCredit(bytes=1_000))


class Listener:
    """Owns a stream, and what is heard on it."""

    def __init__(self, address: str) -> None:
        self.said: queue.Queue[pb.BatchesHeader] = queue.Queue()
        self.ends: queue.Queue[TritonMQError | None] = queue.Queue()
        self.stream = PushStream(address, self._heard, self.ends.put, switch.client())

    async def _heard(self, message: Envelope[pb.BatchesHeader]) -> None:
        self.said.put(message.header)

    def ask_for(self, topic: str, **start: bool) -> None:
        wanted = [pb.SubscribePartition(topic=topic, partition=0, **start)]  # type: ignore[arg-type]
        self.stream.say(pb.SubscribeRequest(open=pb.SubscribeOpen(partitions=wanted)))


@pytest.fixture
def refused() -> Iterator[str]:
    """An address that nobody listens on, nor can while it is held."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{held.getsockname()[1]}"


def test_many_consumers_share_one_thread_for_their_streams(bootstrap: str, admin: Admin, topic: str) -> None:
    admin.create_topic(topic, partitions=2)
    with ExitStack() as opened:
        first = opened.enter_context(Consumer(bootstrap))
        first.subscribe(topic)
        before = set(threading.enumerate())
        others = [opened.enter_context(Consumer(bootstrap)) for _ in range(20)]
        for consumer in others:
            consumer.subscribe(topic)
        begun = [thread.name for thread in set(threading.enumerate()) - before]
        assert begun.count("tritonmq-consumer") == 20, "one each, that looks after its partitions"
        assert len(begun) < 30, "and none for each stream; a few may belong to what this process did before"
        assert [thread.name for thread in threading.enumerate()].count("tritonmq-pushes") == 1
        with Producer(bootstrap) as producer:
            producer.publish(topic, b"to all").result(WAIT_S)
        for consumer in (first, *others):
            record = consumer.take(WAIT_S * 1000)
            assert record is not None
            assert record.value == b"to all"


def test_a_stream_that_is_slow_to_hear_holds_up_no_other(bootstrap: str, admin: Admin, topic: str) -> None:
    admin.create_topic(topic)
    held, told = threading.Event(), Listener(bootstrap)

    async def slow(message: Envelope[pb.BatchesHeader]) -> None:
        await asyncio.to_thread(held.wait, WAIT_S)
        await told._heard(message)

    slowed = Listener(bootstrap)
    slowed.stream._heard = slow
    for each in (slowed, told):
        each.stream.say(OPEN)
        each.ask_for(topic, earliest=True)
    assert told.said.get(timeout=WAIT_S).opened[0].active
    assert told.said.empty()
    held.set()
    assert told.said.get(timeout=WAIT_S).opened[0].active
    for each in (slowed, told):
        each.stream.say_last()
        assert each.stream.wait_over(WAIT_S)
        assert each.ends.get(timeout=WAIT_S) is None
        assert each.ends.empty(), "it is over once"


def test_what_breaks_a_stream_is_told_with_the_brokers_own_error(bootstrap: str) -> None:
    listener = Listener(bootstrap)
    listener.stream.say(pb.SubscribeRequest(open=pb.SubscribeOpen(group="g")))
    broke = listener.ends.get(timeout=WAIT_S)
    assert broke is not None
    assert isinstance(broke, InvalidRequest)
    listener.stream.say(OPEN)  # too late, and no harm
    assert listener.stream.wait_over(WAIT_S)


def test_a_broker_that_is_not_there_is_told(refused: str) -> None:
    listener = Listener(refused)
    broke = listener.ends.get(timeout=WAIT_S)
    assert broke is not None
    assert isinstance(broke, Unreachable)


def test_a_stream_that_is_cancelled_is_over(bootstrap: str) -> None:
    listener = Listener(bootstrap)
    listener.stream.say(OPEN)
    listener.stream.cancel()
    assert listener.stream.wait_over(WAIT_S)
    assert listener.ends.get(timeout=WAIT_S) is None


LEFT_OPEN = """
import sys
from mq_client import Consumer
consumers = [Consumer(sys.argv[1], start="earliest") for _ in range(3)]
for consumer in consumers:
    consumer.subscribe(sys.argv[2])
    consumer.start()
print(consumers[0].take(30_000).value.decode())
"""


def test_a_process_that_leaves_its_consumers_open_ends_at_once_and_quietly(
    bootstrap: str, admin: Admin, topic: str
) -> None:
    admin.create_topic(topic)
    with Producer(bootstrap) as producer:
        producer.publish(topic, b"here").result(WAIT_S)
    ended = subprocess.run(
        [sys.executable, "-c", LEFT_OPEN, bootstrap, topic], capture_output=True, text=True, timeout=60, check=False
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "here\n", "")
