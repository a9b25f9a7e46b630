"""A part of a topic as a table: fixed when it is made, read when it is needed, taken by whoever takes Arrow streams."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta

import pandas as pd
import pyarrow as pa
import pyarrow.dataset as ds
import pytest

from mq_client import (
    Admin,
    InvalidRequest,
    InvalidSetting,
    OffsetOutOfRange,
    Producer,
    Reader,
    SchemaMismatch,
    UnknownPartition,
    UnknownTopic,
)


def fill(bootstrap: str, topic: str, partition: int, numbers: range) -> None:
    with Producer(bootstrap) as producer:
        table = pa.table({"n": numbers, "s": [f"s{n}" for n in numbers]})
        producer.publish_batch(topic, table, partition=partition).result(30)


@pytest.fixture
def filled(admin: Admin, bootstrap: str, topic: str) -> str:
    """Three partitions: 0 to 9, 10 to 29 in two batches, none."""
    admin.create_topic(topic, partitions=3, schema="n long, s string")
    fill(bootstrap, topic, 0, range(10))
    fill(bootstrap, topic, 1, range(10, 20))
    fill(bootstrap, topic, 1, range(20, 30))
    return topic


@pytest.fixture
def reader(bootstrap: str) -> Reader:
    return Reader(bootstrap)


def test_a_topic_is_a_table_of_pyarrow_and_of_pandas(filled: str, reader: Reader) -> None:
    rows = reader.rows(filled)
    assert len(rows) == 30
    assert rows.schema == pa.schema([("n", pa.int64()), ("s", pa.string())])
    table = pa.table(rows)
    assert table.schema == rows.schema
    assert table.column("n").to_pylist() == list(range(30))
    assert rows.to_arrow() == table
    frame = rows.to_pandas()
    assert isinstance(frame, pd.DataFrame)
    assert list(frame["s"]) == [f"s{n}" for n in range(30)]
    assert ds.Scanner.from_batches(pa.RecordBatchReader.from_stream(rows)).count_rows() == 30


def test_what_comes_later_is_not_in_it_and_each_read_gives_the_same(
    filled: str, bootstrap: str, reader: Reader
) -> None:
    rows = reader.rows(filled)
    before = rows.to_arrow()
    fill(bootstrap, filled, 0, range(100, 110))
    assert rows.to_arrow() == before
    assert len(rows) == 30
    assert len(reader.rows(filled)) == 40


def test_columns_added_later_are_not_in_it(filled: str, admin: Admin, reader: Reader) -> None:
    rows = reader.rows(filled)
    admin.alter_topic(filled, add_columns="more double")
    assert rows.to_arrow().schema.names == ["n", "s"]
    assert reader.rows(filled).to_arrow().column("more").to_pylist() == [None] * 30


def test_partitions_offsets_columns_and_a_filter_choose(filled: str, reader: Reader) -> None:
    assert reader.rows(filled, partitions=[1]).to_arrow().column("n").to_pylist() == list(range(10, 30))
    picked = reader.rows(filled, start={0: 8, 1: 5}, end={1: 12}, columns=["s"]).to_arrow()
    assert picked.to_pydict() == {"s": ["s8", "s9", *(f"s{n}" for n in range(15, 22))]}
    some = reader.rows(filled, filter="n in (3, 13, 23)", columns=["n"])
    assert len(some) == 3
    assert some.to_arrow().to_pydict() == {"n": [3, 13, 23]}
    assert reader.rows(filled, start="latest").to_arrow() == pa.table({"n": [], "s": []}, schema=some_schema())
    assert len(reader.rows(filled, partitions=[])) == 0


def some_schema() -> pa.Schema:
    return pa.schema([("n", pa.int64()), ("s", pa.string())])


@pytest.mark.parametrize("most", [0, 1, 9, 10, 11, 25, 30, 99])
def test_records_max_is_kept_with_and_without_a_filter(filled: str, reader: Reader, most: int) -> None:
    for text in ("", "n >= 0"):
        rows = reader.rows(filled, records_max=most, filter=text)
        assert rows.to_arrow().column("n").to_pylist() == list(range(min(most, 30)))
        assert len(rows) == min(most, 30)


def test_a_time_is_a_bound(admin: Admin, bootstrap: str, topic: str, reader: Reader) -> None:
    admin.create_topic(topic, schema="n long, s string")
    fill(bootstrap, topic, 0, range(5))
    time.sleep(0.02)  # so that the moment is between the two, in any clock's microseconds
    moment = datetime.now(UTC)
    time.sleep(0.02)
    fill(bootstrap, topic, 0, range(5, 9))
    assert reader.rows(topic, start=moment).to_arrow().column("n").to_pylist() == [5, 6, 7, 8]
    assert reader.rows(topic, end=moment).to_arrow().column("n").to_pylist() == [0, 1, 2, 3, 4]
    assert len(reader.rows(topic, start=moment + timedelta(hours=1))) == 0
    with pytest.raises(InvalidRequest, match="behind"):
        reader.rows(topic, start=moment, end=moment - timedelta(hours=1))
    with pytest.raises(InvalidRequest, match="zone"):
        reader.rows(topic, start=datetime.now())


def test_a_topic_of_records_is_a_table_too(admin: Admin, bootstrap: str, topic: str, reader: Reader) -> None:
    admin.create_topic(topic)
    with Producer(bootstrap) as producer:
        producer.publish(topic, b"one", key="k", headers={"h": b"v"}).result(30)
        producer.publish(topic, None).result(30)
    assert reader.rows(topic, columns=["value", "key"]).to_arrow().to_pydict() == {
        "value": [b"one", None],
        "key": [b"k", None],
    }
    assert len(reader.rows(topic).to_pandas()) == 2


def test_what_makes_no_sense_is_refused_when_it_is_made(filled: str, admin: Admin, reader: Reader) -> None:
    with pytest.raises(UnknownTopic):
        reader.rows(filled + "x")
    with pytest.raises(UnknownPartition):
        reader.rows(filled, partitions=[3])
    with pytest.raises(UnknownPartition, match="partition 2"):
        reader.rows(filled, partitions=[1], start={2: 0})
    with pytest.raises(OffsetOutOfRange, match="no offset 11, its log goes from 0 to 10"):
        reader.rows(filled, end={0: 11})
    with pytest.raises(InvalidRequest, match="behind"):
        reader.rows(filled, partitions=[1], start=9, end=4)
    with pytest.raises(SchemaMismatch, match="no column 'm'"):
        reader.rows(filled, columns=["m"])
    with pytest.raises(InvalidRequest, match=r"give a list of names, \['n'\]"):
        reader.rows(filled, columns="n")
    with pytest.raises(InvalidSetting, match="filter"):
        reader.rows(filled, filter="n >")
    with pytest.raises(InvalidSetting, match="records_max=-1"):
        reader.rows(filled, records_max=-1)
    for place in ("earlyest", -1, True, 1.5, None):
        with pytest.raises(InvalidSetting, match="start="):
            reader.rows(filled, start=place)  # type: ignore[arg-type]
    admin.purge(filled, 0, 5)
    with pytest.raises(OffsetOutOfRange):
        reader.rows(filled, partitions=[0], start=4)


def test_rows_that_are_no_longer_kept_are_an_error_and_not_left_out(filled: str, admin: Admin, reader: Reader) -> None:
    rows = reader.rows(filled)
    admin.purge(filled, 0, 5)
    with pytest.raises(OffsetOutOfRange):
        rows.to_arrow()
    with pytest.raises(Exception, match="not within the log"):  # in Arrow's own words, around ours
        pa.table(rows)


def test_a_topic_that_was_made_again_is_not_taken_for_the_one_that_was_meant(
    filled: str, admin: Admin, bootstrap: str, reader: Reader
) -> None:
    rows = reader.rows(filled)
    admin.delete_topic(filled)
    admin.create_topic(filled, partitions=3, schema="n long, s string")
    for partition in (0, 1):
        fill(bootstrap, filled, partition, range(500, 520))
    with pytest.raises(UnknownTopic):
        rows.to_arrow()


def test_a_notebook_shows_the_first_rows_and_no_markup_of_strangers(
    admin: Admin, bootstrap: str, topic: str, reader: Reader
) -> None:
    admin.create_topic(topic, schema=pa.schema([("<b>", pa.string()), ("bytes", pa.binary()), ("d", pa.date32())]))
    values = pa.table(
        {
            "<b>": ["<script>alert(1)</script>", "x" * 5_000, *"abcdefghij"],
            "bytes": pa.array([b"\xff\x00", "ü".encode() * 500, *[None] * 10], pa.binary()),
            "d": pa.array([0, 2**31 - 1, *[1] * 10], pa.int32()).cast(pa.date32()),
        }
    )
    with Producer(bootstrap) as producer:
        producer.publish_batch(topic, values).result(30)
    html = reader.rows(topic)._repr_html_()
    assert "<script>" not in html
    assert "<b>" not in html
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in html
    assert "0xff00" in html
    assert "x" * 200 + "…" in html
    assert "x" * 201 not in html
    assert "ü" * 200 + "…" in html
    assert "beyond what Python" in html
    assert html.count("<tr>") == 1 + 10
    assert "first 10 rows" in html
    assert "first" not in reader.rows(topic, records_max=2)._repr_html_()
    admin.delete_topic(topic)


def test_a_notebook_is_told_why_there_are_no_rows(filled: str, admin: Admin, reader: Reader) -> None:
    rows = reader.rows(filled, filter="s = '<i>'")
    assert "where s = &#x27;&lt;i&gt;&#x27;" in rows._repr_html_()
    admin.purge(filled)
    assert "OffsetOutOfRange" in rows._repr_html_()


def test_making_one_reads_nothing_and_counting_reads_no_columns(filled: str, reader: Reader) -> None:
    rows, some = reader.rows(filled), reader.rows(filled, filter="n >= 0")
    assert len(rows) == 30
    assert reader.payload_bytes == 0
    assert len(some) == 30
    counted = reader.payload_bytes
    rows.to_arrow()
    assert counted < (reader.payload_bytes - counted) / 2
    assert "30 records (partition and offsets 0: 0 to 10, 1: 0 to 20)" in repr(rows)
