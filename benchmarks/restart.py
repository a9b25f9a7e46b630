"""How long it takes until all is led again after `kill -9` of all brokers, with so much stored in each.

    python -m benchmarks.restart [GB] [--rounds N] [--brokers N]

One topic of three partitions, with a replica on each of three brokers, batches of a megabyte of records of 100 B. In
turn: with the checkpoints that the brokers have stored, and with these removed, so that everything is read. Processor
time is the brokers' together, until all is led. What is stored is in the kernel's cache, as far as it fits there.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import pyarrow as pa

from benchmarks.kafka.growth import led, processor_seconds
from mq_client import Admin, Producer
from mq_dev.local_cluster import LocalCluster
from mq_protocol.arrow import RECORD_SCHEMA

PARTITIONS: Final = 3
VALUE_BYTES: Final = 100
ROWS: Final = 9_000
SETTLE_S: Final = 120.0
LED_TIMEOUT_S: Final = 900.0


def batch() -> pa.RecordBatch:
    values = pa.array([random.randbytes(VALUE_BYTES) for _ in range(ROWS)], pa.binary())
    columns = [values if field.name == "value" else pa.nulls(ROWS, field.type) for field in RECORD_SCHEMA]
    return pa.record_batch(columns, RECORD_SCHEMA)


def fill(cluster: LocalCluster, stored: int) -> None:
    """So many bytes in each broker."""
    with Admin(cluster.bootstrap) as admin, Producer(cluster.bootstrap) as producer:
        admin.create_topic("t", partitions=PARTITIONS, replicas=len(cluster.brokers), durability="os")
        data = batch()
        for done in range(0, stored, 50 * data.nbytes):
            futures = [
                producer.publish_batch("t", data, partition=number % PARTITIONS)
                for number in range(min(50, 1 + (stored - done) // data.nbytes))
            ]
            for future in futures:
                future.result(120)


def checkpoints(folder: Path) -> list[Path]:
    return list(folder.glob("*/partitions/*/checkpoint")) + list(folder.glob("*/*/partitions/*/checkpoint"))


def wait_for_checkpoints(folder: Path, count: int) -> None:
    deadline = time.monotonic() + SETTLE_S
    while len(checkpoints(folder)) < count:
        if time.monotonic() > deadline:
            raise TimeoutError(f"there are {len(checkpoints(folder))} checkpoints {SETTLE_S:g} s later")
        time.sleep(0.2)


def led_again(cluster: LocalCluster) -> tuple[float, float]:
    """Kill all and start all: seconds until all is led, and of processor time."""
    brokers = list(cluster.brokers.values())
    for broker in brokers:
        broker.kill()
    began = time.monotonic()
    for broker in brokers:
        broker.start()
    while led(random.choice(brokers).address, ["t"], PARTITIONS) < 1:
        if time.monotonic() - began > LED_TIMEOUT_S:
            raise TimeoutError(f"not led after {LED_TIMEOUT_S:g} s; {brokers[0].last_words()}")
        time.sleep(0.05)
    return time.monotonic() - began, sum(processor_seconds(broker.pid) for broker in brokers)


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.restart", description="How long all takes to be led again.")
    parser.add_argument("gigabytes", nargs="?", type=float, default=1.0, help="in each broker; default 1")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--brokers", type=int, default=3)
    given = parser.parse_args(arguments)
    found: dict[str, list[tuple[float, float]]] = {"with checkpoints": [], "without": []}
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as directory:
        folder = Path(directory) / "cluster"
        with LocalCluster(folder, given.brokers) as cluster:
            fill(cluster, int(given.gigabytes * 1e9))
            for _ in range(given.rounds):
                for what, readings in found.items():
                    wait_for_checkpoints(folder, given.brokers * PARTITIONS)
                    if what == "without":
                        for path in checkpoints(folder):
                            path.unlink()
                    readings.append(led_again(cluster))
                    seconds, processor = readings[-1]
                    print(f"{what}: led after {seconds:.2f} s, {processor:.1f} s of processor time", flush=True)
    medians = {what: [statistics.median(column) for column in zip(*rows, strict=True)] for what, rows in found.items()}
    for what, (seconds, processor) in medians.items():
        print(f"{given.gigabytes:g} GB, {what}: median {seconds:.2f} s, {processor:.1f} s of processor time")
    print(f"ratio {medians['without'][0] / medians['with checkpoints'][0]:.1f}")


if __name__ == "__main__":
    main(sys.argv[1:])
