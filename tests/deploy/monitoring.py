"""The alert rules and the dashboard, and the programs that read them."""

from __future__ import annotations

import importlib.util
import os
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

HOME = Path(__file__).parents[2]
DIRECTORY = HOME / "deploy" / "monitoring"
PROGRAMS = HOME / "build" / "prometheus" / "usr" / "bin"


def program(name: str) -> str:
    """Its path. Where it is not there the test is skipped, but `make monitoring` demands it."""
    found = PROGRAMS / name
    if not found.exists():
        message = f"{found.relative_to(HOME)} is not there: `make monitoring` fetches it"
        pytest.fail(message) if os.environ.get("TRITONMQ_TEST_MONITORING") else pytest.skip(message)
    return str(found)


def rules() -> dict[str, dict[str, Any]]:
    """The alert rules by their names."""
    groups = yaml.safe_load((DIRECTORY / "alerts.yml").read_text())["groups"]
    return {rule["alert"]: rule for group in groups for rule in group["rules"]}


def make_dashboard() -> ModuleType:
    """The module that writes the dashboard."""
    spec = importlib.util.spec_from_file_location("make_dashboard", DIRECTORY / "make_dashboard.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def expressions() -> dict[str, str]:
    """Of the dashboard, by the titles of the panels."""
    panels = [panel for row in make_dashboard().ROWS.values() for panel in row]
    return {title: expression for title, _, expression, _ in panels}


def metrics_of(expression: str) -> set[str]:
    """The names in it."""
    return set(re.findall(r"\b(?:tritonmq|process)_\w+|\bup\b", re.sub(r'"[^"]*"', "", expression)))
