"""A task's work: who reports what is reached, small stored batches merged, large ones passed on as they are, and which
rows of a fetch a task of a queue group gives."""

from __future__ import annotations

import pickle

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql.types import BinaryType, IntegerType, LongType, StructType

from mq_protocol.arrow import RECORD_SCHEMA
from mq_spark.datasource.lease_readers import LeasedProjection, lent
from mq_spark.datasource.reading import MERGED_ROWS_MAX, input_partitions, merged, query_name
from mq_spark.datasource.schemas import Projection, StoredRows, Topic, stream_schema
from mq_spark.planning.leases import Run
from mq_spark.planning.offsets import OffsetRange

RECORDS = Topic("t", "id", RECORD_SCHEMA, typed=False, partitions=1)
ALL = Projection(RECORDS, stream_schema([RECORDS], include_headers=False, include_metadata=False))


def stored(first_offset: int, rows: int, value: bytes = b"v") -> StoredRows:
    batch = pa.RecordBatch.from_pylist([{"key": None, "timestamp": None, "value": value}] * rows)
    return StoredRows(
        batch.cast(pa.schema([RECORD_SCHEMA.field(name) for name in ("key", "timestamp", "value")])), first_offset, 0
    )


def test_a_partition_that_several_tasks_share_is_reached_when_the_last_of_them_is_done() -> None:
    tasks = [
        (OffsetRange("t", 0, 0, 5), OffsetRange("t", 1, 3, 6)),
        (OffsetRange("t", 1, 6, 9), OffsetRange("u", 0, 0, 2)),
    ]
    work = [pickle.loads(pickle.dumps(each)) for each in input_partitions(tasks, {"t": "id-t", "u": "id-u"})]
    assert [each.ranges for each in work] == tasks
    assert [each.reached for each in work] == [(("t", 0, 5),), (("t", 1, 9), ("u", 0, 2))]
    assert work[0].topic_ids == {"t": "id-t", "u": "id-u"}


@pytest.mark.parametrize(
    ("description", "name"),
    [
        ("orders\nid = 1-a\nrunId = 2-b\nbatch = 3", "orders"),
        ("\nid = 1-a\nrunId = 2-b\nbatch = init", ""),
        ("two\nlines\nid = 1-a\nrunId = 2-b\nbatch = 3", "two\nlines"),
        ("orders\nid = 9-z\nrunId = 2-b\nbatch = 3", ""),
        ("what the user calls the job", ""),
        (None, ""),
    ],
)
def test_the_name_of_a_query_begins_sparks_description_of_its_micro_batch(description: str | None, name: str) -> None:
    assert query_name(description, "1-a") == name


def test_small_stored_batches_are_merged_and_large_ones_stay_as_they_are() -> None:
    small = [stored(number, 1) for number in range(30)]
    large = [stored(30, MERGED_ROWS_MAX), stored(30 + MERGED_ROWS_MAX, MERGED_ROWS_MAX)]
    made = list(merged(ALL, 0, iter([*small, *large])))
    assert [batch.num_rows for batch in made] == [30, MERGED_ROWS_MAX, MERGED_ROWS_MAX]
    offsets = pa.Table.from_batches(made).column("offset").to_pylist()
    assert offsets == list(range(30 + 2 * MERGED_ROWS_MAX))


def test_batches_are_merged_up_to_a_size_and_not_only_a_number_of_rows() -> None:
    made = list(merged(ALL, 0, (stored(number, 1, b"x" * (300 << 10)) for number in range(8))))
    assert [batch.num_rows for batch in made] == [3, 3, 2]


def test_stored_batches_that_are_nearly_as_large_as_may_be_reach_spark_uncopied() -> None:
    full = [stored(number * 8_000, 8_000, b"x" * 100) for number in range(3)]
    made = list(merged(ALL, 0, iter(full)))
    assert [batch.column("value").buffers()[2].address for batch in made] == [
        each.rows.column("value").buffers()[2].address for each in full
    ]


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
    projection = LeasedProjection(RECORDS, WANTED)
    projection.runs = runs
    table = projection.convert(0, found).to_pydict()
    assert (table["offset"], table["deliveries"]) == ([1, 2, 7, 9, 10, 12], [1, 1, 2, 3, 3, 3])
