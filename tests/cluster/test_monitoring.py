"""A real Prometheus scrapes three brokers through the death of one: every expression finds data, and alerts fire."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from mq_client import Admin, Consumer, Producer
from mq_dev.local_cluster import LocalCluster
from tests.deploy.monitoring import DIRECTORY, expressions, program, rules
from tests.deploy.prometheus import Prometheus, until

pytestmark = pytest.mark.cluster

ABSENT = {"Links down", "Brokers that do not answer", "Queue groups that stand still"}
"""They are 0 where there is nothing to count."""

OF_SINKS_AND_QUEUES = re.compile("sink|queue_|staged", re.IGNORECASE)


def hurried() -> str:
    """The rules, none of which waits for minutes."""
    return re.sub(r"^( +for: ).*$", r"\g<1>2s", (DIRECTORY / "alerts.yml").read_text(), flags=re.MULTILINE)


@contextmanager
def prometheus(directory: Path, cluster: LocalCluster) -> Iterator[Prometheus]:
    directory.mkdir()
    running = Prometheus(directory, [broker.http for broker in cluster.brokers.values()], hurried())
    try:
        yield running
    finally:
        running.end()


def filled(expression: str) -> str:
    chosen = {"$job": "tritonmq", "$instance": ".*", "$topic": ".*", "$group": ".*", "$__rate_interval": "30s"}
    for name, value in chosen.items():
        expression = expression.replace(name, value)
    return expression


def test_every_panel_shows_something_and_a_killed_broker_raises_its_alerts(tmp_path: Path) -> None:
    program("prometheus")
    with LocalCluster(tmp_path, 3, http=True) as cluster, prometheus(tmp_path / "p", cluster) as running:
        admin = Admin(cluster.bootstrap, timeout_ms=60_000)
        admin.create_topic("t", partitions=3, replicas=3, min_insync_replicas=2)
        with Producer(cluster.bootstrap) as producer, Consumer(cluster.bootstrap, group="g") as consumer:
            consumer.subscribe(["t"])
            consumer.start()
            admin.reset_group("lagging", "t", "earliest")

            def shown(expression: str) -> bool:
                producer.publish("t", value=b"x").result(60)
                return bool(running.ask("query", query=filled(expression))["result"])

            for title, expression in expressions().items():
                if not OF_SINKS_AND_QUEUES.search(expression):
                    until(lambda e=expression: shown(e), f"{title} shows nothing: {expression}")
        assert running.firing() == set()
        loaded = running.ask("rules")["groups"][0]["rules"]
        assert {rule["name"] for rule in loaded} == set(rules())
        assert {rule["health"] for rule in loaded} == {"ok"}

        cluster.kill(3)
        expected = {"BrokerDown", "UnderReplicated"}
        until(lambda: expected <= running.firing(), "the death of a broker raised no alert")
        cluster.kill(2)
        expected = {"UnderMinIsr", "PartitionWithoutLeader"}
        until(lambda: expected <= running.firing(), "two deaths of three raised no alert")
        cluster.restart(2, wait=False)
        cluster.restart(3, wait=False)
        calm = {*expected, "BrokerDown", "UnderReplicated", "LinkDown"}
        until(lambda: not calm & running.firing(), "alerts go on although all brokers are back")
