"""A real Prometheus, of Debian's package, which `make monitoring` unpacks."""

from __future__ import annotations

import json
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mq_dev.embedded_zookeeper import free_port
from mq_dev.local_cluster import HOST
from tests import switch
from tests.deploy.monitoring import program

DEADLINE_S = 90.0


class Prometheus:
    """Owns a Prometheus that scrapes these addresses, with rules as text. It looks every `every_s` seconds."""

    def __init__(self, directory: Path, targets: list[str], rules: str, *, every_s: int = 1) -> None:
        self.port = free_port(HOST)
        (directory / "alerts.yml").write_text(rules)
        config = {
            "global": {"scrape_interval": f"{every_s}s", "evaluation_interval": f"{every_s}s"},
            "rule_files": [str(directory / "alerts.yml")],
            "scrape_configs": [{"job_name": "tritonmq", "static_configs": [{"targets": targets}], **switch.scraped()}],
        }
        path = directory / "prometheus.yml"
        path.write_text(json.dumps(config))
        with (directory / "prometheus.log").open("wb") as log:
            self._process = subprocess.Popen(
                [program("prometheus"), f"--config.file={path}", f"--storage.tsdb.path={directory / 'tsdb'}",
                 f"--web.listen-address={HOST}:{self.port}"],
                stdout=subprocess.DEVNULL, stderr=log,
            )  # fmt: skip

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


def until(what: Callable[[], Any], why: str, deadline_s: float = DEADLINE_S) -> Any:
    deadline = time.monotonic() + deadline_s
    while True:
        try:
            if found := what():
                return found
        except OSError:  # it does not listen yet
            pass
        assert time.monotonic() < deadline, why
        time.sleep(0.3)
