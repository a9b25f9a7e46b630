"""What the Spark rows share: topics of both kinds filled with the same rows, and how each is read by its own
connector."""

from __future__ import annotations

import functools
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, DataFrameReader

from benchmarks.bench.rows import TYPED_DDL, batch_of
from benchmarks.bench.workbench import PARTITIONS
from benchmarks.kafka.arena import Arena
from mq_client import Producer

TABLE_ROWS: Final = 8_000
WIDE_COLUMNS: Final = 20
WIDE_DDL: Final = ", ".join(f"c{number} {'long' if number % 2 else 'double'}" for number in range(WIDE_COLUMNS))
SCHEMAS: Final = {"typed": TYPED_DDL, "wide": WIDE_DDL}
READ_REPLICAS: Final = 1
"""Of topics that are only read: both are read from their leaders."""


@functools.cache
def table(kind: str) -> pa.RecordBatch:
    """Rows of "value" (100 random bytes), "typed" (four columns) or "wide" (twenty numbers)."""
    if kind != "wide":
        return batch_of(kind, TABLE_ROWS)
    random = np.random.default_rng(0)
    columns = {
        f"c{number}": pa.array(random.integers(0, 1 << 40, TABLE_ROWS) if number % 2 else random.random(TABLE_ROWS))
        for number in range(WIDE_COLUMNS)
    }
    return pa.record_batch(columns)


def json_lines(kind: str, path: Path) -> Path:
    """The same rows as JSON, one a line: what people put into Kafka for Spark to parse."""
    lines = []
    for row in table(kind).to_pylist():
        plain = {name: _plain(value) for name, value in row.items()}
        lines.append(json.dumps(plain, separators=(",", ":")))
    path.write_text("\n".join(lines) + "\n")
    return path


def _plain(value: object) -> object:
    return value.astimezone(UTC).isoformat().replace("+00:00", "Z") if isinstance(value, datetime) else value


def filled_ours(arena: Arena, kind: str, rows: int) -> str:
    name = arena.our_topic("os", replicas=READ_REPLICAS, schema=SCHEMAS.get(kind))
    with Producer(arena.cluster.bootstrap) as producer:
        for number in range(rows // TABLE_ROWS):
            producer.publish_batch(name, table(kind), partition=number % PARTITIONS)
    return name


def filled_theirs(arena: Arena, kind: str, rows: int) -> str:
    name = arena.their_topic("os", replicas=READ_REPLICAS)
    values: str | int = 100 if kind == "value" else str(json_lines(kind, arena.scratch()))
    given = {"topic": name, "partitions": PARTITIONS, "rows": rows, "values": values}
    arena.client.ask("fill", bootstrap=arena.kafka.bootstrap, **given)
    return name


def read_ours(arena: Arena, name: str) -> DataFrameReader:
    options = {"bootstrap.servers": arena.cluster.bootstrap, "subscribe": name, "startingOffsets": "earliest"}
    return arena.spark.read.format("tritonmq").options(**options)


def read_theirs(arena: Arena, name: str) -> DataFrame:
    options = {"kafka.bootstrap.servers": arena.kafka.bootstrap, "subscribe": name, "startingOffsets": "earliest"}
    return arena.spark.read.format("kafka").options(**options).load()
