"""What a worker of Spark's imports to read: each new worker pays for it, and Spark ends those that were idle for a
minute."""

from __future__ import annotations

import subprocess
import sys

NOT_TO_READ = (
    "mq_client.administration.admin",
    "mq_client.consumer",
    "mq_client.producer",
    "mq_client.transactions",
    "pandas",
    "kazoo",
    "click",
)


def test_a_worker_that_reads_imports_nothing_that_writes_or_administers() -> None:
    code = f"""
import sys
import mq_spark.datasource.readers
print([name for name in {NOT_TO_READ!r} if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "[]"


MOVES_ROWS = """
import sys
import numpy as np
import pyarrow as pa
from pyspark.sql.types import StructType
from mq_client.producing.batches import largest_record_bytes, records_to_batch
from mq_protocol.arrow import RECORD_SCHEMA, column_of
from mq_spark.datasource.rows import Fit, by_partition
from mq_spark.datasource.schemas import Projection, StoredRows, Topic, stream_schema
topic = Topic("t", "0" * 32, RECORD_SCHEMA, typed=False, partitions=3)
records = records_to_batch([b"k"], [b"v"], [[("a", b"b")]], [1])
every = stream_schema([topic], include_headers=True, include_metadata=True)
stored = [StoredRows(records, offset, 7, np.array([offset])) for offset in (5, 9)]
read = Projection(topic, every).convert(2, stored)
typed = Topic("n", "1" * 32, pa.schema([("n", pa.int64())]), typed=True, partitions=3)
numbers = pa.RecordBatch.from_arrays([column_of(np.arange(2), pa.int64())], names=["n"])
with_place = stream_schema([typed], include_headers=False, include_metadata=True)
Projection(typed, with_place).convert(2, [StoredRows(numbers, 5, 7)])
asked = column_of(np.array([1, 2], dtype=np.int32), pa.int32())
given = StructType().add("key", "binary").add("value", "binary").add("partition", "integer")
columns = [read.column("key"), read.column("value"), asked]
rows = pa.RecordBatch.from_arrays(columns, names=["key", "value", "partition"])
fit = Fit(topic, given, routed=False)
parts = list(by_partition(fit.partitions(rows), fit.convert(rows, 7), 0))
largest_record_bytes(pa.Table.from_batches([records]))
print([len(part) for _, part in parts], "pandas" in sys.modules)
print(read.select(["topic", "partition", "offset"]).to_pylist())
"""


def test_neither_reading_nor_writing_imports_pandas() -> None:
    """PyArrow does for the first array that it makes of Python values, and a new worker took longer for that than for
    its rows."""
    done = subprocess.run([sys.executable, "-c", MOVES_ROWS], capture_output=True, text=True, check=True, timeout=60)
    told, rows = done.stdout.splitlines()
    assert told == "[1, 1] False"
    assert rows == str([{"topic": "t", "partition": 2, "offset": offset} for offset in (5, 9)])
