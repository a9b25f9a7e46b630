"""Rows that a query cannot decode: set aside with what is known of them, instead of stopping the query or being lost in
silence.

    decoded = stream.withColumn("order", try_from_json("value", "id long, amount double"))
    out = or_dead_letter(decoded, "order", topic="orders", dead_letters="orders.dead")
    out.writeStream.format("tritonmq")...start()                 # no option topic: the rows name theirs

Each row of `out` goes to one of the two topics, all by the sink's one decision for the micro-batch: a dead letter is
there exactly once, as every other row is. A query with another sink takes `dead_letters` in foreachBatch. Columns only:
nothing is written here.

A dead letter is a record with the key and the value as they came, so that it can be sent again once the decoder is
mended; its headers say why it is here and where it was, under the names of `HEADERS`, as text.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f
from pyspark.sql.pandas.functions import arrow_udf
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import StringType, StructField, StructType

from mq_protocol.errors import InvalidRequest
from mq_protocol.queues.dead_letters import HEADERS as QUEUE_HEADERS

_PLACES: Final = ("topic", "partition", "offset", "timestamp")

HEADERS: Final = {
    **{name: QUEUE_HEADERS[name] for name in ("error", *_PLACES)},
    "query": "tritonmq.query",
    "batch": "tritonmq.batch",
}
"""What a dead letter's headers are called: why it is one, where it was, and which micro-batch of which query could not
use it."""

ERROR_CHARACTERS_MAX: Final = 1_000

_CORRUPT: Final = "_tritonmq_corrupt"
_HEADERS_TYPE: Final = "array<struct<key string, value binary>>"
_NO_VALUE: Final = "there is no value"

_WORK: Final = StructType([StructField("query", StringType()), StructField("batch", StringType())])

# ------------------------------------------------------------------ trying


def try_from_json(column: Column | str, schema: StructType | str, options: Mapping[str, str] | None = None) -> Column:
    """Spark's `from_json` as `struct<row, error>`: one of the two is null. For text or bytes; a null is an error.

    Carried out by the JVM. `options` are Spark's for JSON, `mode` and `columnNameOfCorruptRecord` apart, which are used
    here.
    """
    columns = _columns(schema)
    wanted = StructType([*columns.fields, StructField(_CORRUPT, StringType())])
    text = _column(column).cast("string")
    ours = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _CORRUPT}
    parsed = f.from_json(text, wanted, {**(options or {}), **ours})
    error = f.when(text.isNull(), f.lit(_NO_VALUE)).when(
        parsed.isNull() | parsed[_CORRUPT].isNotNull(), f.lit(f"not JSON with the columns {columns.simpleString()}")
    )
    row = f.struct(*(parsed[field.name].alias(field.name) for field in columns.fields))
    return f.struct(f.when(error.isNull(), row).alias("row"), error.alias("error"))


def try_decode(column: Column | str, decode: Callable[[Any], Mapping[str, Any]], schema: StructType | str) -> Column:
    """A Python function's results as `struct<row, error>`: one of the two is null.

    `decode` gets one value (bytes for a record's value, None for a null) and returns a row as a mapping by column name;
    what it raises becomes the error, and so does a result that does not fit `schema`. It runs in Spark's Python
    workers.
    """
    columns = _columns(schema)
    row_type = to_arrow_type(columns, timezone="UTC")

    def tried(values: pa.Array) -> pa.Array:
        return _tried(decode, values, row_type)

    result = StructType([StructField("row", columns), StructField("error", StringType())])
    return _batch_function(tried, result)(_column(column))


def _tried(decode: Callable[[Any], Mapping[str, Any]], values: pa.Array, row_type: pa.StructType) -> pa.Array:
    rows: list[Mapping[str, Any] | None] = []
    errors: list[str | None] = []
    for value in values.to_pylist():
        try:
            row = decode(value)
            pa.array([row], row_type)  # here, so that one that does not fit is this row's error and no other's
        except Exception as error:  # noqa: BLE001 - the decoder is not ours: whatever it raises is what is asked for
            rows.append(None)
            errors.append(f"{type(error).__name__}: {error}"[:ERROR_CHARACTERS_MAX])
        else:
            rows.append(row)
            errors.append(None)
    return pa.StructArray.from_arrays([pa.array(rows, row_type), pa.array(errors, pa.string())], ["row", "error"])


# ------------------------------------------------------------------ setting aside


def or_dead_letter(
    frame: DataFrame,
    tried: str,
    *,
    topic: str,
    dead_letters: str,
    rows: Sequence[Column | str] | None = None,
    key: str = "key",
    value: str = "value",
) -> DataFrame:
    """Rows for the sink without its option `topic`: what was decoded goes to `topic`, the rest as records to
    `dead_letters`.

    `tried`: the column of `frame` that one of the functions above made. `rows`: what is written of a row that was
    decoded; without it the decoded columns, for a typed topic that has them. For a topic of records give it columns key
    and value. `key`, `value`: the columns that a dead letter keeps; `key` may be missing. `frame` must still have the
    source's columns topic, partition, offset and timestamp (of a typed topic: the option includeMetadata). Raises
    `InvalidRequest` for a column that is missing.
    """
    _check(frame, tried, value)
    decoded = f.col(tried)["error"].isNull()
    if rows is None:
        written = frame.select(f"{tried}.row.*")
        good = {name: f.col(tried)["row"][name] for name in written.columns}
    else:
        written = frame.select(*rows)
        good = {name: _column(each) for name, each in zip(written.columns, rows, strict=True)}
    if "topic" in good:
        raise InvalidRequest("column 'topic' is where the rows go: name it otherwise, or let the argument topic say it")
    dead = _letter(frame, tried, key, value)
    chosen = [
        f.when(
            decoded,
            good[name].cast(written.schema[name].dataType) if name not in dead else good[name].cast(_type(name)),
        )
        .otherwise(dead.get(name))
        .alias(name)
        for name in good
    ]
    chosen += [f.when(~decoded, column).alias(name) for name, column in dead.items() if name not in good]
    return frame.select(f.when(decoded, f.lit(topic)).otherwise(f.lit(dead_letters)).alias("topic"), *chosen)


def dead_letters(frame: DataFrame, tried: str, *, key: str = "key", value: str = "value") -> DataFrame:
    """Only the rows that were not decoded, as records: columns key, value, headers. For foreachBatch:

        dead_letters(batch, "order").write.format("tritonmq").mode("append").option("topic", "orders.dead")
            .option("txnAppId", "orders.dead").option("txnVersion", batch_id)...save()

    With the two options it writes nothing twice when the micro-batch runs again. Otherwise as `or_dead_letter`.
    """
    _check(frame, tried, value)
    failed = frame.where(f.col(tried)["error"].isNotNull())
    return failed.select(*(column.alias(name) for name, column in _letter(failed, tried, key, value).items()))


def _check(frame: DataFrame, tried: str, value: str) -> None:
    for name in (tried, value):
        if name not in frame.columns:
            raise InvalidRequest(f"column {name!r} is missing: the rows have {', '.join(frame.columns)}")
    made = frame.schema[tried].dataType
    if not isinstance(made, StructType) or made.fieldNames() != ["row", "error"]:
        raise InvalidRequest(f"column {tried!r} is {made.simpleString()[:100]}: make it by try_from_json or try_decode")


def _letter(frame: DataFrame, tried: str, key: str, value: str) -> dict[str, Column]:
    """Key, value and headers of a dead letter."""
    error = f.col(tried)["error"]
    work = _batch_function(_micro_batch, _WORK)(error)
    facts = {
        "error": error,
        **{place: f.col(_place(frame, place)) for place in _PLACES},
        "query": work["query"],
        "batch": work["batch"],
    }
    headers = f.array(
        *(
            f.struct(f.lit(HEADERS[name]).alias("key"), fact.cast("string").cast("binary").alias("value"))
            for name, fact in facts.items()
        )
    ).cast(_HEADERS_TYPE)
    if "headers" in frame.columns:
        headers = f.concat(f.coalesce(f.col("headers"), f.array().cast(_HEADERS_TYPE)), headers)
    letter = {"value": f.col(value).cast("binary"), "headers": headers}
    return {"key": f.col(key).cast("binary"), **letter} if key in frame.columns else letter


def _micro_batch(errors: pa.Array) -> pa.Array:
    """Which query and micro-batch the task works for, of rows that have an error. Null for what is no stream."""
    context = TaskContext.get()
    found = [
        context.getLocalProperty(name) if context is not None else None
        for name in ("sql.streaming.queryId", "streaming.sql.batchId")
    ]
    return pa.StructArray.from_arrays(
        [pa.repeat(pa.scalar(each, pa.string()), len(errors)) for each in found], ["query", "batch"]
    )


def _place(frame: DataFrame, name: str) -> str:
    """The source's column, of a topic of records or of a typed one."""
    for candidate in (f"_{name}", name):
        if candidate in frame.columns:
            return candidate
    raise InvalidRequest(
        f"column {name!r} is missing, and a dead letter says where it was: keep the source's columns "
        f"{', '.join(_PLACES)} (of a typed topic: option includeMetadata)"
    )


def _batch_function(function: Callable[[pa.Array], pa.Array], result: StructType) -> Callable[[Column], Column]:
    made: Any = arrow_udf(function, result)  # type: ignore[call-overload]  # its stubs know of no struct
    call: Callable[[Column], Column] = made
    return call


def _columns(schema: StructType | str) -> StructType:
    columns = StructType.fromDDL(schema) if isinstance(schema, str) else schema
    if not isinstance(columns, StructType):
        raise InvalidRequest(
            f"schema {str(schema)[:100]!r} is no list of columns: write it as 'id long, amount double'"
        )
    return columns


def _type(name: str) -> str:
    return _HEADERS_TYPE if name == "headers" else "binary"


def _column(column: Column | str) -> Column:
    return f.col(column) if isinstance(column, str) else column
