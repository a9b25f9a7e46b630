"""A broker as a process, and hundreds of readers that ask for records and never read them: what it holds for them is
bounded by the mark of its memory, and whoever reads is served."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import psutil
import pytest
from grpc import aio

from mq_client import Admin, Consumer, Producer
from mq_client.cluster import streams
from mq_client.cluster.connection import Connection
from mq_client.cluster.credentials import Credentials, current
from mq_client.cluster.deadline import Deadline
from mq_dev.local_cluster import LocalCluster
from mq_protocol import mq_pb2 as pb
from mq_protocol.addresses import parse_address
from mq_protocol.limits import MEMORY_HIGH_FLOOR
from mq_protocol.methods import BROKER
from mq_protocol.streams import PING_S, Kind, said, say
from mq_protocol.transport import CHANNEL_OPTIONS
from tests import switch

pytestmark = [pytest.mark.long, pytest.mark.cluster, pytest.mark.timeout(300)]

READERS = 300
GROUPS = ("one", "two", "three", "four")
KEY = bytes(range(16))
GROWN_BYTES_MAX = 5 * MEMORY_HIGH_FLOOR // 2
"""The mark, and what the allocator keeps. Where records are read before they are counted it is 1.9 GB of what is
subscribed to, and 650 MB of what is lent."""

OPTIONS = [*CHANNEL_OPTIONS, ("grpc.http2.bdp_probe", 0), ("grpc.http2.lookahead_bytes", 64 << 10)]
"""gRPC takes no more than that of what is not read."""

WAIT_S = 60.0
LOOK_S = 0.2
STILL = 15
"""So many looks one after another at which nothing has grown."""


def subscribe(number: int) -> pb.SubscribeRequest:
    opening = pb.SubscribeRequest(open=pb.SubscribeOpen(partitions=[pb.SubscribePartition(topic="t")]))
    opening.credit.bytes = 1 << 30
    return opening


def work(number: int) -> pb.WorkRequest:
    opened = pb.WorkOpen(topic="t", group=GROUPS[number % len(GROUPS)], member=f"m-{number}", member_key=KEY)
    said = pb.SessionRequest(session=1, open=opened, terms=pb.WorkTerms(lease_ms=600_000))
    said.credit.records, said.credit.bytes = 1, 1 << 30
    return pb.WorkRequest(sessions=[said])


class Readers(NamedTuple):
    """Who asks for records before there are any. `batch_bytes`: of each of `batches`."""

    ask: Callable[[int], Any]
    batches: int
    batch_bytes: int


class Reader(Protocol):
    """A call."""

    async def read(self) -> bytes: ...

    def cancel(self) -> object: ...


METHODS: dict[str, Readers] = {
    "Subscribe": Readers(subscribe, 4, 3 << 20),
    # What is lent goes with its rows up to a megabyte, and each member of a group has a record of its own
    "Work": Readers(work, READERS // len(GROUPS), 1_000_000),
}


def connected(cluster: LocalCluster, credentials: Credentials) -> aio.Channel:
    if credentials.channel is None:
        return aio.insecure_channel(cluster.bootstrap, options=OPTIONS)
    return aio.secure_channel(cluster.bootstrap, credentials.channel, options=OPTIONS)


@contextlib.asynccontextmanager
async def by_grpc(cluster: LocalCluster, method: str) -> AsyncIterator[list[Reader]]:
    credentials = current(switch.client().security)
    async with contextlib.AsyncExitStack() as stack:
        channels = [await stack.enter_async_context(connected(cluster, credentials)) for _ in range(10)]
        calls: list[Reader] = []
        for number in range(READERS):
            channel: Any = channels[number % len(channels)]
            call = channel.stream_stream(BROKER.path(method), BROKER.methods[method].request.SerializeToString, None)()
            await call.write(METHODS[method].ask(number))
            calls.append(call)
        for each in calls:
            assert await each.read()  # that it is one; nothing is read from then on
        yield calls


class Line:
    """A call over the stream port."""

    def __init__(self, stream_address: str, method: str, number: int) -> None:
        self._connection, self._receiver = streams.dial(stream_address, switch.client(), WAIT_S)
        self._connection.settimeout(WAIT_S)
        said_ = METHODS[method].ask(number).SerializeToString()
        self._connection.sendall(b"".join([*streams.open_message(method), *say(Kind.MESSAGE, said_)]))

    async def read(self) -> bytes:
        return await asyncio.to_thread(self._read)

    def _read(self) -> bytes:
        while True:
            while (found := self._receiver.next()) is None:
                self._receiver.received(self._connection.recv_into(self._receiver.buffer()))
            message = said(found)
            if message.kind is Kind.MESSAGE:
                return message.body + bytes(message.payload)
            assert message.kind is Kind.PING

    def live(self) -> None:
        """Say that it lives: else it is cut off while others are opened."""
        self._connection.sendall(b"".join(say(Kind.PONG)))

    def cancel(self) -> None:
        self._connection.close()


def connections(cluster: LocalCluster, address: str) -> int:
    """How many the broker has open at that port."""
    port = parse_address(address)[1]
    found = psutil.Process(cluster.brokers[1].pid).net_connections("tcp")
    return sum(each.status == psutil.CONN_ESTABLISHED and each.laddr.port == port for each in found)


@contextlib.asynccontextmanager
async def by_stream_port(cluster: LocalCluster, method: str) -> AsyncIterator[list[Reader]]:
    connection = Connection(cluster.bootstrap)
    connection.metadata(Deadline(WAIT_S * 1000))
    address = connection.stream_address(cluster.bootstrap)
    with contextlib.ExitStack() as opened:
        lines: list[Line] = []
        lived_at = time.monotonic()
        for number in range(READERS):
            lines.append(await asyncio.to_thread(Line, address, method, number))
            opened.callback(lines[-1].cancel)
            assert await lines[-1].read()  # that it is one; nothing is read from then on
            if time.monotonic() - lived_at > PING_S / 2 or number == READERS - 1:
                lived_at = time.monotonic()
                for line in lines:
                    line.live()
        assert connections(cluster, address) >= READERS
        yield [*lines]


def resident(cluster: LocalCluster) -> int:
    return int(psutil.Process(cluster.brokers[1].pid).memory_info().rss)


async def most(cluster: LocalCluster) -> int:
    """The most that the broker's process has had, once it grows no more."""
    found, still = resident(cluster), 0
    until = time.monotonic() + WAIT_S
    while still < STILL:
        assert time.monotonic() < until, "it grows on and on"
        await asyncio.sleep(LOOK_S)
        now = resident(cluster)
        still = still + 1 if now <= found + (1 << 20) else 0
        found = max(found, now)
    return found


def make(cluster: LocalCluster) -> None:
    with Admin(cluster.bootstrap) as admin:
        admin.create_topic("t", partitions=1, batch_bytes_max=8 << 20, record_bytes_max=4 << 20)
        for group in GROUPS:
            admin.declare_queue("t", group)


def write(cluster: LocalCluster, readers: Readers) -> None:
    with Producer(cluster.bootstrap, linger_ms=0) as producer:
        for number in range(readers.batches):
            producer.publish("t", bytes([number]) + os.urandom(readers.batch_bytes)).result(WAIT_S)


def is_served(cluster: LocalCluster, readers: Readers) -> bool:
    """Whether somebody who reads is given all records."""
    with Consumer(cluster.bootstrap, start="earliest") as consumer:
        consumer.subscribe("t")
        for number in range(readers.batches):
            record = consumer.take(WAIT_S * 1000)
            if record is None or record.value[0] != number:
                return False
    return True


TRANSPORTS = {"grpc": by_grpc, "stream": by_stream_port}


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("method", METHODS)
def test_what_nobody_reads_is_held_up_to_the_mark_and_who_reads_is_served(
    tmp_path: Path, method: str, transport: str
) -> None:
    with LocalCluster(tmp_path, arguments=["--memory-high", str(MEMORY_HIGH_FLOOR)]) as cluster:
        make(cluster)
        asyncio.run(unread(cluster, method, transport))


async def unread(cluster: LocalCluster, method: str, transport: str) -> None:
    readers = METHODS[method]
    async with TRANSPORTS[transport](cluster, method) as calls:
        before = resident(cluster)
        await asyncio.to_thread(write, cluster, readers)
        assert await most(cluster) - before < GROWN_BYTES_MAX
        assert await asyncio.to_thread(is_served, cluster, readers)
        if transport == "stream":
            return  # who reads nothing for 15 s is cut off there
        for call in calls[1:]:
            call.cancel()
        async with asyncio.timeout(WAIT_S):  # nothing is left waiting once there is room
            while len(await calls[0].read()) < readers.batch_bytes:
                pass
