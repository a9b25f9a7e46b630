"""A topic as a table of Spark's catalog: made, read, written and streamed from in SQL."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from mq_client import Admin
from mq_dev.local_cluster import LocalCluster
from tests.spark.harness import Collected


@pytest.fixture
def table(spark: SparkSession) -> Iterator[str]:
    yield "suite_flights"
    spark.sql("DROP TABLE IF EXISTS suite_flights")


def test_a_topic_is_a_table_that_is_read_and_written(
    spark: SparkSession,
    cluster: LocalCluster,
    admin: Admin,
    name: Callable[[str], str],
    table: str,
    run_stream: Callable[[DataFrame], Collected],
) -> None:
    topic = name("flights")
    admin.create_topic(topic, partitions=2, replicas=1, schema="id long, carrier string")
    spark.sql(
        f"CREATE TABLE {table} USING tritonmq OPTIONS (`bootstrap.servers` '{cluster.bootstrap}', subscribe '{topic}', "
        "startingOffsets 'earliest') TBLPROPERTIES ('made.by' = 'the night shift')"
    )
    ids = f"SELECT id FROM {table} ORDER BY id"
    assert spark.sql(ids).collect() == []
    spark.sql(f"INSERT INTO {table} VALUES (1, 'UA'), (2, 'AA')")
    spark.sql(f"INSERT INTO {table} (carrier, id) SELECT 'B6', 3")
    assert [row.id for row in spark.sql(ids).collect()] == [1, 2, 3], "each statement has what is there then"
    assert spark.table(table).where("carrier = 'AA'").count() == 1
    assert sorted(row.id for row in run_stream(spark.readStream.table(table)).rows) == [1, 2, 3]
    spark.sql(f"INSERT INTO {table} VALUES (4, 'UA')")
    assert [row.id for row in run_stream(spark.sql(f"SELECT id FROM STREAM {table}")).rows] == [4]
    with pytest.raises(PySparkException, match="is not possible: a topic is a log"):
        spark.sql(f"INSERT OVERWRITE {table} VALUES (5, 'UA')")
    spark.sql(f"DROP TABLE {table}")
    assert admin.offsets(topic)[0][1] + admin.offsets(topic)[1][1] == 4, "the topic is still there"


def test_a_table_with_a_misspelt_option_or_a_secret_is_refused(
    spark: SparkSession, cluster: LocalCluster, admin: Admin, name: Callable[[str], str], table: str, tmp_path: Path
) -> None:
    create = f"CREATE TABLE {table} USING tritonmq OPTIONS (`bootstrap.servers` '{cluster.bootstrap}', "
    with pytest.raises(PySparkException, match="unknown option 'subscrib': did you mean 'subscribe'"):
        spark.sql(f"{create} subscrib 't')")
