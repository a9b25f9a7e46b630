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

import grpc
import psutil
import pytest
from grpc import aio

from mq_client import Admin, Consumer, Producer
from mq_dev.local_cluster import LocalCluster
from mq_protocol import mq_pb2 as pb
from mq_protocol.access.pem import read
from mq_protocol.addresses import parse_address
from mq_protocol.limits import MEMORY_HIGH_FLOOR
from mq_protocol.methods import BROKER
from mq_protocol.wire.call import PING_S, Kind
from tests import switch
from tests.cluster.line import Line

pytestmark = [pytest.mark.long, pytest.mark.cluster, pytest.mark.timeout(300)]

READERS = 300
GROUPS = ("one", "two", "three", "four")
KEY = bytes(range(16))
GROWN_BYTES_MAX = 5 * MEMORY_HIGH_FLOOR // 2
"""The mark, and what the allocator keeps. Where records are read before they are counted it is 1.9 GB of what is
subscribed to, and 650 MB of what is lent."""

OPTIONS = [
    ("grpc.max_receive_message_length", 128 << 20),
    ("grpc.http2.bdp_probe", 0),
    ("grpc.http2.lookahead_bytes", 64 << 10),
]
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


def connected(cluster: LocalCluster) -> aio.Channel:
    address, security = cluster.brokers[1].grpc, switch.client().security
    if security is None:
        return aio.insecure_channel(address, options=OPTIONS)
    pem = read(security.files())
    shown = grpc.ssl_channel_credentials(pem.ca, pem.key, pem.certificate)
    return aio.secure_channel(address, shown, options=OPTIONS)


@contextlib.asynccontextmanager
async def by_grpc(cluster: LocalCluster, method: str) -> AsyncIterator[list[Reader]]:
    async with contextlib.AsyncExitStack() as stack:
        channels = [await stack.enter_async_context(connected(cluster)) for _ in range(10)]
        calls: list[Reader] = []
        for number in range(READERS):
            channel: Any = channels[number % len(channels)]
            call = channel.stream_stream(BROKER.path(method), BROKER.methods[method].request.SerializeToString, None)()
            await call.write(METHODS[method].ask(number))
            calls.append(call)
        for each in calls:
            assert await each.read()  # that it is one; nothing is read from then on
        yield calls


class Call(Line):
    """By the brokers' own protocol."""

    async def read(self) -> bytes:
        message = await asyncio.to_thread(self.next, WAIT_S)
        assert message is not None
        assert message.kind is Kind.MESSAGE
        return message.body + bytes(message.payload)

    def cancel(self) -> None:
        self.connection.close()


def connections(cluster: LocalCluster, address: str) -> int:
    """How many the broker has open at that port."""
    port = parse_address(address)[1]
    found = psutil.Process(cluster.brokers[1].pid).net_connections("tcp")
    return sum(each.status == psutil.CONN_ESTABLISHED and each.laddr.port == port for each in found)


@contextlib.asynccontextmanager
async def by_our_own(cluster: LocalCluster, method: str) -> AsyncIterator[list[Reader]]:
    address = cluster.bootstrap
    with contextlib.ExitStack() as opened:
        lines: list[Call] = []
        lived_at = time.monotonic()
        for number in range(READERS):
            asked = METHODS[method].ask(number).SerializeToString()
            lines.append(opened.enter_context(await asyncio.to_thread(Call, address, method, asked)))
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


TRANSPORTS = {"grpc": by_grpc, "own": by_our_own}


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("method", METHODS)
def test_what_nobody_reads_is_held_up_to_the_mark_and_who_reads_is_served(
    tmp_path: Path, method: str, transport: str
) -> None:
    with LocalCluster(tmp_path, arguments=["--memory-high", str(MEMORY_HIGH_FLOOR)], grpc=True) as cluster:
        make(cluster)
        asyncio.run(unread(cluster, method, transport))


async def unread(cluster: LocalCluster, method: str, transport: str) -> None:
    readers = METHODS[method]
    async with TRANSPORTS[transport](cluster, method) as calls:
        before = resident(cluster)
        await asyncio.to_thread(write, cluster, readers)
        assert await most(cluster) - before < GROWN_BYTES_MAX
        assert await asyncio.to_thread(is_served, cluster, readers)
        if transport == "own":
            return  # who reads nothing for 15 s is cut off there
        for call in calls[1:]:
            call.cancel()
        async with asyncio.timeout(WAIT_S):  # nothing is left waiting once there is room
            while len(await calls[0].read()) < readers.batch_bytes:
                pass
