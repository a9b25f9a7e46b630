"""Writes dashboard.json for Grafana from the table below: `python deploy/monitoring/make_dashboard.py`.

Every number is of what docs/metrics.md names. A test makes the file anew and compares.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

PATH: Final = Path(__file__).with_name("dashboard.json")

_B: Final = '{job="$job", instance=~"$instance"}'
_T: Final = '{job="$job", topic=~"$topic"}'
_G: Final = '{job="$job", group=~"$group"}'


def _quantile(metric: str, by: str, labels: str = "") -> str:
    selected = f'{{job="$job", instance=~"$instance"{labels}}}'
    return f"histogram_quantile(0.99, sum by ({by}le) (rate(tritonmq_{metric}_bucket{selected}[$__rate_interval])))"


def _rate(metric: str, selected: str, by: str) -> str:
    return f"sum by ({by}) (rate(tritonmq_{metric}{selected}[$__rate_interval]))"


# Row: (title of a panel, unit, expression, legend); in the first row green is 0
ROWS: Final[dict[str, list[tuple[str, str, str, str]]]] = {
    "Is anything wrong": [
        ("Brokers that do not answer", "none", 'count(up{job="$job"} == 0) or vector(0)', ""),
        ("Partitions without a leader", "none", f"max(tritonmq_partitions_without_leader{_B})", ""),
        ("Partitions that refuse writes", "none", f"sum(tritonmq_partitions_under_min_isr{_B})", ""),
        ("Partitions not fully in sync", "none", f"sum(tritonmq_partitions_under_replicated{_B})", ""),
        ("Links down", "none", f"count(tritonmq_link_up{_B} == 0) or vector(0)", ""),
        ("Alarms, last hour", "none", f"sum(increase(tritonmq_alarms_total{_B}[1h]))", ""),
        ("Queue groups that stand still", "none", 'sum(tritonmq_queue_stuck{job="$job"}) or vector(0)', ""),
    ],
    "Traffic": [
        ("Records in", "rps", _rate("topic_records_in_total", _T, "topic"), "{{topic}}"),
        ("Bytes in", "Bps", _rate("topic_bytes_in_total", _T, "topic"), "{{topic}}"),
        ("Bytes out", "Bps", _rate("topic_bytes_out_total", _T, "topic, to"), "{{topic}} {{to}}"),
        ("Batches by outcome", "reqps", _rate("produce_batches_total", _B, "code"), "{{code}}"),
        ("Requests by method", "reqps", _rate("requests_total", _B, "method"), "{{method}}"),
        ("Open streams", "none", f"sum by (method) (tritonmq_streams{_B})", "{{method}}"),
    ],
    "Latency, 99 of 100": [
        ("A batch, until it is answered", "s", _quantile("produce_seconds", "acks, "), "acks {{acks}}"),
        ("Requests", "s", _quantile("request_seconds", "method, "), "{{method}}"),
        ("A sync of a journal", "s", _quantile("fsync_seconds", "instance, ", ', kind="commit"'), "{{instance}}"),
        ("The event loop is late by", "s", _quantile("loop_lag_seconds", "instance, "), "{{instance}}"),
        ("ZooKeeper", "s", _quantile("coordination_request_seconds", "instance, "), "{{instance}}"),
    ],
    "Saturation": [
        (
            "Writer's queue, part of its bound", "percentunit",
            f"tritonmq_writer_queue_bytes{_B} / on (job, instance) tritonmq_writer_queue_bytes_max", "{{instance}}",
        ),
        (
            "Memory for clients, part of its mark", "percentunit",
            f"tritonmq_client_memory_bytes{_B} / on (job, instance) tritonmq_client_memory_bytes_max", "{{instance}}",
        ),
        ("Disk free", "bytes", f"tritonmq_disk_free_bytes{_B}", "{{instance}}"),
        ("Memory", "bytes", f"process_resident_memory_bytes{_B}", "{{instance}}"),
        ("Processor", "none", f"rate(process_cpu_seconds_total{_B}[$__rate_interval])", "{{instance}}"),
    ],
    "Replication": [
        ("Leaders and followers", "none", f"tritonmq_partitions{_B}", "{{instance}} {{role}}"),
        ("Leaderships", "none", f"sum by (event) (increase(tritonmq_leaderships_total{_B}[5m]))", "{{event}}"),
        ("In-sync sets", "none", f"sum by (change) (increase(tritonmq_isr_changes_total{_B}[5m]))", "{{change}}"),
        ("Bytes between brokers", "Bps", _rate("link_bytes_total", _B, "instance, direction"),
         "{{instance}} {{direction}}"),
        ("A replica not heard of for", "s", f"tritonmq_replica_unheard_seconds{_B}", "{{instance}}"),
    ],
    "Groups, queries and queues": [
        ("Lag in seconds", "s", f"max by (group, label, topic) (tritonmq_group_lag_seconds{_G})",
         "{{label}} {{group}} {{topic}}"),
        ("Lag in records", "none", f"sum by (group, label, topic) (tritonmq_group_lag_records{_G})",
         "{{label}} {{group}} {{topic}}"),
        ("Queues: records by state", "none", f"sum by (group, state) (tritonmq_queue_records{_G})",
         "{{group}} {{state}}"),
        (
            "Queues: settled", "rps",
            _rate("queue_settled_total", _G, "group, outcome"), "{{group}} {{outcome}}",
        ),
        ("Queues: oldest ready record", "s", f"max by (group) (tritonmq_queue_oldest_ready_seconds{_G})", "{{group}}"),
    ],
    "Sinks": [
        ("Micro-batches", "reqps", _rate("sink_decisions_total", _B, "outcome"), "{{outcome}}"),
        ("Decided and not published for", "s", f"tritonmq_sink_unpublished_age_seconds{_B}", "{{instance}}"),
        ("Staged batches", "none", f"sum by (topic) (tritonmq_topic_staged_batches{_T})", "{{topic}}"),
    ],
}  # fmt: skip

_VARIABLES: Final = {"job": "up", "instance": "tritonmq_broker_info", "topic": "tritonmq_topic_records",
                     "group": "tritonmq_group_lag_records"}  # fmt: skip


def dashboard() -> dict[str, Any]:
    """The document that Grafana imports."""
    panels: list[dict[str, Any]] = []
    top = 0
    for number, (title, row) in enumerate(ROWS.items()):
        panels.append(
            {
                "type": "row",
                "title": title,
                "id": len(panels) + 1,
                "gridPos": {"x": 0, "y": top, "w": 24, "h": 1},
                "panels": [],
            }
        )
        top += 1
        width, height = (24 // len(row), 4) if number == 0 else (8, 8)
        for place, panel in enumerate(row):
            x, y = (place * width, top) if number == 0 else (place % 3 * width, top + place // 3 * height)
            panels.append(_panel(len(panels) + 1, panel, (x, y, width, height), stat=number == 0))
        top += height if number == 0 else -(-len(row) // 3) * height
    return {
        "title": "TritonMQ",
        "uid": "tritonmq",
        "tags": ["tritonmq"],
        "schemaVersion": 39,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": [{"type": "datasource", "name": "datasource", "query": "prometheus"}, *_variables()]},
        "panels": panels,
    }


def _variables() -> list[dict[str, Any]]:
    source = {"type": "prometheus", "uid": "${datasource}"}
    found = []
    for name, metric in _VARIABLES.items():
        of_job = "" if name == "job" else '{job="$job"}'
        every = {} if name == "job" else {"includeAll": True, "multi": True, "allValue": ".*"}
        query = f"label_values({metric}{of_job}, {name})"
        found.append({"type": "query", "name": name, "datasource": source, "query": query, "refresh": 2, **every})
    return found


def _panel(
    number: int, panel: tuple[str, str, str, str], place: tuple[int, int, int, int], *, stat: bool
) -> dict[str, Any]:
    title, unit, expression, legend = panel
    x, y, width, height = place
    steps = [{"color": "green", "value": None}, {"color": "red", "value": 0.5}]
    thresholds = {"thresholds": {"mode": "absolute", "steps": steps}} if stat else {}
    return {
        "type": "stat" if stat else "timeseries",
        "title": title,
        "id": number,
        "datasource": {"type": "prometheus", "uid": "${datasource}"},
        "gridPos": {"x": x, "y": y, "w": width, "h": height},
        "fieldConfig": {"defaults": {"unit": unit, "min": 0, **thresholds}, "overrides": []},
        "targets": [{"refId": "A", "expr": expression, "legendFormat": legend}],
    }


def text() -> str:
    """The file."""
    return json.dumps(dashboard(), indent=2) + "\n"


if __name__ == "__main__":
    PATH.write_text(text())
