"""Columns added to a topic in use: what is stored stays readable, who knows less goes on, who asks is told more."""

from __future__ import annotations

import pyarrow as pa
import pytest

from mq_client import Admin, Consumer, InvalidRequest, Producer, Reader, SchemaMismatch
from mq_client.transactions import StagedPart, TransactionClient
from mq_protocol.sql.ddl import parse_schema

FIRST = "n long NOT NULL, s string"


def table(*numbers: int, **more: object) -> pa.Table:
    return pa.table({"n": list(numbers), "s": [f"s{n}" for n in numbers], **more})


def rows(reader: Reader, topic: str, **wanted: object) -> list[dict[str, object]]:
    return [row for batch in reader.read(topic, 0, **wanted) for row in batch.to_pylist()]  # type: ignore[arg-type]


def test_what_is_stored_has_nulls_and_old_and_new_producers_write_side_by_side(
    admin: Admin, bootstrap: str, topic: str
) -> None:
    admin.create_topic(topic, schema=FIRST)
    with Producer(bootstrap) as old, Producer(bootstrap, compression="zstd") as new, Reader(bootstrap) as reader:
        old.publish_batch(topic, table(0)).result(30)
        altered = admin.alter_topic(topic, add_columns="word string, tags array<string>")
        assert altered.schema == parse_schema(f"{FIRST}, word string, tags array<string>")
        old.publish(topic, {"n": 1}).result(30)
        old.publish_batch(topic, table(2)).result(30)
        new.publish(topic, {"n": 3, "word": "w"}).result(30)
        new.publish_batch(topic, table(4)).result(30)
        old.publish(topic, {"n": 5, "tags": ["a"]}).result(30)
        old.publish_batch(topic, table(6, word=["v"])).result(30)
        found = rows(reader, topic)
        assert [row["n"] for row in found] == list(range(7))
        assert [row["word"] for row in found] == [None, None, None, "w", None, None, "v"]
        assert [row["tags"] for row in found] == [None] * 5 + [["a"], None]
        assert {batch.schema for batch in reader.read(topic, 0)} == {altered.schema}, (
            "all batches of a read have the same columns"
        )


def test_brokers_filter_and_project_batches_that_lack_the_column(admin: Admin, bootstrap: str, topic: str) -> None:
    admin.create_topic(topic, schema=FIRST)
    with Producer(bootstrap, compression="lz4") as producer, Reader(bootstrap) as reader:
        producer.publish_batch(topic, table(0, 1)).result(30)
        assert rows(reader, topic, columns=["n"]) == [{"n": 0}, {"n": 1}]
        admin.alter_topic(topic, add_columns="word string")
        producer.publish_batch(topic, table(2, 3, word=["w", None])).result(30)
        assert rows(reader, topic, columns=["word"]) == [{"word": word} for word in (None, None, "w", None)]
        assert rows(reader, topic, filter="word = 'w'", columns=["n"]) == [{"n": 2}]
        assert rows(reader, topic, filter="NOT word = 'w'") == []
        assert [row["n"] for row in rows(reader, topic, filter="word IS NULL AND n != 1")] == [0, 3]


def test_a_consumer_that_runs_hands_out_columns_that_were_added(admin: Admin, bootstrap: str, topic: str) -> None:
    admin.create_topic(topic, schema=FIRST)
    with Producer(bootstrap) as producer, Consumer(bootstrap, start="earliest") as consumer:
        consumer.subscribe(topic)
        producer.publish(topic, {"n": 0}).result(30)
        first = consumer.take(30_000)
        assert first is not None
        assert first.value == {"n": 0, "s": None}
        admin.alter_topic(topic, add_columns="word string")
        producer.publish(topic, {"n": 1, "word": "w"}).result(30)
        second = consumer.take(30_000)
        assert second is not None
        assert second.value == {"n": 1, "s": None, "word": "w"}


def test_staged_batches_of_any_version_are_published(admin: Admin, bootstrap: str, topic: str) -> None:
    admin.create_topic(topic, schema=FIRST)
    with TransactionClient(bootstrap) as client, Reader(bootstrap) as reader:
        stage = client.open_stage(("q", topic), 0, "run")
        stage.add(topic, 0, table(0))
        before: list[StagedPart] = stage.finish()
        admin.alter_topic(topic, add_columns="word string")
        client.decide(("q", topic), 0, "run", before)
        stage = client.open_stage(("q", topic), 1, "run")
        stage.add(topic, 0, table(1))
        with TransactionClient(bootstrap) as newer:
            client.decide(("q", topic), 1, "run", stage.finish())
            stage = newer.open_stage(("q", topic), 2, "run")
            stage.add(topic, 0, table(2, word=["w"]))
            newer.decide(("q", topic), 2, "run", stage.finish())
        assert [(row["n"], row["word"]) for row in rows(reader, topic)] == [(0, None), (1, None), (2, "w")]


def test_columns_can_be_added_again_and_again(admin: Admin, bootstrap: str, topic: str) -> None:
    admin.create_topic(topic, schema=FIRST)
    with Producer(bootstrap) as oldest, Reader(bootstrap) as reader:
        oldest.publish(topic, {"n": 0}).result(30)
        admin.alter_topic(topic, add_columns="a int")
        with Producer(bootstrap) as middle:
            middle.publish(topic, {"n": 1, "a": 1}).result(30)
            admin.alter_topic(topic, add_columns="b double, c boolean")
            oldest.publish(topic, {"n": 2}).result(30)
            middle.publish(topic, {"n": 3, "a": 3}).result(30)
            middle.publish(topic, {"n": 4, "c": True}).result(30)
        found = [(row["a"], row["b"], row["c"]) for row in rows(reader, topic)]
        assert found == [(None, None, None), (1, None, None), (None, None, None), (3, None, None), (None, None, True)]


def test_what_cannot_be_changed_is_refused_whole(admin: Admin, bootstrap: str, topic: str) -> None:
    admin.create_topic(topic, schema=FIRST)
    admin.create_topic(f"{topic}-records")
    for wrong, remedy in (("x int, n long", "'n' already"), ("x int, y int NOT NULL", "leave NOT NULL out")):
        with pytest.raises(InvalidRequest, match=remedy):
            admin.alter_topic(topic, add_columns=wrong, partitions=2)
    with pytest.raises(InvalidRequest, match=r"holds records.*make a topic with a schema"):
        admin.alter_topic(f"{topic}-records", add_columns="x int")
    described = admin.describe_topic(topic)
    assert (described.schema, len(described.partitions)) == (parse_schema(FIRST), 1)


def test_columns_that_the_topic_was_made_with_must_be_given_still(admin: Admin, bootstrap: str, topic: str) -> None:
    admin.create_topic(topic, schema=FIRST)
    admin.alter_topic(topic, add_columns="word string")
    with Producer(bootstrap) as producer:
        with pytest.raises(SchemaMismatch, match=r"'s' .* is missing"):
            producer.publish_batch(topic, pa.table({"n": [1]}))
        with pytest.raises(SchemaMismatch, match="no column 'wrod'"):
            producer.publish(topic, {"n": 1, "wrod": "w"})
