"""Rows that cannot be decoded: sent on with what is known of them, once, and the others are not held up."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from mq_protocol.errors import InvalidRequest
from mq_spark import dead_letters, or_dead_letter, try_decode, try_from_json
from tests.spark.harness import Sinks

ORDERS = "id long, amount double"


@pytest.fixture
def sinks(sinks: Sinks) -> Sinks:
    """With topics for dead letters."""
    sinks.admin.create_topic(sinks.source, partitions=2)
    sinks.admin.create_topic(f"{sinks.topic}.dead", partitions=1)
    return sinks


def publish(sinks: Sinks, *values: bytes, partition: int = 0) -> None:
    for value in values:
        sinks.producer.publish(sinks.source, value, key=b"k", partition=partition).result(timeout=30)


def letters(sinks: Sinks) -> list[dict[str, Any]]:
    """The dead letters: key, value and their headers as text, by partition and offset of where they were."""
    found = [
        {
            "key": row["key"],
            "value": row["value"],
            **{name.removeprefix("tritonmq."): value.decode() for name, value in pairs(row) if value is not None},
        }
        for row in sinks.rows(f"{sinks.topic}.dead")
    ]
    return sorted(found, key=lambda letter: (letter["partition"], letter["offset"]))


def pairs(row: dict[str, Any]) -> list[tuple[str, bytes]]:
    return [(header["key"], header["value"]) for header in row["headers"]]


def number_of(value: bytes | None) -> dict[str, Any]:
    """A decoder as a user has it: two numbers as text."""
    if value is None:
        raise ValueError("nothing there")
    first, second = value.split(b",")
    return {"id": int(first), "amount": float(second)}


def test_rows_that_are_not_json_are_dead_letters_once_over_a_restart_and_the_others_typed_rows(sinks: Sinks) -> None:
    sinks.admin.create_topic(sinks.topic, schema=ORDERS)
    publish(sinks, b'{"id": 1, "amount": 1.5}', b"rubbish", b'{"id": "x", "amount": 2}', partition=0)
    publish(sinks, b'{"id": 2}', b"\xff\xfe", partition=1)
    decoded = sinks.source_stream().withColumn("order", try_from_json("value", ORDERS))
    out = or_dead_letter(decoded, "order", topic=sinks.topic, dead_letters=f"{sinks.topic}.dead")
    sinks.run_stream(out, topic=None)

    assert sorted((row["id"], row["amount"]) for row in sinks.rows()) == [(1, 1.5), (2, None)]
    first = letters(sinks)
    assert [(each["partition"], each["offset"], each["value"], each["key"]) for each in first] == [
        ("0", "1", b"rubbish", b"k"),
        ("0", "2", b'{"id": "x", "amount": 2}', b"k"),
        ("1", "1", b"\xff\xfe", b"k"),
    ]
    (query,) = {each["query"] for each in first}
    metadata = json.loads((sinks.scratch / "checkpoint" / "metadata").read_text())
    assert query == metadata["id"], "the id that the checkpoint keeps"
    assert {each["topic"] for each in first} == {sinks.source}
    assert all("not JSON" in each["error"] and int(each["batch"]) >= 0 and each["timestamp"] for each in first)

    # As after a crash between the decision and Spark's own commit file: the same micro-batch runs again.
    last = max(
        (int(path.name), path) for path in (sinks.scratch / "checkpoint" / "commits").iterdir() if path.name.isdigit()
    )[1]
    last.unlink()
    (last.parent / f".{last.name}.crc").unlink(missing_ok=True)
    publish(sinks, b"more rubbish")
    sinks.run_stream(out, topic=None)
    assert [each["value"] for each in letters(sinks)].count(b"more rubbish") == 1
    assert len(letters(sinks)) == len(first) + 1
    assert len(sinks.rows()) == 2


def test_a_python_decoders_errors_are_told_and_its_rows_can_be_records_again(sinks: Sinks) -> None:
    """Of a batch read: which micro-batch and query it was, nobody says."""
    sinks.admin.create_topic(sinks.topic)
    publish(sinks, b"1,1.5", b"one,2", b"3", b"4,4")
    read = sinks.spark.read.format("tritonmq").option("bootstrap.servers", sinks.bootstrap)
    decoded = read.option("subscribe", sinks.source).load().withColumn("order", try_decode("value", number_of, ORDERS))
    sinks.write(decoded.where("order.error is null").select("key", f.to_json("order.row").alias("value")))
    sinks.write(dead_letters(decoded, "order"), topic=f"{sinks.topic}.dead")
    assert sinks.values() == [b'{"id":1,"amount":1.5}', b'{"id":4,"amount":4.0}']
    assert [each["error"] for each in letters(sinks)] == [
        "ValueError: invalid literal for int() with base 10: b'one'",
        "ValueError: not enough values to unpack (expected 2, got 1)",
    ]


def test_a_result_that_does_not_fit_is_that_rows_error_only(spark: SparkSession) -> None:
    rows = spark.createDataFrame([("1",), (None,), ("x",)], "value string")
    tried = rows.select(
        try_decode("value", lambda value: {"id": value if value == "x" else 7}, "id long").alias("t")
    ).collect()
    assert [(row.t.row and row.t.row.id, row.t.error is None) for row in tried] == [(7, True), (7, True), (None, False)]
    json_tried = rows.select(try_from_json("value", "id long").alias("t")).collect()
    assert json_tried[1].t.error == "there is no value"


def test_what_is_missing_is_named(spark: SparkSession) -> None:
    rows = spark.createDataFrame([("1",)], "value string").withColumn("t", try_from_json("value", "id long"))
    with pytest.raises(InvalidRequest, match=r"column 'topic' is missing.*includeMetadata"):
        dead_letters(rows, "t")
    with pytest.raises(InvalidRequest, match="column 'nothing' is missing"):
        dead_letters(rows, "nothing")
    with pytest.raises(InvalidRequest, match="try_from_json or try_decode"):
        dead_letters(rows.withColumn("t", f.lit(1)), "t")
