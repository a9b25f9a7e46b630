"""The rows that are measured with, as Arrow: values of random bytes, what a stream of records has around them, a small
type.

Imported by Spark's workers too: nothing of Spark here.
"""

from __future__ import annotations

import functools
from typing import Final

import numpy as np
import pyarrow as pa

VALUE_BYTES: Final = 100
BATCH_ROWS: Final = 10_000
"""Spark's own bound on a batch that it hands to a sink, and the size to which the source merges."""

TYPED_DDL: Final = "id long, at timestamp, price double, symbol string"

DDL: Final = {
    "value": "value binary",
    "records": "key binary, value binary, topic string, partition int, offset long, timestamp timestamp",
    "typed": TYPED_DDL,
}
"""The kinds of rows, as Spark's schemas: what goes into a topic of records, what comes out of one, and what a typed one
has."""

_TIMESTAMP: Final = pa.timestamp("us", tz="UTC")
_START_US: Final = 1_700_000_000_000_000


def binary_values(size: int, rows: int, seed: int = 0) -> pa.Array:
    """`rows` values of `size` random bytes."""
    data = np.random.default_rng(seed).bytes(size * rows)
    offsets = np.arange(rows + 1, dtype=np.int32) * size
    return pa.Array.from_buffers(pa.binary(), rows, [None, pa.py_buffer(offsets), pa.py_buffer(data)])


@functools.cache
def batch_of(kind: str, rows: int = BATCH_ROWS) -> pa.RecordBatch:
    """One batch of that kind; made once in a process, so that yielding it again costs nothing."""
    numbers = np.arange(rows, dtype=np.int64)
    times = pa.array(numbers + _START_US).cast(_TIMESTAMP)
    if kind == "typed":
        symbols = pa.array(["TRTN", "SPRK", "ARRW", "GRPC"]).take(pa.array(numbers % 4))
        prices = pa.array(np.random.default_rng(0).random(rows))
        return pa.record_batch({"id": pa.array(numbers), "at": times, "price": prices, "symbol": symbols})
    values = binary_values(VALUE_BYTES, rows)
    if kind == "value":
        return pa.record_batch({"value": values})
    return pa.record_batch(
        {
            "key": pa.nulls(rows, pa.binary()),
            "value": values,
            "topic": pa.repeat(pa.scalar("bench"), rows),
            "partition": pa.repeat(pa.scalar(0, pa.int32()), rows),
            "offset": pa.array(numbers),
            "timestamp": times,
        }
    )
