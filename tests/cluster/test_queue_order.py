"""A queue with order=key is worked off by processes that are killed, under leaders that are killed."""

from __future__ import annotations

import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import pytest

from mq_client import Producer
from tests.cluster.harness import Cluster, wait_until

pytestmark = pytest.mark.cluster

QUICK = ("--session-timeout-ms", "2000")
KEYS, EACH = 12, 60

MEMBER = """
import os, random, sys, threading, time
from mq_client import LeaseLost, Queue
bootstrap, path = sys.argv[1:]
journal = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
def note(what, record):
    os.write(journal, f"{time.monotonic_ns()} {what} {record.key.decode()} {record.value.decode()}\\n".encode())
def work():
    while (record := queue.take(60_000)) is not None:
        note("begin", record)
        time.sleep(random.random() / 100)
        note("end", record)
        try:
            record.fail("once more", delay_ms=5) if random.random() < 0.03 else record.ack()
        except LeaseLost:
            pass
with Queue(bootstrap, "t", "g", in_flight_max=60) as queue:
    threads = [threading.Thread(target=work) for _ in range(4)]
    for each in threads: each.start()
    for each in threads: each.join()
"""


@pytest.mark.long
def test_each_key_is_worked_on_in_order_whoever_is_killed(
    start_cluster: Callable[..., Cluster], tmp_path: Path
) -> None:
    cluster = start_cluster(3, arguments=QUICK)
    cluster.admin.create_topic("t", partitions=2, replicas=3, durability="os")
    cluster.admin.declare_queue("t", "g", order="key", lease_ms="3s", delivery_limit="0")
    with Producer(cluster.bootstrap) as producer:
        for number in range(EACH):
            for key in range(KEYS):
                producer.publish("t", b"%d" % number, key=b"k%d" % key)

    def accepted() -> int:
        return cluster.admin.describe_queue("t", "g").accepted

    members: list[subprocess.Popen[bytes]] = []

    def start() -> None:
        journal = str(tmp_path / f"member-{len(members)}")
        members.append(subprocess.Popen([sys.executable, "-c", MEMBER, cluster.bootstrap, journal]))

    try:
        start()
        start()
        wait_until(lambda: accepted() > KEYS * EACH / 5, "some records are settled")
        cluster.kill(cluster.leader("t"))
        wait_until(lambda: accepted() > KEYS * EACH / 2, "members go on with the next leader")
        members[0].kill()
        start()
        wait_until(lambda: accepted() == KEYS * EACH, "all records are settled", 120)
    finally:
        for member in members:
            member.kill()
            member.wait(10)
    check(tmp_path)


def check(journals: Path) -> None:
    """Nobody begins a record of a key before the one before it was worked on, or while somebody else works on one."""
    events: dict[str, list[tuple[int, str, int, str]]] = defaultdict(list)
    for journal in sorted(journals.glob("member-*")):
        for line in journal.read_text().splitlines():
            at, what, key, number = line.split()
            events[key].append((int(at), what, int(number), journal.name))
    assert len(events) == KEYS
    for key, found in events.items():
        done, working = -1, ""
        for _, what, number, member in sorted(found):
            if what == "begin":
                assert number <= done + 1, f"{key}: {number} is begun, and {done} is the last that was worked on"
                assert working in ("", "member-0"), f"{key}: {number} is begun while {working} works on one"
                working = member
            else:
                working, done = "", max(done, number)
        assert done == EACH - 1, key
