"""What the driver says of a write that cannot work, before any task: on a real broker and without Spark."""

from __future__ import annotations

import re
import time

import pytest
from pyspark.sql.types import DecimalType, IntegerType, LongType, StringType, StructType

from mq_client import Admin
from mq_protocol.errors import SchemaMismatch, UnknownTopic
from mq_spark.datasource.source import TritonMQSource
from tests import switch

RECORDS = StructType().add("key", StringType()).add("value", StringType())
FLIGHTS = StructType().add("carrier", StringType()).add("dep_delay", IntegerType()).add("price", DecimalType(9, 2))


def writers(bootstrap: str, columns: StructType, **options: str) -> None:
    """Both writers as Spark makes them on the driver: each is to say the same."""
    source = TritonMQSource({"bootstrap.servers": bootstrap, **options})
    told = []
    for make in (source.writer, source.streamWriter):
        try:
            make(columns, False)
        except (SchemaMismatch, UnknownTopic) as error:
            told.append(error)
    if told:
        assert [str(error) for error in told] == [str(told[0])] * 2
        raise told[0]


OR_NO_RIGHT = "; or you have no right to it: an administrator looks by `tritonmq acl list`"
"""What is told in addition where clients have names: a topic that they may not describe is not there for them."""


def told_of_topics(error: BaseException) -> str:
    """The rest of it."""
    text = str(error)
    assert text.endswith(OR_NO_RIGHT) is switch.is_on()
    return text.removesuffix(OR_NO_RIGHT)


def command(error: BaseException) -> str:
    (found,) = re.findall(r"`(.*)`", told_of_topics(error))
    return str(found)


def test_a_topic_that_is_not_there_is_answered_with_the_command_that_makes_it(
    bootstrap: str, admin: Admin, name: str
) -> None:
    with pytest.raises(UnknownTopic, match=f"unknown topic '{name}': create it first") as caught:
        writers(bootstrap, RECORDS, topic=name)
    assert command(caught.value) == f"tritonmq topic create {name}"


def test_columns_of_the_rows_own_are_in_the_command_and_the_topic_that_it_makes_takes_them(
    bootstrap: str, admin: Admin, name: str
) -> None:
    with pytest.raises(UnknownTopic) as caught:
        writers(bootstrap, FLIGHTS, topic=name)
    found = re.fullmatch(rf"tritonmq topic create {name} --schema '(.*)'", command(caught.value))
    assert found is not None
    admin.create_topic(name, partitions=1, replicas=1, schema=found[1])
    writers(bootstrap, FLIGHTS, topic=name)


@pytest.mark.parametrize("odd", ["it's", "a b"])
def test_names_that_a_shell_would_take_apart_are_quoted(bootstrap: str, odd: str) -> None:
    with pytest.raises(UnknownTopic) as caught:
        writers(bootstrap, StructType().add(odd, LongType()), topic="two words")
    assert command(caught.value) == "tritonmq topic create 'two words' --schema 'NAME TYPE, …'"


def test_a_column_that_does_not_fit_is_named_with_both_types(bootstrap: str, admin: Admin, name: str) -> None:
    admin.create_topic(name, partitions=1, replicas=1, schema="carrier string, dep_delay long")
    with pytest.raises(SchemaMismatch, match=r"column 'carrier' is bigint and topic .* has it as string: cast it"):
        writers(bootstrap, StructType().add("carrier", LongType()), topic=name)


def test_rows_that_name_no_topic_are_refused_and_those_that_do_are_let_through(bootstrap: str, admin: Admin) -> None:
    with pytest.raises(SchemaMismatch, match="no topic is named"):
        writers(bootstrap, RECORDS)
    with pytest.raises(SchemaMismatch, match="column 'topic' is int: make it a string"):
        writers(bootstrap, StructType().add("value", StringType()).add("topic", IntegerType()))
    for name in ("topic", "Topic"):  # Spark tells columns apart without regard to case
        writers(bootstrap, StructType().add("value", StringType()).add(name, StringType()))


def test_a_batch_write_does_not_believe_in_a_topic_that_was_deleted_a_moment_ago(
    bootstrap: str, admin: Admin, name: str
) -> None:
    admin.create_topic(name, partitions=1, replicas=1)
    source = TritonMQSource({"bootstrap.servers": bootstrap, "topic": name})
    source.writer(RECORDS, False)
    admin.delete_topic(name)
    time.sleep(0.1)  # questions about one topic that come closer together than 50 ms share an answer
    with pytest.raises(UnknownTopic, match="create it first"):
        source.writer(RECORDS, False)
