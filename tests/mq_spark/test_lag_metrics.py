"""The lag of queries: asked by name at a real broker, and metrics of a listener in the driver. No Spark runs here."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from mq_client import Admin, InvalidRequest, InvalidSetting, Producer, UnknownGroup
from mq_client.cluster.connection import Connection
from mq_client.cluster.deadline import Deadline
from mq_client.cluster.requests import move_cursors
from mq_dev.local_cluster import LocalCluster
from mq_spark import LagListener, lag_of


@pytest.fixture(scope="module")
def bootstrap(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Queries by the groups that their tasks would tell of: all have read 3 of 10 records of topics t and u."""
    groups = {
        "spark-1-a": ("orders", "tu"),
        "spark-2-b": ("twice", "t"),
        "spark-3-c": ("twice", "t"),
        "named": ("", "t"),
    }
    with LocalCluster(tmp_path_factory.mktemp("lag")) as running:
        with Admin(running.bootstrap) as admin, Producer(running.bootstrap) as producer:
            for topic in "tu":
                admin.create_topic(topic)
                for number in range(10):
                    producer.publish(topic, b"%d" % number).result(30)
        for group, (label, topics) in groups.items():
            places = {topic: {0: 3} for topic in topics}
            connection = Connection(running.bootstrap)
            move_cursors(connection, group, places, Deadline(20_000), kind="spark", label=label)
        yield running.bootstrap


def test_a_query_is_asked_for_by_its_name_or_its_groups_name(bootstrap: str) -> None:
    found = lag_of("orders", bootstrap)
    assert (found.query_id, found.name, found.group, found.run_id) == ("1-a", "orders", "spark-1-a", "")
    assert [(topic.topic, topic.records) for topic in found.topics] == [("t", 7), ("u", 7)]
    assert (found.running, found.batch_id) == (None, -1)
    assert "ended" not in found._repr_html_()
    assert lag_of("named", bootstrap).records == 7
    with pytest.raises(UnknownGroup, match=r"did you mean 'orders'.*first micro-batch"):
        lag_of("order", bootstrap)
    with pytest.raises(InvalidRequest, match=r"2 queries are called 'twice'.*spark-2-b, spark-3-c"):
        lag_of("twice", bootstrap)


@pytest.mark.parametrize("progress", [None, SimpleNamespace(batchId=4)])
def test_a_query_is_found_by_its_id(bootstrap: str, progress: Any) -> None:
    query: Any = SimpleNamespace(id="1-a", runId="r", name="orders", isActive=True, lastProgress=progress)
    found = lag_of(query, bootstrap)
    assert (found.group, found.records, found.run_id, found.running) == ("spark-1-a", 14, "r", True)
    assert found.batch_id == (-1 if progress is None else 4)


def test_a_registry_takes_one_listener_at_a_time() -> None:
    registry, nobody = CollectorRegistry(), f"{uuid.uuid4().hex}.invalid:1"
    with LagListener(nobody, registry=registry), pytest.raises(ValueError, match="Duplicated"):
        LagListener(nobody, registry=registry)
    with pytest.raises(InvalidSetting):
        LagListener("no address", registry=registry)
    LagListener(nobody, registry=registry).close()
    assert generate_latest(registry) == b"", "a listener that is closed leaves nothing"
