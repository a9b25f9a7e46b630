"""A worker of a queue that is ended, as a process of its own."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from mq_client import Admin, Producer
from tests.cluster.harness import wait_until

WORKER = """
import contextlib, signal, sys, time
from mq_client import Queue

signal.signal(signal.SIGTERM, lambda *_: sys.exit())
rows = int(sys.argv[3])
with Queue(sys.argv[1], sys.argv[2], "g") as queue:
    for work in queue.batches(rows) if rows else queue:
        with contextlib.nullcontext() if rows else work:
            work.extend().result(30)
            print("begun", flush=True)
            while True:  # a signal that comes right before a sleep is heard after it
                time.sleep(0.1)
"""


@pytest.mark.parametrize(
    ("ended_by", "lease", "rows", "charged"),
    [(signal.SIGKILL, "12s", 0, 1), (signal.SIGKILL, "12s", 5, 5), (signal.SIGTERM, "20s", 0, 0)],
)
def test_of_what_an_ended_worker_held_the_records_that_it_had_begun_are_charged_if_it_said_nothing(
    admin: Admin, bootstrap: str, topic: str, ended_by: int, lease: str, rows: int, charged: int
) -> None:
    """`rows`: so many at a time, as Arrow; 0: records one by one."""
    admin.create_topic(topic, partitions=1)
    admin.declare_queue(topic, "g", lease_ms=lease)
    with Producer(bootstrap) as producer:
        for number in range(18):
            producer.publish(topic, f"{number}").result(30)
    worker = subprocess.Popen(
        [sys.executable, "-c", WORKER, bootstrap, topic, str(rows)], stdout=subprocess.PIPE, text=True
    )
    try:
        assert worker.stdout is not None
        assert worker.stdout.readline() == "begun\n"
        wait_until(lambda: admin.describe_queue(topic, "g").leased == 18, "it holds all of them")
        worker.send_signal(ended_by)
        worker.wait(30)
    finally:
        worker.kill()
        worker.communicate()
    wait_until(lambda: admin.describe_queue(topic, "g").leased == 0, "it is over, or its leases run out")
    [told] = admin.describe_queue(topic, "g").partitions
    assert (told.returned, told.charged) == (18, charged)
