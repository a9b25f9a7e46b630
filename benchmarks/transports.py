"""What a record costs at both ends by gRPC and over a stream port: processor time of the client and of one broker.

    python -m benchmarks.transports [--rounds 3] [--tls]

Rounds take turns, since processor time is disturbed less than wall time, but not by nothing. One broker, in a process
of its own, `durability=os`.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pyarrow as pa

import mq_client  # noqa: F401 - before gRPC is imported
from mq_client import Admin, Producer, Reader
from mq_dev.certificates import make_missing
from mq_dev.local_cluster import HOST, LocalCluster

VARIABLE = "TRITONMQ_TRANSPORT"
TRANSPORTS = ("grpc", "stream")

SINGLES = 2_000
SMALL = 100
IN_FLIGHT_RECORDS = 20_000
MEGABYTES = 200
MB = 1 << 20
ROWS_A_BATCH = 9_000
ROWS_STORED = 50 * ROWS_A_BATCH
READINGS = 5


def one_by_one(producer: Producer, reader: Reader) -> float:
    """Of one record, each waited for."""
    for _ in range(SINGLES):
        producer.publish("single", b"x" * SMALL).result(10)
    return SINGLES


def in_flight(producer: Producer, reader: Reader) -> float:
    """Of one record, each a batch of its own as far as linger 0 has it."""
    for _ in range(IN_FLIGHT_RECORDS):
        producer.publish("single", b"x" * SMALL)
    producer.flush()
    return IN_FLIGHT_RECORDS


def large(producer: Producer, reader: Reader) -> float:
    """Of one MB, in batches of one record."""
    value = os.urandom(MB - 4_096)
    for _ in range(MEGABYTES):
        producer.publish("large", value)
    producer.flush()
    return MEGABYTES


def read(producer: Producer, reader: Reader) -> float:
    """Of one MB that is read, in batches of 9,000 rows of 100 bytes."""
    nbytes = 0
    for _ in range(READINGS):
        nbytes += sum(rows.nbytes for rows in reader.read("rows", 0, 0, ROWS_STORED))
    return nbytes / MB


ROWS: dict[str, tuple[Callable[[Producer, Reader], float], float]] = {
    "one at a time, us a record": (one_by_one, 1e6),
    "as fast as it goes, us a record": (in_flight, 1e6),
    "1 MB batches, ms a MB": (large, 1e3),
    "read, ms a MB": (read, 1e3),
}


def measure(rounds: int, *, tls: bool) -> None:
    directory = Path(tempfile.mkdtemp())
    certs = directory / "certs" if tls else None
    if certs is not None:
        make_missing(certs, HOST, (1,))
    with LocalCluster(directory, certs=certs) as cluster:
        broker, security = next(iter(cluster.brokers.values())), cluster.security
        at_broker, here = psutil.Process(broker.pid), psutil.Process()
        with Admin(cluster.bootstrap, security=security) as admin:
            for topic in ("single", "large", "rows"):
                admin.create_topic(topic, partitions=1, durability="os")
        with Producer(cluster.bootstrap, security=security) as producer:
            batch = pa.table({"value": [b"x" * SMALL] * ROWS_A_BATCH})
            for _ in range(ROWS_STORED // ROWS_A_BATCH):
                producer.publish_batch("rows", batch, partition=0).result(10)
        found: dict[tuple[str, str], list[tuple[float, float, float]]] = {}
        for _ in range(rounds):
            for transport in TRANSPORTS:
                os.environ[VARIABLE] = transport
                for name, (row, scale) in ROWS.items():
                    with (
                        Producer(cluster.bootstrap, linger_ms=0, security=security) as producer,
                        Reader(cluster.bootstrap, security=security) as reader,
                    ):
                        producer.publish("single", b"x").result(10)
                        producer.publish("large", b"x").result(10)
                        before = spent(here), spent(at_broker), time.perf_counter()
                        count = row(producer, reader)
                        after = spent(here), spent(at_broker), time.perf_counter()
                        client, server, wall = (
                            (late - early) * scale / count for late, early in zip(after, before, strict=True)
                        )
                        found.setdefault((name, transport), []).append((client, server, wall))
    for name in ROWS:
        for transport in TRANSPORTS:
            client, server, wall = (statistics.median(values) for values in zip(*found[name, transport], strict=True))
            print(f"{name:34} {transport:7} client {client:8.3f}  broker {server:8.3f}  wall {wall:8.3f}")


def spent(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tls", action="store_true")
    given = parser.parse_args()
    measure(given.rounds, tls=given.tls)
