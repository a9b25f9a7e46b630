"""What goes wrong at once: bad options, topics that are not there, brokers that are not there. Each within its
deadline."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from mq_client import Admin
from mq_dev.embedded_zookeeper import free_port
from mq_dev.local_cluster import LocalCluster

Name = Callable[[str], str]


def load(spark: SparkSession, **options: Any) -> None:
    reader = spark.readStream.format("tritonmq")
    for option, value in options.items():
        reader = reader.option(option.replace("__", "."), value)
    reader.load()


def test_a_topic_that_is_not_there_is_answered_with_the_nearest_that_is(
    spark: SparkSession, cluster: LocalCluster, admin: Admin, name: Name
) -> None:
    admin.create_topic(name("orders"), partitions=1, replicas=1)
    with pytest.raises(PySparkException, match=f"unknown topic '{name('ordres')}': did you mean '{name('orders')}'"):
        load(spark, bootstrap__servers=cluster.bootstrap, subscribe=name("ordres"))


def test_nobody_listening_is_said_within_the_deadline_and_names_the_address(
    spark: SparkSession, tmp_path: Path
) -> None:
    address = f"127.0.0.1:{free_port('127.0.0.1')}"
    with pytest.raises(PySparkException, match=f"no broker answered within 1000 ms at {address}"):
        load(spark, bootstrap__servers=address, subscribe="t", requestTimeoutMs=1000)
    frame = spark.createDataFrame([("v",)], "value string").write.format("tritonmq").mode("append")
    with pytest.raises(PySparkException, match=f"no broker answered within 1000 ms at {address}"):
        frame.option("bootstrap.servers", address).option("topic", "t").option("requestTimeoutMs", 1000).save()
