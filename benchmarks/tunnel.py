"""What a tunnel costs: throughput in and out through `tritonmq proxy`, as a ratio of that without.

    python -m benchmarks.tunnel [--rounds 5] [--deadline 240]

Rounds with and without take turns. One broker, the tunnel and the client are processes of one machine and share its
processors, so the tunnel takes from the others what it uses itself. `durability=os`, batches of 1 KB records. It ends
at the deadline, whatever happens: with the rounds that are over by then, or with exit status 1 if there is none.
"""

from __future__ import annotations

import argparse
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa

import mq_client  # noqa: F401 - before gRPC is imported
from mq_client import Admin, Producer, Reader
from mq_dev.local_cluster import LocalCluster

TOPIC = "tunnel"
RECORD_BYTES = 1_000
RECORDS_A_BATCH = 1_000
BATCHES = 300
MB = 1_000_000
WAIT_MS = 30_000.0


class _TimeIsOver(Exception):
    """The deadline has passed."""


@contextmanager
def tunnel(bootstrap: str) -> Iterator[str]:
    """The address of one, which ends with the block or with this process."""
    words = ["proxy", "--listen", "127.0.0.1:0", "--bootstrap", bootstrap, "--stop-at-eof"]
    process = subprocess.Popen(
        [sys.executable, "-m", "mq_cli.main", *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        yield process.stdout.readline().removeprefix("proxy ").strip()
    finally:
        process.stdin.close()
        process.wait(30)
        process.stdout.close()


def written(bootstrap: str, via: str) -> float:
    """Megabytes a second."""
    rows = pa.table({"value": [os.urandom(RECORD_BYTES)] * RECORDS_A_BATCH})
    with Producer(bootstrap, via=via, timeout_ms=WAIT_MS) as producer:
        producer.publish_batch(TOPIC, rows, partition=0).result()
        began = time.perf_counter()
        last = [producer.publish_batch(TOPIC, rows, partition=0) for _ in range(BATCHES)]
        for each in last:
            each.result()
        return BATCHES * RECORDS_A_BATCH * RECORD_BYTES / MB / (time.perf_counter() - began)


def read(bootstrap: str, via: str) -> float:
    """Megabytes a second."""
    with Reader(bootstrap, WAIT_MS, via=via) as reader:
        next(iter(reader.read(TOPIC, 0, 0, 1)))
        began = time.perf_counter()
        rows = sum(batch.num_rows for batch in reader.read(TOPIC, 0, 0, BATCHES * RECORDS_A_BATCH))
        assert rows == BATCHES * RECORDS_A_BATCH
        return rows * RECORD_BYTES / MB / (time.perf_counter() - began)


WAYS: dict[str, Callable[[str, str], float]] = {"in": written, "out": read}


def measure(rounds: int, found: dict[tuple[str, bool], list[float]]) -> None:
    """Adds to `found`, by way and whether there was a tunnel."""
    with tempfile.TemporaryDirectory() as directory, LocalCluster(Path(directory)) as cluster:
        with Admin(cluster.bootstrap) as admin:
            admin.create_topic(TOPIC, partitions=1, durability="os")
        with tunnel(cluster.bootstrap) as via:
            for number in range(rounds + 1):
                for way, run in WAYS.items():
                    for tunnelled in (False, True) if number % 2 else (True, False):
                        rate = run(cluster.bootstrap, via if tunnelled else "")
                        if number:  # the first one warms up
                            found.setdefault((way, tunnelled), []).append(rate)


def main() -> int:
    parser = argparse.ArgumentParser(description="What a tunnel costs.")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--deadline", type=int, default=240, help="seconds")
    options = parser.parse_args()

    def over(_number: int, _frame: object) -> None:
        raise _TimeIsOver

    signal.signal(signal.SIGALRM, over)
    signal.alarm(options.deadline)
    found: dict[tuple[str, bool], list[float]] = {}
    try:
        measure(options.rounds, found)
    except _TimeIsOver:
        print(f"the deadline of {options.deadline} s has passed", file=sys.stderr)
    signal.alarm(0)
    if len(found) < 2 * len(WAYS):
        return 1
    for way in WAYS:
        direct, through = (statistics.median(found[way, tunnelled]) for tunnelled in (False, True))
        rates = f"direct {direct:6.0f} MB/s  tunnel {through:6.0f} MB/s  {100 * through / direct:3.0f} %"
        print(f"{way:3}  {rates}  {len(found[way, True])} rounds")
    return 0


if __name__ == "__main__":
    sys.exit(main())
