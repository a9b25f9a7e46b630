"""What alerts are caused in: a cluster of three brokers, one broker with a small disk and one with a slow one, and a
real Prometheus that scrapes all five. Its rules are those of deploy/monitoring with shorter times."""

from __future__ import annotations

import contextlib
import copy
import re
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import yaml

from mq_client import Admin, Producer, TritonMQError
from mq_dev.local_cluster import LocalCluster
from tests.deploy.monitoring import DIRECTORY
from tests.deploy.prometheus import Prometheus, until

FACTOR: Final = 30
"""Times in the rules are shorter by so much: ten minutes are twenty seconds."""

CAUSED_S: Final = 600.0
"""An alert that does not fire within this time was not caused."""

SMALL_DISK: Final = "48m"
_UNITS: Final = {"s": 1, "m": 60, "h": 3600}
_TIMES: Final = re.compile(r"\[(\d+)([smh])\]")
_SECONDS: Final = re.compile(r"(?<![\w.])(300|600|3600)(?![\w.])")


def hurried(document: dict[str, Any]) -> dict[str, Any]:
    """The rules with shorter times: how long they wait, over what they look, and ages in seconds. Shares, percentiles
    and what one sync or tick may last stay as they are."""
    found = copy.deepcopy(document)
    for rule in (rule for group in found["groups"] for rule in group["rules"]):
        expression = _TIMES.sub(lambda time: f"[{int(time[1]) * _UNITS[time[2]] // FACTOR}s]", rule["expr"])
        rule["expr"] = _SECONDS.sub(lambda seconds: str(int(seconds[1]) // FACTOR), expression)
        if "for" in rule:
            rule["for"] = f"{int(rule['for'][:-1]) * _UNITS[rule['for'][-1]] // FACTOR}s"
    return found


class World:
    """Owns the brokers, Prometheus and what publishes in the background."""

    def __init__(self, directory: Path, disk: Path) -> None:
        self.directory = directory
        self.cluster = LocalCluster(directory / "three", 3, http=True)
        self.small = LocalCluster(disk / "cluster", 1, http=True)
        self.slow = LocalCluster(directory / "slow", 1, http=True)
        self.slow.brokers[1].module = "tests.alerts.slow_broker"
        self.prometheus: Prometheus

    @contextlib.contextmanager
    def running(self) -> Iterator[World]:
        with self.cluster, self.small, self.slow:
            clusters = (self.cluster, self.small, self.slow)
            targets = [broker.http for each in clusters for broker in each.brokers.values()]
            rules = yaml.safe_load((DIRECTORY / "alerts.yml").read_text())
            (self.directory / "p").mkdir()
            self.prometheus = Prometheus(self.directory / "p", targets, yaml.safe_dump(hurried(rules)))
            try:
                until(lambda: len(self.prometheus.ask("query", query="up == 1")["result"]) == 5, "not all are scraped")
                yield self
            finally:
                self.prometheus.end()

    def admin(self, cluster: LocalCluster | None = None) -> Admin:
        return Admin((cluster or self.cluster).bootstrap, timeout_ms=120_000)

    def leader(self, topic: str, partition: int) -> int:
        with self.admin() as admin:
            found: int = until(lambda: admin.describe_topic(topic).partitions[partition].leader, "nobody leads")
            return found

    @contextlib.contextmanager
    def publishing(
        self, topic: str, *, size: int = 100, every_s: float = 0.1, cluster: LocalCluster | None = None, **options: Any
    ) -> Iterator[None]:
        """Publish in the background, whatever becomes of it."""
        ending = threading.Event()

        def publish() -> None:
            # What its end says of records that were not sent is no news: their brokers were killed
            with (
                contextlib.suppress(TritonMQError),
                Producer((cluster or self.cluster).bootstrap, timeout_ms=5_000, **options) as producer,
            ):
                while not ending.wait(every_s):
                    with contextlib.suppress(TritonMQError):
                        producer.publish(topic, value=bytes(size))

        thread = threading.Thread(target=publish, name=f"publish {topic}")
        thread.start()
        try:
            yield
        finally:
            ending.set()
            thread.join()

    def seconds_until(self, alert: str, began: float) -> float:
        """Since then, until it fires. Raises `AssertionError` if it does not."""
        until(lambda: alert in self.prometheus.firing(), f"{alert} does not fire", CAUSED_S)
        return time.monotonic() - began

    def calm(self, *alerts: str) -> None:
        """Wait until none of them fires."""
        until(lambda: not set(alerts) & self.prometheus.firing(), f"one of {alerts} goes on firing", CAUSED_S)


@contextlib.contextmanager
def small_disk(directory: Path) -> Iterator[Path]:
    """A file system of `SMALL_DISK`. Whoever runs this must be allowed to mount one."""
    path = directory / "disk"
    path.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={SMALL_DISK}", "tmpfs", str(path)], check=True)
    try:
        yield path
    finally:
        subprocess.run(["umount", str(path)], check=True)


Cause = Callable[[World], "contextlib.AbstractContextManager[None]"]
