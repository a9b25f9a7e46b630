"""Alert rules and dashboard: each alert is seen to fire and not to fire, and every name in them is a metric's."""

from __future__ import annotations

import json
import re
import subprocess

import yaml

from tests.deploy.monitoring import DIRECTORY, HOME, expressions, make_dashboard, metrics_of, program, rules

OF_THE_PROCESS = {"up", "process_start_time_seconds", "process_resident_memory_bytes", "process_cpu_seconds_total"}


def documented() -> set[str]:
    found: set[str] = set()
    for name, kind in re.findall(r"^\| `(\w+)` \| (\w+) \|", (HOME / "docs" / "metrics.md").read_text(), re.MULTILINE):
        found.add(f"tritonmq_{name}_bucket" if kind == "histogram" else f"tritonmq_{name}")
    return found


def test_alerts_and_dashboard_name_only_metrics_that_there_are() -> None:
    known = documented() | OF_THE_PROCESS
    asked = {alert: rule["expr"] for alert, rule in rules().items()} | expressions()
    for what, expression in asked.items():
        assert metrics_of(expression), what
        assert metrics_of(expression) <= known, what


def test_every_alert_has_a_case_that_fires_and_one_that_does_not() -> None:
    cases = yaml.safe_load((DIRECTORY / "alerts_test.yml").read_text())["tests"]
    told = {(each["alertname"], bool(each["exp_alerts"])) for case in cases for each in case["alert_rule_test"]}
    assert told == {(alert, fires) for alert in rules() for fires in (True, False)}


def test_every_alert_says_how_urgent_it_is_and_what_it_is_about() -> None:
    for alert, rule in rules().items():
        assert rule["labels"]["severity"] in ("page", "ticket"), alert
        assert rule["annotations"]["summary"], alert


def test_the_page_for_the_person_on_call_has_a_section_for_every_alert_and_no_other() -> None:
    text = (HOME / "docs" / "on-call.md").read_text()
    assert sorted(re.findall(r"^### (\w+)$", text, re.MULTILINE)) == sorted(rules())


def test_the_dashboard_is_what_its_maker_writes() -> None:
    written = (DIRECTORY / "dashboard.json").read_text()
    assert written == make_dashboard().text(), "run python deploy/monitoring/make_dashboard.py"
    panels = json.loads(written)["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    places = [(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in panels]
    assert len(set(places)) == len(places)


def test_prometheus_takes_the_rules_and_each_fires_as_it_should() -> None:
    for words in (("check", "rules", "alerts.yml"), ("test", "rules", "alerts_test.yml")):
        ran = subprocess.run([program("promtool"), *words], cwd=DIRECTORY, capture_output=True, text=True, check=False)
        assert ran.returncode == 0, ran.stdout + ran.stderr
