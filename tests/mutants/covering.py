"""Which tests run which lines: one run of the tests under `coverage`, a context for each test.

A pytest plugin (`-p tests.mutants.covering`), and the reading of what it left. Lines that run in other processes are
not seen.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import coverage
import pytest

DATA = "TRITONMQ_MUTANTS_DATA"
"""The environment variable that names the folder for what a run leaves."""


class Covering:
    """Owns the measurement of one run of pytest."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._took_s: dict[str, float] = {}
        sources = ["src/mq_broker", "src/mq_client"]
        self._coverage = coverage.Coverage(data_file=str(folder / "coverage"), source=sources, config_file=False)
        self._coverage.start()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self._coverage.switch_context(item.nodeid)
        result: Any = yield
        return result

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.passed:
            self._took_s[report.nodeid] = self._took_s.get(report.nodeid, 0.0) + report.duration
        elif report.failed:
            self._took_s[report.nodeid] = float("inf")

    def pytest_sessionfinish(self) -> None:
        self._coverage.stop()
        self._coverage.save()
        passed = {node: took for node, took in self._took_s.items() if took != float("inf")}
        (self._folder / "took.json").write_text(json.dumps(passed))


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Covering(Path(os.environ[DATA])), "covering")


class Covered:
    """What a run left: asked for the tests of a line."""

    def __init__(self, folder: Path) -> None:
        self._took_s: dict[str, float] = json.loads((folder / "took.json").read_text())
        self._data = coverage.CoverageData(str(folder / "coverage"))
        self._data.read()
        self._contexts: dict[str, dict[int, list[str]]] = {}

    def tests_of(self, file: Path, line: int) -> list[tuple[float, str]]:
        """(seconds, test) of those that passed and ran this line, the quick ones first."""
        path = str(file.resolve())
        if path not in self._contexts:
            self._contexts[path] = self._data.contexts_by_lineno(path)
        nodes = (node for node in self._contexts[path].get(line, []) if node in self._took_s)
        return sorted((self._took_s[node], node) for node in set(nodes))
