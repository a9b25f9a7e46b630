"""Columns added by command to a topic in use, while one of three brokers is dead: whoever leads afterwards knows
them."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from mq_client import Producer, Reader
from tests.cluster.harness import Cluster
from tests.mq_cli.processes import tritonmq

pytestmark = pytest.mark.cluster

TOPIC = "rows"


def test_old_and_new_producers_write_and_all_is_read_over_changes_of_leader(
    start_cluster: Callable[..., Cluster],
) -> None:
    cluster = start_cluster(3, arguments=("--session-timeout-ms", "2000"))
    cluster.admin.create_topic(TOPIC, replicas=3, min_insync_replicas=2, schema="n long")
    with Producer(cluster.bootstrap) as old, Producer(cluster.bootstrap) as new:
        old.publish(TOPIC, {"n": 0}).result(30)
        first = cluster.leader(TOPIC)
        cluster.kill(first)
        altered = tritonmq("topic", "alter", TOPIC, "--add-column", "word string", "--bootstrap", cluster.bootstrap)
        assert altered.returncode == 0, altered.stderr.decode()
        assert b"n long, word string" in altered.stdout + altered.stderr
        old.publish(TOPIC, {"n": 1}).result(30)
        new.publish(TOPIC, {"n": 2, "word": "w"}).result(30)
        cluster.restart(first)
        cluster.wait_for_isr(TOPIC, 3)
        cluster.kill(cluster.leader(TOPIC))
        cluster.wait_for_leaders(TOPIC)
        old.publish(TOPIC, {"n": 3}).result(30)
        new.publish(TOPIC, {"n": 4, "word": "v"}).result(30)
    with Reader(cluster.bootstrap) as reader:
        found = [
            row for batch in reader.read(TOPIC, 0, filter="word IS NULL OR word != 'v'") for row in batch.to_pylist()
        ]
        assert found == [{"n": 0, "word": None}, {"n": 1, "word": None}, {"n": 2, "word": "w"}, {"n": 3, "word": None}]
    shown = tritonmq("consume", TOPIC, "--from", "earliest", "--exit-at-end", "--bootstrap", cluster.bootstrap)
    rows = [json.loads(line) for line in shown.stdout.splitlines()]
    assert [(row["n"], row["word"]) for row in rows] == [(0, None), (1, None), (2, "w"), (3, None), (4, "v")]
