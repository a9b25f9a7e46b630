"""A topic's columns as Spark sees them, and stored batches in exactly the form that Spark takes.

What a topic stores is already field for field what Spark's own Arrow conversion makes, so reading is choosing columns
and adding the computed ones (topic, partition, offset, timestamp), a column at a time. Pure. What is not here: the way
in (rows.py fits a DataFrame to a topic).
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyspark.sql import types as spark
from pyspark.sql.types import StructField, StructType

from mq_protocol.arrow import column_of
from mq_protocol.errors import InvalidSetting, SchemaMismatch
from mq_protocol.names import did_you_mean
from mq_spark.planning.options import is_of_table
from mq_spark.planning.security_options import SECRETS

TIMESTAMP: Final = pa.timestamp("us", tz="UTC")

_REPEATED_ROWS_MAX: Final = 1 << 14
_REPEATED_KEPT: Final = 16
"""At most so many arrays, of at most so many rows: 2 MiB with topic names of 16 characters."""

_SIMPLE: Final[dict[pa.DataType, spark.DataType]] = {
    pa.bool_(): spark.BooleanType(),
    pa.int8(): spark.ByteType(),
    pa.int16(): spark.ShortType(),
    pa.int32(): spark.IntegerType(),
    pa.int64(): spark.LongType(),
    pa.float32(): spark.FloatType(),
    pa.float64(): spark.DoubleType(),
    pa.string(): spark.StringType(),
    pa.binary(): spark.BinaryType(),
    pa.date32(): spark.DateType(),
    TIMESTAMP: spark.TimestampType(),
    pa.timestamp("us"): spark.TimestampNTZType(),
}


@dataclass(frozen=True, slots=True)
class Topic:
    """What must be known of a topic here: its stored Arrow schema, whether that is its own (`typed`), and its
    partitions.

    `topic_id` tells it from another that has had the same name.
    """

    name: str
    topic_id: str
    schema: pa.Schema
    typed: bool
    partitions: int


@dataclass(frozen=True, slots=True)
class StoredRows:
    """Rows of one stored batch. `appended_us` is the broker's clock when they were appended or published.

    `offsets`: of each row, if a filter has left some out; None: they are consecutive from `first_offset`. `end_offset`:
    the rows before it have been looked at (None: it follows the last row).
    """

    rows: pa.RecordBatch
    first_offset: int
    appended_us: int
    offsets: NDArray[np.int64] | None = None
    end_offset: int | None = None

    @property
    def next_offset(self) -> int:
        """Where to go on."""
        return self.first_offset + self.rows.num_rows if self.end_offset is None else self.end_offset


def spark_type(kind: pa.DataType) -> spark.DataType:
    """The Spark type whose Arrow form `kind` is. Raises `SchemaMismatch` for one that no topic stores."""
    if kind in _SIMPLE:
        return _SIMPLE[kind]
    if pa.types.is_decimal128(kind):
        return spark.DecimalType(kind.precision, kind.scale)
    if pa.types.is_list(kind):
        return spark.ArrayType(spark_type(kind.value_type), kind.value_field.nullable)
    if pa.types.is_map(kind):
        return spark.MapType(spark_type(kind.key_type), spark_type(kind.item_type), kind.item_field.nullable)
    if pa.types.is_struct(kind):
        return spark.StructType(
            [spark.StructField(field.name, spark_type(field.type), field.nullable) for field in kind]
        )
    raise SchemaMismatch(
        f"the topic's type {kind} has no counterpart in Spark: it was made by a newer TritonMQ; upgrade this one"
    )


def stream_schema(topics: Sequence[Topic], *, include_headers: bool, include_metadata: bool) -> spark.StructType:
    """The columns of a stream of these topics, all nullable as Spark has them. Raises `SchemaMismatch` if the topics
    differ."""
    first, *rest = topics
    for other in rest:
        if other.schema != first.schema:
            raise SchemaMismatch(
                f"topics {first.name} and {other.name} have different schemas: read each by a stream of its own, or "
                "name in .schema(...) columns that both have"
            )
    known = _sources(first)
    if not first.typed:
        names = ["key", "value", *_COMPUTED, *(["headers"] if include_headers else [])]
    else:
        names = [*first.schema.names, *([f"_{name}" for name in _COMPUTED] if include_metadata else [])]
    if len(set(names)) < len(names):
        raise SchemaMismatch(
            f"includeMetadata adds columns that topic {first.name} has itself: leave it out, or read by .schema(...)"
        )
    return spark.StructType([spark.StructField(name, spark_type(known[name].kind)) for name in names])


# ------------------------------------------------------------------ the projection


class Projection:
    """From a topic's stored rows to the columns that were asked for. Owns nothing but its plan.

    `columns` are the stored columns that it needs: `StoredRows.rows` must have exactly these, in this order. Raises
    `SchemaMismatch` naming the first column that the topic does not have or has otherwise.
    """

    def __init__(self, topic: Topic, wanted: spark.StructType) -> None:
        self._topic = topic.name
        known = _sources(topic)
        self._plan = [_chosen(topic, field, known) for field in wanted]
        self.columns: list[str] = sorted({name for source in self._plan for name in source.needs})
        self.schema: pa.Schema = pa.schema(
            [
                pa.field(field.name, source.kind, nullable=field.nullable)
                for field, source in zip(wanted, self._plan, strict=True)
            ]
        )

    def convert(self, partition: int, stored: Sequence[StoredRows]) -> pa.RecordBatch:
        """One batch of all the given rows, which follow one another in `partition` (a filter's with gaps), in the form
        of `schema`.
        """
        rows = stored[0].rows if len(stored) == 1 or not self.columns else _joined([each.rows for each in stored])
        piece = _Piece(self._topic, partition, stored, rows)
        arrays = [source.make(piece) for source in self._plan]
        for field, array in zip(self.schema, arrays, strict=True):
            if not field.nullable and array.null_count:
                raise SchemaMismatch(
                    f"column {field.name!r} holds nulls and .schema(...) says NOT NULL: leave NOT NULL out"
                )
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)


@dataclass(frozen=True, slots=True)
class _Piece:
    """What is converted at once: stored rows that follow one another, and the same joined."""

    topic: str
    partition: int
    stored: Sequence[StoredRows]
    rows: pa.RecordBatch

    def __len__(self) -> int:
        return sum(each.rows.num_rows for each in self.stored)


@dataclass(frozen=True, slots=True)
class _Source:
    """Where a column comes from: the stored columns that it needs, the Arrow type that it has, and how it is made,
    whole."""

    needs: tuple[str, ...]
    kind: pa.DataType
    make: Callable[[_Piece], pa.Array]


def _sources(topic: Topic) -> dict[str, _Source]:
    if topic.typed:
        return {f"_{name}": source for name, source in _COMPUTED.items()} | {
            field.name: _stored(field) for field in topic.schema
        }
    own = {field.name: _stored(field) for field in topic.schema}
    return {**own, **_COMPUTED, "timestamp": _Source(("timestamp",), TIMESTAMP, _record_times)}


def _chosen(topic: Topic, field: spark.StructField, known: dict[str, _Source]) -> _Source:
    found = next((name for name in known if name.lower() == field.name.lower()), None)
    if found is None:
        raise SchemaMismatch(
            f"topic {topic.name} has no column {field.name!r}{did_you_mean(field.name, known)} "
            f"(its columns are: {', '.join(known)}); change .schema(...)"
        )
    kind = spark_type(known[found].kind)
    if kind != field.dataType:
        raise SchemaMismatch(
            f"column {field.name!r} is {kind.simpleString()} in topic {topic.name} and {field.dataType.simpleString()} "
            "in .schema(...), nullability within it counted: read it as it is and cast it afterwards"
        )
    return known[found]


def _joined(parts: list[pa.RecordBatch]) -> pa.RecordBatch:
    (joined,) = pa.Table.from_batches(parts).combine_chunks().to_batches()
    return joined


def _stored(field: pa.Field) -> _Source:
    return _Source((field.name,), field.type, lambda piece: piece.rows.column(field.name))


def _topics(piece: _Piece) -> pa.Array:
    return _repeated(piece.topic, pa.string(), len(piece))


def _partitions(piece: _Piece) -> pa.Array:
    return _repeated(piece.partition, pa.int32(), len(piece))


def _repeated(value: str | int, kind: pa.DataType, rows: int) -> pa.Array:
    """Batch after batch repeats the same value: the beginning of an array that is kept serves them all."""
    if rows > _REPEATED_ROWS_MAX:
        return _filled(value, kind, rows)
    return _kept_repeated(value, kind, 1 << (rows - 1).bit_length()).slice(0, rows)


def _filled(value: str | int, kind: pa.DataType, rows: int) -> pa.Array:
    if isinstance(value, int):
        return column_of(np.full(rows, value, dtype=np.int32), kind)
    text = value.encode()
    ends = np.arange(rows + 1, dtype=np.int32) * len(text)
    return pa.Array.from_buffers(kind, rows, [None, pa.py_buffer(ends), pa.py_buffer(text * rows)])


_kept_repeated = functools.lru_cache(maxsize=_REPEATED_KEPT)(_filled)


def _offsets(piece: _Piece) -> pa.Array:
    if any(each.offsets is not None for each in piece.stored):
        found = np.concatenate([each.offsets for each in piece.stored if each.offsets is not None])
        return column_of(found, pa.int64())
    first = piece.stored[0].first_offset  # offsets are dense: rows that follow one another have one run of them
    return column_of(np.arange(first, first + len(piece), dtype=np.int64), pa.int64())


def _appended(piece: _Piece) -> pa.Array:
    times = [each.appended_us for each in piece.stored]
    each_row = np.repeat(np.array(times, dtype=np.int64), [each.rows.num_rows for each in piece.stored])
    return column_of(each_row, TIMESTAMP)


def _record_times(piece: _Piece) -> pa.Array:
    """A record has the time that its producer gave it, or else the broker's."""
    own = piece.rows.column("timestamp")
    return pc.coalesce(own, _appended(piece)) if own.null_count else own


_COMPUTED: Final = {
    "topic": _Source((), pa.string(), _topics),
    "partition": _Source((), pa.int32(), _partitions),
    "offset": _Source((), pa.int64(), _offsets),
    "timestamp": _Source((), TIMESTAMP, _appended),
}
"""What a record's place in the log says, by the names that Kafka's connector gives; a typed topic's have an underscore
before."""


_KEY: Final = "tritonmq.options"


def with_options(columns: StructType, given: Mapping[str, str]) -> StructType:
    """The columns, and in the first one the options of the table; unchanged if `given` are no table's.

    Spark tells a Python source the OPTIONS of a catalog table (`CREATE TABLE … USING tritonmq OPTIONS (…)`) once, when
    it asks for the columns, and never again when the table is read or written. The columns it keeps in the catalog,
    with what is said of each, and hands them over each time. Raises `InvalidSetting` for an option that holds a secret:
    whoever sees the table would see it."""
    kept = {name: value for name, value in given.items() if is_of_table(name)}
    if not kept:
        return columns
    for name in kept:
        if name.removeprefix("option.") in SECRETS:
            raise InvalidSetting(
                f"option {name.removeprefix('option.')} holds a secret, and whoever sees a table sees its options: "
                "give tritonmq.token.location or certs, which name files"
            )
    first, *others = columns.fields
    marked = StructField(first.name, first.dataType, first.nullable, {**first.metadata, _KEY: json.dumps(kept)})
    return StructType([marked, *others])


def options_of(columns: StructType | None) -> dict[str, str]:
    """What `with_options` has put there, each of the OPTIONS twice, as Spark hands them over when the table is made;
    empty for other columns."""
    for column in columns or ():
        if _KEY in column.metadata:
            kept = json.loads(column.metadata[_KEY])
            return {**kept, **{name.removeprefix("option."): value for name, value in kept.items()}}
    return {}
