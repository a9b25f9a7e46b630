"""What the data source makes of its clients: no broker is asked anything here."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from mq_spark.datasource import cluster as cluster_module
from mq_spark.datasource.cluster import Cluster, connect
from mq_spark.datasource.manifest import WRITE_PREFIX, MicroBatch
from mq_spark.planning.options import parse_sink


def test_reads_that_go_to_other_replicas_have_clients_of_their_own() -> None:
    options = parse_sink({"bootstrap.servers": "127.0.0.1:1"}, streaming=True)
    asked = [("leader", ""), ("any", ""), ("any", "r1"), ("any", "r2")]
    made = [connect(options, read_from, rack) for read_from, rack in asked]
    assert len({id(cluster) for cluster in made}) == 4
    assert [connect(options, read_from, rack) for read_from, rack in asked] == made


def test_a_tunnel_has_clients_of_its_own_and_the_workers_environment_does_not_count(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TRITONMQ_VIA", "of-the-worker:1")
    given = {"bootstrap.servers": "127.0.0.1:1"}
    made = [connect(parse_sink({**given, **more}, streaming=True)) for more in ({}, {"via": "gateway:7490"})]
    assert [cluster._connection.client.via for cluster in made] == ["", "gateway:7490"]


@pytest.mark.parametrize("once", [True, False])
def test_a_decision_says_whether_its_key_is_for_this_one_alone(once: bool) -> None:
    told: list[Any] = []
    cluster = Cluster("127.0.0.1:1", 1_000)
    cluster._transactions = SimpleNamespace(decide=lambda *_, **options: told.append(options))  # type: ignore[assignment]
    cluster.decide(MicroBatch(f"{WRITE_PREFIX}1" if once else "q", "t", 0, "run"), [], keep_on_mismatch=False)
    assert told == [{"keep_on_mismatch": False, "once": once}]


def test_the_name_of_a_query_stays_where_a_task_does_not_tell_it_and_old_ones_are_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cluster_module, "_LABELS_MAX", 2)
    cluster = Cluster("127.0.0.1:1", 1_000)
    for group, label in (("a", "one"), ("a", ""), ("b", "two"), ("a", "one"), ("c", "three"), ("d", "")):
        cluster.report(group, [], label)
    assert cluster._labels == {"a": "one", "c": "three"}
