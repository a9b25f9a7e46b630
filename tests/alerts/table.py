"""What `make alerts` writes: tests/ALERTS.md. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from tests.alerts.causes import ACTS, NOT_CAUSED
from tests.alerts.world import FACTOR
from tests.deploy.monitoring import rules

HEAD: Final = f"""# Alerts, each caused once

`make alerts` writes this page. It runs three brokers, one with a small disk, one with a slow one, and a real Prometheus
that scrapes all of them each second. It causes each alert of `deploy/monitoring/alerts.yml` and waits until it fires.
[On call](../docs/on-call.md) says what to do then.

The rules are the same with shorter times: what they wait, what they look back on and ages in seconds are divided by
{FACTOR}, so ten minutes are {600 // FACTOR} seconds. Shares, percentiles and what one sync may last are as they are.
*Seconds* are from the beginning of the cause, in one run of each cause on a shared machine. *Waits* is the rule's own
`for`, not shortened. Alerts of one cause are waited for in turn, so a later one may have fired before.

| alert | severity | waits | caused by | seconds |
|---|---|---|---|---|
"""


def page(took_s: Mapping[str, float]) -> str:
    """The whole page. `took_s`: of those that fired."""
    said = {alert: act.said for act in ACTS for alert in act.alerts}
    lines = []
    for alert, rule in rules().items():
        if alert in took_s:
            caused = f"{said[alert]} | {took_s[alert]:.0f}"
        elif alert in NOT_CAUSED:
            caused = f"not caused: {NOT_CAUSED[alert]} | -"
        else:
            caused = f"**it did not fire**: {said[alert]} | -"
        lines.append(f"| `{alert}` | {rule['labels']['severity']} | {rule.get('for', '-')} | {caused} |\n")
    return HEAD + "".join(lines)


def told(text: str) -> dict[str, float]:
    """The seconds on a page, of those that fired."""
    return {
        alert: float(seconds) for alert, seconds in re.findall(r"^\| `(\w+)` \| .+ \| (\d+) \|$", text, re.MULTILINE)
    }
