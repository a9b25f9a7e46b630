"""A broker as a process, and clients that begin large messages and do not end them: what it holds of those is bounded
by the mark of its memory, by time, and by whose they are."""

from __future__ import annotations

import contextlib
import struct
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from mq_client import Admin, Producer
from mq_dev.local_cluster import LocalCluster
from mq_protocol.limits import MEMORY_HIGH_FLOOR
from tests.cluster.line import Line

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(400)]

SENDERS = 60
MESSAGE_BYTES = 16 << 20
SIZES = struct.pack(">II", 100, MESSAGE_BYTES - 100)
GROWN_BYTES_MAX = 5 * MEMORY_HIGH_FLOOR // 2
"""The mark, and what the allocator keeps. Where a message counts once it is whole it is 900 MiB."""

WAIT_S = 60.0
ENDS_S = 240.0


@contextlib.contextmanager
def half_sent(address: str) -> Iterator[None]:
    """Many have begun a message and sent nearly all of it, or as much as was received before they were told to go."""

    def send(line: Line) -> None:
        line.connection.settimeout(WAIT_S)
        with contextlib.suppress(OSError):  # ended: it was not received
            line.connection.sendall(SIZES + bytes(MESSAGE_BYTES - 1_000))

    with contextlib.ExitStack() as opened, ThreadPoolExecutor(SENDERS) as threads:
        lines = [opened.enter_context(Line(address)) for _ in range(SENDERS)]
        list(threads.map(send, lines))
        yield


@contextlib.contextmanager
def most_resident(cluster: LocalCluster) -> Iterator[list[int]]:
    """The most that the broker's process has had meanwhile, in the list."""
    process, over = psutil.Process(cluster.brokers[1].pid), threading.Event()
    found = [process.memory_info().rss]

    def look() -> None:
        while not over.wait(0.05):
            found[0] = max(found[0], process.memory_info().rss)

    looking = threading.Thread(target=look)
    looking.start()
    try:
        yield found
    finally:
        over.set()
        looking.join()


@pytest.mark.long
def test_what_is_half_sent_is_held_up_to_the_mark_and_others_are_served(tmp_path: Path) -> None:
    with LocalCluster(tmp_path, arguments=["--memory-high", str(MEMORY_HIGH_FLOOR)]) as cluster:
        address = cluster.bootstrap
        with Admin(cluster.bootstrap) as admin:
            admin.create_topic("t", partitions=1)
        with most_resident(cluster) as found:
            before = found[0]
            with half_sent(address), Producer(cluster.bootstrap, linger_ms=0) as producer:
                producer.publish("t", "small").result(WAIT_S)
        assert found[0] - before < GROWN_BYTES_MAX
        with Producer(cluster.bootstrap, linger_ms=0) as producer:  # all is given back
            producer.publish("t", "x" * 500_000).result(WAIT_S)


@pytest.mark.long
def test_a_message_that_comes_byte_by_byte_ends(tmp_path: Path) -> None:
    with LocalCluster(tmp_path) as cluster, Line(cluster.bootstrap) as line:
        line.connection.sendall(SIZES + bytes(100_000))
        over = threading.Event()

        def trickle() -> None:
            until = time.monotonic() + ENDS_S
            while not over.wait(5.0) and time.monotonic() < until:
                with contextlib.suppress(OSError):
                    line.connection.sendall(b"x")

        trickling = threading.Thread(target=trickle)
        trickling.start()
        try:
            assert "was not whole" in str(line.ended(ENDS_S))
        finally:
            over.set()
            trickling.join()


@pytest.mark.long
def test_a_call_that_asks_nothing_ends_whatever_its_method(tmp_path: Path) -> None:
    with LocalCluster(tmp_path) as cluster, contextlib.ExitStack() as opened:
        methods = ("Produce", "Fetch", "Subscribe", "Work", "WatchOffsets")
        lines = [opened.enter_context(Line(cluster.bootstrap, method)) for method in methods]
        for line in lines:
            assert "nothing was asked" in str(line.ended(ENDS_S))
