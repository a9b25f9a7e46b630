"""Which rows of a fetch a task of a queue group gives."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from pyspark.sql.types import BinaryType, IntegerType, LongType, StructType

from mq_protocol.arrow import RECORD_SCHEMA
from mq_spark.datasource.lease_readers import LeasedProjection, lent
from mq_spark.datasource.schemas import StoredRows, Topic
from mq_spark.planning.leases import Run

WANTED = StructType().add("offset", LongType()).add("value", BinaryType()).add("deliveries", IntegerType())


def test_of_the_rows_that_are_fetched_those_that_were_lent_are_kept_with_their_counts() -> None:
    def rows(first: int, count: int, offsets: list[int] | None = None) -> StoredRows:
        values = [b"%d" % offset for offset in offsets or range(first, first + count)]
        batch = pa.RecordBatch.from_pydict({"value": values}, schema=pa.schema([("value", pa.binary())]))
        return StoredRows(batch, first, 0, None if offsets is None else np.array(offsets, dtype=np.int64))

    runs = [Run(1, 3, 1, 0), Run(7, 8, 2, 1), Run(9, 13, 3, 2)]
    found = list(lent([rows(0, 4), rows(4, 2), rows(6, 4), rows(10, 3, [10, 12])], runs))
    assert [(each.offsets.tolist(), each.rows.column(0).to_pylist()) for each in found if each.offsets is not None] == [
        ([1, 2], [b"1", b"2"]),
        ([7, 9], [b"7", b"9"]),
        ([10, 12], [b"10", b"12"]),
    ]
    projection = LeasedProjection(Topic("t", "id", RECORD_SCHEMA, False, 1), WANTED)
    projection.runs = runs
    table = projection.convert(0, found).to_pydict()
    assert (table["offset"], table["deliveries"]) == ([1, 2, 7, 9, 10, 12], [1, 1, 2, 3, 3, 3])
