"""Records in: `publish` one at a time and `publish_batch` of 1 MiB tables, 6 partitions, 3 replicas, acks=all.

MB/s are of the records' values alone, for us and for the ceilings, which carry the same encoded batches. Each run has a
topic of its own; connecting and creating it are not timed, the last acknowledgement is.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

import pyarrow as pa

from benchmarks.bench.ceilings import Messages, write_and_sync
from benchmarks.bench.measure import Contestant, Figure, Question, Readings, Stopwatch
from benchmarks.bench.rows import binary_values
from benchmarks.bench.workbench import PARTITIONS, Workbench
from mq_client import Producer
from mq_protocol.arrow import RECORD_SCHEMA, encode_batch

GROUP: Final = "produce, 3 replicas"
REFERENCE: Final = "for comparison, nothing of ours"
SIZES: Final = {"100 B": 100, "1 KB": 1024}
DURABILITIES: Final = ("fsync", "os")
TABLE_BYTES: Final = 1 << 20
ROW_OVERHEAD_BYTES: Final = 24
"""What the record schema adds to a value: three offsets and a time."""

RECORDS_ONE_AT_A_TIME: Final = {"100 B": 300_000, "1 KB": 150_000}
TABLES: Final = 96
DIFFERENT_TABLES: Final = 4

_CEILING: Final = "grpcio, 2 processes"
_RELAY: Final = "grpcio, 3 copies"
_DISK: Final = "write and fdatasync a MiB"


def rows_per_table(size: int) -> int:
    return TABLE_BYTES // (size + ROW_OVERHEAD_BYTES)


def tables(size: int) -> list[pa.RecordBatch]:
    """Different tables of one column, `value`, each of which becomes one batch of nearly 1 MiB."""
    return [
        pa.record_batch({"value": binary_values(size, rows_per_table(size), seed)}) for seed in range(DIFFERENT_TABLES)
    ]


def encoded(size: int) -> list[bytes]:
    """The same rows as the brokers get and keep them."""
    found = []
    for table in tables(size):
        rows = table.num_rows
        columns = [
            pa.nulls(rows, RECORD_SCHEMA.field("key").type),
            table.column("value"),
            pa.nulls(rows, RECORD_SCHEMA.field("headers").type),
            pa.array(range(rows), RECORD_SCHEMA.field("timestamp").type),
        ]
        found.append(encode_batch(pa.RecordBatch.from_arrays(columns, schema=RECORD_SCHEMA)).to_pybytes())
    return found


def measure(bench: Workbench) -> list[Figure]:
    """Figures of both sizes and both durabilities, and what three copies and the disk cost with nothing of ours in
    between."""
    contestants: list[Contestant] = []
    questions: list[Question] = []
    references: list[Question] = []
    for label, size in SIZES.items():
        ceiling, relay, disk = (f"{name}, {label}" for name in (_CEILING, _RELAY, _DISK))
        messages = encoded(size)
        contestants.append(Contestant(ceiling, partial(_moved, bench, messages, size, bench.grpc.move)))
        contestants.append(Contestant(relay, partial(_moved, bench, messages, size, bench.grpc.relay)))
        for durability in DURABILITIES:
            one, batch = f"publish {label}, {durability}", f"publish_batch {label}, {durability}"
            contestants.append(Contestant(one, partial(_publish, bench, label, durability)))
            contestants.append(Contestant(batch, partial(_publish_batch, bench, size, durability)))
            questions.append(Question(GROUP, one, "records/s", "records/s", "higher", ceiling))
            questions.append(Question(GROUP, batch, "MB/s", "MB/s", "higher", ceiling))
        references.append(Question(REFERENCE, relay, "MB/s", "MB/s", "higher", ceiling))
        if label == "1 KB":
            contestants.append(Contestant(disk, partial(_written, bench, messages, size)))
            references.append(Question(REFERENCE, disk, "MB/s", "MB/s", "higher", ceiling))
    return bench.answer(contestants, questions + references)


def _readings(records: int, size: int, seconds: float) -> Readings:
    return {"records/s": records / seconds, "MB/s": records * size / seconds / 1e6}


def _moved(bench: Workbench, messages: list[bytes], size: int, move: Callable[[Messages, int], float]) -> Readings:
    count = bench.scale.of(TABLES)
    return _readings(count * rows_per_table(size), size, move(messages, count))


def _written(bench: Workbench, messages: list[bytes], size: int) -> Readings:
    count = bench.scale.of(TABLES)
    return _readings(count * rows_per_table(size), size, write_and_sync(bench.scratch(), messages, count))


def _publish(bench: Workbench, label: str, durability: str) -> Readings:
    size, count = SIZES[label], bench.scale.of(RECORDS_ONE_AT_A_TIME[label])
    different: list[bytes] = binary_values(size, 1_000).to_pylist()
    topic = bench.new_topic(durability)
    with Producer(bench.cluster.bootstrap) as producer:
        connect(producer, topic, different[0])
        with Stopwatch() as watch:
            for at in range(count):
                producer.publish(topic, different[at % 1_000])
            producer.flush()
    bench.admin.delete_topic(topic)
    return _readings(count, size, watch.seconds)


def _publish_batch(bench: Workbench, size: int, durability: str) -> Readings:
    count, different = bench.scale.of(TABLES), tables(size)
    topic = bench.new_topic(durability)
    with Producer(bench.cluster.bootstrap) as producer:
        connect(producer, topic, b"")
        with Stopwatch() as watch:
            for at in range(count):
                producer.publish_batch(topic, different[at % len(different)])
            producer.flush()
    bench.admin.delete_topic(topic)
    return _readings(count * rows_per_table(size), size, watch.seconds)


def connect(producer: Producer, topic: str, value: bytes) -> None:
    """A first record to each partition, so that streams to all leaders are open."""
    for partition in range(PARTITIONS):
        producer.publish(topic, value, partition=partition)
    producer.flush()
