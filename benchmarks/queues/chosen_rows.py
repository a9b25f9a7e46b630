"""The rows in which it matters which record is lent: by priority, when it is due, in the order of its key."""

from __future__ import annotations

import threading
import time
from typing import Final

import numpy as np
import pyarrow as pa

from benchmarks.bench.measure import Readings, percentile
from benchmarks.queues import members
from benchmarks.queues.ground import HEAR_S, PARTITIONS, RECORD_BYTES, Ground, pieces
from benchmarks.queues.rows import again
from benchmarks.queues.tally import Ids, judge, values_of
from mq_client import Producer, Queue

BACKLOG: Final = 1_000_000
LEVELS: Final = 32
URGENT: Final = 20
SCHEDULED: Final = 100_000
OVER_S: Final = 60.0
ORDERED: Final = 100_000
KEYS: Final = 1_000
ORDERED_MEMBERS: Final = 16
ORDERED_BATCH: Final = 500
_AHEAD_S: Final = 15.0
_PER_BATCH: Final = 100


def urgent(ground: Ground) -> Readings:
    """A backlog of the levels 0 to 30, then records of level 31, one after the other. Each is timed from `publish`
    until a member has it that holds one record at a time and settles what it gets."""
    count = ground.of(BACKLOG)
    seen: dict[bytes, float] = {}
    over = threading.Event()
    with (
        ground.queue(0, partitions=1) as where,
        Producer(where[0]) as producer,
        Queue(*where, in_flight_max=1) as queue,
    ):
        for number, ids in enumerate(pieces(count)):
            values = pa.record_batch({"value": values_of(ids, RECORD_BYTES)})
            producer.publish_batch(where[1], values, partition=0, priority=number % (LEVELS - 1))
        producer.flush()

        def work() -> None:
            while not over.is_set():
                if (record := queue.take(1_000)) is not None:
                    seen[record.value] = time.monotonic()
                    record.ack().result(HEAR_S)

        worker = threading.Thread(target=work)
        worker.start()
        try:
            ground.until("the member is at work", lambda: bool(seen))
            waits: list[float] = []
            for number in range(URGENT):
                value, began = f"urgent {number}".encode(), time.monotonic()
                producer.publish(where[1], value, priority=LEVELS - 1)
                ground.until("the urgent record came", lambda value=value: value in seen)  # type: ignore[misc]
                waits.append((seen[value] - began) * 1_000)
        finally:
            over.set()
            worker.join()
    return {"p50 ms": percentile(waits, 50), "slowest ms": max(waits), "again": 0.0}


def scheduled(ground: Ground) -> Readings:
    """Batches of 100 records that are due evenly over a minute. Late is a record that a member gets after its time;
    one that comes early ends the row."""
    count = ground.of(SCHEDULED)
    with ground.queue(0) as where:
        begin_us = time.time_ns() // 1_000 + round(_AHEAD_S * 1e6)
        due_us = begin_us + np.arange(0, count, _PER_BATCH) * round(OVER_S * 1e6) // count
        with Producer(where[0]) as producer:
            for number, due in enumerate(due_us):
                ids = np.arange(number * _PER_BATCH, min(count, (number + 1) * _PER_BATCH), dtype=np.int64)
                values = pa.record_batch({"value": values_of(ids, RECORD_BYTES)})
                producer.publish_batch(where[1], values, partition=number % PARTITIONS, deliver_at=int(due))
            producer.flush()
        if time.time_ns() // 1_000 > begin_us:
            raise TimeoutError(f"{count:,} records were not scheduled within {_AHEAD_S:g} s")
        work = ground.run([(members.arrivals, where, due_us.tolist(), _PER_BATCH, _AHEAD_S + 10)])
        counted = judge(count, work.received, work.settled, again_max=0)
        ground.check_accepted(where, count)
    late = work.latencies_ms
    if min(late) < 0:
        raise AssertionError(f"a record came {-min(late):.3f} ms before its time")
    return {"p50 ms": percentile(late, 50), "p99 ms": percentile(late, 99), **again(counted)}


def ordered(ground: Ground) -> Readings:
    """Two processes of eight members each. What is counted is that each record is settled once; the order is what
    tests/simulation/real/order_truth.py is about."""
    count = ground.of(ORDERED)
    with ground.queue(0, order="key") as where:
        with Producer(where[0]) as producer:
            for number, ids in enumerate(pieces(count)):
                producer.publish_batch(where[1], _keyed(ids), partition=number % PARTITIONS)
        work = ground.run([(members.in_order, where, ORDERED_MEMBERS // 2, ORDERED_BATCH)] * 2)
        counted = judge(count, work.received, work.settled, again_max=0)
        ground.check_accepted(where, count)
    return {"records/s": count / work.seconds, **again(counted)}


def _keyed(ids: Ids) -> pa.RecordBatch:
    keys = pa.array([int(ident % KEYS).to_bytes(4, "little") for ident in ids], pa.binary())
    return pa.record_batch({"key": keys, "value": values_of(ids, RECORD_BYTES)})
