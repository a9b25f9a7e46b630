"""A real Prometheus scrapes three brokers through the death of one: every expression finds data, and alerts fire."""

from __future__ import annotations

import json
import re
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from mq_client import Admin, Consumer, Producer
from mq_dev.embedded_zookeeper import free_port
from mq_dev.local_cluster import HOST, LocalCluster
from tests.deploy.monitoring import DIRECTORY, expressions, program, rules

pytestmark = pytest.mark.cluster

DEADLINE_S = 90.0
ABSENT = {"Links down", "Brokers that do not answer", "Queue groups that stand still"}
"""They are 0 where there is nothing to count."""

OF_SINKS_AND_QUEUES = re.compile("sink|queue_|staged", re.IGNORECASE)


class Prometheus:
    """Owns a Prometheus that scrapes these addresses each second."""

    def __init__(self, directory: Path, targets: list[str]) -> None:
        self.port = free_port(HOST)
        config = {
            "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
            "rule_files": [str(self._hurried(directory))],
            "scrape_configs": [{"job_name": "tritonmq", "static_configs": [{"targets": targets}]}],
        }
        path = directory / "prometheus.yml"
        path.write_text(json.dumps(config))
        with (directory / "prometheus.log").open("wb") as log:
            self._process = subprocess.Popen(
                [program("prometheus"), f"--config.file={path}", f"--storage.tsdb.path={directory / 'tsdb'}",
                 f"--web.listen-address={HOST}:{self.port}"],
                stdout=subprocess.DEVNULL, stderr=log,
            )  # fmt: skip

    def _hurried(self, directory: Path) -> Path:
        """The rules, none of which waits for minutes."""
        path = directory / "alerts.yml"
        path.write_text(
            re.sub(r"^( +for: ).*$", r"\g<1>2s", (DIRECTORY / "alerts.yml").read_text(), flags=re.MULTILINE)
        )
        return path

    def ask(self, page: str, **parameters: str) -> Any:
        url = f"http://{HOST}:{self.port}/api/v1/{page}?{urllib.parse.urlencode(parameters)}"
        with urllib.request.urlopen(url, timeout=10) as answer:
            return json.load(answer)["data"]

    def firing(self) -> set[str]:
        """The alerts that fire now."""
        return {each["labels"]["alertname"] for each in self.ask("alerts")["alerts"] if each["state"] == "firing"}

    def end(self) -> None:
        self._process.terminate()
        self._process.wait(20)


@contextmanager
def prometheus(directory: Path, cluster: LocalCluster) -> Iterator[Prometheus]:
    directory.mkdir()
    running = Prometheus(directory, [broker.http for broker in cluster.brokers.values()])
    try:
        yield running
    finally:
        running.end()


def until(what: Callable[[], Any], why: str) -> Any:
    deadline = time.monotonic() + DEADLINE_S
    while True:
        try:
            if found := what():
                return found
        except OSError:  # it does not listen yet
            pass
        assert time.monotonic() < deadline, why
        time.sleep(0.3)


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
        until(lambda: "UnderMinIsr" in running.firing(), "two deaths of three raised no alert")
        cluster.restart(2, wait=False)
        cluster.restart(3, wait=False)
        calm = {*expected, "UnderMinIsr", "PartitionWithoutLeader", "LinkDown"}
        until(lambda: not calm & running.firing(), "alerts go on although all brokers are back")
