"""The way in: a DataFrame's rows fitted to a topic, and each row's partition chosen. A column at a time, never a row.

Pure. What fits is decided from the two schemas alone, before a row is looked at; what only the rows can show (a null
where the topic has NOT NULL, a partition that does not exist) is an error before the batch is handed on. Not here: the
way out (schemas.py), and sending (datasource/staging.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyspark.sql import types as spark

from mq_protocol.arrow import column_of, numbers_of
from mq_protocol.errors import InvalidRequest, SchemaMismatch
from mq_protocol.names import did_you_mean
from mq_protocol.partitioner import partitions_for_keys
from mq_spark.datasource.schemas import Topic, spark_type

_INTEGERS: Final = (spark.ByteType(), spark.ShortType(), spark.IntegerType(), spark.LongType())
_STORED_OF_RECORDS: Final = ("key", "value", "headers")

_HASHED: Final = (pa.types.is_string, pa.types.is_binary, pa.types.is_int32, pa.types.is_int64)

SPREAD: Final = -1
"""In `Fit.partitions`: the row may go anywhere."""


class Fit:
    """How rows with `columns` go into a topic: owns the plan, made once.

    `routed`: the rows name their topics in a column `topic`, which is then no column of a typed topic; a column that
    only others of those topics have must be null in this one's rows. `key_column`: the column of a typed topic by whose
    value rows find their partition. Raises `SchemaMismatch` whose first words name the column at fault: unknown (with
    the nearest right one), of another type, or missing.
    """

    def __init__(self, topic: Topic, columns: spark.StructType, *, routed: bool, key_column: str | None = None) -> None:
        self._topic = topic
        self._given = {field.name.lower(): field for field in columns}
        self._unknown = _unknown_columns(topic, columns, ("topic",) if routed else ())
        if self._unknown and not routed:
            raise SchemaMismatch(next(iter(self._unknown.values())))
        self._at = {field.name.lower(): place for place, field in enumerate(columns)}
        if not topic.typed and "value" not in self._at:
            raise SchemaMismatch(
                f"column 'value' is missing: topic {topic.name} stores records; give the rows a column value (binary "
                "or string), and key, headers, topic, partition as needed"
            )
        for stored in topic.schema:
            self._check_column(stored)
        self._key = _key_field(topic, key_column)
        self._asks_partition = "partition" in self._given and (not topic.typed or not _has(topic, "partition"))
        if self._asks_partition and self._given["partition"].dataType not in _INTEGERS:
            raise SchemaMismatch(
                f"column 'partition' is {self._given['partition'].dataType.simpleString()}: make it an int"
            )

    def convert(self, rows: pa.RecordBatch, now_us: int) -> pa.RecordBatch:
        """The rows in the topic's stored schema; records get the time `now_us` (microseconds since 1970), as producers
        give them.

        Raises `SchemaMismatch` for a null where the topic has NOT NULL, and for a value in a column that it does not
        have.
        """
        for name, text in self._unknown.items():
            if rows.column(self._at[name.lower()]).null_count < rows.num_rows:
                raise SchemaMismatch(f"{text}, or make it null in the rows of this topic")
        arrays = [self._column(rows, stored, now_us) for stored in self._topic.schema]
        for stored, array in zip(self._topic.schema, arrays, strict=True):
            if not stored.nullable and array.null_count:
                raise SchemaMismatch(
                    f"column {stored.name!r} is NOT NULL in topic {self._topic.name} and has nulls, "
                    f"{array.null_count} of {len(array)}: filter them out or give them a value"
                )
        return pa.RecordBatch.from_arrays(arrays, schema=self._topic.schema)

    def partitions(self, rows: pa.RecordBatch) -> NDArray[np.int32] | None:
        """Each row's partition, `SPREAD` for one that may go anywhere; None if all may.

        A row goes where its column `partition` says (unless that is a column of the topic's own), else where its key
        hashes to. Raises `InvalidRequest` for a partition that the topic does not have.
        """
        chosen = self._by_key(rows)
        if self._asks_partition:
            asked = rows.column(self._at["partition"])
            self._check_partitions(asked)
            spread = np.full(len(asked), SPREAD, dtype=np.int32) if chosen is None else chosen
            otherwise = column_of(spread, pa.int32())
            if asked.null_count < len(asked):
                chosen = numbers_of(pc.coalesce(asked.cast(pa.int32()), otherwise))
        return chosen

    # -------------------------------------------------------------- private

    def _check_column(self, stored: pa.Field) -> None:
        given = self._given.get(stored.name.lower())
        if not self._topic.typed and stored.name not in _STORED_OF_RECORDS:
            return
        if given is None:
            if not stored.nullable:
                raise SchemaMismatch(
                    f"column {stored.name!r} is missing and is NOT NULL in topic {self._topic.name}: add it"
                )
            return
        wanted = spark_type(stored.type)
        records_text = (
            not self._topic.typed and stored.name in ("key", "value") and isinstance(given.dataType, spark.StringType)
        )
        if not (records_text or _fits(given.dataType, wanted)):
            raise SchemaMismatch(
                f"column {stored.name!r} is {given.dataType.simpleString()} and topic {self._topic.name} has it as "
                f"{wanted.simpleString()}: cast it"
            )

    def _column(self, rows: pa.RecordBatch, stored: pa.Field, now_us: int) -> pa.Array:
        if not self._topic.typed and stored.name not in _STORED_OF_RECORDS:
            return column_of(np.full(rows.num_rows, now_us, dtype=np.int64), stored.type)
        at = self._at.get(stored.name.lower())
        if at is None:
            return pa.nulls(rows.num_rows, stored.type)
        column = rows.column(at)
        return column if column.type == stored.type else column.cast(stored.type)

    def _by_key(self, rows: pa.RecordBatch) -> NDArray[np.int32] | None:
        if self._key is None or self._key.name.lower() not in self._at:
            return None
        keys = rows.column(self._at[self._key.name.lower()])
        if keys.null_count == len(keys):
            return None
        return partitions_for_keys(keys.cast(self._key.type), self._topic.partitions)

    def _check_partitions(self, asked: pa.Array) -> None:
        bounds = pc.min_max(asked).as_py()
        for number in (bounds["min"], bounds["max"]):
            if number is not None and not 0 <= number < self._topic.partitions:
                raise InvalidRequest(
                    f"column 'partition' holds {number}: topic {self._topic.name} has partitions 0 to "
                    f"{self._topic.partitions - 1}"
                )


def _key_field(topic: Topic, key_column: str | None) -> pa.Field | None:
    """The stored column whose value's hash chooses the partition: the same hash of the same bytes as the producer's."""
    if not topic.typed:
        if key_column is not None and key_column.lower() != "key":
            raise SchemaMismatch(
                f"keyColumn={key_column!r} has no meaning for topic {topic.name}, whose records have a column key: "
                "leave it out"
            )
        return topic.schema.field("key")
    if key_column is None:
        return None
    if not _has(topic, key_column):
        raise SchemaMismatch(
            f"keyColumn={key_column!r} is no column of topic "
            f"{topic.name}{did_you_mean(key_column, topic.schema.names)} (its columns are: "
            f"{', '.join(topic.schema.names)})"
        )
    field = next(field for field in topic.schema if field.name.lower() == key_column.lower())
    if not any(applies(field.type) for applies in _HASHED):
        raise SchemaMismatch(
            f"keyColumn={key_column!r} is {field.type}: only a string, binary, int or long can choose a partition"
        )
    return field


def _has(topic: Topic, column: str) -> bool:
    return any(name.lower() == column.lower() for name in topic.schema.names)


def _unknown_columns(topic: Topic, columns: spark.StructType, beside: tuple[str, ...]) -> dict[str, str]:
    """The columns that the topic does not have, each with what to say about it."""
    allowed = [*topic.schema.names, *beside] if topic.typed else [*_STORED_OF_RECORDS, "topic"]
    if not _has(topic, "partition"):
        allowed.append("partition")
    lowered = {name.lower() for name in allowed}
    return {
        field.name: f"unknown column {field.name!r}{did_you_mean(field.name, allowed)} "
        f"(topic {topic.name} takes {', '.join(allowed)}): select the columns to write"
        for field in columns
        if field.name.lower() not in lowered
    }


def _fits(given: spark.DataType, wanted: spark.DataType) -> bool:
    """Whether every value keeps its meaning: the same type, nullability aside, or a wider one of its kind."""
    if isinstance(given, spark.NullType):
        return True
    if given in _INTEGERS and wanted in _INTEGERS:
        return _INTEGERS.index(given) <= _INTEGERS.index(wanted)
    if isinstance(given, spark.FloatType) and isinstance(wanted, spark.DoubleType):
        return True
    if isinstance(given, spark.DecimalType) and isinstance(wanted, spark.DecimalType):
        return given.scale <= wanted.scale and given.precision - given.scale <= wanted.precision - wanted.scale
    if isinstance(given, spark.ArrayType) and isinstance(wanted, spark.ArrayType):
        return _same(given.elementType, wanted.elementType)
    return _same(given, wanted)


def _same(given: spark.DataType, wanted: spark.DataType) -> bool:
    return given.simpleString() == wanted.simpleString()  # the one form of a type that leaves nullability out


# ------------------------------------------------------------------ splitting


def by_topic(names: pa.Array, rows: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
    """The rows of each topic, in their order. `names` is the column `topic`. Raises `InvalidRequest` for a null."""
    if names.null_count:
        raise InvalidRequest(
            f"column 'topic' has nulls, {names.null_count} of {len(names)}: name a topic in every row, or use the "
            "option topic"
        )
    found = names.dictionary_encode()
    topics = found.dictionary.to_pylist()
    if len(topics) == 1:
        yield topics[0], rows
        return
    for place, piece in _groups(numbers_of(found.indices), rows):
        yield topics[place], piece


def by_partition(
    chosen: NDArray[np.int32], rows: pa.RecordBatch, spread_to: int
) -> Iterator[tuple[int, pa.RecordBatch]]:
    """The rows of each partition, in their order; those that may go anywhere all go to `spread_to`."""
    yield from _groups(np.where(chosen == SPREAD, np.int32(spread_to), chosen), rows)


def even_slices(rows: pa.RecordBatch, bytes_wanted: int) -> Iterator[pa.RecordBatch]:
    """The rows in slices of as many rows each, of about that many bytes if rows are alike."""
    count = min(rows.num_rows, max(1, -(-rows.nbytes // bytes_wanted)))
    borders = [rows.num_rows * number // count for number in range(count + 1)]
    for start, end in pairwise(borders):
        yield rows.slice(start, end - start)


def _groups(numbers: NDArray[np.int32], rows: pa.RecordBatch) -> Iterator[tuple[int, pa.RecordBatch]]:
    order = np.argsort(numbers, kind="stable")
    in_order = numbers[order]
    borders = [0, *(np.flatnonzero(np.diff(in_order)) + 1).tolist(), len(in_order)]
    if len(borders) == 2:
        yield int(in_order[0]), rows
        return
    sorted_rows = rows.take(column_of(order, pa.int64()))
    for start, end in pairwise(borders):
        yield int(in_order[start]), sorted_rows.slice(start, end - start)
