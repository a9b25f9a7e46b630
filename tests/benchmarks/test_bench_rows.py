"""The rows that the benchmark measures with have the types that it tells Spark and the brokers."""

from __future__ import annotations

import pytest

from benchmarks.bench.produce import ROW_OVERHEAD_BYTES, SIZES, TABLE_BYTES, encoded, rows_per_table, tables
from benchmarks.bench.rows import DDL, batch_of, binary_values
from mq_client.producing.batches import conform
from mq_protocol.arrow import RECORD_SCHEMA, decode_batch
from mq_protocol.sql.ddl import parse_schema


@pytest.mark.parametrize("kind", sorted(DDL))
def test_rows_have_the_types_that_spark_is_told(kind: str) -> None:
    batch = batch_of(kind, 7)
    batch.validate(full=True)
    assert batch.num_rows == 7
    assert batch.schema.equals(parse_schema(DDL[kind]))


def test_values_are_random_bytes_of_one_size() -> None:
    values = binary_values(100, 50).to_pylist()
    assert {len(value) for value in values} == {100}
    assert len(set(values)) == 50


@pytest.mark.parametrize("size", SIZES.values())
def test_a_table_becomes_one_batch_of_nearly_a_mebibyte(size: int) -> None:
    stored = conform(tables(size)[0], RECORD_SCHEMA, "topic", now_us=0)
    assert TABLE_BYTES * 0.9 < stored.nbytes <= TABLE_BYTES
    assert (stored.nbytes - size * stored.num_rows) / stored.num_rows <= ROW_OVERHEAD_BYTES


@pytest.mark.parametrize("size", SIZES.values())
def test_the_ceiling_moves_the_same_rows(size: int) -> None:
    message = encoded(size)[0]
    batch = decode_batch(message, RECORD_SCHEMA)
    assert batch.num_rows == rows_per_table(size)
    assert batch.column("value").equals(tables(size)[0].column("value"))
